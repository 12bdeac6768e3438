"""What is kept of who has not logged in: little, however much it says at once."""

import asyncio
import gc
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.doors.kafka import LIMITS, Door, make, with_door
from tests.doors.kio_values import request_frame
from tests.doors.logins import PLAIN, SHA_256, guard_door
from tests.doors.transport import RecordingTransport

from penstock.net.connection import Connections
from penstock.protocols.kafka.client_login import ClientLogin
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka_wire.guest import Guest
from penstock.security.authentication import Peer

PEERS = 20
AHEAD = 62
KEPT_BYTES = 32 * 1024


def said(mechanism: str, size: int) -> bytes:
    """A handshake, and messages that are no login, all at once."""
    requests = [make("sasl_handshake", 1, {"mechanism": mechanism})]
    requests += [make("sasl_authenticate", 2, {"auth_bytes": bytes(size)})] * AHEAD
    frames = [request_frame(each, number) for number, each in enumerate(requests)]
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class Peers:
    """Those who come to a listener, without a network: what is not read from them stays theirs."""

    def __init__(self, door: Door, authenticator: object) -> None:
        def session(connection: object) -> KafkaSession:
            login = ClientLogin(authenticator, (SHA_256, PLAIN), Peer("10.0.0.1", "secure"))  # type: ignore[arg-type]
            return KafkaSession(door.context, connection, door.clock, Guest(connection, login))  # type: ignore[arg-type]

        soon = asyncio.get_running_loop().call_soon
        self._connections = Connections(LIMITS, door.stats, door.clock, session, soon)

    async def call(self, data: bytes) -> RecordingTransport:
        """Somebody who says it, as far as it is read, and is still here."""
        transport, connection = RecordingTransport(), self._connections.accept()
        connection.connected(transport)
        left = memoryview(data)
        while left and transport.reading:
            room = connection.get_buffer()[: len(left)]
            room[:] = left[: len(room)]
            left = left[len(room) :]
            connection.received(len(room))
            await asyncio.sleep(0)
        return transport


@contextmanager
def kept() -> Iterator[list[int]]:
    """How many bytes there are more than at the beginning, for each peer."""
    gc.collect()
    tracemalloc.start()
    found: list[int] = []
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield found
        gc.collect()
        found.append((tracemalloc.get_traced_memory()[0] - before) // PEERS)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mechanism", [PLAIN, SHA_256])
@pytest.mark.parametrize("size", [7_900, 60_000])
def test_little_is_kept_of_messages_that_are_no_login(mechanism: str, size: int) -> None:
    async def body(door: Door) -> None:
        guard = await guard_door(door)
        peers, data = Peers(door, guard.authenticator), said(mechanism, size)
        await peers.call(data)  # what is made once for all is made now
        await asyncio.sleep(0.1)
        with kept() as found:
            here = [await peers.call(data) for _ in range(PEERS)]
            await asyncio.sleep(0.1)
        assert found[0] < KEPT_BYTES
        assert not any(each.closed or each.aborted for each in here), "they wait to be told"
        await asyncio.sleep(2)
        assert all(each.closed for each in here)
        await guard.stop()

    with_door(body)
