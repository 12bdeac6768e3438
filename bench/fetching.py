"""What a broker can hand out when its client costs next to nothing: fetch.c on several connections, and its checks.

A client that takes records apart needs more CPU than the broker that sends them, so that its rate is the client's own.
fetch.c drops the records unread; that they were right is known from the consumer before it, which checks each of them,
and that all of them came again from the heads of their batches, whose offsets must end where the producer's did.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import native
from bench.native import NativeError

PASSES = 3
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Written:
    """What a topic holds: load.c's records, which it deals out in turn, or by a hash of their numbers.

    Attributes:
        before: records in each partition ahead of them.
    """

    topic: str
    partitions: int
    records: int
    record_bytes: int
    keyed: bool = False
    before: int = 0

    @property
    def total(self) -> int:
        return self.records + self.before * self.partitions

    @property
    def megabytes(self) -> float:
        """Of values only, in one pass."""
        return self.total * self.record_bytes / 1e6

    def ends(self) -> list[int]:
        """The end offset of each partition; librdkafka's partitioner is CRC-32 of the key."""
        ends = [self.before] * self.partitions
        for number in range(self.records):
            key = number.to_bytes(_KEY_BYTES, "little")
            ends[zlib.crc32(key) % self.partitions if self.keyed else number % self.partitions] += 1
        return ends


def read(written: Written, connections: Sequence[str], passes: int = PASSES) -> dict[str, Any]:
    """Read a topic from end to end, so often, through connections as `connect` makes them.

    Raises:
        NativeError: a read failed, or was not of what was written.
    """
    found = native.run("fetch", written.topic, passes, *connections)
    check(written, found, passes)
    return found


def connect(leaders: Mapping[str, Sequence[int]], each: int = 1) -> list[str]:
    """Arguments of fetch.c: so many connections to each broker, which share its partitions."""
    return [
        f"{address}={','.join(map(str, partitions[first::each]))}"
        for address, partitions in leaders.items()
        for first in range(min(each, len(partitions)))
    ]


def check(written: Written, found: Mapping[str, Any], passes: int) -> None:
    """Hold what was read against what was written; the same on both brokers, so that neither gets away with less."""
    expected = {str(number): end for number, end in enumerate(written.ends())}
    ends = found["ends"]
    wrong = sorted(key for key in expected.keys() | ends.keys() if ends.get(key) != expected.get(key))
    if wrong:
        first = wrong[0]
        raise NativeError(
            f"fetch {written.topic}: partition {first} ends at {ends.get(first)}, "
            f"written were {expected.get(first)} records ({len(wrong)} partitions differ)"
        )
    if found["records"] != passes * written.total:
        raise NativeError(
            f"fetch {written.topic}: {found['records']} records in {passes} passes, written were {written.total}"
        )
    least = passes * written.total * (written.record_bytes + _KEY_BYTES)
    if found["bytes"] < least:
        raise NativeError(f"fetch {written.topic}: {found['bytes']} bytes are too few, the records alone have {least}")
