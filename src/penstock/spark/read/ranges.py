"""Ranges of offsets: what one task reads, and how ranges are cut to have enough of them or not too much in one."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from penstock.spark.segments.segments import Piece

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Range(InputPartition):
    """Offsets `start` to `end`, the latter not included, of one partition; from files as far as `piece` goes."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    start: int
    end: int
    piece: "Piece | None" = None

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} of partition {self.partition} of topic {self.topic!r}"


def split(ranges: Sequence[Range], *, at_least: int | None = None, at_most_rows: int | None = None) -> list[Range]:
    """The ranges, cut into no fewer than `at_least` where they have that many offsets, none longer than
    `at_most_rows`."""
    if at_most_rows:
        ranges = [part for each in ranges for part in _cut(each, -(-(each.end - each.start) // at_most_rows))]
    if at_least is None or len(ranges) >= at_least:
        return list(ranges)
    total = sum(each.end - each.start for each in ranges)
    if not total:
        return list(ranges)
    # A range gets pieces by its share; what rounding leaves goes to those with the longest pieces.
    pieces = [max(1, at_least * (each.end - each.start) // total) for each in ranges]
    while sum(pieces) < min(at_least, total):
        longest = max(range(len(ranges)), key=lambda i: (ranges[i].end - ranges[i].start) / pieces[i])
        pieces[longest] += 1
    return [part for each, count in zip(ranges, pieces, strict=True) for part in _cut(each, count)]


def _cut(whole: Range, count: int) -> Iterable[Range]:
    size = whole.end - whole.start
    count = max(1, min(count, size))
    bounds = [whole.start + size * i // count for i in range(count + 1)]
    return [replace(whole, start=low, end=high) for low, high in pairwise(bounds)]


def admit(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Share `limit` among partitions by what each has; one that has little gets one at least, beyond the limit."""
    total = sum(available.values())
    if total <= limit:
        return dict(available)
    shares = {key: max(1, limit * count // total) if count else 0 for key, count in available.items()}
    left = limit - sum(shares.values())
    for key, count in available.items():
        if left > 0 and shares[key] < count:
            shares[key] += 1
            left -= 1
    return shares
