"""Whether a log is worth a pass, and over which segments: Kafka's rules, on numbers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FOR_EVER_MS = (1 << 63) - 1


class Sealed(Protocol):
    """A segment, as far as these rules look at it."""

    @property
    def base(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int:
        """-1 if no record has one."""
        ...


S = TypeVar("S", bound=Sealed)


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    segments: tuple[S, ...]
    """All from the log's first one on."""
    dirty_from: int
    until: int
    clean_bytes: int
    dirty_bytes: int


def plan(
    segments: Sequence[S],
    *,
    dirty_from: int,
    stable_end: int,
    active_base: int,
    now_ms: int,
    min_dirty_ratio: float,
    min_lag_ms: int = 0,
    max_lag_ms: int = FOR_EVER_MS,
    oldest_dirty_ms: int = -1,
) -> Plan[S] | None:
    """The pass that is due, if one is.

    Args:
        segments: of the log, oldest first and contiguous; those from `active_base` on are never touched.
        dirty_from: where the last pass ended.
        stable_end: the last stable offset; above it transactions are undecided.
        min_lag_ms: a segment with a younger record has to wait, and all behind it.
        max_lag_ms: dirty records older than this are a reason by themselves, however few they are.
        oldest_dirty_ms: the time of the first dirty record, where it is known; otherwise the largest time of the
            oldest dirty segment is used, which is later by what one segment spans at most.
    """
    if not segments:
        return None
    first, end = segments[0].base, min(stable_end, active_base)
    if not first <= dirty_from <= segments[-1].next_offset:
        dirty_from = first  # retention went past it, or it is of another log
    young_from = max(now_ms - min_lag_ms, -1) if min_lag_ms > 0 else FOR_EVER_MS
    chosen: list[S] = []
    clean_bytes = dirty_bytes = 0
    for segment in segments:
        dirty = segment.next_offset > dirty_from
        if segment.next_offset > end or (dirty and segment.max_timestamp > young_from):
            break
        chosen.append(segment)
        if dirty:
            dirty_bytes += segment.size
        else:
            clean_bytes += segment.size
    if not dirty_bytes:
        return None
    if oldest_dirty_ms < 0:
        times = [each.max_timestamp for each in chosen if each.next_offset > dirty_from and each.max_timestamp >= 0]
        oldest_dirty_ms = min(times, default=now_ms)
    overdue = oldest_dirty_ms < now_ms - max_lag_ms
    if not overdue and dirty_bytes / (clean_bytes + dirty_bytes) <= min_dirty_ratio:
        return None
    return Plan(tuple(chosen), dirty_from, chosen[-1].next_offset, clean_bytes, dirty_bytes)
