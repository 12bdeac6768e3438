"""Stands between clients and a broker, and cuts connections at chosen requests or answers.

The broker names the relay's address as its own, so that whatever a client opens, now or later, goes through it.
"""

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.peers import kafka, penstock

PEER = os.environ.get("PENSTOCK_TEST_PEER", "penstock")
PRODUCE, FETCH, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 1, 22, 24, 26
REQUEST, ANSWER = "request", "answer"
_SIZE = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhi")  # API, version, correlation id


class Cut(NamedTuple):
    """Where a connection ends: before the broker has the request, or after it, before the client has the answer."""

    api: int
    where: str
    skip: int = 0
    """How many of the kind pass before."""


class Relay:
    """`cuts` happen in their order; each waits for the one before. `seen` counts requests by API."""

    def __init__(self) -> None:
        self.cuts: deque[Cut] = deque()
        self.seen: dict[int, int] = {}
        self.on_request: Callable[[int], None] | None = None
        """Called with the API of each request before it goes on."""
        self._broker: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._broker = host, int(port)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self._broker is not None
            broker = socket.create_connection(self._broker)
            asked: dict[int, int] = {}
            for pump in (self._pass_requests, self._pass_answers):
                threading.Thread(target=pump, args=(client, broker, asked), daemon=True).start()

    def _pass_requests(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with _both(client, broker):
            for frame in _frames(client):
                api, _, correlation = _REQUEST_HEAD.unpack_from(frame, _SIZE.size)
                asked[correlation] = api
                with self._lock:
                    self.seen[api] = self.seen.get(api, 0) + 1
                if self.on_request is not None:
                    self.on_request(api)
                if self._is_cut(api, REQUEST):
                    return
                broker.sendall(frame)

    def _pass_answers(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        with _both(client, broker):
            for frame in _frames(broker):
                (correlation,) = _SIZE.unpack_from(frame, _SIZE.size)
                if self._is_cut(asked.pop(correlation), ANSWER):
                    return
                client.sendall(frame)

    def _is_cut(self, api: int, where: str) -> bool:
        with self._lock:
            if not self.cuts or self.cuts[0][:2] != (api, where):
                return False
            if self.cuts[0].skip:
                self.cuts[0] = self.cuts[0]._replace(skip=self.cuts[0].skip - 1)
                return False
            self.cuts.popleft()
            return True


@contextmanager
def _both(*peers: socket.socket) -> Iterator[None]:
    """Ends both connections when either ends."""
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def _frames(peer: socket.socket) -> Iterator[bytes]:
    with peer.makefile("rb") as stream:
        while len(size := stream.read(_SIZE.size)) == _SIZE.size:
            body = stream.read(_SIZE.unpack(size)[0])
            if len(body) < _SIZE.unpack(size)[0]:
                return
            yield size + body


@contextmanager
def relayed_broker(directory: Path) -> Iterator[Relay]:
    """A broker as a process (Apache Kafka with PENSTOCK_TEST_PEER=kafka), reached through a relay alone."""
    relay = Relay()
    try:
        if PEER == "kafka":
            # The controller's listener must not be among the advertised.
            broker = kafka.start(
                directory, heap="512m", properties={"advertised.listeners": f"PLAINTEXT://{relay.address}"}
            )
        else:
            broker = penstock.start(directory, flags=["--advertise", relay.address])
        try:
            relay.lead_to(broker.bootstrap)
            yield relay
        finally:
            broker.stop()
    finally:
        relay.close()
