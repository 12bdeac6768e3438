"""What is remembered of ids: found for the window and not for much longer, packed or not, in few bytes."""

from random import Random
from unittest.mock import patch

import pytest

from penstock.engine.once import memory
from penstock.engine.once.memory import ID_BYTES, Memory, Packed

WINDOW_MS = 8000


def ids(count: int, seed: int = 1) -> list[bytes]:
    source = Random(seed)
    return [source.randbytes(ID_BYTES) for _ in range(count)]


def packed(kept: Memory) -> Memory:
    while kept.pack():
        pass
    return kept


def test_an_id_is_known_for_the_window_and_an_eighth_of_it() -> None:
    (one,) = ids(1)
    for came_ms in (0, 1, 500, 999):
        kept = Memory(WINDOW_MS)
        kept.add(came_ms, [(one, 5)])
        kept.expire(came_ms + WINDOW_MS)
        assert kept.get(one) == 5 and kept.count == 1
        kept.expire(came_ms + WINDOW_MS + WINDOW_MS // 8)
        assert kept.get(one) is None and kept.count == 0 and kept.first_offset is None


def test_the_last_offset_of_an_id_is_told() -> None:
    (one,) = ids(1)
    kept = Memory(WINDOW_MS)
    for offset, came_ms in enumerate((0, 0, 1500)):
        kept.add(came_ms, [(one, offset)])
        assert kept.get(one) == offset
    assert kept.first_offset == 0


def test_time_that_goes_back_forgets_nothing_early() -> None:
    first, second = ids(2)
    kept = Memory(WINDOW_MS)
    kept.add(5000, [(first, 0)])
    kept.add(1000, [(second, 1)])
    kept.expire(5000 + WINDOW_MS)
    assert (kept.get(first), kept.get(second)) == (0, 1)


@pytest.mark.parametrize("count", [1, 2, 300, 5000])
def test_packed_ids_are_found_and_no_others(count: int) -> None:
    here = [bytes([9]) + each[1:] for each in ids(count)]
    found = Packed({each: offset << 33 for offset, each in enumerate(here)})
    assert [found.get(each) for each in here] == [offset << 33 for offset in range(count)]
    assert not any(found.get(bytes([9]) + each[1:]) for each in ids(2000, seed=2))


def test_a_hash_that_lies_across_two_others_is_not_found() -> None:
    first, second = bytes([9, *bytes(12), 9, 0, 0]), bytes([9, 0, 0, 1, *bytes(12)])
    across = first[13:] + second[:13]
    assert across[:3] == first[:3] and across in first + second
    found = Packed({first: 1, second: 2})
    assert [found.get(each) for each in (first, across, second)] == [1, None, 2]
    found = Packed({first: 1, second: 2, across: 3})
    assert [found.get(each) for each in (first, across, second)] == [1, 3, 2]


def test_many_ids_take_few_bytes_each() -> None:
    kept, many = Memory(WINDOW_MS), ids(50_000)
    for span in range(10):
        part = range(span * 5000, (span + 1) * 5000)
        kept.add(span * 1000, [(many[at], at) for at in part])
    count, size_bytes = packed(kept).packed_bytes
    assert count == 45_000, "all but the newest"
    assert size_bytes / count < 30
    assert all(kept.get(each) == at for at, each in enumerate(many))
    kept.expire(4000 + WINDOW_MS)
    assert kept.count == 30_000 and kept.first_offset == 20_000
    assert [kept.get(many[19_999]), kept.get(many[20_000])] == [None, 20_000]


def test_a_span_that_grows_large_is_packed_before_it_is_over() -> None:
    with patch.object(memory, "_MOST_LOOSE", 1000), patch.object(memory, "_LEAST_PACKED", 100):
        kept, many = Memory(WINDOW_MS), ids(3000)
        for at in range(0, 3000, 100):
            kept.add(10, [(each, at) for each in many[at : at + 100]])
        assert packed(kept).packed_bytes[0] == 2000
        assert all(kept.get(each) is not None for each in many)
        kept.expire(10 + WINDOW_MS + 1000)
        assert kept.count == 0
