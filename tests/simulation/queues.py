"""Clients that use a queue while leaders die, replicas move and disks fail.

What was sent safely is acknowledged or a dead letter in the end, and never both; what was acknowledged is not delivered
again; a dead letter is there once; nobody gets what somebody else has, as long as one broker leads.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.queues.answers import Want
from penstock.engine.queues.headers import OFFSET, PARTITION
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.reading import Cursor
from penstock.errors import Code, PenstockError
from tests.simulated_broker import batch_of, produce
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import Place, ask_leader, pause

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "jobs"
LETTERS = f"dlq.{TOPIC}"
LIMIT = 3
_SETTINGS = {"min.insync.replicas": "2", "segment.bytes": "2048", "retention.bytes": "2048"}
_LAST_READ_S = 30.0
_SENDS = 60
_MOST = 1 << 20
_RECEIVED_AT_ONCE = 5
_LATE = 0.1
_VERDICTS = (
    (0.55, Verdict(VerdictKind.ACK)),
    (0.15, Verdict(VerdictKind.NACK)),
    (0.1, Verdict(VerdictKind.RELEASE)),
    (0.05, Verdict(VerdictKind.REJECT)),
)
"""How likely each is; otherwise the consumer forgets what it has."""


class Had(NamedTuple):
    """One delivery, as its consumer knows it.

    Attributes:
        asked_at: when it asked, and when it had the answer, `had_at`; in seconds of the world.
        epoch: of the leader who gave it, by whose clock it was given at `given_ms` until `deadline_ms`.
    """

    consumer: str
    lease_id: int
    asked_at: float
    had_at: float
    epoch: int
    given_ms: int
    deadline_ms: int


@dataclass(slots=True)
class Job:
    """One message, and all that became of it.

    Attributes:
        left: leases its consumers have ended, or may have, by their ids, and when they began to.
        acked_at: when an acknowledgement was confirmed.
        nacks: that were confirmed; `nacked_at` is when the last one was.
    """

    had: list[Had] = field(default_factory=list)
    left: dict[int, float] = field(default_factory=dict)
    acked_at: float | None = None
    may_be_acked: bool = False
    nacks: int = 0
    nacked_at: float = 0.0


@dataclass(slots=True)
class QueueHistory:
    """What clients know of the queue in one partition.

    Attributes:
        safe: offsets of what was sent, as far as the sender knows.
        drained: what was still to be had in the end.
    """

    place: Place
    visibility_ms: int
    safe: set[int] = field(default_factory=set)
    jobs: dict[int, Job] = field(default_factory=dict)
    drained: set[int] | None = None
    letters: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def job(self, offset: int) -> Job:
        return self.jobs.setdefault(offset, Job())

    def had(self, offset: int, had: Had) -> None:
        job, name = self.job(offset), f"{self.place[0]}-{self.place[1]} at {offset}"
        if job.acked_at is not None and job.acked_at < had.asked_at:
            self.wrong.append(f"{name} was acknowledged at {job.acked_at:.3f} and had by {had.consumer} after that")
        if job.nacks >= LIMIT and job.nacked_at < had.asked_at:
            self.wrong.append(f"{name} had failed {job.nacks} times when {had.consumer} got it")
        for other in job.had:
            is_left = job.left.get(other.lease_id, had.had_at) < had.had_at
            if other.epoch == had.epoch and other.given_ms <= had.given_ms < other.deadline_ms and not is_left:
                self.wrong.append(f"{name} was given to {had.consumer} while {other.consumer} had it")
        job.had.append(had)

    def check_stale(self, offset: int, had: Had, epoch: int, sent_at: float) -> None:
        """A verdict was accepted: nobody may have had it later, from the same leader."""
        for other in self.job(offset).had:
            is_later = other.epoch == epoch == had.epoch and other.had_at < sent_at and other.given_ms > had.given_ms
            if is_later and other.lease_id != had.lease_id:
                self.wrong.append(f"{self.place[0]}-{self.place[1]} at {offset}: a receipt of {had.consumer} was stale")

    def check(self) -> list[str]:
        wrong, name = list(self.wrong), f"{self.place[0]}-{self.place[1]}"
        if self.drained is None:
            return wrong
        for offset in sorted(self.safe):
            job = self.job(offset)
            is_acked = job.acked_at is not None or job.may_be_acked
            if not (is_acked or offset in self.drained or self.letters[offset]):
                wrong.append(f"{name} at {offset} was sent and is gone")
        for offset, job in self.jobs.items():
            if job.acked_at is not None and (offset in self.drained or self.letters[offset]):
                wrong.append(f"{name} at {offset} was acknowledged, and is there in the end")
        wrong += [
            f"{name} at {offset} is a dead letter {times} times" for offset, times in self.letters.items() if times > 1
        ]
        wrong += [
            f"{name} at {offset} is a dead letter and in the queue" for offset in self.drained if self.letters[offset]
        ]
        return wrong


class Sender:
    def __init__(self, client: Client, history: QueueHistory) -> None:
        self._client = client
        self._history = history
        self._numbers = count()

    async def run(self) -> None:
        client, world, history = self._client, self._client.world, self._history
        for number in range(_SENDS):
            if world.is_over:
                return

            async def send(broker: SimulatedBroker) -> tuple[int, int]:
                partition = broker.engine.topics.partition(*history.place)
                partition.check_in_sync()
                batch = batch_of([b"%d" % number + b"." * client.random.choice((1, 400))] * 2, broker.clock)  # noqa: B023
                appended = await produce(partition, batch)
                return appended.base_offset, appended.last_offset

            try:
                first, last = await ask_leader(client, history.place, send)
            except (*UNANSWERED, PenstockError):
                await pause(client)
                continue
            history.safe.update(range(first, last + 1))
            world.promised(history.place, last + 1)
            world.acknowledged()
            await asyncio.sleep(client.random.expovariate(5.0))


class Consumer:
    def __init__(self, client: Client, history: QueueHistory, name: str) -> None:
        self._client = client
        self._history = history
        self._name = name

    async def run(self) -> None:
        client, world = self._client, self._client.world
        while not world.is_over:
            try:
                deliveries = await self.receive()
            except (*UNANSWERED, PenstockError):
                await pause(client)
                continue
            if client.random.random() < _LATE:  # until it may be somebody else's
                await asyncio.sleep(client.random.uniform(0.5, 2.0) * self._history.visibility_ms / 1000)
            for delivery, had in deliveries:
                await self._judge(delivery, had)
            await asyncio.sleep(client.random.expovariate(5.0))

    async def receive(self, wait_s: float = 0.5) -> list[tuple[Delivery, Had]]:
        client, history, asked_at = self._client, self._history, self._client.world.loop.time()

        async def receive(broker: SimulatedBroker) -> tuple[list[Delivery], int]:
            partition = broker.engine.topics.partition(*history.place)
            want = Want(TOPIC, self._name, client.random.randint(1, _RECEIVED_AT_ONCE))
            deliveries = await broker.engine.receiving.receive(partition, want, _MOST, wait_s)
            return deliveries, partition.leader_epoch

        deliveries, epoch = await ask_leader(client, history.place, receive)
        had_at = client.world.loop.time()
        told = []
        for each in deliveries:
            given_ms = each.deadline - history.visibility_ms
            had = Had(self._name, each.lease_id, asked_at, had_at, epoch, given_ms, each.deadline)
            history.had(each.message.offset, had)
            told.append((each, had))
        return told

    async def _judge(self, delivery: Delivery, had: Had) -> None:
        chance = self._client.random.random()
        for share, verdict in _VERDICTS:
            if chance < share:
                await self.settle(delivery, had, verdict)
                return
            chance -= share

    async def settle(self, delivery: Delivery, had: Had, verdict: Verdict) -> None:
        """Tell it, again and again until it is known what came of it."""
        client, world, history, offset = self._client, self._client.world, self._history, delivery.message.offset
        job = history.job(offset)
        is_ack = verdict.kind is VerdictKind.ACK
        job.left.setdefault(had.lease_id, world.loop.time())

        async def settle(broker: SimulatedBroker) -> int:
            partition = broker.engine.topics.partition(*history.place)
            epoch = partition.leader_epoch
            change = Change(offset, offset, verdict)
            await broker.engine.queues.settle(partition, TOPIC, Receipt(delivery.lease_id), [change])
            return epoch

        while True:
            sent_at = world.loop.time()
            job.may_be_acked = job.may_be_acked or is_ack
            try:
                epoch = await ask_leader(client, history.place, settle)
            except UNANSWERED:
                pass
            except PenstockError as error:
                if error.code is Code.STALE_RECEIPT:
                    return  # it came too late, or an earlier try was accepted
                if not error.retriable:
                    world.violate(f"{verdict.kind.name} of {offset}: {error}")
                    return
            else:
                history.check_stale(offset, had, epoch, sent_at)
                now = world.loop.time()
                if is_ack:
                    job.acked_at = now
                elif verdict.kind is VerdictKind.NACK:
                    job.nacks, job.nacked_at = job.nacks + 1, now
                world.acknowledged()
                return
            if world.is_over and world.loop.time() - sent_at > _LAST_READ_S:
                return
            await pause(client)


class QueueWorkload:
    """One or two partitions of a queue, with some senders and consumers."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        seconds = random.choice((1, 2, 5))
        self._histories = [QueueHistory((TOPIC, index), 1000 * seconds) for index in range(random.choice((1, 1, 2)))]
        self._rules = {
            "visibility": f"{seconds}s",
            "backoff": random.choice(("none", "fixed:200ms", "exponential:100ms..1s")),
            "max-attempts": str(LIMIT),
        }

    async def set_up(self) -> None:
        world = self._world

        async def create(broker: SimulatedBroker) -> None:
            topic = await broker.engine.create_topic(TOPIC, len(self._histories), _SETTINGS, replication=3)
            await broker.engine.create_topic(LETTERS, 1, {"min.insync.replicas": "2"}, replication=3)
            await broker.engine.queues.attach(topic)
            await broker.engine.alter_queues(topic, lambda queues: {**queues, TOPIC: self._rules})

        await world.cluster.call(world.cluster.ids[0], create, 20.0)

        def is_there() -> bool:
            return all(
                world.partition(node_id, name, 0) is not None
                for node_id in world.cluster.ids
                for name in (TOPIC, LETTERS)
            )

        if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
            world.violate(f"{TOPIC} never came up: {world.lacking()}")

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        running: list[Coroutine[Any, Any, None]] = []
        for history in self._histories:
            index = history.place[1]
            running += [Sender(self._client(), history).run() for _ in range(2)]
            running += [Consumer(self._client(), history, f"{index}c{n}").run() for n in range(3)]
        return running

    async def finish(self) -> None:
        for history in self._histories:
            await self._drain(history)
        await self._read_letters()

    async def _drain(self, history: QueueHistory) -> None:
        """Wait until nothing is leased, delayed or dying, and see what is left to be had."""
        world, client = self._world, self._client()
        deadline = world.loop.time() + _LAST_READ_S
        consumer, found = self.last_consumer(client, history), set[int]()

        async def open_count(broker: SimulatedBroker) -> tuple[int, int]:
            figures = await broker.engine.queues.figures(broker.engine.topics.partition(*history.place), TOPIC)
            return figures.ready, figures.leased + figures.delayed + figures.dying

        while True:
            try:
                for delivery, had in await consumer.receive(0):
                    await consumer.settle(delivery, had, Verdict(VerdictKind.ACK))
                    job = history.job(delivery.message.offset)
                    if job.acked_at is not None:
                        found.add(delivery.message.offset)
                        job.acked_at = None
                ready, others = await ask_leader(client, history.place, open_count)
                if not ready and not others:
                    history.drained = found
                    return
            except (*UNANSWERED, PenstockError) as error:
                last: Exception | None = error
            else:
                last = None
            if world.loop.time() > deadline:
                world.violate(f"{history.place}: the queue is not empty at last: {last}")
                return
            await pause(client)

    def last_consumer(self, client: Client, history: QueueHistory) -> Consumer:
        return Consumer(client, history, "last")

    async def _read_letters(self) -> None:
        world, client = self._world, self._client()
        deadline = world.loop.time() + _LAST_READ_S

        async def read(broker: SimulatedBroker) -> list[tuple[int, int]]:
            partition = broker.engine.topics.partition(LETTERS, 0)
            cursor, found = Cursor(partition, partition.log_start), []
            while messages := await cursor.records(_MOST, 0):
                for each in messages:
                    headers = {name: value or b"" for name, value in each.headers}
                    found.append((int(headers[PARTITION]), int(headers[OFFSET])))
            return found

        while True:
            try:
                found = await ask_leader(client, (LETTERS, 0), read)
            except (*UNANSWERED, PenstockError) as error:
                if world.loop.time() > deadline:
                    world.violate(f"{LETTERS} cannot be read at last: {error}")
                    return
                await pause(client)
                continue
            for index, offset in found:
                self._histories[index].letters[offset] += 1
            return

    def check(self) -> list[str]:
        return [wrong for history in self._histories for wrong in history.check()]

    def counters(self) -> dict[str, int]:
        jobs = [job for history in self._histories for job in history.jobs.values()]
        return {
            "messages acknowledged": sum(job.acked_at is not None for job in jobs),
            "dead letters": sum(sum(history.letters.values()) for history in self._histories),
            "thinned": sum(stats.thinnings for stats in self._world.cluster.stats),
        }
