"""Which partition a record goes to: the same key, the same partition, whoever asks and whatever client wrote before.

Each hash is some client's own, bit for bit: a key that moved would break the order of its records. The empty key is a
key like others; None is none. A partitioner is for one topic and one writer: those that remember something would mix
topics up.
"""

from collections.abc import Callable, Iterable
from struct import unpack_from
from typing import Final, Protocol
from zlib import crc32

from penstock.errors import Code, PenstockError
from penstock.ports.randomness import Randomness

MURMUR2_SEED: Final = 0x9747B28C
MURMUR2_FACTOR: Final = 0x5BD1E995
WITHOUT_SIGN: Final = 0x7FFFFFFF
"""What Java's clients keep of a hash, so that it is no negative number."""
_32_BITS: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """MurmurHash2 with the seed of Kafka's Java client, as an unsigned number of 32 bits."""
    size = len(key)
    whole = size >> 2
    mixed = mix_murmur2(MURMUR2_SEED ^ size, unpack_from(f"<{whole}I", key))
    if size & 3:
        mixed = (mixed ^ int.from_bytes(key[whole << 2 :], "little")) * MURMUR2_FACTOR & _32_BITS
    mixed = (mixed ^ mixed >> 13) * MURMUR2_FACTOR & _32_BITS
    return mixed ^ mixed >> 15


def mix_murmur2(mixed: int, words: Iterable[int]) -> int:
    """Murmur2's state after the next whole words of a key."""
    for word in words:
        word = word * MURMUR2_FACTOR & _32_BITS
        word = (word ^ word >> 24) * MURMUR2_FACTOR & _32_BITS
        mixed = (mixed * MURMUR2_FACTOR & _32_BITS) ^ word
    return mixed


def murmur3(key: bytes) -> int:
    """MurmurHash3 for x86 with seed 0, which Pulsar's clients use, as an unsigned number of 32 bits."""
    size = len(key)
    whole = size >> 2
    mixed = 0
    for word in unpack_from(f"<{whole}I", key):
        mixed ^= _scramble_murmur3(word)
        mixed = ((mixed << 13 | mixed >> 19) * 5 + 0xE6546B64) & _32_BITS
    if size & 3:
        mixed ^= _scramble_murmur3(int.from_bytes(key[whole << 2 :], "little"))
    mixed ^= size
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _32_BITS
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _32_BITS
    return mixed ^ mixed >> 16


def _scramble_murmur3(word: int) -> int:
    word = word * 0xCC9E2D51 & _32_BITS
    return (word << 15 | word >> 17) * 0x1B873593 & _32_BITS


def fnv1a(key: bytes) -> int:
    """FNV-1a, as an unsigned number of 32 bits."""
    mixed = 0x811C9DC5
    for byte in key:
        mixed = (mixed ^ byte) * 0x01000193 & _32_BITS
    return mixed


class Partitioner(Protocol):
    """Chooses the partition of each record of one writer to one topic."""

    def choose(self, key: bytes | None, count: int) -> int:
        """The partition of a record with the key, of a topic with `count` partitions.

        Raises:
            PenstockError: `count` is less than 1, or there is no such partition.
        """

    def next_batch(self) -> None:
        """Records from now on are in another batch: a moment to go elsewhere with those without a key."""


class Sticky:
    """All records to one partition until the next batch, then to another one; keys do not matter.

    Batches stay large that way, although records have no key (KIP-480). Each batch is as likely to go to any partition
    but the last batch's.
    """

    __slots__ = ("_current", "_last", "_randomness")

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._current = -1
        self._last = -1

    def choose(self, key: bytes | None, count: int) -> int:
        _check_count(count)
        if not 0 <= self._current < count:
            self._current = self._draw(count)
        return self._current

    def next_batch(self) -> None:
        if self._current >= 0:
            self._last = self._current
            self._current = -1

    def _draw(self, count: int) -> int:
        if count == 1 or not 0 <= self._last < count:
            return self._below(count)
        drawn = self._below(count - 1)
        return drawn + 1 if drawn >= self._last else drawn

    def _below(self, end: int) -> int:
        return self._randomness.getrandbits(64) % end


class RoundRobin:
    """Each record to the partition after the last one's; keys do not matter.

    Args:
        first: where to begin, of any size; writers that all begin at 0 and write little would fill partition 0.
    """

    __slots__ = ("_next",)

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def choose(self, key: bytes | None, count: int) -> int:
        _check_count(count)
        chosen = self._next % count
        self._next = chosen + 1
        return chosen

    def next_batch(self) -> None:
        return None


class Explicit:
    """The partition that somebody named, for all records; keys do not matter."""

    __slots__ = ("_partition",)

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def choose(self, key: bytes | None, count: int) -> int:
        _check_count(count)
        if not 0 <= self._partition < count:
            raise PenstockError(
                Code.INVALID_REQUEST,
                f"partition {self._partition} is asked for; the topic has 0 to {count - 1}",
                help="name one of these, or none: the record's key decides then",
            )
        return self._partition

    def next_batch(self) -> None:
        return None


class ByKey:
    """Where a hash of the key says; records without a key as `keyless` says.

    Args:
        place: of a key, a number that is not negative; its remainder is the partition.
    """

    __slots__ = ("_keyless", "_place")

    def __init__(self, place: Callable[[bytes], int], keyless: Partitioner) -> None:
        self._place = place
        self._keyless = keyless

    def choose(self, key: bytes | None, count: int) -> int:
        if key is None:
            return self._keyless.choose(None, count)
        _check_count(count)
        return self._place(key) % count

    def next_batch(self) -> None:
        self._keyless.next_batch()


def new_partitioner(name: str, randomness: Randomness) -> Partitioner:
    """A partitioner of its own for a writer to a topic; `Explicit` is made of a number, not of a name.

    Args:
        name: one of `NAMES`.
        randomness: where records without a key begin, and go on.

    Raises:
        PenstockError: no partitioner has the name.
    """
    if name == "sticky":
        return Sticky(randomness)
    if name == "round-robin":
        return RoundRobin(randomness.getrandbits(31))
    place = _PLACES.get(name)
    if place is None:
        raise PenstockError(
            Code.INVALID_CONFIG, f"partitioner {name!r} is unknown; known: {', '.join(NAMES)}", help="name one of these"
        )
    return ByKey(place, Sticky(randomness))


def _place_murmur2(key: bytes) -> int:
    return murmur2(key) & WITHOUT_SIGN


def _place_murmur3(key: bytes) -> int:
    return murmur3(key) & WITHOUT_SIGN


def _place_fnv1a(key: bytes) -> int:
    # Sarama and, after it, librdkafka turn a negative number around; they do not drop its sign.
    mixed = fnv1a(key)
    return mixed if mixed <= WITHOUT_SIGN else (1 << 32) - mixed


_PLACES: Final[dict[str, Callable[[bytes], int]]] = {
    "murmur2": _place_murmur2,  # Kafka's Java client, librdkafka's murmur2 and murmur2_random, Spark
    "murmur3": _place_murmur3,  # Pulsar's clients with Murmur3_32Hash
    "fnv1a": _place_fnv1a,  # Sarama, librdkafka's fnv1a and fnv1a_random
    "crc32": crc32,  # librdkafka's consistent; its default differs from it for the empty key, which it takes for none
}
NAMES: Final = (*_PLACES, "round-robin", "sticky")


def _check_count(count: int) -> None:
    if count < 1:
        raise PenstockError(
            Code.INVALID_PARTITIONS,
            f"a topic of {count} partitions has no place for a record",
            help="have one at least",
        )
