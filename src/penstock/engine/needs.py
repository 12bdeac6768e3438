"""What is needed of a partition's log: by what is attached to it, and by whoever else has put a floor under it."""

from collections.abc import Iterable
from typing import Protocol

from penstock.engine.partition import Partition
from penstock.storage.compaction.job import Range
from penstock.storage.compaction.kept_ranges import joined, within
from penstock.storage.log.log import Log
from penstock.storage.log.needs import Needed, Needs


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


def logs_with_needs(partitions: Iterable[Partition]) -> list[tuple[Log, Needs | None]]:
    """Every log that is open; with who needs it, if that is anybody who may tell what of it."""
    return [
        (partition.log, PartitionNeeds(partition) if partition.attached else None)
        for partition in partitions
        if partition.log is not None
    ]


def _all_of(told: list[Needed]) -> Needed:
    """What any of them says, as far as all have."""
    last = min(needed.last for needed in told)
    ranges: list[Range] = sorted(each for needed in told for each in needed.ranges if each[0] <= last)
    return Needed(within(joined(ranges), 0, last), last)
