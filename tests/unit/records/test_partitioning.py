"""Hashes are those of the clients they are named after; partitioners keep to their topic's partitions."""

import random
from collections import Counter
from zlib import crc32

import mmh3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as foreign_murmur2

from penstock.errors import Code, PenstockError
from penstock.records.partitioning import (
    NAMES,
    ByKey,
    Explicit,
    Partitioner,
    RoundRobin,
    Sticky,
    fnv1a,
    murmur2,
    murmur3,
    new_partitioner,
)

calm = settings(deadline=None)  # a busy machine is no failure
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
    b"\xff": -311467685,
    b"\x80\xff": -80095470,
    b"\xfe\x80\xff": 1159266012,
    bytes.fromhex("29fe69bd8ceba6"): 1583283738,
}
"""What Apache Kafka's own tests say, then what its Java client 4.3.1 said when asked; signed as Java's numbers are."""

MURMUR3 = {
    b"k1": 2110152746,
    b"k2": 1479966664,
    b"key1": 462881061,
    b"key2": 1936800180,
    b"key01": 39696932,
    b"key02": 751761803,
    b"": 0,
    b"\xff": 2104291597,
    b"\x80\xff": 438362139,
    b"\xfe\x80\xff": 875881211,
    bytes.fromhex("29fe69bd8ceba6"): 1959558415,
    bytes.fromhex("99735b0320db2ebba29a7b37967c68"): 125960169,
}
"""What Pulsar's own tests say, then what Murmur3_32Hash of its Java client 4.0.4 said when asked."""

FNV1A = {
    b"kafka": 0xD33C4E1,
    b"giberish123456789": 0x77A58295,
    b"1234": 0x23BDD03,
    b"234": 0x2DEA3CD2,
    b"34": 0x740FA83E,
    b"4": 0x310CA263,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x65CBD69C,
    b"": 0x7EE3623B,
}
"""What librdkafka's own tests say that Sarama makes of keys: the hash without its sign."""

LARGEST = (1 << 31) - 1
BY_KEY = ("murmur2", "murmur3", "fnv1a", "crc32")
keys = st.binary(max_size=70) | st.integers(0, 999).map(bytes)
counts = st.integers(1, LARGEST)


class Scripted:
    """Randomness that says what it is told to."""

    def __init__(self, *drawn: int) -> None:
        self.left = list(drawn)

    def getrandbits(self, k: int, /) -> int:
        return self.left.pop(0)


def partitioner(name: str) -> Partitioner:
    return new_partitioner(name, random.Random(7))


@pytest.mark.parametrize(("key", "wanted"), MURMUR2.items())
def test_murmur2_known_from_kafka(key: bytes, wanted: int) -> None:
    assert murmur2(key) == wanted & 0xFFFFFFFF
    assert partitioner("murmur2").choose(key, 1000) == (wanted & LARGEST) % 1000


@pytest.mark.parametrize(("key", "wanted"), MURMUR3.items())
def test_murmur3_known_from_pulsar(key: bytes, wanted: int) -> None:
    assert murmur3(key) & LARGEST == wanted
    assert partitioner("murmur3").choose(key, LARGEST) == wanted % LARGEST


@pytest.mark.parametrize(("key", "wanted"), FNV1A.items())
def test_fnv1a_known_from_librdkafka(key: bytes, wanted: int) -> None:
    assert fnv1a(key) in (wanted, (1 << 32) - wanted)
    assert partitioner("fnv1a").choose(key, LARGEST) == wanted % LARGEST


def test_fnv1a_of_the_one_number_that_has_no_opposite() -> None:
    assert fnv1a(b";K$25") == 1 << 31
    assert partitioner("fnv1a").choose(b";K$25", 7) == (1 << 31) % 7


@calm
@given(keys)
def test_hashes_of_any_key(key: bytes) -> None:
    assert murmur2(key) == foreign_murmur2(key)
    assert murmur3(key) == mmh3.hash(key, 0, signed=False)
    assert partitioner("crc32").choose(key, LARGEST) == crc32(key) % LARGEST
    assert 0 <= fnv1a(key) < 1 << 32


@pytest.mark.parametrize("name", NAMES)
@calm
@given(made=st.lists(st.tuples(st.none() | keys, counts, st.booleans()), max_size=20), seed=st.integers())
def test_every_choice_is_a_partition_of_the_topic(
    name: str, made: list[tuple[bytes | None, int, bool]], seed: int
) -> None:
    chooser = new_partitioner(name, random.Random(seed))
    for key, count, ends in made:
        assert 0 <= chooser.choose(key, count) < count
        if ends:
            chooser.next_batch()


@pytest.mark.parametrize("name", BY_KEY)
@calm
@given(key=keys, count=counts, others=st.lists(st.none() | keys, max_size=5))
def test_a_key_has_one_partition_whatever_came_before(
    name: str, key: bytes, count: int, others: list[bytes | None]
) -> None:
    wanted = new_partitioner(name, random.Random(1)).choose(key, count)
    chooser = new_partitioner(name, random.Random(2))
    for other in others:
        chooser.choose(other, count)
        chooser.next_batch()
    assert chooser.choose(key, count) == wanted


@pytest.mark.parametrize("name", BY_KEY)
def test_keys_are_spread(name: str) -> None:
    found = Counter(partitioner(name).choose(b"key %d" % number, 8) for number in range(8000))
    assert len(found) == 8
    assert max(found.values()) < 1300


@pytest.mark.parametrize("name", BY_KEY)
def test_records_without_a_key_stay_together_until_the_next_batch(name: str) -> None:
    chooser = new_partitioner(name, Scripted(3, 5))
    assert [chooser.choose(None, 7) for _ in range(3)] == [3, 3, 3]
    chooser.choose(b"key", 7)
    assert chooser.choose(None, 7) == 3
    chooser.next_batch()
    assert [chooser.choose(None, 7) for _ in range(3)] == [6, 6, 6]  # of the six others, number 5


@pytest.mark.parametrize("name", BY_KEY)
def test_an_empty_key_is_a_key(name: str) -> None:
    chooser = new_partitioner(name, Scripted())  # would fail if it drew
    assert chooser.choose(b"", 1000) == new_partitioner(name, Scripted()).choose(b"", 1000)


def test_sticky_ignores_keys() -> None:
    chooser = Sticky(Scripted(4))
    assert {chooser.choose(key, 5) for key in (None, b"", b"a", b"b", b"c")} == {4}


def test_sticky_goes_to_every_other_partition_alike() -> None:
    chooser = Sticky(random.Random(3))
    steps: Counter[tuple[int, int]] = Counter()
    last = chooser.choose(None, 5)
    for _ in range(4000):
        chooser.next_batch()
        now = chooser.choose(None, 5)
        steps[last, now] += 1
        last = now
    assert len(steps) == 5 * 4
    assert all(first != second for first, second in steps)
    assert min(steps.values()) > 130


def test_sticky_batches_without_records_change_nothing() -> None:
    chooser = Sticky(Scripted(2, 2))
    chooser.next_batch()
    assert chooser.choose(None, 4) == 2
    chooser.next_batch()
    chooser.next_batch()
    assert chooser.choose(None, 4) == 3  # and not 2 again, which it still knows to be the last one


def test_sticky_among_one_and_in_a_topic_that_changes() -> None:
    chooser = Sticky(Scripted(9, 10, 1, 1, 0))
    assert chooser.choose(None, 1) == 0
    chooser.next_batch()
    assert chooser.choose(None, 1) == 0
    assert chooser.choose(None, 3) == 0  # it has grown: from the next batch on
    chooser.next_batch()
    assert chooser.choose(None, 3) == 2
    assert chooser.choose(None, 2) == 1  # made anew, smaller
    chooser.next_batch()
    assert chooser.choose(None, 1) == 0


def test_round_robin_takes_turns_whatever_the_keys() -> None:
    chooser = RoundRobin()
    assert [chooser.choose(key, 3) for key in (b"a", b"a", None, b"", b"a")] == [0, 1, 2, 0, 1]
    chooser.next_batch()
    assert chooser.choose(None, 3) == 2


def test_round_robin_begins_where_it_is_told() -> None:
    assert [RoundRobin(11).choose(None, 4), RoundRobin(-1).choose(None, 4)] == [3, 3]
    chooser = new_partitioner("round-robin", Scripted(6))
    assert [chooser.choose(None, 4) for _ in range(3)] == [2, 3, 0]


def test_round_robin_in_a_topic_that_grows() -> None:
    chooser = RoundRobin(1)
    assert [chooser.choose(None, 2), chooser.choose(None, 4), chooser.choose(None, 4)] == [1, 2, 3]


@calm
@given(st.data(), st.none() | keys, counts)
def test_an_explicit_partition_is_taken(data: st.DataObject, key: bytes | None, count: int) -> None:
    named = data.draw(st.integers(0, count - 1))
    chooser = Explicit(named)
    assert chooser.choose(key, count) == named
    chooser.next_batch()
    assert chooser.choose(None, count) == named


@pytest.mark.parametrize("named", [-1, 3, 4, LARGEST, -LARGEST])
def test_an_explicit_partition_that_the_topic_has_not_is_refused(named: int) -> None:
    with pytest.raises(PenstockError, match=f"partition {named} is asked for; the topic has 0 to 2") as caught:
        Explicit(named).choose(b"key", 3)
    assert caught.value.code is Code.INVALID_REQUEST
    assert "name one of these" in caught.value.help


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("name", [*NAMES, "explicit"])
def test_a_topic_without_partitions_is_refused(name: str, key: bytes | None, count: int) -> None:
    chooser = Explicit(0) if name == "explicit" else partitioner(name)
    with pytest.raises(PenstockError, match=f"topic of {count} partitions") as caught:
        chooser.choose(key, count)
    assert caught.value.code is Code.INVALID_PARTITIONS


def test_names() -> None:
    assert NAMES == ("murmur2", "murmur3", "fnv1a", "crc32", "round-robin", "sticky")
    kinds = {name: type(partitioner(name)) for name in NAMES}
    assert kinds == dict.fromkeys(BY_KEY, ByKey) | {"round-robin": RoundRobin, "sticky": Sticky}


@pytest.mark.parametrize("name", ["", "murmur", "MURMUR2", "explicit"])
def test_an_unknown_name_is_told_the_known_ones(name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        partitioner(name)
    assert str(caught.value) == f"partitioner {name!r} is unknown; known: {', '.join(NAMES)}"
    assert caught.value.code is Code.INVALID_CONFIG


def test_each_writer_has_a_partitioner_of_its_own() -> None:
    assert all(partitioner(name) is not partitioner(name) for name in NAMES)
