"""What an operator does to a running cluster, whatever state it is in: moves, drains, elections, other settings.

Each act is asked of some broker, which may be cut off, slow or about to die; half of them are never undone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

import orjson

from penstock.cluster import keys
from penstock.cluster.broker_settings import THROTTLE
from penstock.cluster.image import CORDON, CORDONED, DRAINED
from penstock.cluster.metadata.transaction import make_transaction
from penstock.cluster.operations import Place
from penstock.engine.partition_state import PartitionState
from penstock.errors import PenstockError
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster

if TYPE_CHECKING:
    from tests.simulation.world import World

_ANSWER_S = 12.0
_ARRIVES_S = 12.0
_LOOK_S = 0.2
_MIN_ISR = "min.insync.replicas"


class Operator:
    """Args:
    cautious: a disk may be lost in this run, so nothing may be acknowledged by one broker alone.
    """

    def __init__(self, world: "World", random: Random, *, cautious: bool) -> None:
        self._world = world
        self._cluster: SimulatedCluster = world.cluster
        self._random = random
        self._cautious = cautious

    async def _ask(self, what: str, work: Callable[[SimulatedBroker], Awaitable[object]]) -> bool:
        """Whether it was done, as far as is known."""
        node_id = self._random.choice(self._cluster.ids)
        self._world.note(f"act {what} by {node_id}")
        try:
            done = await self._cluster.call(node_id, work, _ANSWER_S)
        except (TimeoutError, ConnectionError, PenstockError) as error:
            self._world.note(f"act {what} failed: {error}")
            return False
        self._world.note(f"act {what} done" + (f": {done}" if done is not None else ""))
        return True

    # --- partitions

    async def move(self, duration_s: float) -> None:
        """Partitions go elsewhere; on their way some are sent somewhere else, or taken back."""
        for _ in range(self._random.randint(1, 4)):
            await self._ask("move", self._move_some)
            await asyncio.sleep(duration_s * self._random.random() ** 2)

    async def _move_some(self, broker: SimulatedBroker) -> str:
        targets: dict[Place, list[int] | None] = {}
        for topic, index, state in broker.node.image.partitions():
            if self._random.random() < 0.3:
                continue
            width = 2 if _MIN_ISR in topic.record.settings and self._random.random() < 0.15 else 3
            is_taken_back = bool(state.target) and self._random.random() < 0.4
            targets[topic.name, index] = None if is_taken_back else self._some(broker, width)
        return await self._move(broker, targets)

    def _some(self, broker: SimulatedBroker, width: int, but: int = -1) -> list[int]:
        """Of those that are there, if it is enough of them."""
        live = [node_id for node_id in broker.node.image.live() if node_id != but]
        ids = live if len(live) >= width else [node_id for node_id in self._cluster.ids if node_id != but]
        return self._random.sample(ids, width)

    async def _move(self, broker: SimulatedBroker, targets: dict[Place, list[int] | None]) -> str:
        outcomes = await broker.node.operations.move(targets)
        refused = [error.code.name for error in outcomes.values() if error is not None]
        return f"{' '.join(f'{topic}-{index}>{to}' for (topic, index), to in targets.items())} {' '.join(refused)}"

    async def elect(self, duration_s: float) -> None:
        """Leaders go back to where they should be."""
        for _ in range(self._random.randint(1, 3)):
            await self._ask("elect", lambda broker: broker.node.operations.elect(None))
            await asyncio.sleep(duration_s * self._random.random())

    # --- settings

    async def _set(self, node_id: int | None, name: str, text: str | None) -> None:
        def alter(before: dict[str, str]) -> dict[str, str]:
            kept = {key: value for key, value in before.items() if key != name}
            return kept if text is None else kept | {name: text}

        await self._ask(
            f"set {node_id or 'all'} {name}={text}",
            lambda broker: broker.node.operations.alter_settings(node_id, alter, validate_only=False),  # type: ignore[arg-type]
        )

    async def drain(self, duration_s: float) -> None:
        """One broker or two lead nothing, or get nothing new."""
        ids = self._random.sample(self._cluster.ids, self._random.choice((1, 1, 2)))
        for node_id in ids:
            await self._set(node_id, CORDON, self._random.choice((CORDONED, DRAINED, DRAINED)))
        await asyncio.sleep(duration_s)
        for node_id in ids:
            if self._random.random() < 0.5:
                await self._set(node_id, CORDON, None)

    async def throttle(self, duration_s: float) -> None:
        node_id = self._random.choice((None, *self._cluster.ids))
        await self._set(node_id, THROTTLE, self._random.choice(("500", "5000", "50000")))
        await asyncio.sleep(duration_s * 2)
        await self._set(node_id, THROTTLE, None)

    async def defaults(self, duration_s: float) -> None:
        """How many must be in sync, of topics that do not say so themselves, changes and changes back."""
        for _ in range(self._random.randint(1, 3)):
            possible = ("2", "3", None) if self._cautious else ("1", "1", "2", "3", None)
            await self._set(None, _MIN_ISR, self._random.choice(possible))
            await asyncio.sleep(duration_s * self._random.random())

    # --- brokers

    async def replace(self, duration_s: float) -> None:
        """A broker is emptied, stopped and forgotten, and comes back under its old name with an empty disk."""
        node_id = self._random.choice(self._cluster.ids)
        if len(self._cluster.ids) < 4:
            return
        await self._ask(f"empty {node_id}", lambda broker: self._empty(broker, node_id))
        if not await self._world.until(lambda: not self._holds(node_id), _ARRIVES_S):
            return
        self._world.note(f"act stop {node_id} for good")
        self._cluster.kill(node_id)
        await asyncio.sleep(duration_s)
        forgotten = await self._ask(f"forget {node_id}", lambda broker: broker.node.operations.unregister(node_id))
        if node_id not in self._cluster.processes and forgotten and not self._holds(node_id):
            self._cluster.disks[node_id] = self._cluster.new_disk()
        self._world.start(node_id)

    async def _empty(self, broker: SimulatedBroker, node_id: int) -> str:
        held = [
            (topic.name, index, state)
            for topic, index, state in broker.node.image.partitions()
            if node_id in state.replicas
        ]
        return await self._move(broker, {(name, index): self._some(broker, 3, node_id) for name, index, _ in held})

    def _holds(self, node_id: int) -> bool:
        """In truth."""
        return any(node_id in state.replicas for state in self._states())

    def _states(self) -> list[PartitionState]:
        entries = self._cluster.etcd.state.snapshot(keys.PARTITIONS).entries
        return [PartitionState.decode(entry.value, entry.revision) for entry in entries]

    # --- the end

    def heal(self) -> None:
        """Moves may go as fast as they can; everything else stays as it was set."""
        state = self._cluster.etcd.state
        for entry in state.snapshot(keys.CONFIGS).entries:
            settings = orjson.loads(entry.value)
            if settings.pop(THROTTLE, None) is not None:
                put = {entry.key: orjson.dumps(settings)}
                state.transact(make_transaction({entry.key: entry.revision}, put, [], None, 0))


Act = Callable[[Operator, float], Awaitable[None]]
ACTS: dict[str, Act] = {
    "operator_" + function.__name__: function
    for function in (
        Operator.move,
        Operator.elect,
        Operator.drain,
        Operator.throttle,
        Operator.defaults,
        Operator.replace,
    )
}
