"""Batches that cannot be kept at once: they wait for their transaction, or are opened first, off the event loop.

Large batches are opened to look at their records; all batches are where a topic asks for more, with a
`compression.type` of its own or `cleanup.policy=compact`. A transaction's first batch in a partition waits until its
coordinator knows the partition. Where duplicates are dropped, batches are opened for their ids (`once`). Each producer
has a queue of its own in each partition, which keeps its order and makes nobody else wait; opening goes on one at a
time for all of them, so that it never takes more than one thread.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.engine.once.ids import read_ids
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk
from penstock.records.batch import Header
from penstock.records.rewrite import check_records, rewrite
from penstock.storage.log.log import Appended
from penstock.tasks import Tasks

MOST_WAITING_BYTES = 256 << 20
CROWDED_BYTES = 32 << 20
"""From here on, who sends more should wait for an answer first."""
_MOST_REFUSED = 10_000
_MOST_READ_HERE = 64 * 1024
_MOST_IDS_READ_HERE = 200
"""Ids of so many records are read on the event loop: a few tenths of a millisecond, as long as a thread takes."""


class Admission(Protocol):
    """What a transaction's first batch in a partition needs before it is appended. Both raise PenstockError."""

    async def known(self, place: tuple[str, int]) -> None:
        """Return when the coordinator knows the partition."""
        ...

    def check(self, place: tuple[str, int]) -> None:
        """Whether that is still so; called right before the append."""
        ...


class _Waiting(NamedTuple):
    batch: bytearray
    header: Header
    done: Callable[[Appended | PenstockError], None]
    admission: Admission | None
    looked_at: bool
    check: Callable[[Partition], None] | None
    drops: bool


class Opener:
    def __init__(self, disk: Disk, tasks: Tasks) -> None:
        self._disk = disk
        self._tasks = tasks
        self._queues: dict[tuple[Partition, int], deque[_Waiting]] = {}
        """By partition and producer id; those without an id are as one."""
        self._refused: OrderedDict[tuple[Partition, int], tuple[int, int]] = OrderedDict()
        """Epoch and first sequence of a producer's batch that was refused: what follows it has to wait for it."""
        self.waiting_bytes = 0
        """Of batches that wait, or are being opened."""
        self._opening = asyncio.Lock()

    @property
    def is_crowded(self) -> bool:
        return self.waiting_bytes > CROWDED_BYTES

    def append(
        self,
        partition: Partition,
        batch: memoryview,
        header: Header,
        done: Callable[[Appended | PenstockError], None],
        admission: Admission | None = None,
        *,
        looked_at: bool = False,
        check: Callable[[Partition], None] | None = None,
        drops: bool = True,
    ) -> None:
        """Append a checked batch when it may be; `done` is called once, with what came of it.

        The batch is copied: its view may end with this call.

        Args:
            looked_at: whether its records have been looked at, or need not be.
            check: called right before the append; what it raises refuses the batch.
            drops: whether duplicates are left out, where the partition looks for them.

        Raises:
            PenstockError: NOT_AVAILABLE when too much waits already.
        """
        if self.waiting_bytes + len(batch) > MOST_WAITING_BYTES:
            raise PenstockError(
                Code.NOT_AVAILABLE,
                f"{self.waiting_bytes} bytes of batches wait to be opened already; send again later",
            )
        self.waiting_bytes += len(batch)
        producer_id = header.producer_id
        queue = self._queues.get((partition, producer_id))
        if queue is None:
            queue = self._queues[partition, producer_id] = deque()
            partition.waiting_producers.add(producer_id)
            self._tasks.spawn(self._run(partition, producer_id, queue), "open batches")
        queue.append(_Waiting(bytearray(batch), header, done, admission, looked_at, check, drops))

    async def _run(self, partition: Partition, producer_id: int, queue: deque[_Waiting]) -> None:
        while queue:
            waiting = queue.popleft()
            result: Appended | PenstockError
            try:
                self._check_follows(partition, waiting.header)
                result = await self._append(partition, waiting)
                self._refused.pop((partition, producer_id), None)
            except PenstockError as error:
                result = error.kept()
                self._note_refused(partition, waiting.header)
            self.waiting_bytes -= len(waiting.batch)
            if not queue:  # before anybody is told: what is sent then need not wait
                del self._queues[partition, producer_id]
                partition.waiting_producers.discard(producer_id)
            waiting.done(result)

    def _check_follows(self, partition: Partition, header: Header) -> None:
        """Refuse a batch behind one that was refused: the partition may not know the producer, and then takes any."""
        refused = self._refused.get((partition, header.producer_id))
        if refused is None:
            return
        if partition.opened().state.producers.get(header.producer_id) is not None:
            del self._refused[partition, header.producer_id]  # the log finds what is missing by itself
            return
        epoch, sequence = refused
        if header.producer_epoch == epoch and header.base_sequence > sequence:
            raise PenstockError(
                Code.OUT_OF_ORDER_SEQUENCE,
                f"producer {header.producer_id} sent sequence {header.base_sequence}; {sequence} was refused before",
            )

    def _note_refused(self, partition: Partition, header: Header) -> None:
        if header.producer_id < 0:
            return
        known_epoch, known = self._refused.get((partition, header.producer_id), (-1, -1))
        first = min(known, header.base_sequence) if header.producer_epoch == known_epoch else header.base_sequence
        self._refused[partition, header.producer_id] = header.producer_epoch, first
        while len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)

    async def _append(self, partition: Partition, waiting: _Waiting) -> Appended:
        batch, header = memoryview(waiting.batch), waiting.header
        place = (partition.topic, partition.index)
        if waiting.admission is not None:
            await waiting.admission.known(place)
        config = partition.config
        if config.opens_batches:
            async with self._opening:
                batch, header = await self._disk.run(rewrite, batch, header, config.codec, keyed=config.compacts)
        elif not waiting.looked_at:
            async with self._opening:
                await self._disk.run(check_records, batch, header)
        if partition.once is not None and not header.is_transactional:
            appended = await self._append_once(partition, waiting, batch, header)
            if appended is not None:
                return appended
        if waiting.admission is not None:
            waiting.admission.check(place)
        elif header.is_transactional and not partition.is_in_transaction(header):
            raise PenstockError(
                Code.INVALID_TRANSACTION_STATE,
                f"the transaction of producer {header.producer_id} in {partition.topic}-{partition.index} ended "
                "while a batch of it was being opened",
            )
        if waiting.check is not None:
            waiting.check(partition)
        return partition.append_checked(batch, header)

    async def _append_once(
        self, partition: Partition, waiting: _Waiting, batch: memoryview, header: Header
    ) -> Appended | None:
        """None if duplicates are looked for no more."""
        if not header.codec and len(batch) <= _MOST_READ_HERE and header.record_count <= _MOST_IDS_READ_HERE:
            ids = read_ids(batch, header)
        else:
            async with self._opening:
                ids = await self._disk.run(read_ids, batch, header)
        while (once := partition.once) is not None:
            appended = await once.append(batch, header, ids, waiting.check, drops=waiting.drops)
            if appended is not None:
                return appended
        return None
