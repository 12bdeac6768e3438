"""What a source or step says of its rows: what must hold for each of them, and how late they may be."""

import re
from collections.abc import Iterator
from typing import Final

from penstock.pipelines.model import Action, Expectation, Watermark
from penstock.pipelines.spec import tables
from penstock.pipelines.spec.tree import Entry, Findings, Items, Leaf, Table, describe, is_lost, is_nothing, shorten
from penstock.pipelines.spec.values import Wrong, parse_duration, read_options

_UNITS: Final = "microsecond|millisecond|second|minute|hour|day|week|month|year"
_INTERVAL: Final = re.compile(rf"(?:interval\s+)?(\d+\s+(?:{_UNITS})s?(?:\s+\d+\s+(?:{_UNITS})s?)*)", re.IGNORECASE)


def read_watermark(entry: Entry | None, owner: str, findings: Findings) -> Watermark | None:
    if entry is None or is_lost(entry.value):
        return None
    if not isinstance(entry.value, Table):
        findings.add(
            entry.place,
            f"{owner}: `watermark` must be as {{column: at, delay: 10 minutes}}; it is {describe(entry.value)}",
        )
        return None
    values, places = read_options(entry.value, tables.WATERMARK, f"{owner}: watermark", findings)
    if values["column"] is None or values["delay"] is None:
        return None
    delay = _read_interval(values["delay"])
    if delay is None:
        findings.add(
            places["delay"],
            f"{owner}: watermark: `delay` must be as 10 minutes, or 10m; it is {shorten(values['delay'])}",
        )
    return Watermark(values["column"], delay or "")


def _read_interval(text: str) -> str | None:
    """An SQL interval, also of a duration as `10m`."""
    if found := _INTERVAL.fullmatch(text.strip()):
        return " ".join(found[1].split())
    try:
        milliseconds = round(parse_duration(text.strip()) * 1000)
    except Wrong:
        return None
    if milliseconds < 0:
        return None
    return f"{milliseconds} milliseconds" if milliseconds % 1000 else f"{milliseconds // 1000} seconds"


def read_expectations(entry: Entry | None, owner: str, findings: Findings) -> Iterator[Expectation]:
    """A list of tables; or a map from names to predicates, or to tables without `name`."""
    if entry is None or is_lost(entry.value):
        return
    names: set[str] = set()
    if isinstance(entry.value, Table):
        for each in entry.value.entries:
            yield from _read_short(each, owner, findings)
        return
    if not isinstance(entry.value, Items):
        findings.add(
            entry.place, f"{owner}: `expect` must be as {{NAME: PREDICATE}}, or a list; it is {describe(entry.value)}"
        )
        return
    for node in entry.value.nodes:
        if not isinstance(node, Table):
            findings.add(
                node.place, f"{owner}: an expectation must be as {{name: ..., that: ...}}; it is {describe(node)}"
            )
            continue
        values, places = read_options(node, tables.EXPECTATION, f"{owner}: expectation", findings)
        name = values["name"]
        if name in names:
            findings.add(places["name"], f"{owner}: the expectation {shorten(name)} is there twice; rename one")
        names.add(name)
        if name and values["that"]:
            yield Expectation(name, values["that"], Action(values["otherwise"]), node.place)


def _read_short(entry: Entry, owner: str, findings: Findings) -> Iterator[Expectation]:
    what = f"{owner}: expectation {shorten(entry.key)}"
    if is_lost(entry.value):
        return
    if isinstance(entry.value, Table):
        values, _ = read_options(entry.value, tables.EXPECTATION[1:], what, findings)
        if values["that"]:
            yield Expectation(entry.key, values["that"], Action(values["otherwise"]), entry.place)
    elif not isinstance(entry.value, Leaf) or is_nothing(entry.value) or not entry.value.text.strip():
        findings.add(entry.place, f"{what}: must be an SQL predicate; it is {describe(entry.value)}")
    else:
        yield Expectation(entry.key, entry.value.text, Action.QUARANTINE, entry.place)
