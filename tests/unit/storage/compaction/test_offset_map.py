"""The map of last offsets: as a dict, within its bounds."""

import random

from penstock.storage.compaction.offset_map import OffsetMap


def test_it_knows_what_a_dict_knows_also_after_growing() -> None:
    chosen = random.Random(5)
    offsets, expected = OffsetMap(10, 10), dict[bytes, int]()
    for offset in range(5000):
        key = b"%d" % chosen.randrange(2000)
        offsets.put(key, offset)
        expected[key] = offset
    assert offsets.count == len(expected) > 1500
    assert {key: offsets.get(key) for key in expected} == expected
    assert {offsets.get(b"x%d" % number) for number in range(2000)} == {-1}


def test_offset_zero_and_the_empty_key_are_like_any_other() -> None:
    offsets = OffsetMap(10, 10)
    assert offsets.get(b"") == -1
    offsets.put(b"", 0)
    assert offsets.get(b"") == 0
    offsets.put(b"", (1 << 63) - 2)
    assert (offsets.get(b""), offsets.count) == ((1 << 63) - 2, 1)


def test_full_is_said_at_the_number_of_different_keys() -> None:
    offsets = OffsetMap(3, 1 << 40)
    for offset, key in enumerate([b"a", b"b", b"a", b"b"]):
        offsets.put(key, offset)
    assert not offsets.is_full
    offsets.put(b"c", 4)
    assert offsets.is_full
    offsets.put(b"d", 5)  # the rest of a batch
    assert offsets.get(b"d") == 5


def test_a_sparse_table_is_made_for_few_keys_and_never_rebuilt_for_those_expected() -> None:
    small, large = OffsetMap(1_000_000, 5), OffsetMap(5000, 1 << 40)
    assert len(small._table) < 4096
    before = len(large._table)
    for number in range(5000):
        large.put(b"%d" % number, number)
    assert len(large._table) == before <= 5000 * 24 * 3
