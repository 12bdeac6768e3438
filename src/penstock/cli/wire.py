"""A small blocking Kafka client, for the few APIs that librdkafka does not have: transactions, producers, epochs.

One request at a time on each connection, in the newest version that both sides know. Plaintext only: with any other
`security.protocol` it says so before it connects. Everything else goes through librdkafka (docs/adr/0007).
"""

import socket
import time
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.cli.connection import Refused, Server, split_address
from penstock.cli.failure import UNREACHABLE, USAGE, CommandError

if TYPE_CHECKING:
    from penstock.protocols.kafka.messages import Message


_APIS: Final = {
    "metadata": (3, 4, 12),  # from 4 on a question makes no topic, from 1 on an empty list means no topics
    "find_coordinator": (10, 1, 4),
    "api_versions": (18, 0, 0),  # a server too old or too new for any other version answers this one
    "init_producer_id": (22, 0, 5),
    "write_txn_markers": (27, 1, 1),
    "offset_delete": (47, 0, 0),
    "describe_producers": (61, 0, 0),
    "describe_transactions": (65, 0, 0),
    "list_transactions": (66, 0, 1),
    "consumer_group_describe": (69, 0, 1),
}
"""Kafka's number of each API, the oldest and the newest version this client can use."""

GROUP, TRANSACTION = 0, 1  # kinds of coordinators
_RETRIABLE: Final = frozenset({14, 15, 16, 51})  # a coordinator that loads or moves, a transaction about to end
_RETRY_S: Final = 0.1
_LARGEST_ANSWER: Final = 100_000_000
_MOST_ELEMENTS = 5_000_000  # of an answer, from a server one has chosen
_INT, _HEAD = Struct(">i"), Struct(">hhih")
_CLIENT_ID: Final = b"penstock-cli"
Address = tuple[str, int]


class Connection:
    """One broker. Every call ends, well or not, within the time the server is given to answer."""

    def __init__(self, server: Server, address: Address) -> None:
        self.name = f"{address[0]}:{address[1]}"
        self._server = server
        self._correlation = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.socket = socket.create_connection(address, timeout=server.timeout_s)

    def call(self, api: str, **values: Any) -> "Message":
        """Ask with the fields of any version; those that the version in use lacks are left out.

        Raises `CommandError` for an API the broker does not have and an answer that is none, `OSError` where the
        connection ends.
        """
        from penstock.net.connection import PeerError
        from penstock.protocols.kafka.codec import skip_tags
        from penstock.protocols.kafka.messages import decode, encode, schema_of

        version = self._choose(api)
        request, response = (schema_of(api, version, direction) for direction in ("request", "response"))
        self._correlation += 1
        head = _HEAD.pack(_APIS[api][0], version, self._correlation, len(_CLIENT_ID)) + _CLIENT_ID
        body = head + (b"\0" if request.flexible else b"") + encode(request, values)
        deadline = time.monotonic() + self._server.timeout_s
        self.socket.settimeout(self._server.timeout_s)
        self.socket.sendall(_INT.pack(len(body)) + body)
        (size,) = _INT.unpack(self._read(_INT.size, deadline))
        try:
            if not _INT.size <= size <= _LARGEST_ANSWER:
                raise PeerError(f"{size} bytes")
            frame = memoryview(self._read(size, deadline))
            if _INT.unpack_from(frame)[0] != self._correlation:
                raise PeerError("it belongs to another question")
            start = skip_tags(frame, _INT.size) if response.flexible else _INT.size
            return decode(response, frame, start, max_elements=_MOST_ELEMENTS)
        except PeerError as error:
            raise CommandError(f"the server at {self.name} gave no proper answer to {_title(api)}: {error}") from None

    def _choose(self, api: str) -> int:
        key, oldest, newest = _APIS[api]
        if api == "api_versions":
            return newest
        if not self._versions:
            answer = self.call("api_versions")
            self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        if key not in self._versions:
            raise CommandError(f"the server at {self.name} does not have {_title(api)}")
        low, high = self._versions[key]
        if (version := min(newest, high)) < max(oldest, low):
            told = f"the server at {self.name} has {_title(api)} in versions {low} to {high}"
            raise CommandError(f"{told}; {oldest} to {newest} are known here")
        return version

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)


class Cluster:
    """The brokers behind a server's address, each connected when it is first asked."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: dict[Address, Connection] = {}
        if not is_plaintext(server):
            told = f"security.protocol={server.properties['security.protocol']}"
            raise CommandError(f"{told}: what librdkafka cannot ask is asked in plaintext only", code=USAGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open.values():
            connection.socket.close()

    def brokers(self) -> dict[int, Address]:
        return {each.node_id: (each.host, each.port) for each in self.ask(None, "metadata", topics=[]).brokers}

    def find_leader(self, topic: str, partition: int) -> Address:
        """The partition's leader. Raises `CommandError` where the topic, the partition or its leader is missing."""
        answer = self.ask(None, "metadata", topics=[{"name": topic}], allow_auto_topic_creation=False)
        (found,) = answer.topics
        check(found.error_code, f"topic {topic!r}")
        leaders = {each.partition_index: each.leader_id for each in found.partitions}
        if partition not in leaders:
            raise CommandError(f"topic {topic!r} has no partition {partition}; it has 0 to {max(leaders)}")
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        if leaders[partition] not in brokers:
            raise CommandError(f"partition {partition} of topic {topic!r} has no leader now; try again")
        return brokers[leaders[partition]]

    def find_coordinator(self, kind: int, name: str) -> Address:
        def find() -> Any:
            answer = self.ask(None, "find_coordinator", key=name, coordinator_keys=[name], key_type=kind)
            return answer.get("coordinators", [answer])[0]  # several names a question from version 4 on

        found = self.retry(find)
        check(found.error_code, f"{'group' if kind == GROUP else 'transactional id'} {name!r}")
        return found.host, found.port

    def retry(self, ask: "Callable[[], Message]") -> "Message":
        """The first answer whose `error_code` is not one that passes, or the last before the time is up."""
        deadline = time.monotonic() + self._server.timeout_s
        while (answer := ask()).error_code in _RETRIABLE and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        return answer

    def ask(self, address: Address | None, api: str, **values: Any) -> "Message":
        """Ask one broker, or without an address any of those the server was named with."""
        reasons = []
        places = [split_address(word.strip()) for word in self._server.address.split(",")]
        for place in places if address is None else [address]:
            try:
                if place not in self._open:
                    self._open[place] = Connection(self._server, place)
                return self._open[place].call(api, **values)
            except (OSError, UnicodeError) as error:
                if place in self._open:
                    self._open.pop(place).socket.close()
                reasons.append("" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or str(error))
        told = ", ".join(dict.fromkeys(filter(None, reasons)))
        if address is None or address in places:
            raise self._server.unreachable(told)
        named = f"no broker at {address[0]}:{address[1]}, which the server named"
        raise CommandError(f"{named}: {told or f'no answer within {self._server.timeout_s:g} s'}", code=UNREACHABLE)


def is_plaintext(server: Server) -> bool:
    return server.properties.get("security.protocol", "plaintext").lower() == "plaintext"


def check(code: int, what: str) -> None:
    """Raise `Refused` for an error code, in Kafka's words."""
    if code:
        raise Refused(f"{what}: {error_name(code).lower().replace('_', ' ')}", error_name(code))


def error_name(code: int) -> str:
    from kio.schema.errors import ErrorCode

    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"


def _title(api: str) -> str:
    return "".join(word.capitalize() for word in api.split("_"))
