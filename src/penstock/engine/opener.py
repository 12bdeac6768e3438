"""Batches that are opened before they are kept: off the event loop, one at a time, in the order they came.

A topic with a `compression.type` of its own or `cleanup.policy=compact` asks for it. Opening costs per record, which
the loop must not wait for. There is one queue for all partitions: that keeps each one's order, and all of them
together from taking more than one thread.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk
from penstock.records.batch import Header
from penstock.records.rewrite import rewrite
from penstock.storage.log.log import Appended
from penstock.tasks import Tasks

MOST_WAITING_BYTES = 64 << 20


class _Waiting(NamedTuple):
    partition: Partition
    batch: bytearray
    header: Header
    done: Callable[[Appended | PenstockError], None]


class Opener:
    def __init__(self, disk: Disk, tasks: Tasks) -> None:
        self._disk = disk
        self._tasks = tasks
        self._queue: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._running = False

    def append(
        self, partition: Partition, batch: memoryview, header: Header, done: Callable[[Appended | PenstockError], None]
    ) -> None:
        """Append a checked batch when it has been opened; `done` is called once, with what came of it.

        The batch is copied: its view may end with this call.

        Raises:
            PenstockError: NOT_AVAILABLE when too much waits already.
        """
        if self._waiting_bytes + len(batch) > MOST_WAITING_BYTES:
            raise PenstockError(
                Code.NOT_AVAILABLE,
                f"{self._waiting_bytes} bytes of batches wait to be opened already; send again later",
            )
        self._waiting_bytes += len(batch)
        partition.opening += 1
        self._queue.append(_Waiting(partition, bytearray(batch), header, done))
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), "open batches")

    async def _run(self) -> None:
        while self._queue:
            partition, batch, header, done = self._queue.popleft()
            config = partition.config
            result: Appended | PenstockError
            try:
                made, made_header = await self._disk.run(
                    rewrite, memoryview(batch), header, config.codec, keyed=config.compacts
                )
                result = partition.append_checked(made, made_header)
            except PenstockError as error:
                result = error
            partition.opening -= 1
            self._waiting_bytes -= len(batch)
            done(result)
        self._running = False
