"""A seeded schedule of faults, some of them at once; at its end everything is healed."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.faults import KINDS, SPOILING, Faults
from tests.simulation.operator_acts import ACTS, Operator

if TYPE_CHECKING:
    from tests.simulation.world import World

_LEAST_KINDS = 5


class Event(NamedTuple):
    kind: str
    at_s: float
    duration_s: float


class Nemesis:
    """Attributes:
    kinds: the faults of this run: five or more, or those that its world is narrowed to.
    """

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._faults = Faults(world, random, spoiled=random.choice(world.cluster.ids))
        self.kinds = self._draw()
        self._operator = Operator(world, random, cautious=any(kind in SPOILING for kind in self.kinds))
        self.events = self._schedule()

    def _draw(self) -> list[str]:
        if self._world.kinds:
            return list(self._world.kinds)
        spoiling = self._random.choice(SPOILING)
        possible = [kind for kind in KINDS if kind not in SPOILING or kind == spoiling]
        drawn = self._random.sample(possible, self._random.randint(_LEAST_KINDS, _LEAST_KINDS + 3))
        if self._world.is_operated:
            drawn += self._random.sample(sorted(ACTS), self._random.randint(1, 3))
        return drawn

    def _schedule(self) -> list[Event]:
        """Every kind once, and a few again; the next one begins before, at or after the end of the one before."""
        random = self._random
        kinds = list(self.kinds)
        kinds += [kind for kind in random.choices(self.kinds, k=random.randint(3, 7)) if kind not in SPOILING]
        random.shuffle(kinds)
        events, at = [], 0.3
        for kind in kinds:
            duration = random.choice((0.2, 1.0, 2.5, 5.0)) * (0.5 + random.random())
            events.append(Event(kind, at, duration))
            at += random.choice((0.05, 0.4, 1.0, 1.5, 3.0)) * (0.5 + random.random())
        return events

    async def run(self) -> None:
        loop = self._world.loop
        began = loop.time()
        tasks = []
        for event in self.events:
            await asyncio.sleep(max(0.0, began + event.at_s - loop.time()))
            if self._world.violations:
                break
            tasks.append(asyncio.create_task(self._begin(event)))
        if tasks:
            await asyncio.wait(tasks, timeout=self._random.random() * 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                raise RuntimeError(f"a fault failed: {task.exception()!r}") from task.exception()
        self._heal()

    async def _begin(self, event: Event) -> None:
        if event.kind in ACTS:
            await ACTS[event.kind](self._operator, event.duration_s)
        else:
            await KINDS[event.kind](self._faults, event.duration_s)

    def _heal(self) -> None:
        """What a cancelled fault has left: brokers that are down or half stopped, a disk that lies."""
        world, cluster = self._world, self._world.cluster
        self._operator.heal()
        for node_id in cluster.ids:
            disk = cluster.disks[node_id]
            disk.clear_faults()
            broker = cluster.lives.get(node_id)
            if disk.lies:
                world.allow_crash(node_id)
                cluster.kill(node_id, power_cut=True)
                if cluster.disks[node_id] is disk:  # it was not running
                    cluster.disks[node_id] = disk.after_power_cut()
            elif broker is not None and broker.stopping:
                cluster.kill(node_id)
            world.start(node_id)
