"""A server that answers Kafka requests with what a test says, over a real socket."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from penstock.protocols.kafka_wire.codec import decode_head, encode_response_head, skip_client_id
from penstock.protocols.kafka_wire.messages import Message, decode, encode, schema_of

API_VERSIONS = 18
Handler = Callable[[Message], Mapping[str, Any] | bytes | None]
"""The fields of an answer, the whole frame as bytes, or None: the connection is closed instead."""


class Script(NamedTuple):
    """What one API does: its number, the versions advertised, and its answers."""

    key: int
    oldest: int
    newest: int
    handle: Handler


class ScriptedBroker:
    """`asked` lists the API and version of each request, in order."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.asked: list[tuple[str, int]] = []
        self._scripts = {"api_versions": Script(API_VERSIONS, 0, 4, self._advertise), **scripts}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self.address = f"{self.host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _advertise(self, _: Message) -> Mapping[str, Any]:
        keys = [
            {"api_key": each.key, "min_version": each.oldest, "max_version": each.newest}
            for each in self._scripts.values()
        ]
        return {"error_code": 0, "api_keys": keys}

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(ConnectionError), peer, peer.makefile("rb") as stream:
            while size := stream.read(4):
                answer = self._answer(memoryview(stream.read(int.from_bytes(size, "big"))))
                if answer is None:
                    return
                peer.sendall(answer)

    def _answer(self, frame: memoryview) -> bytes | None:
        head = decode_head(frame)
        name, script = next((name, each) for name, each in self._scripts.items() if each.key == head.api_key)
        self.asked.append((name, head.version))
        request, response = (schema_of(name, head.version, direction) for direction in ("request", "response"))
        body = decode(request, frame, skip_client_id(frame, head.position, flexible=request.flexible))
        fields = script.handle(body)
        if fields is None or isinstance(fields, bytes):
            return fields
        encoded = encode(response, fields)
        flexible = response.flexible and head.api_key != API_VERSIONS
        return encode_response_head(head.correlation_id, len(encoded), flexible=flexible) + encoded


@contextmanager
def scripted_broker(**scripts: Script) -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker(scripts)
    try:
        yield broker
    finally:
        broker.close()
