"""Sends ready record batches, several at a time, each until the broker has it.

One batch is one Produce request. A connection has up to `IN_FLIGHT` of them under way; the broker answers in their
order. When one fails in a way that may pass (a leader moves, a connection breaks), everything unanswered is sent again
in its order, one by one. With a producer id the broker knows what it has already (it remembers the last five batches of
each partition), so nothing is doubled.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Refused

IN_FLIGHT: Final = 5
_PRODUCE, _VERSION = 0, 9
_ALREADY_THERE: Final = 46  # DUPLICATE_SEQUENCE_NUMBER: behind the five it remembers, but known to be in the log
_RETRY_S: Final = 0.1
_ACKS_TIMEOUT = Struct(">hi")
_INDEX = Struct(">i")
_NO_TAGS: Final = b"\0"


@dataclass(slots=True)
class Parcel:
    """One batch on its way to a partition."""

    topic: str
    partition: int
    batch: bytes | memoryview

    def __str__(self) -> str:
        return f"{len(self.batch)} bytes for partition {self.partition} of topic {self.topic!r}"


class Producer:
    """Batches out, in order for each partition; `flush` returns when the broker has them all.

    Args:
        cluster: this producer's own; its connections carry requests in flight.
        acks: -1 all replicas in sync, 1 the leader, 0 nobody: then nothing tells whether a batch arrived.
        transactional_id: of the transaction the batches belong to.
        timeout_s: how long a batch may take, failures and repeats included.
    """

    def __init__(
        self, cluster: Cluster, *, acks: int = -1, transactional_id: str | None = None, timeout_s: float = 120.0
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._timeout_s = timeout_s
        self._head = _text(transactional_id) + _ACKS_TIMEOUT.pack(acks, int(min(timeout_s, 30.0) * 1000))
        self._under_way: dict[Connection, deque[tuple[int, Parcel]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def send(self, parcel: Parcel) -> None:
        """Put a batch on its way; waits for earlier ones when enough are.

        Raises:
            Refused: the broker will not have it, or an earlier one.
            ClientError: nobody took it in time.
        """
        try:
            connection = self._cluster.leader(parcel.topic, parcel.partition)
            lane = self._under_way.setdefault(connection, deque())
            while len(lane) >= IN_FLIGHT:
                self._settle(connection, lane)
            correlation = self._write(connection, parcel)
            if self._acks:
                lane.append((correlation, parcel))
        except ClientError as error:
            self._repeat(error, [parcel])

    def flush(self) -> None:
        """Wait until everything sent is in the log; raises as `send`."""
        try:
            for connection, lane in self._under_way.items():
                while lane:
                    self._settle(connection, lane)
        except ClientError as error:
            self._repeat(error, [])

    def _settle(self, connection: Connection, lane: deque[tuple[int, Parcel]]) -> None:
        """Wait for the oldest answer of a connection; the parcel stays in its lane unless it arrived."""
        correlation, parcel = lane[0]
        self._check(connection.receive(correlation, flexible=True), parcel)
        lane.popleft()

    def _repeat(self, error: ClientError, latest: Iterable[Parcel]) -> None:
        """Send everything unanswered again, in order, until it is there or time is up.

        A later batch of the same partition may have overtaken a failed one and been refused for it; in order again, it
        goes through.
        """
        waiting = deque(parcel for lane in self._under_way.values() for _, parcel in lane)
        waiting.extend(latest)
        self._under_way.clear()
        deadline = time.monotonic() + self._timeout_s
        while True:
            if not error.retriable:
                raise error
            if time.monotonic() >= deadline:
                raise ClientError(f"{waiting[0]} did not arrive within {self._timeout_s:g} s: {error}") from error
            time.sleep(_RETRY_S)
            try:
                self._cluster.close()
                self._cluster.refresh()
                while waiting:
                    connection = self._cluster.leader(waiting[0].topic, waiting[0].partition)
                    correlation = self._write(connection, waiting[0])
                    if self._acks:
                        self._check(connection.receive(correlation, flexible=True), waiting[0])
                    waiting.popleft()
                return
            except ClientError as again:
                error = again

    def _write(self, connection: Connection, parcel: Parcel) -> int:
        name = parcel.topic.encode()
        place = b"\x02" + _number(len(name) + 1) + name + b"\x02" + _INDEX.pack(parcel.partition)
        return connection.send(
            _PRODUCE,
            _VERSION,
            [self._head, place, _number(len(parcel.batch) + 1), parcel.batch, _NO_TAGS * 3],
            flexible=True,
        )

    def _check(self, answer: memoryview, parcel: Parcel) -> None:
        """Raise `Refused` unless the answer says that the batch is in the log."""
        from penstock.protocols.kafka_wire.messages import decode, schema_of

        (topic,) = decode(schema_of("produce", _VERSION, "response"), answer, 0).responses
        (told,) = topic.partition_responses
        if told.error_code in (0, _ALREADY_THERE):
            return
        raise Refused(told.error_code, str(parcel), told.error_message or "")


def _text(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    encoded = value.encode()
    return _number(len(encoded) + 1) + encoded


def _number(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
