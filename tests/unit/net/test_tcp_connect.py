"""Connections made by us, on real sockets: refused, unanswered and lost can be told apart."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from penstock.net.tcp import TcpNetwork

from .test_tcp import DEADLINE_S, Server


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the kernel's, not ours: no event tells of it
            await asyncio.sleep(0.005)


async def test_bytes_both_ways_and_the_loss_is_told() -> None:
    server, client = Server(), Server()
    listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: server)
    transport = await TcpNetwork().connect(*listener.address, client, timeout_s=DEADLINE_S)
    assert client.transport is transport
    assert transport.peer == f"127.0.0.1:{listener.address[1]}"
    assert not transport.certified
    transport.write(b"question")
    await until(lambda: bytes(server.data) == b"question")
    assert server.transport is not None
    server.transport.write(b"answer")
    await until(lambda: bytes(client.data) == b"answer")
    server.transport.abort()
    await asyncio.wait_for(client.gone.wait(), DEADLINE_S)
    await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
    await listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # a name may have several addresses
async def test_refused(host: str) -> None:
    with socket.socket() as bound:  # nobody else gets the port, and nobody listens
        bound.bind(("127.0.0.1", 0))
        client = Server()
        with pytest.raises(ConnectionRefusedError):
            await TcpNetwork().connect(host, bound.getsockname()[1], client, timeout_s=DEADLINE_S)
    assert client.transport is None
    assert client.events == []


async def test_no_answer() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:  # more than the backlog takes: from then on the kernel does not answer
            each.setblocking(False)
            each.connect_ex(address)
        with pytest.raises(TimeoutError):
            await TcpNetwork().connect(address[0], address[1], Server(), timeout_s=0.3)
        for each in waiting:
            each.close()


async def test_a_host_nobody_knows() -> None:
    with pytest.raises(OSError, match=r".") as raised:
        await TcpNetwork().connect("no-such-host.invalid", 9, Server(), timeout_s=DEADLINE_S)
    assert not isinstance(raised.value, ConnectionRefusedError)
