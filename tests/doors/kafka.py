"""A Kafka door on an engine in memory, in virtual time, and a client that speaks kio's messages to it."""

import asyncio
import datetime
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from random import Random
from typing import Any, TypeVar, get_args, get_origin
from uuid import UUID

from crc32c import crc32c

from penstock.engine.engine import Engine
from penstock.engine.settings import EngineSettings, Ports
from penstock.engine.topics import Topic
from penstock.net.connection import Connection, Connections, Limits
from penstock.observe.stats import Stats
from penstock.protocols.kafka.fetch_sessions import FetchSessions
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka.share_requests import Shares
from penstock.records.batch import HEADER_BYTES, decode_header
from penstock.records.build import build_batch
from penstock.storage.data_directory import DataDirectory
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.memory_network import MemoryClient, MemoryNetwork
from penstock.testing.virtual_clock import VirtualClock, run_virtual

from .kio_values import entity_of, plain, read, request_frame, unwrapped

T = TypeVar("T")
HOST = "broker"
LIMITS = Limits()


@dataclass(slots=True)
class Door:
    """A running door. Everything is there to be looked at."""

    engine: Engine
    context: Context
    connections: Connections
    stats: Stats
    disk: FaultyDisk
    network: MemoryNetwork
    clock: VirtualClock
    address: tuple[str, int]
    failures: list[BaseException]

    async def client(self, **options: Any) -> "Client":
        return Client(await self.network.connect(*self.address, **options))

    async def topic(self, name: str = "t", partitions: int = 1, **settings: str) -> Topic:
        return await self.engine.create_topic(
            name, partitions, {key.replace("_", "."): text for key, text in settings.items()}
        )

    def connection(self) -> Connection:
        """A connection without a network, to be fed by hand."""
        return self.connections.accept()


async def open_door(
    seed: int = 0,
    *,
    limits: Limits = LIMITS,
    defaults: Mapping[str, str] | None = None,
    auto_create: bool = True,
    sessions: int = 1000,
    disk: FaultyDisk | None = None,
    max_piece_bytes: int = 1 << 16,
) -> Door:
    failures: list[BaseException] = []
    stats, clock = Stats(), VirtualClock()
    disk = disk or FaultyDisk(seed)
    directory = DataDirectory(disk, "/data")
    await disk.run(directory.open)
    engine = Engine(
        Ports(disk, clock, Random(seed), MemoryStore()),
        directory,
        stats,
        failures.append,
        EngineSettings(defaults=defaults or {}, default_partitions=2),
    )
    await engine.start()
    context = Context(
        acting_as=engine.acting_as,
        turns=engine.turns,
        topic_defaults=engine.topic_defaults,
        default_partitions=engine.default_partitions,
        stats=stats,
        node_id=1,
        host="example.net",
        port=9092,
        auto_create=auto_create,
        fetch_sessions=FetchSessions(Random(seed), sessions),
        shares=Shares(engine.acting_as),
    )
    network = MemoryNetwork(seed, max_piece_bytes=max_piece_bytes)
    connections = Connections(
        limits,
        stats,
        clock,
        lambda connection: KafkaSession(context, connection, clock),
        asyncio.get_running_loop().call_soon,
    )
    listener = await network.listen(HOST, 9092, connections.accept)
    return Door(engine, context, connections, stats, disk, network, clock, listener.address, failures)


def with_door(body: Callable[[Door], Awaitable[T]], seed: int = 1, **options: Any) -> T:
    """Run `body` with a door in virtual time."""

    async def main() -> T:
        door = await open_door(seed, **options)
        result = await body(door)
        assert not door.failures
        return result

    return run_virtual(main, seed)


def make(api: str, version: int, values: Mapping[str, Any]) -> Any:
    """A request entity from plain values; what the version has not is left out, what is missing gets a default."""
    return _fill(entity_of(api, version, "request"), values)


def _fill(entity: type, values: Mapping[str, Any]) -> Any:
    made: dict[str, Any] = {}
    for field in fields(entity):
        kind, nullable = unwrapped(field.type)
        array = get_origin(kind) is tuple
        if array:
            kind, _ = unwrapped(get_args(kind)[0])
        kafka_type = field.metadata.get("kafka_type", "")
        if field.name not in values:
            if field.default is not MISSING:
                continue
            made[field.name] = None if nullable else () if array else _zero(kafka_type)
            continue
        value = values[field.name]
        if value is not None and isinstance(kind, type) and is_dataclass(kind):
            value = tuple(_fill(kind, each) for each in value) if array else _fill(kind, value)
        elif kafka_type.startswith("timedelta"):
            value = datetime.timedelta(milliseconds=value)
        made[field.name] = tuple(value) if array and value is not None else value
    return entity(**made)


def _zero(kafka_type: str) -> Any:
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(0)
    return {"string": "", "bool": False, "uuid": None}.get(kafka_type, 0)


class Client:
    """Speaks kio's messages over a memory connection."""

    def __init__(self, stream: MemoryClient) -> None:
        self.stream = stream
        self._correlation = 0

    def send(self, request: Any, *, version: int | None = None) -> int:
        """Send a request and return its correlation id; `version` overrides the one in the header."""
        self._correlation += 1
        frame = bytearray(request_frame(request, self._correlation))
        if version is not None:
            struct.pack_into(">h", frame, 2, version)
        self.send_frame(bytes(frame))
        return self._correlation

    def send_frame(self, frame: bytes) -> None:
        self.stream.send(struct.pack(">i", len(frame)) + frame)

    async def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.stream.receive_exactly(4))
        return await self.stream.receive_exactly(size)

    async def receive(self, api: str, version: int) -> tuple[int, dict[str, Any]]:
        """The next response as plain values, and its correlation id."""
        frame = await self.receive_frame()
        kind = entity_of(api, version, "response")
        head = 5 if kind.__flexible__ and api != "api_versions" else 4  # type: ignore[attr-defined]
        assert head == 4 or frame[4] == 0
        return struct.unpack_from(">i", frame)[0], plain(read(kind, frame[head:]))

    async def ask(self, api: str, version: int, /, **values: Any) -> dict[str, Any]:
        sent = self.send(make(api, version, values))
        correlation, answer = await self.receive(api, version)
        assert correlation == sent
        return answer

    async def produce(
        self, batch: bytes, *, topic: str | UUID = "t", partition: int = 0, acks: int = -1, version: int = 9
    ) -> dict[str, Any]:
        """One batch; the partition's answer."""
        answer = await self.ask("produce", version, **produce_values(batch, topic, partition, acks))
        return answer["responses"][0]["partition_responses"][0]

    async def fetch(self, *, version: int = 12, **values: Any) -> dict[str, Any]:
        return await self.ask("fetch", version, **fetch_values(**values))


def produce_values(batch: bytes | None, topic: str | UUID = "t", partition: int = 0, acks: int = -1) -> dict[str, Any]:
    named = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
    data = [{"index": partition, "records": batch}]
    return {"acks": acks, "timeout": 1000, "topic_data": [{**named, "partition_data": data}]}


def fetch_values(
    wanted: Mapping[str | UUID, Mapping[int, int]] | None = None,
    *,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    forgotten: Mapping[str | UUID, list[int]] | None = None,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> dict[str, Any]:
    """`wanted` is topic → partition → offset."""

    def named(topic: str | UUID) -> dict[str, Any]:
        return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}

    return {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {
                **named(topic),
                "partitions": [
                    {
                        "partition": index,
                        "fetch_offset": offset,
                        "partition_max_bytes": partition_max_bytes,
                        "current_leader_epoch": current_leader_epoch,
                        "last_fetched_epoch": last_fetched_epoch,
                    }
                    for index, offset in places.items()
                ],
            }
            for topic, places in (wanted if wanted is not None else {"t": {0: 0}}).items()
        ],
        "forgotten_topics_data": [
            {**named(topic), "partitions": indexes} for topic, indexes in (forgotten or {}).items()
        ],
    }


def batch_of(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **options: Any) -> bytes:
    return build_batch([(None, value, (), timestamp_ms) for value in values], **options)


def with_header(batch: bytes, **changes: int) -> bytes:
    """A batch with other header fields and, unless `crc` is among them, a right checksum."""
    header = decode_header(batch)._replace(**changes)
    made = bytearray(struct.pack(">qiibIhiqqqhii", *header) + batch[HEADER_BYTES:])
    if "crc" not in changes:
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def base_offsets(records: bytes) -> list[int]:
    """Base offsets of the whole batches in fetched bytes."""
    found, position = [], 0
    while position + 61 <= len(records):
        base, size = struct.unpack_from(">qi", records, position)
        found.append(base)
        position += 12 + size
    assert position == len(records), "a batch is cut"
    return found
