"""Ranges of which the beginning is in sealed segments: one task reads on from the broker where that is little."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.spark.read import reader
from penstock.spark.read.ranges import Range
from penstock.spark.segments import segments
from penstock.spark.segments.segments import Piece, SegmentsGone

TOPIC = UUID(int=7)
OPTIONS: Any = SimpleNamespace(
    path="data",
    read_committed=True,
    settings=SimpleNamespace(bootstrap="somewhere:9092"),
    min_partitions=None,
    max_records_per_partition=None,
)


class Reading:
    """Tells what it was to read, and from where."""

    read_committed = True

    def read(self, wanted: Range, chunks: Any = None) -> Any:
        yield "files" if chunks is not None else "broker", wanted.start, wanted.end


def piece(first: int, end: int) -> Piece:
    return Piece("t", TOPIC, 0, first, end, 1000)


def read(wanted: Range) -> list[tuple[str, int, int]]:
    reading: Any = Reading()
    return list(reader.read_range(OPTIONS, reading, wanted))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pieces", "rest", "end", "expected"),
    [
        ([(0, 80)], 80, 100, [(0, 100, 80)]),
        ([(0, 80)], 80, 120, [(0, 120, 80)]),
        ([(0, 80)], 80, 121, [(0, 80, 80), (80, 121, None)]),
        ([(0, 80), (80, 160)], 160, 170, [(0, 80, 80), (80, 170, 160)]),
        ([(0, 80)], 80, 80, [(0, 80, 80)]),
        ([(0, 80)], 90, 90, [(0, 80, 80)]),  # nothing is left of the last ten: there may be no broker to ask
        ([], 0, 100, [(0, 100, None)]),
    ],
)
def test_a_small_rest_needs_no_task_of_its_own(
    monkeypatch: pytest.MonkeyPatch, pieces: Any, rest: int, end: int, expected: Any
) -> None:
    monkeypatch.setattr(segments, "plan", lambda *_, **__: ([piece(*each) for each in pieces], rest))
    planned = reader.plan(OPTIONS, [Range("t", TOPIC, 0, 0, end)])
    assert [(each.start, each.end, each.piece and each.piece.end) for each in planned] == expected


def test_a_range_is_read_from_files_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def opening(path: str, wanted: Piece, *, read_committed: bool) -> Any:
        opened.append((wanted.first, wanted.end))
        return iter(())

    monkeypatch.setattr(segments, "read", opening)
    whole = Range("t", TOPIC, 0, 0, 100, piece(0, 80))
    assert read(whole) == [("files", 0, 80), ("broker", 80, 100)]
    assert read(Range("t", TOPIC, 0, 20, 60, piece(0, 80))) == [("files", 20, 60)]
    assert read(Range("t", TOPIC, 0, 80, 100, piece(0, 80))) == [("broker", 80, 100)]
    assert opened == [(0, 80), (20, 60)]


def test_what_has_gone_from_the_files_is_the_brokers_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def opening(path: str, wanted: Piece, *, read_committed: bool) -> Any:
        raise SegmentsGone("gone")

    monkeypatch.setattr(segments, "read", opening)
    assert read(Range("t", TOPIC, 0, 0, 100, piece(0, 80))) == [("broker", 0, 100)]
