"""Whatever a peer sends, it gets answers or a closed connection: never a bug of ours, never memory without bound."""

import asyncio
import os
import struct
from itertools import islice

import pytest
from tests.doors.bad_frames import bad_frames
from tests.doors.kafka import Door, with_door
from tests.doors.transport import RecordingLog, RecordingTransport

from penstock.net import connection as connection_module
from penstock.net.connection import Connection
from penstock.protocols.kafka import session as session_module

FRAMES = int(os.environ.get("FRAMES", "100_000"))
PARTS = 4
_BREATH = 5  # frames between two turns of the loop
_NEW_TOPICS = 60


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RecordingLog:
    recording = RecordingLog()
    monkeypatch.setattr(connection_module, "log_", recording)
    monkeypatch.setattr(session_module, "log_", recording)
    return recording


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def give(connection: Connection, data: bytes) -> None:
    position = 0
    while position < len(data):
        room = connection.get_buffer()
        assert len(room) > 0
        size = min(len(room), len(data) - position)
        room[:size] = data[position : position + size]
        connection.received(size)
        position += size


def split(data: bytes) -> list[bytes]:
    """The answers in what was sent; whole ones only."""
    found, position = [], 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        assert 4 <= size <= len(data) - position - 4, "half an answer"
        found.append(data[position + 4 : position + 4 + size])
        position += 4 + size
    return found


async def attack(door: Door, seed: int, count: int) -> tuple[int, int]:
    """Answers given and connections closed."""
    await door.topic(partitions=2)
    answered = closed = 0
    connection, transport = door.connection(), RecordingTransport()
    connection.connected(transport)
    for number, frame in enumerate(islice(bad_frames(seed), count)):
        give(connection, struct.pack(">i", len(frame)) + frame)
        if number % _BREATH == 0:
            await asyncio.sleep(0.01)
            # Topics that were created on the way only slow the run down.
            extra = [topic for topic in door.engine.topics if topic.name != "t"]
            if len(extra) > _NEW_TOPICS:
                for topic in extra:
                    await door.engine.delete_topic(topic)
        if transport.aborted or not transport.reading:
            closed += transport.aborted
            answered += len(split(transport.data))
            connection.disconnected()
            connection, transport = door.connection(), RecordingTransport()
            connection.connected(transport)
    await asyncio.sleep(400)  # past every long poll
    return answered, closed


@pytest.mark.parametrize("seed", range(PARTS))
def test_bad_frames(seed: int, log: RecordingLog) -> None:
    before = resident_bytes()

    async def body(door: Door) -> None:
        answered, closed = await attack(door, seed, FRAMES // PARTS)
        assert answered > FRAMES // PARTS // 100
        assert closed > FRAMES // PARTS // 100
        # The door still works.
        client = await door.client()
        assert (await client.ask("metadata", 1, topics=[{"name": "t"}]))["topics"][0]["error_code"] == 0

    with_door(body, seed)
    assert not log.bugs, f"{len(log.bugs)} bugs, first:\n{log.bugs[0]}"
    assert resident_bytes() - before < 200 << 20
