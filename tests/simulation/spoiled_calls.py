"""What transactions ask of other brokers, late: requests that linger, answers that do, markers that come once more."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from penstock.engine.transactions.other_brokers import OtherBrokers
from penstock.engine.transactions.requests import AddPartitions, MarkersDue
from penstock.engine.transactions.transaction import TopicPartition
from penstock.errors import PenstockError
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.coordinators import TRANSACTIONS

if TYPE_CHECKING:
    from tests.simulation.world import World

_LOOK_S = 0.05


class SpoiledCalls:
    """Args:
    share: of calls that are late.
    repeats: whether a marker may arrive a second time, as one does that was given up with its connection. Of producers
        that keep their epoch nobody can tell it from the marker of their next transaction.
    """

    def __init__(
        self,
        broker: SimulatedBroker,
        calls: OtherBrokers,
        world: "World",
        random: Random,
        share: float,
        *,
        repeats: bool,
    ) -> None:
        self._share = share
        self._broker = broker
        self._calls = calls
        self._world = world
        self._random = random
        self._repeats = repeats
        self._late: set[asyncio.Task[object]] = set()

    def _is_deposed(self, epoch: int) -> bool:
        partition = self._broker.engine.topics.partition(*TRANSACTIONS)
        return partition.leader_epoch > epoch or self._world.cluster.is_deposed(partition)

    async def _linger(self) -> None:
        if not self._world.is_over and self._random.random() < self._share:
            await asyncio.sleep(self._random.expovariate(0.7))

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        await self._linger()
        results = await self._calls.add_partitions(broker_id, request)
        await self._linger()
        return results

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        if self._repeats and not self._world.is_over and self._random.random() < 2 * self._share:
            task = asyncio.create_task(self._repeat(broker_id, due, places))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        await self._linger()
        await self._linger_until_deposed(due.coordinator_epoch)
        return await self._calls.write_markers(broker_id, due, places)

    async def _linger_until_deposed(self, epoch: int) -> None:
        """Now and then a marker is still on its way when another coordinator has ended the transaction."""
        if self._random.random() > self._share:
            return
        waits = self._random.randint(10, 80)
        while waits and not self._world.is_over and not self._is_deposed(epoch):
            waits -= 1
            await asyncio.sleep(0.1)
        if waits and not self._world.is_over:
            await asyncio.sleep(self._random.expovariate(1.0))

    async def _repeat(self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]) -> None:
        await asyncio.sleep(self._random.expovariate(2.0))
        try:
            await self._calls.write_markers(broker_id, due, places)
        except PenstockError:
            return

    async def is_gone(self, topic: str) -> bool:
        return await self._calls.is_gone(topic)


async def spoil_calls(world: "World", random: Random, *, repeats: bool) -> None:
    """Spoil the calls of every broker, soon after each of its starts."""
    share = random.choice((0.02, 0.1, 0.3))
    while not world.is_over:
        for broker in world.cluster.lives.values():
            transactions = broker.engine.transactions
            if not isinstance(transactions.other_brokers, SpoiledCalls):
                transactions.other_brokers = SpoiledCalls(
                    broker, transactions.other_brokers, world, Random(random.getrandbits(64)), share, repeats=repeats
                )
        await asyncio.sleep(_LOOK_S)
