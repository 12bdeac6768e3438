"""Stands between PostgreSQL and its clients, and cuts all connections at one message of theirs."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import BinaryIO

_PREPARING = (b"P", b"B", b"D", b"E")
"""Parse, Bind, Describe and Execute."""


class Relay:
    """Counts the messages of clients over all connections, connecting included, but for those that do nothing before
    a Sync comes.

    Attributes:
        cut_at: the message at which everything is cut, once; -1 for none.
        answered: cut when the server has answered it, instead of before the server has it.
    """

    def __init__(self, port: int) -> None:
        self.cut_at = -1
        self.answered = False
        self.messages = 0
        self._server = port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            for peer in (client, server):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            cut_answer = threading.Event()
            for pump in (self._pass_questions, self._pass_answers):
                threading.Thread(target=pump, args=(client, server, cut_answer), daemon=True).start()

    def _pass_questions(self, client: socket.socket, server: socket.socket, cut_answer: threading.Event) -> None:
        with contextlib.suppress(OSError, ValueError), client.makefile("rb") as stream:
            for message in _messages(stream):
                is_it = False
                if message[:1] not in _PREPARING:
                    with self._lock:
                        is_it = self.messages == self.cut_at
                        self.messages += 1
                if is_it and not self.answered:
                    break
                if is_it:
                    cut_answer.set()
                server.sendall(message)
            else:
                # The client ended by itself; what it said before must arrive.
                server.shutdown(socket.SHUT_WR)
                return
            self._cut()

    def _pass_answers(self, client: socket.socket, server: socket.socket, cut_answer: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if cut_answer.is_set():
                    self._cut()
                    return
                client.sendall(data)
        _end(client)
        _end(server)

    def _cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for peer in pair:
                _end(peer)


def _end(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _messages(stream: BinaryIO) -> Iterator[bytes]:
    """The first ones have no letter in front: requests for encryption, then the start."""
    started = False
    while True:
        letter = stream.read(1) if started else b""
        size = stream.read(4)
        if len(size) < 4:
            return
        body = stream.read(int.from_bytes(size, "big") - 4)
        if not started:
            started = body[:4] == b"\x00\x03\x00\x00"
        yield letter + size + body
