"""Transactions as the doors see them: asks the shard a transactional id lives in, and writes what it decides.

A decision is acted on when its record is durable: a marker goes into every partition of the transaction, and when all
of them are durable the shard is told. A partition that cannot be written now is tried again until it can: the decision
stands, and readers of committed records wait at the transaction until then. One that was deleted, or where a later
epoch has written, needs no marker any more.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from penstock.engine.coordination.shard import Shard, Surroundings
from penstock.engine.coordination.shards import Shards, TopicMaker
from penstock.engine.partition import Partition
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.topics import Topics
from penstock.engine.transactions.machine import TransactionMachine
from penstock.engine.transactions.requests import (
    AddPartitions,
    EndRequest,
    InitRequest,
    MarkersDue,
    TransactionDescription,
    TransactionLimits,
    TransactionListing,
)
from penstock.engine.transactions.transaction import ProducerIdentity, TopicPartition
from penstock.engine.waiters import AckWait
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.records.control import Marker
from penstock.storage.log.log import Appended

log_ = get_logger("transactions")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_NEEDS_NO_MARKER = (Code.UNKNOWN_TOPIC, Code.INVALID_PRODUCER_EPOCH)


class Transactions:
    """Args:
    on_offsets_marker: told (partition, producer id, committed) when a marker went into the offsets' topic.
    """

    def __init__(
        self,
        around: Surroundings,
        topics: Topics,
        make_topic: TopicMaker,
        producer_ids: ProducerIds,
        on_offsets_marker: Callable[[int, int, bool], None],
        limits: TransactionLimits | None = None,
    ) -> None:
        self._around = around
        self._topics = topics
        self._make_topic = make_topic
        self._producer_ids = producer_ids
        self._on_offsets_marker = on_offsets_marker
        self._limits = limits or TransactionLimits()
        self.shards = Shards(TRANSACTIONS_TOPIC, make_topic, self._make_shard)

    def _make_shard(self, partition: Partition) -> Shard[TransactionMachine]:
        def make(now: int) -> TransactionMachine:
            return TransactionMachine(self._limits, coordinator_epoch=partition.leader_epoch)

        return Shard(partition, self._around, make, transactions=True, duties=self._duties)

    # --- what clients ask for; all raise PenstockError

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> ProducerIdentity:
        """An id and epoch for a producer; whoever used the transactional id before is fenced."""
        spare = await self._spare_id(transactional_id)
        request = InitRequest(transactional_id, timeout_ms, producer_id, producer_epoch, spare)
        shard = await self.shards.of(transactional_id)
        identity: ProducerIdentity = await shard.ask(lambda machine, now, token: machine.init(now, token, request))
        return identity

    async def add_partitions(self, request: AddPartitions) -> Mapping[TopicPartition, PenstockError | None]:
        shard = await self.shards.of(request.transactional_id)
        added: Mapping[TopicPartition, PenstockError | None] = await shard.ask(
            lambda machine, now, token: machine.add_partitions(now, token, request)
        )
        return added

    async def add_offsets(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, verify_only: bool = False
    ) -> Callable[[], None]:
        """The offsets of a group are part of the transaction from now on; or, with `verify_only`, are they?

        Returns:
            A check that this is still so, to be made right before they are written; it raises PenstockError.
        """
        topic = await self._make_topic(OFFSETS_TOPIC)
        place = (OFFSETS_TOPIC, shard_of(group_id, len(topic.partitions)))
        request = AddPartitions(transactional_id, producer_id, epoch, (place,), verify_only)
        error = (await self.add_partitions(request))[place]
        if error is not None:
            raise error
        return partial(self.check_open, request, place)

    async def end(self, request: EndRequest) -> ProducerIdentity:
        """Commit or abort; returns when the decision is durable, its markers follow."""
        if request.client_transaction_version >= 2:
            request = request._replace(new_producer_id=await self._spare_id(request.transactional_id))
        shard = await self.shards.of(request.transactional_id)
        identity: ProducerIdentity = await shard.ask(lambda machine, now, token: machine.end(now, token, request))
        return identity

    async def _spare_id(self, transactional_id: str) -> int:
        machine = await (await self.shards.of(transactional_id)).machine()
        return await self._producer_ids.take() if machine.needs_producer_id(transactional_id) else -1

    async def describe(self, transactional_id: str) -> TransactionDescription:
        machine = await (await self.shards.of(transactional_id)).machine()
        return machine.describe(transactional_id)

    # --- producing

    def admission(
        self, transactional_id: str, identity: ProducerIdentity, places: tuple[TopicPartition, ...], *, add: bool
    ) -> "Admissions":
        """Have the coordinator know `places`, or look whether it does; for the first batches of a transaction there."""
        request = AddPartitions(transactional_id, *identity, places, verify_only=not add)
        return Admissions(self, request, asyncio.ensure_future(self._settled(request)))

    async def _settled(self, request: AddPartitions) -> Mapping[TopicPartition, PenstockError | None]:
        try:
            return await self.add_partitions(request)
        except PenstockError as error:
            return dict.fromkeys(request.partitions, error)

    def check_open(self, request: AddPartitions, place: TopicPartition) -> None:
        """Whether a batch for `place` belongs to the transaction under way, now. Raises PenstockError."""
        topic = self._topics.get(TRANSACTIONS_TOPIC)
        shard = self.shards.at(shard_of(request.transactional_id, len(topic.partitions))) if topic else None
        machine = shard.loaded if shard is not None else None
        if machine is None:
            raise PenstockError(Code.NOT_AVAILABLE, f"the coordinator of {request.transactional_id!r} is being loaded")
        machine.check_open(request.transactional_id, request.producer_id, request.producer_epoch, place)

    # --- markers

    def _duties(self, shard: Shard[TransactionMachine], machine: TransactionMachine) -> Callable[[], None] | None:
        due = machine.markers_due()
        return partial(self._write_all, shard, machine, due) if due else None

    def _write_all(self, shard: Shard[TransactionMachine], machine: TransactionMachine, due: list[MarkersDue]) -> None:
        for markers in due:
            self._around.tasks.spawn(self._write_markers(shard, machine, markers), "transaction markers")

    async def _write_markers(
        self, shard: Shard[TransactionMachine], machine: TransactionMachine, due: MarkersDue
    ) -> None:
        """Ends when another machine has taken the place of the one that decided: that one names the markers again."""
        left = [(named.topic, index) for named in due.partitions for index in named.partition_ids]
        pause = _FIRST_PAUSE_S
        while shard.loaded is machine:
            left = await self._write_some(due, left)
            if not left:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
        if shard.loaded is not machine:
            return
        shard.step(
            lambda machine, now: machine.markers_written(now, due.transactional_id, due.producer_id, due.producer_epoch)
        )

    async def _write_some(self, due: MarkersDue, places: list[TopicPartition]) -> list[TopicPartition]:
        """Write markers and wait until they are durable; the places where that was not possible."""
        left, written = [], []
        for topic, index in places:
            try:
                partition = self._topics.partition(topic, index)
                appended = self._mark(
                    partition, due.producer_id, due.producer_epoch, due.coordinator_epoch, due.committed
                )
            except PenstockError as error:
                if error.code not in _NEEDS_NO_MARKER:
                    left.append((topic, index))
                    log_.limited("marker").warning(
                        "a transaction's marker waits", partition=f"{topic}-{index}", error=str(error)
                    )
                continue
            written.append((partition, appended.last_offset))
        await _until_visible(written)
        return left

    def _mark(
        self, partition: Partition, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> Appended:
        marker = Marker.COMMIT if committed else Marker.ABORT
        appended = partition.append_marker(producer_id, producer_epoch, marker, coordinator_epoch)
        if partition.topic == OFFSETS_TOPIC:
            self._on_offsets_marker(partition.index, producer_id, committed)
        return appended

    async def write_marker(
        self, topic: str, index: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool
    ) -> None:
        """End a producer's transaction in one partition, whatever its coordinator says: for one that hangs."""
        partition = self._topics.partition(topic, index)
        appended = self._mark(partition, producer_id, producer_epoch, coordinator_epoch, committed)
        await _until_visible([(partition, appended.last_offset)])

    async def list(
        self, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
    ) -> list[TransactionListing]:
        found: list[TransactionListing] = []
        for shard in self.shards:
            machine = await shard.machine()
            await asyncio.sleep(0)  # a pattern over ten thousand ids takes a while
            found += machine.list(self._around.clock.now_ms(), states, producer_ids, duration_ms, pattern)
        return found


async def _until_visible(written: list[tuple[Partition, int]]) -> None:
    """Return when what was appended up to these offsets is visible, and so durable where that was promised."""
    visible = asyncio.get_running_loop().create_future()
    wait = AckWait(lambda: None if visible.done() else visible.set_result(None))  # done: who waited was cancelled
    for partition, last_offset in written:
        if partition.high_watermark <= last_offset:
            partition.waiters.add_ack(last_offset, wait)
    wait.arrive()
    await visible


class Admissions:
    """The partitions of one request, asked for together; each batch waits for its own."""

    def __init__(
        self,
        transactions: Transactions,
        request: AddPartitions,
        answer: "asyncio.Future[Mapping[TopicPartition, PenstockError | None]]",
    ) -> None:
        self._transactions = transactions
        self._request = request
        self._answer = answer

    async def known(self, place: TopicPartition) -> None:
        error = (await self._answer)[place]
        if error is not None:
            raise error

    def check(self, place: TopicPartition) -> None:
        self._transactions.check_open(self._request, place)
