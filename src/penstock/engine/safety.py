"""Waiting until records are safe, for who awaits it; `Partition.when_safe` is the same for who is called back."""

import asyncio
from collections.abc import Iterable

from penstock.engine.partition import Partition
from penstock.errors import PenstockError


def until_safe(appended: Iterable[tuple[Partition, int]]) -> "asyncio.Future[None]":
    """Done when all of these partitions have everything up to these offsets where it was promised to be.

    A PenstockError: one of them is not led here any more. To be asked for right after the append.
    """
    return _Gathering(appended).done


def until_settled(partition: Partition) -> "asyncio.Future[None]":
    """Done when everything is committed that was here when this broker became the leader. Raises PenstockError."""
    return until_safe(() if partition.is_settled else [(partition, partition.leadership.epoch_start - 1)])


class _Gathering:
    """Counts those that have arrived; the first that never will ends it."""

    __slots__ = ("_pending", "done")

    def __init__(self, appended: Iterable[tuple[Partition, int]]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending = 1  # held until all have been asked
        for partition, last_offset in appended:
            self._pending += 1
            partition.when_safe(last_offset, self._arrived)
        self._arrived(None)

    def _arrived(self, error: PenstockError | None) -> None:
        self._pending -= 1
        if self.done.done():  # another one failed before, or who waited was cancelled
            return
        if error is not None:
            self.done.set_exception(error)
        elif self._pending == 0:
            self.done.set_result(None)
