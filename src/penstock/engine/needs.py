"""What is needed of a partition's log: by what is attached to it, and by whoever else has put a floor under it.

Who leads knows. A follower has no machine to ask, so it keeps what its leader still has: that one drops nothing before
it is safe that nobody needs it.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from penstock.engine.access import BROKERS
from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor, decode
from penstock.errors import Code, PenstockError
from penstock.records.batch import decode_header
from penstock.storage.compaction.job import Range
from penstock.storage.compaction.kept_ranges import count_of, joined, within
from penstock.storage.compaction.thinnable import NEEDED_SHARE
from penstock.storage.log.log import Log
from penstock.storage.log.needs import Needed, Needs

_ASKED_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 1.0


class TellsNeeds(Protocol):
    """What is attached to a partition, and can tell which of its records it needs."""

    async def ask_needed(self, first: int, last: int) -> Needed: ...

    def needed_now(self, first: int, last: int) -> Needed: ...


class PartitionNeeds:
    """See `Needs`."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    async def ask(self, first: int, last: int) -> Needed:
        told = [await each.ask_needed(first, last) for each in self._tellers()]
        return _all_of([*told, self._above_floors(first, last)])

    def ask_now(self, first: int, last: int) -> Needed:
        told = [each.needed_now(first, last) for each in self._tellers()]
        return _all_of([*told, self._above_floors(first, last)])

    def _tellers(self) -> list[TellsNeeds]:
        return [attached.needs for attached in self._partition.attached if attached.needs is not None]

    def _above_floors(self, first: int, last: int) -> Needed:
        """By those who cannot tell more than a floor."""
        told = [attached.ask_floor for attached in self._partition.attached if attached.needs is not None]
        floors = [floor() for floor in self._partition.opened().floors if floor not in told]
        lowest = min((floor for floor in floors if floor is not None), default=last + 1)
        return Needed([(max(first, lowest), last)] if lowest <= last else [], last)


class LeaderNeeds:
    """Of a replica that follows. See `Needs`."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._epoch = -1

    async def ask(self, first: int, last: int) -> Needed:
        """What the leader has of the beginning of a range; all of it, where that is no less than is worth thinning."""
        partition = self._partition
        if self._epoch < 0:
            self._epoch = partition.leader_epoch
        if not partition.is_elsewhere or partition.leader_epoch != self._epoch:
            raise PenstockError(Code.NOT_AVAILABLE, f"{partition.name} is led by nobody else now, or by another broker")
        cursor = Cursor(partition, first, committed=False, subject=BROKERS, patience_s=_PATIENCE_S)
        found = await cursor.next(_ASKED_BYTES, 0)
        if found.data is None:
            return Needed([(first, last)], last)  # there is something behind what is sealed; it is not known yet
        data = bytes(found.data.file.read_at(found.data.size, found.data.position))
        there, reached = await partition.opened().shelf.disk.run(_there, data, partition.name)
        reached = min(reached, last)
        ranges = within(there, first, reached)
        if count_of(ranges) >= (reached - first + 1) * NEEDED_SHARE:
            return Needed([(first, last)], last)
        return Needed(ranges, reached)

    def ask_now(self, first: int, last: int) -> Needed:
        """The leader has dropped it, and is the same."""
        partition = self._partition
        if partition.is_elsewhere and partition.leader_epoch == self._epoch:
            return Needed([], last)
        return Needed([(first, last)], last)


def _there(batches: bytes, name: str) -> tuple[list[Range], int]:
    """Offsets of records, and the last offset that the batches stand for.

    A batch without records counts as whole: it may stand for some that a broker has lost.

    Raises:
        PenstockError: CORRUPT_LOG.
    """
    found: list[Range] = []
    position, reached = 0, -1
    while position < len(batches):
        header = decode_header(batches, position)
        batch = batches[position : position + header.size]
        position, reached = position + header.size, header.last_offset
        if header.is_control or header.record_count in (0, header.last_offset_delta + 1):
            found.append((header.base_offset, header.last_offset))
            continue
        messages, _ = decode(batch, (), header.base_offset, name, header.record_count)
        found += [(each.offset, each.offset) for each in messages]
    return joined(found), reached


def logs_with_needs(partitions: Iterable[Partition]) -> list[tuple[Log, Needs | None]]:
    """Every log that is open; with who needs it, if that is anybody who may tell what of it."""
    return [
        (partition.log, _needs_of(partition) if partition.attached else None)
        for partition in partitions
        if partition.log is not None
    ]


def _needs_of(partition: Partition) -> Needs:
    return LeaderNeeds(partition) if partition.is_elsewhere else PartitionNeeds(partition)


def _all_of(told: list[Needed]) -> Needed:
    """What any of them says, as far as all have."""
    last = min(needed.last for needed in told)
    ranges: list[Range] = sorted(each for needed in told for each in needed.ranges if each[0] <= last)
    return Needed(within(joined(ranges), 0, last), last)
