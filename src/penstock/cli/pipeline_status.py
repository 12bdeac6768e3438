"""What is known of pipelines, from the files they keep: plain values for scripts, and the tables made of them."""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli.failure import CommandError
from penstock.cli.output import note, note_none, print_fields, print_table

if TYPE_CHECKING:
    from penstock.pipelines.driver.presence import Driver
    from penstock.pipelines.home import Holder, Home, Status, Wanted

DIED: Final = "died"
NEW: Final = "new"
_REASON_CHARS: Final = 80


class Seen(NamedTuple):
    """A pipeline at a glance.

    `state` is that of its status, `died` where the process is gone that wrote it, `new` where nobody has run it yet.
    """

    name: str
    state: str
    reason: str
    status: "Status | None"
    wanted: "Wanted | None"
    holder: "Holder | None"
    at_ms: int

    @property
    def is_at_work(self) -> bool:
        return self.state in ("starting", "running", "waiting", "stopping")


def see(home: "Home", name: str) -> Seen:
    """Raises `PipelineError` for damaged files."""
    from penstock.pipelines.home.status import now_ms

    directory = home.pipeline(name)
    wanted = directory.load_wanted()
    while True:
        status, holder = directory.load_status(), directory.holder()
        now = now_ms()
        if status is None:
            return Seen(name, NEW, "", None, wanted, holder, now)
        if status.state.has_ended or holder is not None or _is_begun(home, status):
            known = status.without_lag() if status.state.has_ended else status
            return Seen(name, status.state.value, status.reason, known, wanted, holder, now)
        if directory.load_status() == status:
            break  # else it has ended between the two looks
    reason = (
        f"process {status.pid} ended while the pipeline was {status.state.value}; what was written is whole, and "
        f"'penstock pipeline start {status.file or 'FILE'}' goes on from there"
    )
    return Seen(name, DIED, reason, status.without_lag(), wanted, holder, now)


def _is_begun(home: "Home", status: "Status") -> bool:
    """Whether the driver is about to run it: the one time that nobody holds a pipeline whose status is not the end."""
    from penstock.pipelines.driver.presence import Presence
    from penstock.pipelines.home import State

    if status.state is not State.STARTING:
        return False
    driver = Presence(home).holder()
    return driver is not None and driver.pid == status.pid


def find_name(home: "Home", word: str) -> str:
    """The pipeline that is called so, or was started from that file. Raises `CommandError`."""
    names = home.names()
    if word in names:
        return word
    if os.path.isfile(word):
        return _find_by_file(home, names, os.path.abspath(word))
    import difflib

    close = difflib.get_close_matches(word, names, n=1)
    known = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}" if names else "there is none yet"
    raise CommandError(f"no pipeline {word!r} in {home.path}; {known}")


def _find_by_file(home: "Home", names: Iterable[str], file: str) -> str:
    from contextlib import suppress

    from penstock.pipelines.errors import PipelineError

    for name in names:
        with suppress(PipelineError):
            directory = home.pipeline(name)
            wanted, status = directory.load_wanted(), directory.load_status()
            if file in (wanted.file if wanted else "", status.file if status else ""):
                return name
    from pathlib import Path

    from penstock.cli.pipeline_home import read_spec

    name = read_spec(Path(file)).name
    if name not in names:
        raise CommandError(f"pipeline {name} of {file} has not been run in {home.path} yet")
    return home.claim(name, file).name


def format_seen(seen: Seen) -> dict[str, Any]:
    """All that is known, for scripts."""
    facts = seen.status.to_json() if seen.status else {"pipeline": seen.name}
    updated_ms = seen.status.updated_ms if seen.status else 0
    return {
        **facts,
        "state": seen.state,
        "reason": seen.reason,
        "wanted": seen.wanted.state.value if seen.wanted else None,
        "silent_s": round((seen.at_ms - updated_ms) / 1000, 1) if updated_ms else None,
    }


def print_seen(facts: Mapping[str, Any]) -> None:
    """One pipeline for people."""
    name = facts["pipeline"]
    if "pid" not in facts:
        print_fields({"state": "nobody has run it yet", "wanted": facts["wanted"]}, title=name)
        return
    at_work = facts["state"] not in ("stopped", "finished", "failed", DIED)
    fields: dict[str, object] = {
        "state": facts["state"],
        "reason": facts["reason"] or None,
        "updated": f"{format_span(facts['silent_s'])} ago" if facts["silent_s"] is not None else None,
        "process": facts["pid"] if at_work else None,
        "master": facts["master"] or None,
        "file": facts["file"] or None,
        "batch": None if facts["batch"] < 0 else f"{facts['batch']} in {facts['batch_s']:.2f} s",
        "rows": f"{facts['rows']:,}",
        "rate": f"{facts['rows_per_s']:,.0f} rows/s" if at_work else None,
        "lag": "unknown" if facts["lag"] is None else f"{facts['lag']:,} rows",
        "dead letters": f"{facts['dead_letters']:,}",
        "restarts": facts["restarts"],
        "watermark": facts["watermark"] or None,
    }
    kept = ("state", "rows", "lag", "dead letters")
    print_fields({key: value for key, value in fields.items() if value is not None or key in kept}, title=name)
    _print_parts(facts)


def _print_parts(facts: Mapping[str, Any]) -> None:
    if facts["sources"]:
        click.echo()
        rows = [
            [name, f"{each['rows']:,}", f"{each['rows_per_s']:,.0f}", _lag(each), each["trouble"]]
            for name, each in facts["sources"].items()
        ]
        print_table(rows, ["source", "rows", "rows/s", "lag", "trouble"])
    if facts["steps"]:
        click.echo()
        steps = [
            [
                name,
                _count(each["rows"]),
                ", ".join(f"{what or 'not decoded'}: {count:,}" for what, count in each["failed"].items()),
            ]
            for name, each in facts["steps"].items()
        ]
        print_table(steps, ["step", "rows", "broken expectations"])
    if facts["sinks"]:
        click.echo()
        sinks = [
            [
                name,
                each["kind"],
                f"{each['rows']:,}",
                f"{each['rows_per_s']:,.0f}",
                f"{each['rejected']:,}",
                each["trouble"],
            ]
            for name, each in facts["sinks"].items()
        ]
        print_table(sinks, ["sink", "kind", "rows", "rows/s", "rejected", "trouble"])


def print_list(found: Iterable[Mapping[str, Any]], driver: "Driver | None") -> None:
    """A row for each pipeline, and whether the driver is up."""
    rows = [
        [
            each["pipeline"],
            each["state"],
            _rate(each),
            (_count(each["lag"]) or "unknown") if "lag" in each else None,
            _count(each.get("dead_letters")),
            f"{format_span(each['silent_s'])} ago" if each["silent_s"] is not None else None,
            _clip(each["reason"]),
        ]
        for each in found
    ]
    if rows:
        print_table(rows, ["pipeline", "state", "rows/s", "lag", "dead letters", "updated", "reason"])
    else:
        note_none("pipelines", way_out="'penstock pipeline start FILE' starts one")
    if driver is not None:
        note(f"driver: process {driver.pid} on {driver.master}, health and metrics at http://{driver.http}")


def format_span(seconds: float) -> str:
    """`7 s`, `12 min`, `3 h 20 min`, `5 d 2 h`: as exact as a person cares."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def _rate(facts: Mapping[str, Any]) -> str | None:
    return f"{facts['rows_per_s']:,.0f}" if facts["state"] == "running" else None


def _lag(source: Mapping[str, Any]) -> str | None:
    """Files have none; of a topic it may be unknown."""
    return _count(source["lag"]) or ("unknown" if source["trouble"] else None)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _clip(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _REASON_CHARS else f"{line[: _REASON_CHARS - 1]}…"
