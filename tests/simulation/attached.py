"""Clients that step counters beside partitions, while leaders die, replicas move and disks fail.

What was acknowledged is there after every failover, exactly once, on the broker that leads the data; and retention
removes no record that a counter still needs.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.partition import Partition
from penstock.errors import PenstockError
from tests.attached_counter import COUNTER
from tests.simulated_broker import batch_of, produce
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import Place, ask_leader, pause

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "q"
_SETTINGS = {"min.insync.replicas": "2", "segment.bytes": "2048", "retention.bytes": "2048"}
_LAST_READ_S = 20.0
_STEPS = 60


class Step(NamedTuple):
    name: str
    number: int
    first_sent_at: float
    acked_at: float


@dataclass(slots=True)
class CounterHistory:
    """What clients know of the counter beside one partition.

    Attributes:
        most_needed: the highest floor that anybody ever asked for; what lies there and above is needed.
        found: what the counter had in the end.
    """

    place: Place
    steps: dict[str, Step] = field(default_factory=dict)
    most_needed: int = 0
    found: dict[str, int] | None = None
    starts: list[int] = field(default_factory=list)

    def check(self) -> list[str]:
        name = f"{COUNTER.kind} of {self.place[0]}-{self.place[1]}"
        wrong = []
        by_number: dict[int, str] = {}
        for step in self.steps.values():
            other = by_number.setdefault(step.number, step.name)
            if other != step.name:
                wrong.append(f"{name}: {step.number} was given to {other} and to {step.name}")
        order = sorted(self.steps.values(), key=lambda step: step.acked_at)
        highest, at = 0, 0
        for step in sorted(self.steps.values(), key=lambda step: step.first_sent_at):
            while at < len(order) and order[at].acked_at < step.first_sent_at:
                highest = max(highest, order[at].number)
                at += 1
            if step.number <= highest:
                wrong.append(
                    f"{name}: {step.name} got {step.number}, and {highest} was acknowledged before it was asked"
                )
        if self.found is not None:
            wrong += [
                f"{name}: {step.name} was acknowledged as {step.number}, and is {self.found.get(step.name)} in the end"
                for step in self.steps.values()
                if self.found.get(step.name) != step.number
            ]
            if sorted(self.found.values()) != list(range(1, len(self.found) + 1)):
                wrong.append(f"{name}: its numbers are {sorted(self.found.values())}")
        wrong += [
            f"{self.place[0]}-{self.place[1]} begins at {start}; what lies at {self.most_needed} was never let go"
            for start in self.starts
            if start > self.most_needed
        ]
        return wrong


class Stepper:
    """Asks for one step after the other, each until it is answered."""

    def __init__(self, client: Client, history: CounterHistory, name: str) -> None:
        self._client = client
        self._history = history
        self._name = name

    async def run(self) -> None:
        client, world = self._client, self._client.world
        for number in range(_STEPS):
            if world.is_over:
                return
            await self._step(f"{self._name}:{number}")
            await asyncio.sleep(client.random.expovariate(3.0))

    async def _step(self, name: str) -> None:
        client, world, place = self._client, self._client.world, self._history.place
        sent_at = world.loop.time()

        async def step(broker: SimulatedBroker) -> tuple[int, int]:
            partition = broker.engine.topics.partition(*place)
            number = await broker.counters.step(partition, name)
            return number, _check_together(partition)

        while True:
            try:
                number, end = await ask_leader(client, place, step)
            except UNANSWERED:
                pass
            except PenstockError as error:
                if not error.retriable:
                    world.violate(f"{name}: {error}")
                    return
            else:
                world.note(f"step {name} is {number}")
                self._history.steps[name] = Step(name, number, sent_at, world.loop.time())
                world.promised((f"{place[0]}~{COUNTER.kind}", place[1]), end)
                world.acknowledged()
                return
            if world.is_over and world.loop.time() - sent_at > _LAST_READ_S:
                return
            await pause(client)


def _check_together(partition: Partition) -> int:
    """How far everything is committed beside a partition that is led here, if it is led here."""
    attached = partition.attached[0]
    if attached.led is None:
        return 0
    assert partition.led is not None, f"{attached.name} is led without {partition.name}"
    assert attached.leader_epoch == partition.leader_epoch
    return attached.high_watermark


class Writer:
    """Produces, and moves on what is needed; looks where the records begin."""

    def __init__(self, client: Client, history: CounterHistory) -> None:
        self._client = client
        self._history = history
        self._numbers = count()
        self._is_begun = False

    async def run(self) -> None:
        client, world = self._client, self._client.world
        while not world.is_over:
            await asyncio.sleep(client.random.expovariate(3.0))
            try:
                await ask_leader(client, self._history.place, self._write)
            except (*UNANSWERED, PenstockError):
                continue

    async def _write(self, broker: SimulatedBroker) -> None:
        history = self._history
        partition = broker.engine.topics.partition(*history.place)
        if not self._is_begun:  # who has never said that it needs anything needs nothing
            await broker.counters.need(partition, 0)
            self._is_begun = True
        value = b"%d" % next(self._numbers) + b"." * 400
        last = (await produce(partition, batch_of([value], broker.clock))).last_offset
        history.starts.append(partition.log_start)
        if self._client.random.random() < 0.2:
            history.most_needed = max(history.most_needed, last - 5)
            await broker.counters.need(partition, history.most_needed)


class AttachedWorkload:
    """One or two partitions with a counter each; half the time that is attached while things break."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._histories = [CounterHistory((TOPIC, index)) for index in range(random.choice((1, 1, 2)))]
        self._attaches_late = random.random() < 0.5

    async def set_up(self) -> None:
        world = self._world

        async def create(broker: SimulatedBroker) -> None:
            await broker.engine.create_topic(TOPIC, len(self._histories), _SETTINGS, replication=3)

        async def attach(broker: SimulatedBroker) -> None:
            topic = broker.engine.topics.get(TOPIC)
            assert topic is not None
            await broker.engine.attach(topic, COUNTER)

        await world.cluster.call(world.cluster.ids[0], create, 20.0)

        def is_there() -> bool:
            return all(world.partition(node_id, TOPIC, 0) is not None for node_id in world.cluster.ids)

        if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
            world.violate(f"{TOPIC} never came up: {world.lacking()}")
        elif not self._attaches_late:
            await world.cluster.call(world.cluster.ids[-1], attach, 20.0)

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        running: list[Coroutine[Any, Any, None]] = []
        for history in self._histories:
            index = history.place[1]
            running += [Stepper(self._client(), history, f"{index}s{n}").run() for n in range(3)]
            running.append(Writer(self._client(), history).run())
        return running

    async def finish(self) -> None:
        for history in self._histories:
            client, deadline = self._client(), self._world.loop.time() + _LAST_READ_S

            async def read(broker: SimulatedBroker, place: Place = history.place) -> dict[str, int]:
                shard = await broker.counters.of(broker.engine.topics.partition(*place))
                return dict((await shard.machine()).numbers)

            while history.found is None:
                try:
                    history.found = await ask_leader(client, history.place, read)
                except (*UNANSWERED, PenstockError) as error:
                    if self._world.loop.time() > deadline:
                        self._world.violate(f"{history.place}: the counter cannot be read at last: {error}")
                        break
                    await pause(client)
            for node_id in self._world.holders(*history.place):
                partition = self._world.partition(node_id, *history.place)
                if partition is not None and partition.log is not None:
                    history.starts.append(partition.log.log_start)

    def check(self) -> list[str]:
        return [wrong for history in self._histories for wrong in history.check()]

    def counters(self) -> dict[str, int]:
        return {
            "steps acknowledged": sum(len(history.steps) for history in self._histories),
            "records removed": sum(max(history.starts, default=0) for history in self._histories),
        }
