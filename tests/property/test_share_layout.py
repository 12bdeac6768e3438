"""What a share consumer is sent for what it was leased, against going through it offset by offset."""

import os
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.doors.kafka import base_offsets

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.share_codec import Acquired
from penstock.protocols.kafka.share_layout import Range, Stretch, find_stretch, lay_out, sort_out
from penstock.records.build import build_batch
from penstock.storage.log.segment import FileSlice
from penstock.storage.log.transactions import AbortedTransaction

SEEDS = int(os.environ.get("SEEDS", "1000"))
SENT_ALONG = 64 * 1024
ALL = 1 << 40


class ReadFile:
    path = "file"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_at(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


class Made(NamedTuple):
    """A batch as it was made."""

    first: int
    last: int
    size: int
    is_given: bool


class Log:
    """Some batches, with holes between them, behind bytes that are not wanted."""

    def __init__(self, random: Random) -> None:
        offset = random.choice((0, 1000))
        begin = random.choice((0, 300))
        data, self.made = bytes(begin), list[Made]()
        self.aborted = [AbortedTransaction(7, 0, offset + random.randrange(300), 0)]
        large = random.choice((3000, 40_000))
        for _ in range(random.randrange(1, 40)):
            offset += random.choice((0, 0, 0, 1, 70))
            kind = random.choice(("plain", "plain", "plain", "control", "transactional", "same producer"))
            count = 1 if kind == "control" else random.choice((1, 2, 10, 40))
            batch = build_batch(
                [(None, bytes(random.choice((0, 10, large)) // count), (), 1)] * count,
                base_offset=offset,
                producer_id=-1 if kind == "plain" else 7,
                producer_epoch=-1 if kind == "plain" else 0,
                base_sequence=-1 if kind == "plain" else 0,
                transactional=kind in ("control", "transactional"),
                control=kind == "control",
            )
            is_given = kind in ("plain", "same producer") or (
                kind == "transactional" and offset > self.aborted[0].last_offset
            )
            self.made.append(Made(offset, offset + count - 1, len(batch), is_given))
            data += batch
            offset += count
        self.slice = FileSlice(ReadFile(data + b"behind"), begin, len(data) - begin)  # type: ignore[arg-type]
        self.end = offset

    def batch_of(self, offset: int) -> Made | None:
        return next((each for each in self.made if each.first <= offset <= each.last), None)

    def stretch(self, start: int, last: int, max_bytes: int = ALL) -> Stretch:
        """As a look at `start` finds it."""
        position = self.slice.position + sum(each.size for each in self.made if each.last < start)
        data = FileSlice(self.slice.file, position, self.slice.position + self.slice.size - position)
        return find_stretch(data, self.aborted, start, last, max_bytes, "t-0")


def some_ranges(random: Random, log: Log) -> list[Range]:
    at = log.made[0].first - 3
    found = []
    while at < log.end + 5:
        size = random.choice((1, 2, 5, 60))
        if random.random() < 0.7:
            found.append(Range(at, at + size - 1, random.choice((1, 1, 2))))
        at += size
    return found


def some_stretches(random: Random, log: Log) -> list[Stretch]:
    found = []
    at = log.made[0].first - random.choice((0, 0, 2))
    while at < log.end:
        stretch = log.stretch(at, at + random.choice((0, 10, 300)))
        found.append(stretch)
        at = stretch.end + random.choice((0, 0, 5))
    return found


def expected_parts(log: Log, given: dict[int, int], batch_size: int | None) -> list[Acquired]:
    parts: list[list[int]] = []
    for offset, deliveries in given.items():
        batch = log.batch_of(offset)
        assert batch is not None
        if parts and parts[-1][-1] + 1 == offset and given[parts[-1][0]] == deliveries:
            is_enough = batch_size is not None and offset == batch.first and len(parts[-1]) >= batch_size
            if not is_enough:
                parts[-1].append(offset)
                continue
        parts.append([offset])
    return [Acquired(part[0], part[-1], given[part[0]]) for part in parts]


def offsets_of(parts: Iterable[tuple[int, int]]) -> list[int]:
    return [offset for first, last in parts for offset in range(first, last + 1)]


@pytest.mark.parametrize("chunk", range(10))
def test_every_offset_is_given_or_nothing_or_unread_and_every_batch_sent_whole(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 10):
        random = Random(seed)
        log = Log(random)
        stretches, ranges = some_stretches(random, log), some_ranges(random, log)
        found = sort_out(ranges, stretches)
        leased = {offset: each.deliveries for each in ranges for offset in range(each.first, each.last + 1)}
        inside = {
            offset: count
            for offset, count in leased.items()
            if any(stretch.start <= offset < stretch.end for stretch in stretches)
        }
        given = {
            offset: count
            for offset, count in inside.items()
            if (batch := log.batch_of(offset)) is not None and batch.is_given
        }
        assert offsets_of(found.nothing) == [offset for offset in inside if offset not in given], f"seed {seed}"
        assert offsets_of(found.unread) == [offset for offset in leased if offset not in inside], f"seed {seed}"
        parts, batch_size = list(found.parts), random.choice((None, 0, 1, 30, 500))
        random.shuffle(parts)
        layout = lay_out(parts, batch_size)
        assert list(layout.acquired) == expected_parts(log, given, batch_size), f"seed {seed}"
        check_bytes(log, layout.slices, given)


def check_bytes(log: Log, slices: Sequence[FileSlice], given: dict[int, int]) -> None:
    needed = {batch.first for offset in given if (batch := log.batch_of(offset)) is not None}
    position, sent = -1, list[list[int]]()
    for each in slices:
        assert each.file is log.slice.file and each.position > position
        assert not sent or each.position - position > SENT_ALONG
        position = each.position + each.size
        sent.append(base_offsets(each.file.read_at(each.size, each.position)))
    assert needed <= {base for part in sent for base in part}
    for part in sent:
        assert {part[0], part[-1]} <= needed, "nothing is sent but up to what is needed"


@pytest.mark.parametrize("chunk", range(5))
def test_a_stretch_has_all_batches_up_to_an_offset_that_fit(chunk: int) -> None:
    for seed in range(chunk, SEEDS, 5):
        random = Random(seed)
        log = Log(random)
        start = random.randint(log.made[0].first - 2, log.end - 1)
        last = start + random.choice((0, 3, 50, 5000))
        max_bytes = random.choice((0, 100, 5000, ALL))
        stretch = log.stretch(start, last, max_bytes)
        expected: list[Made] = []
        end, left = start, max_bytes
        for each in (each for each in log.made if each.last >= start):
            if end > last:
                break
            if each.size > left:
                end = max(end, each.first)
                break
            expected.append(each)
            end, left = each.last + 1, left - each.size
        found = [(each.first, each.last, each.place.size, each.is_given) for each in stretch.batches]
        assert found == expected, f"seed {seed}"
        assert (stretch.start, stretch.end) == (start, end), f"seed {seed}"
        assert stretch.size == max_bytes - left
        assert stretch.has_any == any(each.is_given for each in expected)


def test_pieces_far_from_each_other_or_in_other_files_are_sent_by_themselves() -> None:
    stretches = []
    for at in range(3):
        batch = build_batch([(None, b"a", (), 1)], base_offset=at)
        data: Any = ReadFile(batch)
        stretches.append(find_stretch(FileSlice(data, 0, len(batch)), [], at, at, ALL, "t-0"))
    layout = lay_out(sort_out([Range(0, 2, 1)], stretches).parts, None)
    assert len(layout.slices) == 3 and layout.acquired == [Acquired(0, 2, 1)]
    one = build_batch([(None, b"a", (), 1)], base_offset=0)
    for gap, expected in ((SENT_ALONG, 1), (SENT_ALONG + 1, 2)):
        file: Any = ReadFile(one + bytes(gap) + build_batch([(None, b"b", (), 1)], base_offset=1))
        parts = sort_out(
            [Range(0, 1, 1)],
            [
                find_stretch(FileSlice(file, 0, len(one)), [], 0, 0, ALL, "t-0"),
                find_stretch(FileSlice(file, len(one) + gap, len(one)), [], 1, 1, ALL, "t-0"),
            ],
        ).parts
        assert len(lay_out(parts, None).slices) == expected


def test_a_batch_where_none_can_be() -> None:
    first = build_batch([(None, b"a", (), 1)] * 3, base_offset=10)
    back, on = (build_batch([(None, b"b", (), 1)], base_offset=base) for base in (12, 13))
    for data in (first + back, first + on[:60], first + bytes(100)):
        slice_ = FileSlice(ReadFile(data), 0, len(data))  # type: ignore[arg-type]
        with pytest.raises(PenstockError, match="t-0 has no batch") as refused:
            find_stretch(slice_, [], 10, 50, ALL, "t-0")
        assert refused.value.code is Code.CORRUPT_LOG


def test_without_any_batch_there_is_nothing() -> None:
    found = sort_out([Range(3, 9, 2), Range(12, 12, 1), Range(30, 31, 1)], [Stretch(3, 20, ())])
    assert (found.nothing, found.unread) == ([(3, 9), (12, 12)], [(30, 31)])
    assert not found.parts and lay_out(found.parts, 500) == ([], [])
