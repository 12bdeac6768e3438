"""A broker that leads nothing publishes to every partition, while the broker that leads one of them is killed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from penstock.engine.forwarding import Forwarding
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL
from penstock.records.build import build_batch
from penstock.server.broker import Broker
from penstock.server.config import Address, Cluster, Config, Listeners, Node
from penstock.server.system_clock import SystemClock
from tests.chaos.load import read_everything
from tests.cluster.penstock_cluster import PenstockCluster

PARTITIONS = 6
BATCHES = 20
"""For each partition before the kill, and as many after it."""
DOOR = 4
FREE = Address("127.0.0.1", 0)
_TIMEOUT_S = 30.0


class Publisher:
    """Publishes to one partition, one batch after the other; `acked` are values by offset."""

    def __init__(self, forwarding: Forwarding, partition: Partition) -> None:
        self._forwarding = forwarding
        self._partition = partition
        self.acked: dict[int, str] = {}
        self.number = 0

    async def publish(self, count: int) -> None:
        for _ in range(count):
            value = f"{self._partition.index}-{self.number}"
            self.number += 1
            batch = build_batch([(None, value.encode(), (), SystemClock().now_ms())])
            appended = await self._forwarding.publish(self._partition, batch, ALL, _TIMEOUT_S)
            assert appended.base_offset not in self.acked
            self.acked[appended.base_offset] = value

    async def publish_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self.publish(1)
        await self.publish(BATCHES)


async def test_any_broker_publishes_while_a_leader_is_killed(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, members=1) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.create_topic, "t", PARTITIONS)
        secret = tmp_path / "secret"
        secret.write_text(cluster.nodes[1].environment["PENSTOCK_CLUSTER_SECRET"])
        config = Config(
            data_dir=tmp_path / f"data-{DOOR}",
            node=Node(id=DOOR),
            listeners=Listeners(FREE, FREE, internal=FREE),
            cluster=Cluster(store=cluster.etcd.url, secret_file=secret),
        )
        broker = Broker(config)
        await broker.start()
        try:
            engine = broker._engine
            assert engine is not None
            topic = engine.topics.get("t")
            assert topic is not None
            publishers = [Publisher(engine.forwarding, each) for each in topic.partitions]
            await asyncio.gather(*(each.publish(BATCHES) for each in publishers))
            victim = cluster.nodes[topic.partitions[0].state.leader]
            killing = asyncio.create_task(asyncio.to_thread(victim.kill))
            await asyncio.gather(*(each.publish_until(killing.done) for each in publishers))
            await killing
            assert topic.partitions[0].state.leader not in (victim.id, DOOR)
            assert all(each.log is None for each in topic.partitions), "it has replicas, and could lead"
            logs = await asyncio.to_thread(read_everything, cluster.bootstrap, "t", PARTITIONS)
        finally:
            await broker.stop()
    for index, publisher in enumerate(publishers):
        assert len(publisher.acked) >= 2 * BATCHES
        assert [(each.offset, each.value) for each in logs[index].records] == sorted(publisher.acked.items())
