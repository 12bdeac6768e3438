"""One connection to one broker: frames out, answers in, in the order of the questions.

`call` asks one question in the newest version both sides know and waits. `send` and `receive` carry bodies that were
encoded elsewhere and may have several questions under way. Whatever goes wrong closes the connection, as nobody knows
any more which answer comes next; `Cluster` then opens another.
"""

import contextlib
import select
import socket
import time
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING, Any, Final, NoReturn

from penstock.client.errors import ClientError, Failure, Refused, Unreachable, Unsupported
from penstock.client.settings import Address, Settings, format_address
from penstock.client.tls import explain
from penstock.net.session import PeerError
from penstock.protocols.kafka_wire.codec import skip_tags

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

_APIS: Final = {
    "produce": (0, 9, 11),  # from 12 on a broker adds partitions to transactions by itself (KIP-890)
    "fetch": (1, 13, 13),
    "list_offsets": (2, 2, 9),
    "metadata": (3, 4, 12),  # from 4 on a question makes no topic, from 1 on an empty list means no topics
    "find_coordinator": (10, 1, 4),
    "sasl_handshake": (17, 1, 1),
    "api_versions": (18, 0, 0),  # a server too old or too new for any other version answers this one
    "create_topics": (19, 4, 7),  # from 4 on a broker chooses the replicas
    "init_producer_id": (22, 0, 5),
    "add_partitions_to_txn": (24, 0, 3),  # from 4 on for brokers
    "end_txn": (26, 0, 4),  # from 5 on an end changes the epoch (KIP-890)
    "write_txn_markers": (27, 1, 1),
    "describe_acls": (29, 1, 3),  # from 1 on a rule may be about a prefix
    "create_acls": (30, 1, 3),
    "delete_acls": (31, 1, 3),
    "describe_configs": (32, 1, 4),
    "describe_log_dirs": (35, 1, 4),
    "sasl_authenticate": (36, 0, 2),
    "elect_leaders": (43, 1, 2),  # from 1 on an election may be unclean
    "incremental_alter_configs": (44, 0, 1),
    "alter_partition_reassignments": (45, 0, 1),
    "list_partition_reassignments": (46, 0, 0),
    "offset_delete": (47, 0, 0),
    "describe_user_scram_credentials": (50, 0, 0),
    "alter_user_scram_credentials": (51, 0, 0),
    "describe_cluster": (60, 0, 2),
    "describe_producers": (61, 0, 0),
    "unregister_broker": (64, 0, 0),
    "describe_transactions": (65, 0, 0),
    "list_transactions": (66, 0, 1),
    "consumer_group_describe": (69, 0, 1),
    "describe_topic_partitions": (75, 0, 0),
    "penstock_verb": (32_000, 0, 0),  # of Penstock alone; nobody advertises it
}
"""Kafka's number of each API, the oldest and the newest version this client can use."""

_UNTOLD: Final = 32_000
LARGEST_ANSWER: Final = 100_000_000
_MOST_ELEMENTS: Final = 5_000_000  # of an answer, from a server one has chosen
_MOST_PARTS: Final = 512  # handed to the kernel at once; Linux takes 1024
_HEAD = Struct(">ihhih")  # size, API, version, correlation id, length of the client id
_INT, _SIZE_AND_CORRELATION = Struct(">i"), Struct(">ii")
_VERSIONS_HEAD, _VERSIONS_ROW = Struct(">hi"), Struct(">hhh")
_TLS_ALERT: Final = b"\x15\x03"

Part = bytes | bytearray | memoryview


class AnswerBuffer:
    """Memory that one answer after the other is received into."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def reserve(self, size: int) -> memoryview:
        """Room for so many bytes. What was there before is lost."""
        if len(self._memory) < size:
            self._memory = memoryview(bytearray(size + size // 4))  # answers of one partition are of like sizes
        return self._memory[:size]


class Connection:
    """One broker. Every call ends, well or not, within the time the settings give an answer."""

    def __init__(self, settings: Settings, address: Address) -> None:
        """Connect, and prove who we are where the settings ask for it.

        Raises `Unreachable`, `Refused` for credentials, `ClientError` for a certificate nobody trusts.
        """
        self.name = format_address(address)
        self.closed = False
        self._settings = settings
        self._client_id = settings.client_id.encode()
        self._sent = self._received = 0  # correlation ids of the last question and the last answer
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = self._connect(address)
        except (OSError, UnicodeError) as error:
            raise self._explain(error) from error
        try:
            self._introduce(address[0])
        except ClientError:
            self.close()
            raise

    def _connect(self, address: Address) -> socket.socket:
        found = socket.create_connection(address, timeout=self._settings.timeout_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._settings.receive_buffer_bytes > 0:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._settings.receive_buffer_bytes)
        return found

    def _introduce(self, host: str) -> None:
        tls, sasl = self._settings.security.tls, self._settings.security.sasl
        if tls is not None:
            try:
                self._socket = tls.wrap(self._socket, host)
            except OSError as error:
                raise self._explain(error) from error
        if sasl is not None:
            sasl.authenticate(self.call, self.name)

    @property
    def usable(self) -> bool:
        """Whether it is worth asking: a broker that has nothing to answer and says something has hung up."""
        if self.closed or self._sent != self._received:
            return not self.closed
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def call(self, api: str, **values: Any) -> "Message":
        """Ask with the fields of any version; those that the version in use lacks are left out.

        Raises `Unsupported` for an API the broker does not have, `ClientError` for an answer that is none and
        `Unreachable` where the connection ends.
        """
        from penstock.protocols.kafka_wire.messages import decode, encode, schema_of

        version = self.version(api)
        request, response = (schema_of(api, version, direction) for direction in ("request", "response"))
        correlation = self.send(_APIS[api][0], version, [encode(request, values)], flexible=request.flexible)
        try:
            body = self._receive(correlation, response.flexible, AnswerBuffer(), LARGEST_ANSWER)
            return decode(response, body, max_elements=_MOST_ELEMENTS)
        except PeerError as error:
            self._give_up(error, f" to {_title(api)}")

    def version(self, api: str) -> int:
        """The newest version of an API that both sides know. Raises `Unsupported`."""
        key, oldest, newest = _APIS[api]
        if key >= _UNTOLD:
            return newest
        if not self._versions:
            self._versions = self._ask_versions()
        if key not in self._versions:
            raise Unsupported(f"the server at {self.name} does not have {_title(api)}")
        low, high = self._versions[key]
        if (version := min(newest, high)) < max(oldest, low):
            told = f"the server at {self.name} has {_title(api)} in versions {low} to {high}"
            raise Unsupported(f"{told}; {oldest} to {newest} are known here")
        return version

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        key, version, _ = _APIS["api_versions"]
        correlation = self.send(key, version, (), flexible=False)
        try:
            body = self._receive(correlation, False, AnswerBuffer(), LARGEST_ANSWER)
            code, count = _VERSIONS_HEAD.unpack_from(body)
            end = _VERSIONS_HEAD.size + count * _VERSIONS_ROW.size
            if code:
                raise Refused(code, f"the versions of the server at {self.name}")
            if count < 0 or end > len(body):
                raise PeerError(f"{count} elements claimed, {len(body)} bytes left")
        except (PeerError, StructError) as error:
            self._give_up(error, " to ApiVersions")
        return {row[0]: row[1:] for row in _VERSIONS_ROW.iter_unpack(body[_VERSIONS_HEAD.size : end])}

    def send(self, api_key: int, version: int, parts: Sequence[Part], *, flexible: bool) -> int:
        """Send a request whose body was encoded elsewhere.

        Args:
            parts: the body; not joined on the way.
            flexible: whether this version's request header has tags.

        Returns:
            The correlation id that `receive` wants.
        """
        self._sent += 1
        tags = b"\0" if flexible else b""
        size = _HEAD.size - _INT.size + len(self._client_id) + len(tags) + sum(map(len, parts))
        head = _HEAD.pack(size, api_key, version, self._sent, len(self._client_id)) + self._client_id + tags
        try:
            self._send_all([head, *parts])
        except OSError as error:
            raise self._lose(error) from error
        return self._sent

    def _send_all(self, parts: list[Part]) -> None:
        self._socket.settimeout(self._settings.timeout_s)
        if self._settings.security.tls is not None:
            self._socket.sendall(b"".join(parts))  # TLS copies them anyway, and has no call for several
            return
        for start in range(0, len(parts), _MOST_PARTS):
            left: list[Part] = parts[start : start + _MOST_PARTS]
            sent = self._socket.sendmsg(left)
            for part in left:
                if sent < len(part):
                    self._socket.sendall(memoryview(part)[sent:])
                sent = max(sent - len(part), 0)

    def receive(
        self,
        correlation: int,
        *,
        flexible: bool,
        buffer: AnswerBuffer | None = None,
        limit: int = LARGEST_ANSWER,
    ) -> memoryview:
        """Wait for the next answer, which must be the one to the request of that correlation id.

        Args:
            flexible: whether this version's response header has tags.
            buffer: where the answer goes; without one the memory is the caller's alone.
            limit: bytes that an answer may have.

        Returns:
            The body, behind the header.

        Raises `Unreachable`, and `ClientError` for anything but the answer.
        """
        try:
            return self._receive(correlation, flexible, buffer or AnswerBuffer(), limit)
        except PeerError as error:
            self._give_up(error)

    def _receive(self, correlation: int, flexible: bool, buffer: AnswerBuffer, limit: int) -> memoryview:
        """Raises `PeerError`, and `Unreachable` where the connection ends."""
        deadline = time.monotonic() + self._settings.timeout_s
        head = memoryview(bytearray(_SIZE_AND_CORRELATION.size))
        try:
            self._fill(head[: _INT.size], deadline)
            (size,) = _INT.unpack_from(head)
            if not _INT.size <= size <= limit:
                speaks_tls = bytes(head[: len(_TLS_ALERT)]) == _TLS_ALERT
                raise PeerError("it wants TLS: security.protocol=SSL or SASL_SSL" if speaks_tls else f"{size} bytes")
            self._fill(head[_INT.size :], deadline)
            if _INT.unpack_from(head, _INT.size)[0] != correlation:
                raise PeerError("it belongs to another question")
            body = buffer.reserve(size - _INT.size)
            self._fill(body, deadline)
        except OSError as error:
            raise self._lose(error) from error
        self._received = correlation
        return body[skip_tags(body, 0) :] if flexible else body

    def _fill(self, room: memoryview, deadline: float) -> None:
        while room:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(room)
            if not count:
                raise ConnectionError("the server closed the connection")
            room = room[count:]

    def close(self) -> None:
        """May be called twice."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def _lose(self, error: OSError) -> ClientError:
        self.close()
        return self._explain(error)

    def _explain(self, error: OSError | UnicodeError) -> ClientError:
        if isinstance(error, TimeoutError):
            return Unreachable(Failure(self.name, f"no answer within {self._settings.timeout_s:g} s"))
        if self._settings.security.tls is not None and isinstance(error, OSError):
            known = explain(error, self.name)
            if known is not None:
                return known
        return Unreachable(Failure(self.name, getattr(error, "strerror", None) or str(error)))

    def _give_up(self, error: Exception, to_what: str = "") -> NoReturn:
        self.close()
        raise ClientError(f"the server at {self.name} gave no proper answer{to_what}: {error}") from None


def _title(api: str) -> str:
    return "".join(word.capitalize() for word in api.split("_"))
