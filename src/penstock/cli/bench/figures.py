"""What a bench run finds: rates, percentiles, and whether every record came back once and in order.

A record's value begins with the stream it belongs to (this tool's mark, the run, the producer) and its place in that
stream. Each producer counts its places per partition, so within a partition every stream must read 0, 1, 2, ... A jump
ahead leaves a gap, which a late record may still fill; a place seen before is a double.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MARK = b"pB"
HEAD = struct.Struct(">8sQ")
MIN_RECORD_BYTES = HEAD.size
_STREAM = struct.Struct(">2s4sH")
PER_MILLE = {"p50": 500, "p95": 950, "p99": 990, "p99_9": 999}


def stream_of(run: bytes, producer: int) -> bytes:
    return _STREAM.pack(MARK, run, producer)


def percentile(ordered: Sequence[float], per_mille: int) -> float:
    """The smallest of the ordered values that so many per mille of them do not exceed (nearest rank)."""
    # In whole numbers: 99.9 % of 41,000 is a hair more than 40,959 in floating point, and rounds up.
    rank = -(-len(ordered) * per_mille // 1000)
    return ordered[max(rank, 1) - 1]


def summarise_ms(latencies_s: Iterable[float]) -> dict[str, float] | None:
    """Percentiles and maximum in milliseconds, and of how many samples; None of nothing."""
    ordered = sorted(latencies_s)
    if not ordered:
        return None
    figures = {name: round(percentile(ordered, rank) * 1000, 3) for name, rank in PER_MILLE.items()}
    return {"samples": len(ordered), **figures, "max": round(ordered[-1] * 1000, 3)}


@dataclass(frozen=True, slots=True)
class Work:
    """What one process did: records and bytes between two moments of the system-wide monotonic clock."""

    records: int
    size_bytes: int
    began_s: float
    ended_s: float
    cpu_s: float


def summarise_work(works: Sequence[Work]) -> dict[str, float]:
    """The rates of all processes together, from the first one's begin to the last one's end."""
    records = sum(work.records for work in works)
    size_bytes = sum(work.size_bytes for work in works)
    seconds = max(work.ended_s for work in works) - min(work.began_s for work in works)
    cpu_s = sum(work.cpu_s for work in works)
    per_second = 1 / seconds if seconds > 0 else 0.0
    return {
        "processes": len(works),
        "records": records,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "records_per_s": round(records * per_second, 1),
        "mb_per_s": round(size_bytes / 1e6 * per_second, 3),
        "client_cpu_s": round(cpu_s, 3),
        "client_cpu_percent": round(cpu_s * per_second * 100, 1),
    }


def format_count(records: int) -> str:
    return f"{records:,} record{'' if records == 1 else 's'}"


@dataclass(slots=True)
class Check:
    """Counts of what was wrong with the records that were read, over all partitions."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    foreign: int = 0

    def add(self, other: "Check") -> None:
        self.lost += other.lost
        self.doubled += other.doubled
        self.out_of_order += other.out_of_order
        self.foreign += other.foreign

    def problems(self) -> list[str]:
        """Foreign records are none: a topic may have other writers."""
        named = {"lost": self.lost, "doubled": self.doubled, "out of order": self.out_of_order}
        return [f"{format_count(count)} {what}" for what, count in named.items() if count]


@dataclass(slots=True)
class Audit:
    """One partition, read from a place on.

    `following` is the next place of each stream. A reader compares with it inline, because a call for each record
    would cost as much as reading it, and calls `stray` only where the record is not the one that follows.
    """

    mine: bytes = MARK
    """Streams that begin otherwise are foreign."""
    whole: bool = True
    """Reading began before the streams did; else the first record of a stream may have any place."""
    following: dict[bytes, int] = field(default_factory=dict)
    check: Check = field(default_factory=Check)
    _gaps: dict[bytes, list[range]] = field(default_factory=dict)

    def stray(self, stream: bytes, place: int) -> None:
        """A record that does not follow its predecessor."""
        if not stream.startswith(self.mine):
            self.check.foreign += 1
            return
        expected = self.following.get(stream, 0 if self.whole else place)
        if place >= expected:
            if place > expected:
                self._gaps.setdefault(stream, []).append(range(expected, place))
            self.following[stream] = place + 1
        elif self._fill(stream, place):
            self.check.out_of_order += 1
        else:
            self.check.doubled += 1

    def finish(self, sent: Mapping[bytes, int] | None = None) -> Check:
        """The verdict; `sent` says how many records each stream has in this partition, where that is known."""
        for stream, count in (sent or {}).items():
            self.check.lost += max(0, count - self.following.get(stream, 0))
        self.check.lost += sum(len(gap) for gaps in self._gaps.values() for gap in gaps)
        return self.check

    def _fill(self, stream: bytes, place: int) -> bool:
        gaps = self._gaps.get(stream, [])
        for at, gap in enumerate(gaps):
            if place in gap:
                gaps[at : at + 1] = [part for part in (range(gap.start, place), range(place + 1, gap.stop)) if part]
                return True
        return False
