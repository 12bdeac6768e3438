"""A Kafka door whose broker is one of three of a cluster, of which the metadata are in memory and nothing else is."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import orjson
from tests.doors.kafka import Client, Door

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, Image
from penstock.cluster.operations import Operations
from penstock.cluster.watcher import Watcher
from penstock.engine.partition_state import PartitionState
from penstock.engine.topics import TopicRecord
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock

LIVE, GONE = (1, 2, 3), 8
TOPIC_ID = UUID(int=5)


class OperatedCluster:
    """Brokers 1, 2 and 3 are there, 8 was. Topic `t` has the partitions it is given."""

    def __init__(self, door: Door) -> None:
        self.etcd = SimulatedEtcd(1)
        self._test = self.etcd.client("test")
        self._broker = self.etcd.client("broker")
        self.image = Image()
        self._watcher = Watcher(self._broker, self.image, VirtualClock(), door.failures.append)
        self._door = door

    async def start(self, *states: PartitionState) -> Client:
        started = orjson.dumps({"incarnation": 1})
        put = {keys.member_key(node_id): started for node_id in (*LIVE, GONE)}
        put |= {keys.admitted_key(node_id): started for node_id in LIVE}
        for node_id in LIVE:
            record = BrokerRecord(node_id, f"host{node_id}", 9092, f"host{node_id}", 9192, None, 1, True)
            put[keys.broker_key(node_id)] = record.encode()
        put[keys.TOPICS + "t"] = TopicRecord(TOPIC_ID, len(states), {}, 0).encode()
        put |= {keys.partition_key(TOPIC_ID, index): state.encode() for index, state in enumerate(states)}
        await self._test.transact(put=put)
        await self._watcher.start()
        self._running = asyncio.ensure_future(self._watcher.run())
        context = self._door.context
        context.image, context.cluster = self.image, True
        context.operations = Operations(self._broker, self._watcher, self.image)
        return await self._door.client()

    def state(self, index: int = 0) -> PartitionState:
        return self.image.states[TOPIC_ID][index]

    def lose_store(self) -> None:
        """From now on nothing that the broker asks of the store arrives."""
        self.etcd.link("broker").cut = True

    async def set(self, broker_id: int | None, **settings: str) -> None:
        """Have settings changed at run time, as another broker would do it."""
        named = {name.replace("_", "."): text for name, text in settings.items()}
        await self._test.transact(put={keys.config_key(broker_id): orjson.dumps(named)})
        await self._watcher.refresh()


def on(*brokers: int, leader: int | None = None, isr: Sequence[int] | None = None) -> PartitionState:
    """A partition on these brokers, led by the first, all in sync, unless it is said otherwise."""
    return PartitionState(
        brokers, tuple(isr) if isr is not None else brokers, leader if leader is not None else brokers[0], 4
    )
