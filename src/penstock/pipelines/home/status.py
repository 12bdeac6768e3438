"""How a pipeline does, as numbers. Counts are totals since its identity was made: they go on after a restart."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, Self


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """Something is away; it is tried again."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    """It was to run once, and did."""
    FAILED = "failed"

    @property
    def has_ended(self) -> bool:
        return self in _ENDED


_ENDED: Final = frozenset({State.STOPPED, State.FINISHED, State.FAILED})


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """`lag`: rows that are there and not read yet; None where nobody can tell. `trouble`: why its brokers are waited
    for, or ""."""

    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class StepStatus:
    """`rows` of its output, None where nobody counts them; `failed`: how many rows broke each expectation."""

    rows: int | None = None
    failed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """`rejected`: rows it refused, which went to the dead letters; `trouble`: why it is waited for, or ""."""

    kind: str
    rows: int = 0
    rows_per_s: float = 0.0
    rejected: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """One pipeline.

    Attributes:
        reason: why it is in this state, "" where there is nothing to say.
        query: Spark's id of the query, kept in the checkpoint.
        batch: the last micro-batch that was written, -1 before the first.
        batch_s: how long that took.
        lag: of all topics; None where that of one is not known.
        restarts: how often trouble was waited for and the query begun again.
    """

    pipeline: str
    state: State
    reason: str = ""
    pid: int = 0
    master: str = ""
    file: str = ""
    started_ms: int = 0
    updated_ms: int = 0
    query: str = ""
    batch: int = -1
    batches: int = 0
    batch_s: float = 0.0
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    dead_letters: int = 0
    restarts: int = 0
    watermark: str = ""
    stateful: bool = False
    sources: Mapping[str, SourceStatus] = field(default_factory=dict)
    steps: Mapping[str, StepStatus] = field(default_factory=dict)
    sinks: Mapping[str, SinkStatus] = field(default_factory=dict)

    def without_lag(self) -> Self:
        """For a pipeline that is not at work: nobody looks any more what there is to read."""
        sources = {name: replace(each, lag=None, trouble="") for name, each in self.sources.items()}
        return replace(self, lag=None, sources=sources)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Fields that are missing have their defaults, and unknown ones are passed over: a later release may add some.

        Raises:
            KeyError, TypeError, ValueError: it is no status.
        """
        known = _known(cls, body)
        known["state"] = State(known["state"])
        for name, kind in _PARTS.items():
            known[name] = {each: kind(**_known(kind, part)) for each, part in known.get(name, {}).items()}
        return cls(**known)


_PARTS: Final[dict[str, Any]] = {"sources": SourceStatus, "steps": StepStatus, "sinks": SinkStatus}


def _known(kind: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: body[each.name] for each in fields(kind) if each.name in body}


def now_ms() -> int:
    return time.time_ns() // 1_000_000
