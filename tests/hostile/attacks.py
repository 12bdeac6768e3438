"""What attackers do, each until its time is up: `python -m tests.hostile.attacks NAME HOST:PORT HTTP SECONDS`."""

import asyncio
import contextlib
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.records.build import build_batch
from tests.doors.kafka import batch_of, fetch_values, make, produce_values, with_header
from tests.doors.kio_values import request_frame

TOPIC, COMPACTED = "attacked", "compacted"
_GONE = (OSError, asyncio.IncompleteReadError)


class Attacker:
    """Where to strike, and until when."""

    def __init__(self, kafka: str, http: str, seconds: float) -> None:
        self._kafka = kafka
        self._http = http
        self._until = time.monotonic() + seconds

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._until

    async def connect(self, address: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = (address or self._kafka).rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def slow_connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.connect(self._http)

    async def times(self, number: int, strike: Callable[[], Awaitable[None]]) -> None:
        """That many at a time, each again and again."""

        async def again() -> None:
            while self.goes_on:
                with contextlib.suppress(*_GONE):
                    await strike()
                await asyncio.sleep(0.01)

        await asyncio.gather(*(again() for _ in range(number)))

    async def hold(self) -> None:
        await asyncio.sleep(max(self._until - time.monotonic(), 0))


def framed(api: str, version: int, values: dict[str, Any]) -> bytes:
    frame = request_frame(make(api, version, values), 1)
    return struct.pack(">i", len(frame)) + frame


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])


def parked_fetch(max_wait_ms: int) -> bytes:
    return framed("fetch", 12, fetch_values({TOPIC: {0: 0}}, max_wait=max_wait_ms, min_bytes=1 << 30))


def described(repeats: int) -> bytes:
    resources = [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None}] * repeats
    return framed("describe_configs", 4, {"resources": resources, "include_documentation": True})


async def gone_unanswered(attacker: Attacker) -> None:
    """Connections that end while a request of theirs is unanswered, with half of a large one behind it."""
    request = parked_fetch(60_000) + struct.pack(">i", 4 << 20) + bytes(2 << 20)

    async def strike() -> None:
        _, writer = await attacker.connect()
        writer.write(request)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(writer.drain(), 1)
        writer.transport.abort()

    await attacker.times(40, strike)


async def refused_batches(attacker: Attacker) -> None:
    """Large batches that a compacted topic refuses when it has opened them."""
    request = framed("produce", 9, produce_values(batch_of(bytes(900_000)), COMPACTED))

    async def strike() -> None:
        reader, writer = await attacker.connect()
        for _ in range(20):
            await answered(reader, writer, request)
        writer.close()

    await attacker.times(2, strike)


async def answers_behind_a_fetch(attacker: Attacker) -> None:
    """A fetch that waits for long, and behind it requests with large answers."""
    many = b"".join(framed("metadata", 9, {"topics": None}) for _ in range(60))
    request = parked_fetch(3_600_000) + described(1) * 3 + many

    async def strike() -> None:
        _, writer = await attacker.connect()
        writer.write(request)
        await writer.drain()
        await attacker.hold()
        writer.transport.abort()

    await attacker.times(40, strike)


async def repeated_questions(attacker: Attacker) -> None:
    """DescribeConfigs of the same topic thousands of times in each of many requests."""
    request = described(3000) * 40

    async def strike() -> None:
        _, writer = await attacker.connect()
        writer.write(request)
        await attacker.hold()
        writer.transport.abort()

    await attacker.times(10, strike)


async def endless_lists(attacker: Attacker) -> None:
    """Everything that can be listed, of all there is, without reading the answers."""
    request = b"".join(
        (
            framed("list_groups", 4, {}),
            framed("list_transactions", 1, {}),
            framed("describe_log_dirs", 4, {"topics": None}),
            framed("describe_topic_partitions", 0, {"response_partition_limit": 2000}),
            framed("list_config_resources", 1, {}),
        )
    )

    async def strike() -> None:
        _, writer = await attacker.connect()
        for _ in range(200):
            writer.write(request)
        await attacker.hold()
        writer.transport.abort()

    await attacker.times(20, strike)


async def unfinished_requests(attacker: Attacker) -> None:
    """Requests of 90 MB that all but come to their end."""
    begun = struct.pack(">i", 90 << 20) + struct.pack(">hhi", 0, 9, 1)
    piece = bytes(1 << 20)

    async def strike() -> None:
        _, writer = await attacker.connect()
        writer.write(begun)
        for _ in range(89):
            if not attacker.goes_on:
                break
            writer.write(piece)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writer.drain(), 0.2)
        await attacker.hold()
        writer.transport.abort()

    await attacker.times(15, strike)


async def large_sessions(attacker: Attacker) -> None:
    """Fetch sessions with as many partitions as fit into a request, most of which do not exist, and small fetches."""
    names = [f"nowhere-{at}" for at in range(20)]
    first = framed("fetch", 12, fetch_values({name: dict.fromkeys(range(900), 0) for name in names}, session=(0, 0)))

    async def strike() -> None:
        reader, writer = await attacker.connect()
        answer = await answered(reader, writer, first)
        session_id = struct.unpack_from(">i", answer, 11)[0]
        for epoch in range(1, 200):
            if not attacker.goes_on:
                break
            await answered(reader, writer, framed("fetch", 12, fetch_values({}, session=(session_id, epoch))))
        writer.transport.abort()

    await attacker.times(8, strike)


async def forged_counts(attacker: Attacker) -> None:
    """Batches that claim to hold two thousand million records."""
    most = (1 << 31) - 1
    batch = with_header(build_batch([(None, b"x", (), 0)] * 3), record_count=most, last_offset_delta=most - 1)
    request = framed("produce", 9, produce_values(batch, TOPIC))

    async def strike() -> None:
        reader, writer = await attacker.connect()
        for _ in range(100):
            await answered(reader, writer, request)
        writer.close()

    await attacker.times(4, strike)


async def slow_http(attacker: Attacker) -> None:
    """Connections to the door of health and metrics that send a byte now and then."""

    async def strike() -> None:
        _, writer = await attacker.slow_connect()
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        while attacker.goes_on:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.5)
        writer.transport.abort()

    await attacker.times(1100, strike)


async def idle_connections(attacker: Attacker) -> None:
    """Two thousand connections that send nothing."""

    async def strike() -> None:
        _, writer = await attacker.connect()
        await attacker.hold()
        writer.transport.abort()

    await attacker.times(2000, strike)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        gone_unanswered,
        refused_batches,
        answers_behind_a_fetch,
        repeated_questions,
        endless_lists,
        unfinished_requests,
        large_sessions,
        forged_counts,
        slow_http,
        idle_connections,
    )
}


if __name__ == "__main__":
    name, kafka, http, seconds = sys.argv[1:]
    asyncio.run(ATTACKS[name](Attacker(kafka, http, float(seconds))))  # type: ignore[arg-type]
