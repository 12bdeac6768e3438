"""Clients that take messages of a queue, and write something of each, in one transaction, while brokers die.

Each message is acknowledged if, and only if, what was made of it can be read by who reads what is committed, and that
is there once. What its transaction has nobody else gets, for as long as that lasts.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.engine.groups.offsets import Spot
from penstock.engine.queues.receipts import make_receipt
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.queues.verdicts import Verdict, VerdictKind
from penstock.engine.transactions.requests import AddPartitions, EndRequest
from penstock.engine.transactions.transaction import BUMPED_AT_END, ProducerIdentity
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import OFFSETS, TRANSACTIONS, Place, ask_leader, make_internal_topics, pause
from tests.simulation.queues import TOPIC, Consumer, Had, QueueHistory, QueueWorkload, Sender
from tests.simulation.spoiled_calls import spoil_calls
from tests.simulation.transactional_producer import produce
from tests.simulation.transactions import fetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.world import World

T = TypeVar("T")
OUT = "made"
_OUT_PARTITIONS = 2
_LONGEST_TIMEOUT_MS = 6000
_PATIENCE_S = 3.0
_HURRY_S = 0.1
_LAST_READ_S = 30.0
_FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
_ABORTABLE = (
    Code.TRANSACTION_ABORTABLE,
    Code.INVALID_TRANSACTION_STATE,
    Code.OUT_OF_ORDER_SEQUENCE,
    Code.STALE_RECEIPT,
)


class Over(Exception):
    """The producer cannot go on."""


class GiveUp(Exception):
    """The transaction has to be aborted."""


class Taken(NamedTuple):
    history: QueueHistory
    delivery: Delivery
    had: Had


class Transformer:
    """One transactional id, and whoever uses it."""

    def __init__(self, client: Client, transactional_id: str, histories: Sequence[QueueHistory], version: int) -> None:
        self._client = client
        self._random = client.random
        self._id = transactional_id
        self._version = version
        self._consumers = [Consumer(client, each, transactional_id) for each in histories]
        self._histories = histories
        self._timeout_ms = self._random.choice((2000, _LONGEST_TIMEOUT_MS))
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Place, int] = {}
        self._hurries = False
        """Whether it gives up before an answer can be late: what it asked for may be done long after."""
        self._late: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._work()
        await asyncio.gather(*self._late)

    async def _work(self) -> None:
        await self._init()
        while not self._client.world.is_over:
            try:
                await self._transact()
            except Over:
                await asyncio.sleep(self._random.choice((0.0, 0.3, 3.0)))
                await self._init()
            except (*UNANSWERED, PenstockError):
                await pause(self._client)

    async def _transact(self) -> None:
        taken = await self._take()
        if not taken:
            return
        commits = self._random.random() < 0.75
        self._hurries = self._random.random() < 0.15
        try:
            await self._write(taken)
        except GiveUp:
            commits = False
        if self._random.random() < 0.05:
            raise Over  # it dies, and its transaction ends by its time-out, or when somebody takes its place
        await self._end(taken, commits=commits)

    async def _take(self) -> list[Taken]:
        chosen = self._random.sample(range(len(self._consumers)), self._random.randint(1, len(self._consumers)))
        taken = []
        for index in chosen:
            deliveries = await self._consumers[index].receive(0.3)
            taken += [Taken(self._histories[index], *each) for each in deliveries]
        return taken

    # --- in the transaction

    async def _write(self, taken: Sequence[Taken]) -> None:
        steps = [self._send(each) for each in taken] + [self._acknowledge(taken)]
        if self._random.random() < 0.5:
            steps = steps[::-1]
        if self._version < BUMPED_AT_END:
            places = tuple((OUT, index) for index in range(_OUT_PARTITIONS))
            await self._add(AddPartitions(self._id, *self._identity, places))
        try:
            for step in steps:
                await step
                await asyncio.sleep(self._random.choice((0.0, 0.0, 0.05, 0.5)) * self._random.random())
        finally:
            for step in steps:
                step.close()

    async def _add(self, request: AddPartitions) -> None:
        async def add(broker: SimulatedBroker) -> None:
            for error in (await broker.engine.transactions.add_partitions(request)).values():
                if error is not None:
                    raise error

        await self._try(TRANSACTIONS, add)

    async def _send(self, taken: Taken) -> None:
        """One record that says which message it was made of."""
        place = (OUT, self._random.randrange(_OUT_PARTITIONS))
        sequence = self._sequences.get(place, 0)
        value = b"%d:%d" % (taken.history.place[1], taken.delivery.message.offset)
        batch = build_batch(
            [(None, value, [], self._client.now_ms)],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        add = self._version >= BUMPED_AT_END
        await self._try(place, lambda broker: produce(broker, place, batch, self._id, add=add))
        self._sequences[place] = sequence + 1

    async def _acknowledge(self, taken: Sequence[Taken]) -> None:
        """As TxnOffsetCommit does it, at the coordinator of the group; now and then twice, or once more later."""
        receipts: dict[Spot, list[str]] = {}
        for history, delivery, _ in taken:
            receipt = make_receipt(history.place[1], delivery.message.offset, delivery.lease_id)
            receipts.setdefault(history.place, []).append(receipt)
        text = {spot: ",".join(each) for spot, each in receipts.items()}
        request = AckRequest(self._id, *self._identity, TOPIC, text)
        verify_only = self._version < BUMPED_AT_END

        async def work(broker: SimulatedBroker) -> None:
            transactions = broker.engine.transactions
            await transactions.add_offsets(self._id, *self._identity, TOPIC, verify_only=verify_only)
            for error in (await broker.engine.transactional_acks.acknowledge(request)).values():
                if error is not None:
                    raise error

        if verify_only:

            async def add(broker: SimulatedBroker) -> None:
                await broker.engine.transactions.add_offsets(self._id, *self._identity, TOPIC)

            await self._try(TRANSACTIONS, add)
        await self._try(OFFSETS, work)
        chance = self._random.random()
        if chance < 0.1:
            await self._try(OFFSETS, work)
        elif chance < 0.3 and not verify_only:
            self._late.add(asyncio.create_task(self._repeat(work)))

    async def _repeat(self, work: "Callable[[SimulatedBroker], Awaitable[None]]") -> None:
        """Over another connection, and perhaps when the transaction has ended; whatever the answer is."""
        client = Client(self._client.world, Random(self._random.getrandbits(64)))
        await asyncio.sleep(client.random.expovariate(1.5))
        with suppress(*UNANSWERED, PenstockError):
            await ask_leader(client, OFFSETS, work)

    async def _try(self, place: Place, work: "Callable[[SimulatedBroker], Awaitable[T]]") -> T:
        """Ask until it is done. Raises `GiveUp`, `Over`."""
        loop = self._client.world.loop
        give_up_at, timeout_s = loop.time() + _PATIENCE_S * (0.5 + self._random.random()), 3.0
        if self._hurries:
            give_up_at, timeout_s = loop.time(), _HURRY_S
        while True:
            try:
                return await ask_leader(self._client, place, work, timeout_s)
            except UNANSWERED:
                pass
            except PenstockError as error:
                if error.code in _FENCED:
                    raise Over from error
                if error.code in _ABORTABLE:
                    raise GiveUp from error
                if not error.retriable:
                    self._client.world.violate(f"{self._id}: refused: {error}")
                    raise GiveUp from error
            if loop.time() > give_up_at:
                raise GiveUp
            await pause(self._client)

    # --- its end

    async def _end(self, taken: Sequence[Taken], *, commits: bool) -> None:
        version = BUMPED_AT_END if self._version >= BUMPED_AT_END else 0
        request = EndRequest(self._id, *self._identity, commits, version)

        async def end(broker: SimulatedBroker) -> ProducerIdentity:
            return await broker.engine.transactions.end(request)

        for history, delivery, _ in taken if commits else ():
            history.job(delivery.message.offset).may_be_acked = True
        while True:
            try:
                self._identity = await ask_leader(self._client, TRANSACTIONS, end)
            except UNANSWERED:
                pass
            except PenstockError as error:
                if not error.retriable:
                    raise Over from error
            else:
                break
            await pause(self._client)
        now = self._client.world.loop.time()
        for history, delivery, _ in taken if commits else ():
            history.job(delivery.message.offset).acked_at = now
        self._client.world.acknowledged()
        if self._version >= BUMPED_AT_END or not commits:
            self._sequences.clear()
        if self._version < BUMPED_AT_END and not commits:
            raise Over  # whoever gave a batch up needs another epoch

    async def _init(self) -> None:
        async def init(broker: SimulatedBroker) -> ProducerIdentity:
            return await broker.engine.transactions.init(self._id, self._timeout_ms)

        self._sequences.clear()
        while not self._client.world.is_over:
            try:
                self._identity = await ask_leader(self._client, TRANSACTIONS, init, 5.0)
            except UNANSWERED:
                pass
            except PenstockError as error:
                if not error.retriable:
                    self._client.world.violate(f"{self._id}: init refused: {error}")
            else:
                return
            await pause(self._client)


class PlainConsumer(Consumer):
    """Attributes:
    acked: what it has acknowledged outside of transactions, or may have.
    """

    def __init__(self, client: Client, history: QueueHistory, name: str) -> None:
        super().__init__(client, history, name)
        self.place = history.place
        self.acked: set[int] = set()

    async def settle(self, delivery: Delivery, had: Had, verdict: Verdict) -> None:
        if verdict.kind is VerdictKind.ACK:
            self.acked.add(delivery.message.offset)
        await super().settle(delivery, had, verdict)


class TransformWorkload(QueueWorkload):
    """A queue of one or two partitions, with some that transform it, and some that only consume."""

    def __init__(self, world: "World", random: Random) -> None:
        super().__init__(world, random)
        self._made: dict[Spot, Counter[int]] = {history.place: Counter() for history in self._histories}
        self._repeats_markers = random.random() < 0.3
        self._consumers = [PlainConsumer(self._client(), each, f"{each.place[1]}c") for each in self._histories]
        versions = (BUMPED_AT_END,) if self._repeats_markers else (1, BUMPED_AT_END)
        self._transformers = [
            Transformer(self._client(), f"t{number}", self._histories, random.choice(versions)) for number in range(3)
        ]

    async def set_up(self) -> None:
        await make_internal_topics(self._world)
        await super().set_up()
        world = self._world

        async def create(broker: SimulatedBroker) -> None:
            await broker.engine.create_topic(OUT, _OUT_PARTITIONS, {"min.insync.replicas": "2"}, replication=3)

        await world.cluster.call(world.cluster.ids[0], create, 20.0)

        def is_there() -> bool:
            return all(world.partition(node_id, OUT, 1) is not None for node_id in world.cluster.ids)

        if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
            world.violate(f"{OUT} never came up: {world.lacking()}")

    def last_consumer(self, client: Client, history: QueueHistory) -> Consumer:
        self._consumers.append(PlainConsumer(client, history, "last"))
        return self._consumers[-1]

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        running: list[Coroutine[Any, Any, None]] = [each.run() for each in self._transformers]
        running.append(spoil_calls(self._world, Random(self._random.getrandbits(64)), repeats=self._repeats_markers))
        for history in self._histories:
            running += [Sender(self._client(), history).run(), Sender(self._client(), history).run()]
        return [*running, *(each.run() for each in self._consumers)]

    async def finish(self) -> None:
        await super().finish()
        client = self._client()
        for index in range(_OUT_PARTITIONS):
            await self._read_made(client, (OUT, index))

    async def _read_made(self, client: Client, place: Place) -> None:
        """What was made, by the message that it was made of."""
        offset, deadline = 0, self._world.loop.time() + _LAST_READ_S
        while True:
            start = offset
            try:
                found = await ask_leader(
                    client,
                    place,
                    lambda broker, at=start: fetch(broker, place, at, -1, committed=True),  # type: ignore[misc]
                )
            except (*UNANSWERED, PenstockError) as error:
                if self._world.loop.time() > deadline:
                    self._world.violate(f"{place} cannot be read at last: {error}")
                    return
                await pause(client)
                continue
            if found.next_offset == offset:
                return
            for _, value in found.records:
                partition, _, at = value.partition(b":")
                self._made[TOPIC, int(partition)][int(at)] += 1
            offset = found.next_offset

    def check(self) -> list[str]:
        wrong = super().check()
        for history in self._histories:
            name, made = f"{history.place[0]}-{history.place[1]}", self._made[history.place]
            left = (history.drained or set()) | set(history.letters)
            acked = {offset for each in self._consumers if each.place == history.place for offset in each.acked}
            for offset, times in sorted(made.items()):
                if times > 1:
                    wrong.append(f"{name} at {offset} was transformed {times} times")
                if offset in left:
                    wrong.append(f"{name} at {offset} was transformed, and is there in the end")
            wrong += [
                f"{name} at {offset} is settled, and nothing was made of it"
                for offset in sorted(history.safe - left - acked - set(made))
            ]
        return wrong

    def counters(self) -> dict[str, int]:
        return {**super().counters(), "messages transformed": sum(sum(made.values()) for made in self._made.values())}
