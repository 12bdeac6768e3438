"""The words of stories about queues: how a line is read, and how entries of the ledger are told."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.engine.queues import entries
from penstock.engine.queues.window import Run
from penstock.quantities import parse_duration_ms


class Words(NamedTuple):
    """What follows a verb: `ack 0-1 delay=5s`."""

    plain: list[str]
    options: dict[str, str]

    @classmethod
    def of(cls, words: Iterable[str]) -> "Words":
        plain: list[str] = []
        options: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                options[name] = value
            else:
                plain.append(word)
        return cls(plain, options)

    def ms(self, name: str) -> int | None:
        return parse_duration_ms(self.options[name]) if name in self.options else None

    def number(self, default: int) -> int:
        return int(self.plain[0]) if self.plain else default

    def runs(self) -> list[Run]:
        return [Run(int(first), int(last or first)) for first, _, last in (word.partition("-") for word in self.plain)]


def at(moment_ms: int | None) -> str:
    return "-" if moment_ms is None else f"{moment_ms / 1000:g}s"


def format_run(run: Run) -> str:
    return str(run.first) if run.first == run.last else f"{run.first}-{run.last}"


def format_runs(runs: Iterable[Run]) -> str:
    return " ".join(map(format_run, runs))


def format_value(value: entries.Value) -> str:  # noqa: C901 - one case for each kind of entry
    match value:
        case entries.Opened():
            return f"opened {value.name} at {value.start}" + (f", next {value.next}" if value.is_saved else "")
        case entries.Leased():
            bound = " bound" if value.is_bound else ""
            return f"leased {format_runs(value.runs)}{bound}, lease {value.lease_id}, until {at(value.deadline)}"
        case entries.Settled():
            return f"settled {format_runs(value.runs)} {value.how.name.lower()}"
        case entries.SettledIn():
            return f"settled {format_runs(value.runs)} if {value.producer_id} commits"
        case entries.Returned():
            said = ["failed"] * value.attempts + ["shaken"] * value.is_shaken + ["unread"] * value.is_unread
            due = [f"due {at(value.due)}"] if value.due else []
            return " ".join(["returned", format_runs(value.runs), *said, *due])
        case entries.Renewed():
            return f"renewed {format_runs(value.runs)}, lease {value.lease_id}, until {at(value.deadline)}"
        case entries.Dying():
            failed = ", failed" * value.attempts
            reason = f" ({value.reason})" if value.reason else ""
            return f"dying {format_runs(value.runs)} {value.cause.name.lower()}{reason}{failed}"
        case entries.Burying():
            return f"burying {format_runs(value.runs) or 'nothing'}"
        case entries.Moved():
            return f"moved{' anew' * value.is_anew} to {value.start}"
        case entries.Deleted():
            return "deleted"
        case entries.Led():
            end = f", messages end at {value.data_end}" if value.data_end < 1 << 60 else ""
            return f"led in epoch {value.epoch}{end}"
        case entries.ChunkSaved():
            return f"messages from {value.base} on"
        case entries.Restored():
            return "restored"
