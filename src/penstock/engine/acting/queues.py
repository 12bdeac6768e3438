"""Queues, as one subject may use them: it has to be allowed to use the topic and the group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.engine.access import Kind, Operation
from penstock.engine.groups.offsets import Results, Spot
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Figures, Leased, Want, Whereabouts
from penstock.engine.queues.history import Event
from penstock.engine.queues.holdings import Holding, find_holding
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.queues import KIND
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.settings import DEDUP_WINDOW, OWN_TARGET, QUEUE_RULES, QueueRules, parse_rules
from penstock.engine.queues.sorting.early import own_due_time
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.queues.sorting.standing import Standing
from penstock.engine.queues.targets import check_no_circle
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.queues.verdicts import By, Change
from penstock.engine.queues.window import Run
from penstock.engine.reading import Message, Slice
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts
    from penstock.engine.engine import Engine

Wake = Callable[[], None]


class ActingQueues:
    """All verbs raise PenstockError, first of all `NotAuthorised`. Those about a partition need it to be led here."""

    __slots__ = ("_engine", "_rights")

    def __init__(self, engine: "Engine", rights: "Verdicts") -> None:
        self._engine = engine
        self._rights = rights

    def _check(self, operation: Operation, topic: str, group: str) -> None:
        self._rights.check(operation, Kind.GROUP, group)
        self._rights.check(operation, Kind.TOPIC, topic)

    def _check_destroy(self, partition: Partition, group: str) -> None:
        self._rights.check(Operation.DELETE, Kind.GROUP, group)
        self._rights.check(Operation.READ, Kind.TOPIC, partition.topic)

    # --- queues

    async def alter(
        self,
        topic: Topic,
        group: str,
        alter: Callable[[Mapping[str, str] | None], Mapping[str, str] | None],
        operation: Operation = Operation.ALTER_CONFIGS,
    ) -> None:
        """Make, change or end a queue.

        Args:
            alter: makes the settings that are given for it of those that were; None for no queue.
            operation: the right that it takes, to the group and the topic.
        """
        self._check(operation, topic.name, group)
        name = QueueName(topic.name, group)
        if operation is not Operation.DELETE:
            await self._engine.queues.attach(topic)  # an earlier release would drop the queues of a topic without it

        def altered(queues: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
            settings = alter(queues.get(group))
            if settings is not None:
                self._check_target(name, parse_rules(queues.get(group, {}), QUEUE_RULES), settings)
                _check_window(name, settings)
            others = {name: given for name, given in queues.items() if name != group}
            return others if settings is None else {**others, group: settings}

        await self._engine.alter_queues(topic, altered)

    def _check_target(self, name: QueueName, before: QueueRules, settings: Mapping[str, str]) -> None:
        """The broker writes dead letters by its own right, so whoever names a topic for them must have that right."""
        rules = parse_rules(settings, QUEUE_RULES)
        if rules.dead_letter == before.dead_letter:
            return
        if rules.dead_letter not in (None, OWN_TARGET):
            self._rights.check(Operation.WRITE, Kind.TOPIC, rules.dead_letter)
        check_no_circle(name, rules, self._engine.queues.rulebook.targets)

    def may_be(self, topic: Topic, group: str) -> bool:
        """Whether a group can have a queue of a topic at all: it was made as one, or there are ledgers that know."""
        return group in topic.queues or KIND in topic.attached

    async def open(self, partition: Partition, group: str, start: int | None = None) -> None:
        self._check(Operation.READ, partition.topic, group)
        await self._engine.queues.open(partition, group, start)

    async def open_shared(self, partition: Partition, group: str) -> None:
        """Have a share group begin to read a partition that it was given, where its settings say."""
        self._check(Operation.READ, partition.topic, group)
        await self._engine.sharing.open(partition, group)

    async def restart(self, partition: Partition, group: str, start: int) -> None:
        self._check(Operation.READ, partition.topic, group)
        await self._engine.queues.restart(partition, group, start)

    async def purge(self, partition: Partition, group: str, before: int | None = None) -> int:
        self._check_destroy(partition, group)
        return await self._engine.queues.purge(partition, group, before)

    async def cancel(self, partition: Partition, group: str, wanted: Sequence[Waiting]) -> int:
        self._check_destroy(partition, group)
        return await self._engine.queues.cancel(partition, group, wanted)

    async def deliver_now(self, partition: Partition, group: str, wanted: Sequence[Waiting]) -> int:
        """It changes what the queue does, for all who receive from it."""
        self._check(Operation.READ, partition.topic, group)
        self._check(Operation.ALTER_CONFIGS, partition.topic, group)
        return await self._engine.queues.deliver_now(partition, group, wanted)

    async def delete(self, partition: Partition, group: str) -> None:
        """Forget what it has done, and with partition 0 its schedules."""
        self._check_destroy(partition, group)
        await self._engine.schedules.forget_with(partition, group)
        await self._engine.queues.delete(partition, group)

    def rules(self, topic: str, group: str) -> QueueRules:
        self._check(Operation.DESCRIBE, topic, group)
        return self._engine.queues.rules(topic, group)

    # --- messages

    async def lease(self, partition: Partition, want: Want, *, committed: bool = True) -> Leased:
        self._check(Operation.READ, partition.topic, want.group)
        return await self._engine.queues.lease(partition, want, committed=committed)

    async def receive(self, partition: Partition, want: Want, max_bytes: int, wait_s: float) -> list[Delivery]:
        self._check(Operation.READ, partition.topic, want.group)
        deliveries = await self._engine.receiving.receive(partition, want, max_bytes, wait_s)
        self._check(Operation.READ, partition.topic, want.group)  # it may have waited long
        return deliveries

    async def find_expired(
        self, partition: Partition, group: str, parts: Iterable[tuple[Slice, int, int]]
    ) -> list[Run]:
        """What has waited for longer than it may, in a queue that was made as one; nobody else's messages expire.

        Args:
            parts: of batches; each with the first and last offset that is asked about.
        """
        self._check(Operation.READ, partition.topic, group)
        engine = self._engine
        if not engine.queues.rulebook.is_known(partition.topic, group):
            return []
        ttl_ms = engine.queues.rules(partition.topic, group).ttl_ms
        found: list[Run] = []
        for batch, first, last in parts:
            found += await engine.receiving.expiry.find_over(partition, batch, first, last, ttl_ms)
        return found

    async def settle(self, partition: Partition, group: str, by: By, changes: Sequence[Change]) -> None:
        self._check(Operation.READ, partition.topic, group)
        await self._engine.queues.settle(partition, group, by, changes)

    def is_ack(self, spot: Spot, group: str, metadata: str, *, by_member: bool) -> bool:
        """See `TransactionalAcks.is_ack`."""
        return self._engine.transactional_acks.is_ack(spot, group, metadata, by_member=by_member)

    async def acknowledge(self, request: AckRequest) -> Results:
        """In a transaction: takes the right to write by its id, and what an acknowledgement takes."""
        self._rights.check(Operation.WRITE, Kind.TRANSACTIONAL_ID, request.transactional_id)
        for topic, _ in request.receipts:
            self._check(Operation.READ, topic, request.group)
        return await self._engine.transactional_acks.acknowledge(request)

    async def take_acks(self, request: AckRequest) -> Results:
        """What a broker may ask that has looked at the rights."""
        self._rights.check_cluster(Operation.CLUSTER_ACTION)
        return await self._engine.transactional_acks.take(request)

    def settle_soon(self, partition: Partition, group: str, by: By, changes: Sequence[Change]) -> None:
        self._check(Operation.READ, partition.topic, group)
        self._engine.queues.settle_soon(partition, group, by, changes)

    async def leave(self, partition: Partition, group: str, consumer: str, *, graceful: bool) -> int:
        """Who has lost the right may still give back."""
        return await self._engine.queues.leave(partition, group, consumer, graceful=graceful)

    async def redrive(self, partition: Partition, queue: QueueName, wanted: Sequence[Run]) -> int:
        """The same as moving each by hand: who may read the dead letters, and write to the queue."""
        self._check(Operation.READ, partition.topic, partition.topic)
        self._rights.check(Operation.WRITE, Kind.TOPIC, queue.topic)
        return await self._engine.queues.redrive(partition, str(queue), wanted)

    # --- looking

    async def figures(self, partition: Partition, group: str) -> Figures:
        self._check(Operation.DESCRIBE, partition.topic, group)
        return await self._engine.queues.figures(partition, group)

    async def holding(self, partition: Partition, group: str) -> Holding:
        """How old its oldest message is, and what is kept for its sake."""
        figures = await self.figures(partition, group)
        durable = self._engine.queues.rules(partition.topic, group).durable
        return await find_holding(partition, figures.start, self._engine.clock.now_ms(), durable=durable)

    async def whereabouts(self, partition: Partition, group: str, offset: int) -> Whereabouts:
        self._check(Operation.DESCRIBE, partition.topic, group)
        return await self._engine.queues.whereabouts(partition, group, offset)

    async def due_times(self, partition: Partition, group: str, first: int, last: int) -> Mapping[int, int]:
        self._check(Operation.DESCRIBE, partition.topic, group)
        return await self._engine.queues.due_times(partition, group, first, last)

    async def standing(self, partition: Partition, group: str) -> Standing:
        self._check(Operation.DESCRIBE, partition.topic, group)
        return await self._engine.queues.standing(partition, group)

    async def waiting(self, partition: Partition, group: str, after: Waiting, most: int) -> list[Waiting]:
        self._check(Operation.READ, partition.topic, group)
        return await self._engine.queues.waiting(partition, group, after, most)

    async def due_time(self, partition: Partition, group: str, message: Message) -> int | None:
        """Until when a message waits that nobody has had yet; None if it does not."""
        self._check(Operation.DESCRIBE, partition.topic, group)
        due_ms = own_due_time(message, self.now_ms)
        if due_ms is None:
            delay_ms = self._engine.queues.rules(partition.topic, group).delay_ms
            due_ms = min(message.timestamp, self.now_ms) + delay_ms
        if due_ms <= self.now_ms or not await self._engine.queues.is_waiting(partition, group, message.offset):
            return None
        return due_ms

    @property
    def now_ms(self) -> int:
        """By which what is due is told from what is not."""
        return self._engine.clock.now_ms()

    async def history(self, partition: Partition, group: str, offset: int) -> list[Event]:
        self._check(Operation.DESCRIBE, partition.topic, group)
        return await self._engine.queues.history(partition, group, offset, self._engine.turns)

    async def groups(self, partition: Partition) -> list[str]:
        """Those that may be described."""
        self._rights.check(Operation.DESCRIBE, Kind.TOPIC, partition.topic)
        groups = await self._engine.queues.groups(partition)
        return [group for group in groups if self._rights.may(Operation.DESCRIBE, Kind.GROUP, group)]

    def watch(self, partition: Partition, group: str, wake: Wake) -> None:
        self._check(Operation.READ, partition.topic, group)
        self._engine.queues.watch(partition, group, wake)

    def unwatch(self, partition: Partition, group: str, wake: Wake) -> None:
        self._engine.queues.unwatch(partition, group, wake)


def _check_window(name: QueueName, settings: Mapping[str, str]) -> None:
    """Raises PenstockError INVALID_CONFIG: what is appended is the same for all queues of a topic."""
    if name.group != name.topic and parse_rules(settings, QUEUE_RULES).dedup_ms is not None:
        raise PenstockError(
            Code.INVALID_CONFIG,
            f"queue setting {DEDUP_WINDOW} is {settings[DEDUP_WINDOW]!r} for {str(name)!r}; duplicates are dropped for "
            "all queues of a topic alike",
            help=f"give it to queue {name.topic!r}",
        )
