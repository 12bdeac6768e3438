"""Transactions as the doors see them: asks the shard a transactional id lives in, and writes what it decides.

A decision is acted on when its record is durable: a marker goes into every partition of the transaction, and when all
of them are durable the shard is told. A partition that cannot be written now is tried again until it can: the decision
stands, and readers of committed records wait at the transaction until then. One that was deleted needs no marker any
more. Where a later producer epoch, or a later coordinator, has written, its leader looks whether a transaction of the
producer is still open: if none is, somebody else has ended it. If one is, the marker is refused, and tried again with
an error in the log: only a coordinator that was deposed should ever be told so, and it stops when it learns of that.

In a cluster the coordinator of an id, the leader of a partition and the coordinator of a group may be three brokers.
What one asks another goes through `other_brokers`. A partition's leader that asks a coordinator elsewhere cannot look
again right before it appends; it holds a guard instead, which a marker that comes in between takes away.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.engine.coordination.coordinators import Coordinators
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from penstock.engine.coordination.registry import TRANSACTIONS
from penstock.engine.coordination.shard import Shard, Surroundings
from penstock.engine.coordination.shards import TopicMaker
from penstock.engine.partition import Partition
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.safety import until_safe
from penstock.engine.topics import Topics
from penstock.engine.transactions.machine import TransactionMachine
from penstock.engine.transactions.other_brokers import NoOtherBrokers, OtherBrokers
from penstock.engine.transactions.requests import (
    AddPartitions,
    EndRequest,
    InitRequest,
    MarkersDue,
    TransactionDescription,
    TransactionLimits,
    TransactionListing,
)
from penstock.engine.transactions.transaction import ProducerIdentity, State, TopicPartition
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.records.control import Marker

T = TypeVar("T")
log_ = get_logger("transactions")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_LOOK_S = 1.0  # how often it is seen to that the broker that was asked is still the one to ask
_FENCED = (Code.INVALID_PRODUCER_EPOCH, Code.COORDINATOR_FENCED)


class Transactions:
    """Args:
    before_marker: told the partition of a coordinator that a marker is about to go into.
    on_marker: told (partition, producer id, committed) when it did.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        around: Surroundings,
        topics: Topics,
        make_topic: TopicMaker,
        producer_ids: ProducerIds,
        before_marker: Callable[[Partition], None],
        on_marker: Callable[[Partition, int, bool], None],
        limits: TransactionLimits | None = None,
        *,
        stats: Stats,
    ) -> None:
        self._around = around
        self._stats = stats
        self._topics = topics
        self._make_topic = make_topic
        self._producer_ids = producer_ids
        self._before_marker = before_marker
        self._on_marker = on_marker
        self._limits = limits or TransactionLimits()
        self.other_brokers: OtherBrokers = NoOtherBrokers()
        """Replaced in a cluster, before the start."""
        self.shards = coordinators.register(TRANSACTIONS, self._machines, self._duties)

    def _machines(self, partition: Partition) -> Callable[[int], TransactionMachine]:
        return lambda now: TransactionMachine(self._limits, coordinator_epoch=partition.leader_epoch)

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
        admission = self._admission(request)
        await admission.known(place)
        return partial(admission.check, place)

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
        return self._admission(AddPartitions(transactional_id, *identity, places, verify_only=not add))

    def _admission(self, request: AddPartitions) -> "Admissions":
        guards: dict[TopicPartition, object] = {}
        for place in request.partitions:
            try:
                partition = self._topics.place(*place)
                partition.leading()  # who does not lead sees no markers
                guards[place] = partition.guard(request.producer_id)
            except PenstockError:
                continue  # said by who looks next
        return Admissions(self, request, guards, asyncio.ensure_future(self._settled(request)))

    async def _settled(self, request: AddPartitions) -> "Settled":
        elsewhere = False
        try:
            shard = await self.shards.of(request.transactional_id)
            elsewhere = not shard.is_here
            if elsewhere:
                coordinator = shard.partition.state.leader
                answer = self.other_brokers.add_partitions(coordinator, request)
                return Settled(await _while_it_leads(answer, coordinator, [shard.partition]), True)
            return Settled(await self.add_partitions(request), False)
        except PenstockError as error:
            return Settled(dict.fromkeys(request.partitions, error.kept()), elsewhere)

    def check_guard(self, request: AddPartitions, place: TopicPartition, guard: object) -> None:
        """Whether a batch for `place` still belongs to the transaction it was let in for. Raises PenstockError.

        Where the coordinator is elsewhere, a marker that was written here since it was asked takes the guard away.
        """
        if guard is None or self._topics.place(*place).guards.get(request.producer_id) is not guard:
            raise PenstockError(  # send it again: the coordinator is asked again, and knows
                Code.NOT_AVAILABLE,
                f"a transaction of {request.transactional_id!r} ended in {place[0]}-{place[1]} meanwhile",
            )

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
        results: dict[TopicPartition, PenstockError | None] = {}
        written: list[tuple[Partition, int]] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        for place in places:
            try:
                partition = self._topics.place(*place)
                if partition.led is None and (partition.offline is None or partition.is_elsewhere):
                    elsewhere.setdefault(partition.state.leader, []).append(place)
                    continue
                last_offset = self._mark(
                    partition, due.producer_id, due.producer_epoch, due.coordinator_epoch, due.committed, due.bumped
                )
                written.append((partition, last_offset))
            except PenstockError as error:
                results[place] = error
        visible = until_safe(written)  # before anybody else has a turn: these may be led elsewhere in a moment
        asked = [self._ask_to_write(broker_id, due, wanted) for broker_id, wanted in elsewhere.items()]
        try:
            for answered in await asyncio.gather(*asked):
                results |= answered
            await visible
        except PenstockError as error:  # led no more: whether the marker stays, another leader knows
            results |= {(partition.topic, partition.index): error for partition, _ in written}
        finally:
            visible.cancel()
        return [place for place, error in results.items() if error and await self._is_to_be_tried_again(place, error)]

    async def _ask_to_write(
        self, broker_id: int, due: MarkersDue, places: list[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        try:
            partitions = [self._topics.place(*place) for place in places]
            return await _while_it_leads(
                self.other_brokers.write_markers(broker_id, due, places), broker_id, partitions
            )
        except PenstockError as error:
            return dict.fromkeys(places, error)

    async def _is_to_be_tried_again(self, place: TopicPartition, error: PenstockError) -> bool:
        if error.code in (Code.UNKNOWN_TOPIC, Code.UNKNOWN_TOPIC_ID) and await self.other_brokers.is_gone(place[0]):
            return False
        partition = f"{place[0]}-{place[1]}"
        if error.code in _FENCED:
            self._stats.refused_markers += 1
            log_.limited("refused marker").error(
                "a transaction's marker is refused where the transaction is open", partition=partition, error=str(error)
            )
        else:
            log_.limited("marker").warning("a transaction's marker waits", partition=partition, error=str(error))
        return True

    def _mark(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        bumped: bool,
    ) -> int:
        """Write a marker, unless it is there or somebody later has ended the transaction; the offset below which it is.

        Raises:
            PenstockError: INVALID_PRODUCER_EPOCH, COORDINATOR_FENCED: a transaction of the producer is open, and this
                marker is not the one to end it.
        """
        log = partition.leading()
        known = log.state.producers.get(producer_id)
        if bumped and known is not None and known.epoch == producer_epoch:
            return log.end_offset - 1  # it comes once more: in its epoch the next transaction may have begun (KIP-1228)
        marker = Marker.COMMIT if committed else Marker.ABORT
        is_coordinators = partition.topic == OFFSETS_TOPIC or partition.attached_to is not None
        if is_coordinators:
            self._before_marker(partition)
        try:
            appended = partition.append_marker(producer_id, producer_epoch, marker, coordinator_epoch)
        except PenstockError as error:
            if error.code not in _FENCED or producer_id in log.active_transactions.open:
                raise
            return log.end_offset - 1  # what ended it is below, but perhaps not safe yet
        if is_coordinators:
            self._on_marker(partition, producer_id, committed)
        return appended.last_offset

    async def write_marker(
        self,
        topic: str,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        *,
        bumped: bool = False,
    ) -> None:
        """End a producer's transaction in one partition, for its coordinator on another broker. Raises PenstockError.

        Args:
            bumped: the epoch is above that of everything in the transaction; a marker in it is written once.
        """
        partition = self._topics.place(topic, index)
        last_offset = self._mark(partition, producer_id, producer_epoch, coordinator_epoch, committed, bumped)
        await until_safe([(partition, last_offset)])

    async def abort_open(self, topic: str, index: int, producer_id: int, producer_epoch: int) -> None:
        """Abort a producer's transaction in one partition, whatever its coordinator says: for one that hangs.

        Args:
            producer_epoch: as the partition knows it, so that whoever asks means this transaction and no later one.

        Raises:
            PenstockError: INVALID_TOPIC for the broker's own topics, where groups and other transactions are kept;
                INVALID_TRANSACTION_STATE, INVALID_PRODUCER_EPOCH, and why the partition cannot be written.
        """
        partition = self._topics.partition(topic, index)
        if topic in INTERNAL_TOPICS:
            raise PenstockError(Code.INVALID_TOPIC, f"topic {topic!r} is written by the broker only")
        self._check_undecided(partition, producer_id)
        appended = partition.append_abort(producer_id, producer_epoch)
        await until_safe([(partition, appended.last_offset)])

    def _check_undecided(self, partition: Partition, producer_id: int) -> None:
        """Whether no coordinator here has committed the transaction and will say so in the partition, as it may there.

        Raises:
            PenstockError: NOT_ALLOWED.
        """
        known = partition.leading().state.producers.get(producer_id)
        for shard in self.shards:
            if shard.loaded is None or (known is not None and known.coordinator_epoch > shard.partition.leader_epoch):
                continue  # its markers are refused: this is the way out
            now = self._around.clock.now_ms()
            for listing in shard.loaded.list(now, (State.PREPARE_COMMIT.shown,), (producer_id,)):
                raise PenstockError(
                    Code.NOT_ALLOWED,
                    f"the transaction of {listing.transactional_id!r} is committed; its marker follows",
                )

    async def list(
        self, states: Collection[str], producer_ids: Collection[int], duration_ms: int, pattern: str | None
    ) -> list[TransactionListing]:
        found: list[TransactionListing] = []
        for shard in self.shards:
            await self._around.turns.next()  # a pattern over ten thousand ids takes a while
            machine = await shard.machine()
            found += machine.list(self._around.clock.now_ms(), states, producer_ids, duration_ms, pattern)
        return found


async def _while_it_leads(answer: Coroutine[Any, Any, T], broker_id: int, partitions: Sequence[Partition]) -> T:
    """What a broker answers that leads some of these partitions. A machine that is gone never says so.

    Raises:
        PenstockError: NOT_AVAILABLE when others lead all of them; what was asked for may be done all the same.
    """
    asked = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait({asked}, timeout=_LOOK_S))[0]:
            if all(partition.state.leader != broker_id for partition in partitions):
                raise PenstockError(
                    Code.NOT_AVAILABLE, f"broker {broker_id} does not answer, and leads {partitions[0].name} no more"
                )
        return asked.result()
    finally:
        asked.cancel()


class Settled(NamedTuple):
    """What a coordinator said of the partitions of a request."""

    results: Mapping[TopicPartition, PenstockError | None]
    elsewhere: bool
    """Whether it is on another broker."""


class Admissions:
    """The partitions of one request, asked for together; each batch waits for its own."""

    def __init__(
        self,
        transactions: Transactions,
        request: AddPartitions,
        guards: Mapping[TopicPartition, object],
        answer: "asyncio.Future[Settled]",
    ) -> None:
        self._transactions = transactions
        self._request = request
        self._guards = guards
        self._answer = answer

    async def known(self, place: TopicPartition) -> None:
        error = (await self._answer).results[place]
        if error is not None:
            raise error.again()

    def check(self, place: TopicPartition) -> None:
        """Raises PenstockError if the transaction has ended meanwhile. Only after `known`."""
        if self._answer.result().elsewhere:
            self._transactions.check_guard(self._request, place, self._guards.get(place))
        else:
            self._transactions.check_open(self._request, place)
