"""Clients of a door on a broker that leads nothing publish and subscribe, while the broker that leads is killed.

The door forwards nothing by itself: that it is not where the partitions are led is the engine's affair.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.server.broker import Broker
from penstock.server.config import Address, Cluster, Config, Listener, Listeners, Node
from penstock.server.doors.door import Entrance, House
from penstock.server.doors.table import KINDS, Kind
from tests.chaos.load import read_everything
from tests.cluster.penstock_cluster import PenstockCluster
from tests.doors.toy import make_entrance

PARTITIONS = 4
DOOR = 4
PUBLISHERS = 8
AT_ONCE = 10
ROUNDS = 10
"""Of each publisher before the kill, and as many after another broker leads."""
FREE = Address("127.0.0.1", 0)
_DEADLINE_S = 60.0


@asynccontextmanager
async def door_of(cluster: PenstockCluster, directory: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A fourth broker, of which toys are told."""

    def make(house: House, listener: Listener) -> Entrance:
        return make_entrance(house, listener, ping_s=600, silence_s=600)

    patch.setitem(KINDS, "toy", Kind("toy", "Toy", 1, "where toys connect", "Listen for toys", make))
    secret = directory / "secret"
    secret.write_text(cluster.nodes[1].environment["PENSTOCK_CLUSTER_SECRET"])
    config = Config(
        data_dir=directory / f"data-{DOOR}",
        node=Node(id=DOOR),
        listeners=Listeners(FREE, FREE, internal=FREE, more=(Listener("toy", "toy", FREE),)),
        cluster=Cluster(store=cluster.etcd.url, secret_file=secret),
    )
    broker = Broker(config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, broker: Broker) -> "Client":
        host, _, port = broker.ready_words["toy"].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def say(self, line: bytes) -> None:
        self._writer.write(line)

    async def line(self) -> bytes:
        async with asyncio.timeout(_DEADLINE_S):
            return (await self._reader.readuntil())[:-1]

    async def payload(self, size: int) -> bytes:
        async with asyncio.timeout(_DEADLINE_S):
            return (await self._reader.readexactly(size + 1))[:-1]

    def close(self) -> None:
        self._writer.close()


class Publisher:
    """Publishes some messages at once, and goes on when it has heard of all of them."""

    def __init__(self, client: Client, name: int) -> None:
        self._client = client
        self._name = name
        self._number = 0
        self.acked: dict[tuple[int, int], bytes] = {}
        self.unknown: set[bytes] = set()
        self.refused: dict[bytes, bytes] = {}

    async def publish(self, rounds: int) -> None:
        for _ in range(rounds):
            values = [b"%d-%d" % (self._name, self._number + at) for at in range(AT_ONCE)]
            self._number += AT_ONCE
            for value in values:
                self._client.say(b"PUB t %s %d\n%s\n" % (value, len(value), value))
            for value in values:
                match (await self._client.line()).split(b" ", 2):
                    case [b"OK", partition, offset]:
                        assert (int(partition), int(offset)) not in self.acked
                        self.acked[int(partition), int(offset)] = value
                    case [b"ERR", b"outcome-unknown", _]:
                        self.unknown.add(value)
                    case told:
                        self.refused[value] = b" ".join(told)

    async def publish_until(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self.publish(1)
        await self.publish(ROUNDS)


class Subscriber:
    """Keeps what it gets, partition by partition, in the order in which it comes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.got: dict[int, list[tuple[int, str]]] = {index: [] for index in range(PARTITIONS)}

    async def begin(self, start: bytes) -> None:
        self._client.say(b"SUB t" + start + b"\n")
        assert await self._client.line() == b"OK"

    async def run(self) -> None:
        while True:
            verb, partition, offset, size = (await self._client.line()).split()
            assert verb == b"MSG"
            self.got[int(partition)].append((int(offset), (await self._client.payload(int(size))).decode()))


def leader_of(engine: Engine, index: int) -> int:
    return engine.topics.partition("t", index).state.leader


async def test_clients_of_a_door_that_leads_nothing_notice_no_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PenstockCluster(tmp_path, members=1) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.create_topic, "t", PARTITIONS)
        async with door_of(cluster, tmp_path, monkeypatch) as broker:
            engine = broker._engine
            assert engine is not None
            clients = [await Client.connect(broker) for _ in range(PUBLISHERS + 2)]
            publishers = [Publisher(client, name) for name, client in enumerate(clients[2:])]
            early, late = Subscriber(clients[0]), Subscriber(clients[1])
            await early.begin(b" new")
            reading = [asyncio.create_task(early.run())]
            await asyncio.gather(*(each.publish(ROUNDS) for each in publishers))
            victim = leader_of(engine, 0)
            killing = asyncio.create_task(asyncio.to_thread(cluster.nodes[victim].kill))

            def is_led_by_another() -> bool:
                return killing.done() and leader_of(engine, 0) not in (victim, -1)

            await asyncio.gather(*(each.publish_until(is_led_by_another) for each in publishers))
            await late.begin(b"")
            reading.append(asyncio.create_task(late.run()))
            assert all(each.log is None for each in engine.topics.get("t").partitions), "it could lead"  # type: ignore[union-attr]
            logs = await asyncio.to_thread(read_everything, cluster.bootstrap, "t", PARTITIONS)
            expected = {index: [(each.offset, each.value) for each in logs[index].records] for index in logs}
            async with asyncio.timeout(_DEADLINE_S):
                while not all(len(each.got[at]) >= len(expected[at]) for each in (early, late) for at in expected):
                    await asyncio.sleep(0.01)
                    assert not any(task.done() for task in reading), [task.exception() for task in reading]
            for task in reading:
                task.cancel()
            for client in clients:
                client.close()
    assert early.got == expected, "each once, in order, from the first on"
    assert late.got == expected
    values = [value for records in expected.values() for _, value in records]
    assert len(values) == len(set(values)), "a message is there twice"
    found = {(index, offset): value.encode() for index in expected for offset, value in expected[index]}
    for publisher in publishers:
        assert publisher.refused == {}
        assert publisher.acked.items() <= found.items(), "acknowledged, and not there"
        assert len(publisher.acked) + len(publisher.unknown) >= 2 * ROUNDS * AT_ONCE
    told = {value for publisher in publishers for value in (*publisher.acked.values(), *publisher.unknown)}
    assert {value.encode() for value in values} <= told
