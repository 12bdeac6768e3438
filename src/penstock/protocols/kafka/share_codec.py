"""ShareFetch and ShareAcknowledge, versions 1 and 2, by hand; kio is the oracle in tests/property/test_share_codec.py.

Version notes: both are flexible. In requests, version 2 adds how ShareFetch acquires (KIP-1206) and whether locks are
renewed (KIP-1222); in answers, how long locks last to ShareAcknowledge. Records leave as file ranges, as for Fetch.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from penstock.engine.reading import Slice
from penstock.net.connection import Part, PeerError
from penstock.protocols.kafka.cluster_view import Endpoint
from penstock.protocols.kafka.share_sessions import Place
from penstock.protocols.kafka_wire.codec import encode_uvarint, read_uvarint, skip_tags

MAX_ELEMENTS = 20_000
"""Topics, partitions and batches of acknowledgements in one request; 20 to 40 ms of decoding."""
V2 = 2
RECORD_LIMIT = 1
"""An acquire mode: not one record more than asked for. All others are batch_optimized."""

_LONGEST_TEXT = 1 << 15
_I16 = Struct(">h")
_I32 = Struct(">i")
_LIMITS = Struct(">iiiiii")  # session epoch, max wait, min bytes, max bytes, max records, batch size
_MODE = Struct(">b?")
_BATCH = Struct(">qq")
_TOP = Struct(">ihB")  # throttle time, error code, no error message
_ROW = Struct(">ih")
_LEADER = Struct(">iiB")  # id, epoch, no tags
_ACQUIRED = Struct(">qqhB")  # first, last, delivery count, no tags
_NOTHING_MORE = b"\1\0"  # no acknowledgements, no tags
_NOBODY = (-1, -1)
_MOST_DELIVERIES = (1 << 15) - 1


class AckBatch(NamedTuple):
    """Acknowledgements of neighbouring offsets: a type for all of them, or one for each."""

    first: int
    last: int
    types: bytes
    """As int8."""


Acks = Sequence[AckBatch]


class ShareFetchRequest(NamedTuple):
    group: str | None
    member: str | None
    epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    acquire_mode: int
    renews: bool
    """Whether acknowledgements of type 4 are among the others."""
    wanted: list[tuple[Place, Acks]]
    forgotten: list[Place]


class ShareAcknowledgeRequest(NamedTuple):
    group: str | None
    member: str | None
    epoch: int
    renews: bool
    acked: list[tuple[Place, Acks]]


class Acquired(NamedTuple):
    """Neighbouring offsets that the member has from now on."""

    first: int
    last: int
    deliveries: int


class Row(NamedTuple):
    """One partition's answer."""

    place: Place
    code: int
    """Of the fetch; in an answer to ShareAcknowledge, of the acknowledgements."""
    ack_code: int = 0
    leader: tuple[int, int] | None = None
    """Id and epoch of the leader, for who asks the wrong broker."""
    slices: Sequence[Slice] = ()
    acquired: Sequence[Acquired] = ()


# --- requests


class _Cursor:
    __slots__ = ("at", "data", "room")

    def __init__(self, data: memoryview, at: int, room: int) -> None:
        self.data = data
        self.at = at
        self.room = room

    def i32(self) -> int:
        value: int = _I32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def size(self) -> int:
        """Of an array or a text; -1 for none."""
        claimed, self.at = read_uvarint(self.data, self.at)
        if claimed - 1 > len(self.data) - self.at:
            raise PeerError(f"{claimed - 1} elements claimed, {len(self.data) - self.at} bytes left")
        return claimed - 1

    def count(self) -> int:
        """How many elements follow that cost something each."""
        count = max(self.size(), 0)
        self.room -= count
        if self.room < 0:
            raise PeerError(f"{count} elements claimed, {self.room + count} allowed")
        return count

    def take(self, size: int) -> bytes:
        taken = bytes(self.data[self.at : self.at + size])
        if len(taken) < size:
            raise PeerError(f"{size} bytes claimed, {len(taken)} left")
        self.at += size
        return taken

    def text(self) -> str | None:
        size = self.size()
        if size < 0:
            return None
        if size > _LONGEST_TEXT:
            raise PeerError(f"a name of {size} bytes, {_LONGEST_TEXT} allowed")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise PeerError("a name is not UTF-8") from None

    def tags(self) -> None:
        self.at = skip_tags(self.data, self.at)

    def acks(self) -> Acks:
        """The batches of one partition."""
        count = self.count()
        if not count:
            return ()
        batches = []
        for _ in range(count):
            first, last = _BATCH.unpack_from(self.data, self.at)
            self.at += _BATCH.size
            types = self.take(max(self.size(), 0))
            self.tags()
            batches.append(AckBatch(first, last, types))
        return batches

    def partitions(self) -> list[tuple[Place, Acks]]:
        """Of all topics, with what is acknowledged there."""
        found: list[tuple[Place, Acks]] = []
        for _ in range(self.count()):
            topic = self.take(16)
            for _ in range(self.count()):
                place = topic, self.i32()
                if self.data[self.at : self.at + 2] == _NOTHING_MORE:  # as nearly all of many
                    found.append((place, ()))
                    self.at += 2
                    continue
                found.append((place, self.acks()))
                self.tags()
            self.tags()
        return found

    def places(self) -> list[Place]:
        found = []
        for _ in range(self.count()):
            topic = self.take(16)
            found += [(topic, self.i32()) for _ in range(self.count())]
            self.tags()
        return found


def decode_fetch(frame: memoryview, position: int, version: int, most: int = MAX_ELEMENTS) -> ShareFetchRequest:
    """Raises `PeerError`, also for a request of more than `most` elements."""
    cursor = _Cursor(frame, position, min(most, MAX_ELEMENTS))
    try:
        group, member = cursor.text(), cursor.text()
        epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size = _LIMITS.unpack_from(frame, cursor.at)
        cursor.at += _LIMITS.size
        mode, renews = 0, False
        if version >= V2:
            mode, renews = _MODE.unpack_from(frame, cursor.at)
            cursor.at += _MODE.size
        wanted, forgotten = cursor.partitions(), cursor.places()
        cursor.tags()
    except (StructError, IndexError):
        raise PeerError("a ShareFetch request ends too early") from None
    return ShareFetchRequest(
        group,
        member,
        epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        max_records,
        batch_size,
        mode,
        renews,
        wanted,
        forgotten,
    )


def decode_acknowledge(
    frame: memoryview, position: int, version: int, most: int = MAX_ELEMENTS
) -> ShareAcknowledgeRequest:
    """Raises `PeerError`, likewise."""
    cursor = _Cursor(frame, position, min(most, MAX_ELEMENTS))
    try:
        group, member = cursor.text(), cursor.text()
        epoch = cursor.i32()
        renews = version >= V2 and cursor.take(1) != b"\0"
        acked = cursor.partitions()
        cursor.tags()
    except (StructError, IndexError):
        raise PeerError("a ShareAcknowledge request ends too early") from None
    return ShareAcknowledgeRequest(group, member, epoch, renews, acked)


# --- answers


def encode_fetch(
    rows: Iterable[Row], code: int, lock_ms: int = 0, endpoints: Sequence[Endpoint] = ()
) -> tuple[list[Part], int]:
    """The parts of a ShareFetch answer's body and their size in bytes; both versions have the same.

    Args:
        lock_ms: how long what is acquired stays the member's.
        endpoints: where the leaders are that rows name.
    """
    parts: list[Part] = []
    size = 0
    out = bytearray(_TOP.pack(0, code, 0) + _I32.pack(lock_ms))
    topics = _by_topic(rows)
    out += encode_uvarint(len(topics) + 1)
    for topic, group in topics:
        out += topic + encode_uvarint(len(group) + 1)
        for row in group:
            out += _ROW.pack(row.place[1], row.code) + b"\0" + _I16.pack(row.ack_code) + b"\0"
            out += _LEADER.pack(*(row.leader or _NOBODY), 0)
            data_bytes = sum(each.size for each in row.slices)
            out += encode_uvarint(data_bytes + 1)  # empty, never null
            if row.slices:
                parts.append(bytes(out))
                parts += [each[:3] for each in row.slices]
                size += len(out) + data_bytes
                out = bytearray()
            out += encode_uvarint(len(row.acquired) + 1)
            for first, last, deliveries in row.acquired:
                out += _ACQUIRED.pack(first, last, min(deliveries, _MOST_DELIVERIES), 0)
            out += b"\0"
        out += b"\0"
    out += _encode_endpoints(endpoints) + b"\0"
    parts.append(bytes(out))
    return parts, size + len(out)


def encode_acknowledge(
    rows: Iterable[Row], version: int, code: int, lock_ms: int = 0, endpoints: Sequence[Endpoint] = ()
) -> bytes:
    """A ShareAcknowledge answer's body. Args as `encode_fetch`."""
    out = bytearray(_TOP.pack(0, code, 0))
    if version >= V2:
        out += _I32.pack(lock_ms)
    topics = _by_topic(rows)
    out += encode_uvarint(len(topics) + 1)
    for topic, group in topics:
        out += topic + encode_uvarint(len(group) + 1)
        for row in group:
            out += _ROW.pack(row.place[1], row.code) + b"\0" + _LEADER.pack(*(row.leader or _NOBODY), 0) + b"\0"
        out += b"\0"
    out += _encode_endpoints(endpoints) + b"\0"
    return bytes(out)


def _by_topic(rows: Iterable[Row]) -> list[tuple[bytes, list[Row]]]:
    ordered = sorted(rows, key=_topic_of)
    return [(topic, list(group)) for topic, group in groupby(ordered, _topic_of)]


def _topic_of(row: Row) -> bytes:
    return row.place[0]


def _encode_endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    out = bytearray(encode_uvarint(len(endpoints) + 1))
    for each in endpoints:
        out += _I32.pack(each.node_id) + _encode_text(each.host) + _I32.pack(each.port)
        out += (b"\0" if each.rack is None else _encode_text(each.rack)) + b"\0"
    return bytes(out)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data
