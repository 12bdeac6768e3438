"""What records say of themselves, over blocks, against a plain list of what they said."""

import random
from collections.abc import Iterable
from zlib import crc32

import pytest

from penstock.engine.queues.sorting.block import PLAIN, SHIFT, SIZE
from penstock.engine.queues.sorting.marks import LANE_OF_PRIORITY, MOST_TENANTS, NORMAL, Marks, Said, slot_of


class Reader:
    def __init__(self) -> None:
        self.heard: set[int] = set()

    def arrived(self, strands: Iterable[int]) -> None:
        self.heard.update(strands)

    def fallen_due(self, offsets: Iterable[int]) -> None:
        pass

    def fallen_passed(self, strand: int) -> int:
        return 0

    def fallen_forgotten(self, strand: int, count: int) -> None:
        pass


def all_of(marks: Marks, strand: int) -> list[int]:
    """As who picks from it finds it."""
    found: list[int] = []
    first = marks.begin >> SHIFT
    number = first if strand == PLAIN else marks.next_home(strand, first - 1)
    while number >= 0:
        there = marks.positions(number, strand)
        found += [(number << SHIFT) + at for at in there.values[there.begin : there.end]]
        number = marks.next_home(strand, number)
    return found


def said_of(chance: random.Random, offset: int) -> Said:
    return Said(
        offset,
        priority=chance.choice((None, 0, 4, 5, 9)),
        tenant=chance.choice((None, "a", "b")),
        key=chance.choice((None, b"k1", b"k2")),
        due_ms=chance.choice((None, None, None, 50, 200)),
    )


@pytest.mark.parametrize("begin", [0, 60_000, SIZE - 1, 3 * SIZE + 17])
def test_against_a_plain_list(begin: int) -> None:
    chance, marks, there = random.Random(begin), Marks(begin), list[Said]()
    reader = Reader()
    marks.readers.append(reader)
    while len(there) < 20_000:
        first = begin + len(there)
        more = [
            said_of(chance, offset) if chance.random() < 0.3 else Said(offset)
            for offset in range(first, first + chance.choice((1, 30, 4000)))
        ]
        there += more
        marks.take(more[-1].offset, [each for each in more if each != Said(each.offset)], 100)
    assert (marks.begin, marks.end) == (begin, begin + len(there))
    expected: dict[tuple[int, str], list[int]] = {}
    fallen: dict[tuple[int, str], list[int]] = {}
    for each in there:
        place = (NORMAL if each.priority is None else LANE_OF_PRIORITY[each.priority], each.tenant or "")
        if each.due_ms is None:
            expected.setdefault(place, []).append(each.offset)
        elif each.due_ms <= 100:
            fallen.setdefault(place, []).append(each.offset)
        lane, tenant = marks.strands[marks.strand_at(each.offset)]
        assert (lane, marks.tenants[tenant]) == place
        assert marks.slot_at(each.offset) == (0 if each.key is None else slot_of(each.key))
    for number, (lane, tenant) in enumerate(marks.strands):
        place = lane, marks.tenants[tenant]
        assert [at for at in all_of(marks, number) if at >= begin] == expected.get(place, [])
        assert list(marks.fallen[number]) == fallen.get(place, [])
    assert reader.heard == set(range(len(marks.strands)))
    assert marks.later.count == sum(each.due_ms == 200 for each in there)
    parts = list(marks.strands_in(begin + 3, begin + 15_000))
    assert [part[0] for part in parts[1:]] == [part[1] + 1 for part in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (begin + 3, begin + 15_000)
    for first, last, strand in parts:
        assert all(marks.strand_at(offset) == strand for offset in range(first, last + 1))


def test_what_falls_due_comes_into_its_strand_and_who_reads_it_is_told() -> None:
    marks, reader = Marks(0), Reader()
    marks.readers.append(reader)
    marks.take(5, [Said(1, tenant="a", due_ms=100), Said(3, tenant="a", due_ms=90)], 10)
    strand = marks.strand_at(1)
    reader.heard.clear()
    assert not marks.fall_due(89)
    assert marks.fall_due(100)
    assert list(marks.fallen[strand]) == [3, 1]
    assert reader.heard == {strand}
    assert marks.next_due() is None


def test_what_is_looked_at_twice_counts_once() -> None:
    marks = Marks(0)
    marks.take(9, [Said(3, priority=9)], 0)
    marks.take(4, [Said(3, priority=0)], 0)
    assert marks.end == 10
    assert sum(marks.lane_counts) == 10
    assert marks.strands[marks.strand_at(3)].lane == LANE_OF_PRIORITY[9]


def test_as_long_as_nothing_says_anything_nothing_is_kept() -> None:
    marks = Marks(7)
    marks.take(10_000_000, [], 0)
    assert marks.is_plain
    assert not marks._blocks
    assert all_of(marks, PLAIN)[-1] == 10_000_000


def test_more_tenants_than_fit_share_with_others() -> None:
    marks, count = Marks(0), MOST_TENANTS + 900
    names = [f"tenant {at}" for at in range(count)]
    said = [Said(at, priority=at % 10, tenant=name) for at, name in enumerate(names)]
    marks.take(count - 1, said, 0)
    assert len(marks.tenants) == MOST_TENANTS + 1
    for at, name in enumerate(names):
        lane, tenant = marks.strands[marks.strand_at(at)]
        assert lane == LANE_OF_PRIORITY[at % 10]
        assert tenant == (at + 1 if at < MOST_TENANTS else 1 + crc32(name.encode()) % MOST_TENANTS)
    assert sum(len(all_of(marks, strand)) for strand in range(len(marks.strands))) == count


def test_all_tenants_in_all_lanes_fit() -> None:
    marks, offset = Marks(0), 0
    for priority in (0, 2, 4, 6, 8):
        said = [Said(offset + at, priority, f"tenant {at}") for at in range(MOST_TENANTS + 5)]
        offset += len(said)
        marks.take(offset - 1, said, 0)
    assert len(marks.strands) == 5 * MOST_TENANTS + 1  # and who says nothing
    assert all_of(marks, len(marks.strands) - 1)


def test_what_all_have_settled_is_forgotten() -> None:
    marks = Marks(10)
    marks.take(3 * SIZE, [Said(offset, priority=9) for offset in range(100, 3 * SIZE, 50)], 0)
    strand = marks.strand_at(100)
    marks.trim(20)
    assert (marks.begin, len(marks._blocks)) == (20, 3)
    marks.trim(2 * SIZE + 5)
    assert (marks.begin, len(marks._blocks)) == (2 * SIZE + 5, 1)
    assert all(offset >= 2 * SIZE for offset in all_of(marks, strand))
    marks.trim(100 * SIZE)
    assert marks.begin == marks.end


def test_a_key_has_a_number_that_is_not_that_of_none() -> None:
    assert slot_of(b"") == 1  # its hash is 0
    assert slot_of(b"k") == crc32(b"k")
