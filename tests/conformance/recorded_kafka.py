"""Apache Kafka's answers to our client, kept in a file: what it said once is said again to whoever asks the same.

Tests that ask for nothing but Kafka's answers need no JVM then. What was said inside TLS is what is kept; the TLS is
another one, by Python's library in place of Java's. `make golden` renews the file from a real broker, and
PENSTOCK_TEST_PEER=kafka asks a real one.
"""

import base64
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from penstock.client.connection import Connection

_INT, _SIZE_AND_CORRELATION = Struct(">i"), Struct(">ii")
_HEAD = Struct(">hhih")  # API, version, correlation id, length of the client id
_LARGEST_REQUEST = 1 << 20
_SASL_AUTHENTICATE = 36
_TLS_HANDSHAKE = b"\x16"


@dataclass(frozen=True, slots=True)
class Question:
    listener: str
    api: int
    version: int
    body: bytes
    """Behind the client id."""
    before: bytes
    """The body of the question before it, where the answer depends on that: which mechanism was agreed upon."""


@dataclass(slots=True)
class Recording:
    """
    Attributes:
        ports: which port each listener had; it is part of some answers.
        alert: what somebody is told who does not speak TLS where it is wanted.
        answers: what follows the correlation id. The first answer to a question is the one kept.
    """

    ports: Mapping[str, int]
    alert: bytes
    answers: dict[Question, bytes] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Recording":
        kept = json.loads(path.read_text())
        answers = {
            Question(
                each["listener"],
                each["api"],
                each["version"],
                bytes.fromhex(each["question"]),
                bytes.fromhex(each["before"]),
            ): zlib.decompress(base64.b64decode(each["answer"]))
            for each in kept["answers"]
        }
        return cls(kept["ports"], bytes.fromhex(kept["alert"]), answers)

    def save(self, path: Path) -> None:
        answers = [
            {
                "listener": question.listener,
                "api": question.api,
                "version": question.version,
                "before": question.before.hex(),
                "question": question.body.hex(),
                "answer": base64.b64encode(zlib.compress(answer, 9)).decode(),
            }
            for question, answer in self.answers.items()
        ]
        path.parent.mkdir(exist_ok=True)
        kept = {"ports": dict(self.ports), "alert": self.alert.hex(), "answers": answers}
        path.write_text(json.dumps(kept, indent=1) + "\n")

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keeps what every connection asks and is told meanwhile."""
        listeners = {str(port): name for name, port in self.ports.items()}
        asked: dict[tuple[int, int], Question] = {}
        bodies: dict[int, bytes] = {}
        send, receive = Connection.send, Connection._receive

        def keep_question(connection: Connection, api: int, version: int, parts: Any, *, flexible: bool) -> int:
            correlation = send(connection, api, version, parts, flexible=flexible)
            body = b"".join([b"\0" if flexible else b"", *parts])
            listener = listeners[connection.name.rpartition(":")[2]]
            before = bodies.get(id(connection), b"") if api == _SASL_AUTHENTICATE else b""
            asked[id(connection), correlation] = Question(listener, api, version, body, before)
            bodies[id(connection)] = body
            return correlation

        def keep_answer(connection: Connection, correlation: int, flexible: bool, *rest: Any) -> memoryview:
            body = receive(connection, correlation, flexible, *rest)
            answer = (b"\0" if flexible else b"") + bytes(body)
            self.answers.setdefault(asked.pop((id(connection), correlation)), answer)
            return body

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "send", keep_question)
            patch.setattr(Connection, "_receive", keep_answer)
            yield


class RecordedKafka:
    """Answers from a recording, on ports of its own. Use as a context manager.

    Attributes:
        unknown: questions that nobody had asked Kafka.
    """

    def __init__(self, recording: Recording, contexts: Mapping[str, ssl.SSLContext]) -> None:
        self._recording, self._contexts = recording, contexts
        self._listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in recording.ports}
        self.ports = {name: each.getsockname()[1] for name, each in self._listeners.items()}
        self.unknown: list[Question] = []

    def __enter__(self) -> "RecordedKafka":
        for name, listener in self._listeners.items():
            threading.Thread(target=self._accept, args=(name, listener), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._listeners.values():
            each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, name: str, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(name, connection), daemon=True).start()

    def _serve(self, name: str, connection: socket.socket) -> None:
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(connection)
            if (context := self._contexts.get(name)) is not None:
                if connection.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
                    connection.sendall(self._recording.alert)
                    return _hear_out(connection)
                tls = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                connection = stack.enter_context(tls)
                try:
                    tls.do_handshake()
                except ssl.SSLError:
                    return _hear_out(connection)
            self._talk(name, connection)

    def _talk(self, name: str, connection: socket.socket) -> None:
        before = b""
        with connection.makefile("rwb") as file:
            while len(size := file.read(_INT.size)) == _INT.size:
                if not _HEAD.size <= _INT.unpack(size)[0] <= _LARGEST_REQUEST:
                    return
                frame = file.read(_INT.unpack(size)[0])
                api, version, correlation, length = _HEAD.unpack_from(frame)
                body = frame[_HEAD.size + length :]
                question = Question(name, api, version, body, before if api == _SASL_AUTHENTICATE else b"")
                if (answer := self._recording.answers.get(question)) is None:
                    self.unknown.append(question)
                    return
                answer = answer.replace(_INT.pack(self._recording.ports[name]), _INT.pack(self.ports[name]))
                file.write(_SIZE_AND_CORRELATION.pack(_INT.size + len(answer), correlation) + answer)
                file.flush()
                before = body


def _hear_out(connection: socket.socket) -> None:
    """Waits until the other side hangs up; to hang up first could take back what it was told."""
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 16):
        pass
