"""Two brokers in one process: broker 1 leads a partition behind a real door, broker 2 only knows that it does."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from tests.doors.kafka import Door, batch_of, with_door
from tests.doors.trusted import trusted_session
from tests.simulated_broker import Broker, append, until_visible

from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.engine.reading import Message
from penstock.engine.topics import Topic
from penstock.errors import PenstockError
from penstock.protocols.internal.forwarding import ForwardedCalls
from penstock.protocols.internal.peer import Peer
from penstock.protocols.internal.reading import AskedReads
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore

ME = 2


class TwoBrokers:
    """Attributes:
    led: the partition where it is led.
    known: the same partition on the broker that does not lead.
    questions: what waits for an answer at the leader, by connection.
    """

    def __init__(self, door: Door, topic: Topic) -> None:
        self.door = door
        self.led = topic.partitions[0]
        self.broker = Broker(FaultyDisk(9), MemoryStore(), door.clock)
        self.engine: Engine = self.broker.engine
        state = PartitionState((1,), (1,), 1, self.led.leader_epoch, revision=1)
        self.known = Partition(
            "t", topic.topic_id, 0, state, topic.config, door.clock, ME, self.engine.events, self.engine.elsewhere
        )
        self.topic = Topic("t", topic.topic_id, topic.config, [self.known])
        self.engine.topics.add(self.topic)
        self.peer: Peer | None = self.connect()
        self.engine.elsewhere.other_brokers = AskedReads(lambda _: self.peer)
        self.publishing_peer = self.connect()
        self.engine.forwarding.other_brokers = ForwardedCalls(lambda _: self.publishing_peer)
        self.random = Random(1)

    def connect(self) -> Peer:
        return Peer(self.door.network.of("b2"), *self.door.address, self.door.clock)

    async def write(self, *values: bytes) -> None:
        appended = append(self.led, bytearray(batch_of(*values, timestamp_ms=self.door.clock.now_ms())))
        await until_visible(self.led, appended.last_offset)

    async def lead(self, epoch: int) -> None:
        """Broker 1 leads in another epoch from now on."""
        log = self.led.opened()
        await self.door.engine.replicas.begin_epochs([(log, epoch)])
        self.led.lead(replace(self.led.state, leader=1, leader_epoch=epoch))

    def learn(self, **changes: Any) -> None:
        """Broker 2 hears that something is otherwise."""
        self.known.follow(replace(self.known.state, **changes))


def with_two_brokers(body: Callable[[TwoBrokers], Awaitable[None]], *, trusted: bool = True, **settings: Any) -> None:
    async def run(door: Door) -> None:
        if trusted:
            door.connections.make_session = partial(trusted_session, door.context, door.engine, door.clock)
        it = TwoBrokers(door, await door.topic(**settings))
        await it.broker.start()
        await body(it)
        await it.broker.stop()
        assert it.broker.failures == []

    with_door(run)


class Subscriber:
    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.errors: list[PenstockError] = []

    def take(self, messages: Sequence[Message]) -> None:
        self.taken += messages

    def failed(self, error: PenstockError) -> None:
        self.errors.append(error)

    @property
    def values(self) -> list[bytes | None]:
        return [each.value for each in self.taken]
