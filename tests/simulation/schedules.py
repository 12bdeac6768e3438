"""Schedules of a queue while leaders die, replicas move and disks fail.

No planned time is published twice, later ones follow earlier ones, what a list says has fired is there, and in the end
every schedule has fired for its latest time. To them a second is a minute, so that a run sees some dozens of each.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.engine.queues.schedules.cron import Cron
from penstock.engine.queues.schedules.machine import Standing
from penstock.engine.queues.schedules.schedule import NAME, PLANNED_TIME
from penstock.engine.queues.schedules.schedules import NewSchedule
from penstock.engine.queues.schedules.zones import Zones
from penstock.engine.reading import Cursor
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from tests.simulation.client import UNANSWERED, Client
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import Place, ask_leader, pause

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPIC = "plans"
_SETTINGS = {"min.insync.replicas": "2"}
_FASTER = 60
_LAST_READ_S = 30.0
_MOST = 1 << 20
_EXPRESSIONS = ("* * * * *", "*/2 * * * *", "*/5 * * * *")


class QuickCron(Cron):
    """To whom a second is a minute."""

    def next_after(self, moment_ms: int) -> int | None:
        found = super().next_after(moment_ms * _FASTER)
        return None if found is None else found // _FASTER

    def latest(self, first_ms: int, until_ms: int) -> int:
        """One by one, as it may be asked."""
        found: int | None = first_ms
        while found is not None and found <= until_ms:
            first_ms, found = found, self.next_after(found)
        return first_ms


def _quicken(broker: SimulatedBroker) -> None:
    zones: Zones = broker.engine.schedules._zones
    zones.cron = lambda expression, zone: QuickCron(expression)  # type: ignore[method-assign]


class ScheduleWorkload:
    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._partitions = random.choice((1, 2, 3))
        self._names = [f"s{number}" for number in range(random.choice((2, 5, 20)))]
        self._fires: list[list[tuple[str, int]]] = []
        """Of each partition, in its order."""
        self._told: set[tuple[str, int]] = set()
        """Times that somebody was told a schedule had fired for."""
        self._extra = 0
        self._changed = 0

    async def set_up(self) -> None:
        world, make_broker = self._world, self._world.cluster.make_broker

        def make(*arguments: Any, **more: Any) -> SimulatedBroker:
            broker = make_broker(*arguments, **more)
            _quicken(broker)
            return broker

        world.cluster.make_broker = make  # type: ignore[assignment]
        for broker in world.brokers():
            _quicken(broker)

        async def create(broker: SimulatedBroker) -> None:
            topic = await broker.engine.create_topic(TOPIC, self._partitions, _SETTINGS, replication=3)
            await broker.engine.queues.attach(topic)
            await broker.engine.alter_queues(topic, lambda queues: {**queues, TOPIC: {}})

        await world.cluster.call(world.cluster.ids[0], create, 20.0)

        def is_there() -> bool:
            return all(
                (found := world.partition(node_id, TOPIC, 0)) is not None and found.attached
                for node_id in world.cluster.ids
            )

        if not (await world.until(is_there, 10.0) and await world.until(lambda: not world.lacking(), 10.0)):
            world.violate(f"{TOPIC} never came up: {world.lacking()}")
            return
        client = self._client()
        for name in self._names:
            await self._insist(client, "add", name)

    def _client(self) -> Client:
        return Client(self._world, Random(self._random.getrandbits(64)))

    def clients(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._operate(self._client()), self._operate(self._client()), self._watch(self._client())]

    async def _watch(self, client: Client) -> None:
        while not self._world.is_over:
            with suppress(*UNANSWERED, PenstockError):
                await self._look(client)
            await asyncio.sleep(client.random.expovariate(4.0))

    async def _look(self, client: Client) -> tuple[list[Standing], int]:
        """How all of them stand, and what time it is where they are kept."""

        async def look(broker: SimulatedBroker) -> tuple[list[Standing], int]:
            found, _ = await broker.engine.schedules.list(_topic(broker), TOPIC, "", 1000)
            return found, broker.clock.now_ms()

        standings, now_ms = await ask_leader(client, (TOPIC, 0), look)
        for each in standings:
            if each.progress.planned_ms is not None:
                self._told.add((each.definition.name, each.progress.planned_ms))
        return standings, now_ms

    async def _operate(self, client: Client) -> None:
        """Adds schedules, pauses them, lets them go on, and removes them."""
        while not self._world.is_over:
            self._extra += 1
            name = f"x{self._extra}"
            for verb in ("add", "pause", "resume", "remove"):
                await asyncio.sleep(client.random.expovariate(1.0))
                if not await self._insist(client, verb, name):
                    return

    async def _insist(self, client: Client, verb: str, name: str) -> bool:
        """Again and again, until it is done; whether it was done in time."""
        world, began = self._world, self._world.loop.time()
        while True:
            try:
                await ask_leader(client, (TOPIC, 0), lambda broker: _do(broker, verb, name))
            except UNANSWERED:
                pass
            except PenstockError as error:
                if error.code in (Code.EXISTS, Code.NOT_FOUND):
                    break  # an earlier try was done
                if not error.retriable:
                    world.violate(f"{verb} {name}: {error}")
                    return False
            else:
                break
            if world.loop.time() - began > _LAST_READ_S + 30:
                world.violate(f"{verb} {name}: no answer")
                return False
            await pause(client)
        self._changed += 1
        world.acknowledged()
        return True

    async def finish(self) -> None:
        """Wait until each has fired for a time that is no older than a few of its own."""
        client = self._client()
        deadline = self._world.loop.time() + _LAST_READ_S
        while True:
            try:
                late = await self._late(client)
            except (*UNANSWERED, PenstockError) as error:
                late = [repr(error)]
            if not late:
                break
            if self._world.loop.time() > deadline:
                self._world.violate(f"schedules that do not fire any more: {late}")
                return
            await pause(client)
        self._fires = [await self._read(client, index) for index in range(self._partitions)]

    async def _late(self, client: Client) -> list[str]:
        standings, now_ms = await self._look(client)
        there = {each.definition.name for each in standings}
        late = [f"{name} is gone" for name in self._names if name not in there]
        late += [
            f"{each.definition.name}: {each.next_ms[:1]}, it is {now_ms}"
            for each in standings
            if each.definition.name in self._names and (not each.next_ms or each.next_ms[0] <= now_ms - 1000)
        ]
        return late

    async def _read(self, client: Client, index: int) -> list[tuple[str, int]]:
        place: Place = (TOPIC, index)

        async def read(broker: SimulatedBroker) -> list[tuple[str, int]]:
            partition = broker.engine.topics.partition(*place)
            cursor, found = Cursor(partition, partition.log_start), []
            while messages := await cursor.records(_MOST, 0):
                for each in messages:
                    said = dict(each.headers)
                    found.append(((said[NAME] or b"").decode(), int(said[PLANNED_TIME] or b"")))
            return found

        deadline = self._world.loop.time() + _LAST_READ_S
        while True:
            try:
                return await ask_leader(client, place, read)
            except (*UNANSWERED, PenstockError) as error:
                if self._world.loop.time() > deadline:
                    self._world.violate(f"{place} cannot be read: {error!r}")
                    return []
            await pause(client)

    def check(self) -> list[str]:
        times = Counter(fire for fires in self._fires for fire in fires)
        wrong = [f"{name} fired {count} times for {planned}" for (name, planned), count in times.items() if count > 1]
        for index, fires in enumerate(self._fires):
            last: dict[str, int] = {}
            for name, planned in fires:
                if planned < last.get(name, 0):
                    wrong.append(f"{name} fired for {planned} after {last[name]} in partition {index}")
                last[name] = planned
        fired = {name for name, _ in times}
        if self._fires:
            wrong += [f"{name} never fired" for name in self._names if name not in fired]
            wrong += [
                f"{name} is told to have fired for {at}, and has not"
                for name, at in sorted(self._told)
                if not times[name, at]
            ]
        return wrong

    def counters(self) -> dict[str, int]:
        return {"fires": sum(map(len, self._fires)), "fires told": len(self._told), "schedules changed": self._changed}


def _topic(broker: SimulatedBroker) -> Topic:
    topic = broker.engine.topics.get(TOPIC)
    if topic is None:
        raise PenstockError(Code.UNKNOWN_TOPIC, f"no topic {TOPIC!r} here")
    return topic


async def _do(broker: SimulatedBroker, verb: str, name: str) -> None:
    schedules, topic = broker.engine.schedules, _topic(broker)
    if verb != "add":
        await getattr(schedules, verb)(topic, TOPIC, name)
        return
    number = int(name[1:])
    key = b"%d" % number if number % 2 else None
    await schedules.add(topic, TOPIC, NewSchedule(name, _EXPRESSIONS[number % 3], "UTC", b"x", key))
