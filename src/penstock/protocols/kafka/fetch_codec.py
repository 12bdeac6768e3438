"""Fetch requests and responses 4-18, by hand; kio is the oracle in tests/property/test_fetch_codec.py.

Version notes: 5 log start; 7 sessions; 9 leader epoch; 11 rack, preferred replica; 12 flexible, last fetched
epoch, diverging epoch; 13 topic ids; 15 replica state moves to a tag; 17 and 18 add tags only followers use.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from penstock.engine.reading import AbortedTransaction, Slice
from penstock.net.connection import Part, PeerError
from penstock.protocols.kafka.fetch_sessions import TopicKey, Wanted
from penstock.protocols.kafka_wire import broker_words
from penstock.protocols.kafka_wire.codec import encode_uvarint, read_uvarint, skip_tags

FLEXIBLE_FROM = 12
IDS_FROM = 13
ENDPOINTS_FROM = 16
STATE_TAG_FROM = 15
MAX_PARTITIONS = 20_000

_LONGEST_NAME = 1024  # several times that of any topic; a session keeps what it was asked for
_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_LIMITS = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = Struct(">ii")
_REPLICA = Struct(">iq")  # id, epoch
_REPLICA_TAG = 1
_EPOCH_END = Struct(">iq")  # epoch, its end offset
_LEADER = Struct(">ii")  # id, epoch
_ABORTED = Struct(">qq")  # producer id, first offset
_ROW = Struct(">ihqq")  # index, error, high watermark, last stable offset


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: list[Wanted]
    forgotten: list[tuple[TopicKey, int]]
    replica_id: int = -1
    """The broker that fetches; below 0 it is a client."""
    replica_epoch: int = -1
    """Its incarnation, which a follower tells since version 15."""


class Row(NamedTuple):
    """One partition's answer."""

    topic: TopicKey
    partition_index: int
    code: int
    high_watermark: int
    stable_offset: int
    log_start: int
    data: Slice | None
    diverging: tuple[int, int] | None = None
    """Epoch and end offset where the client's history parts from ours."""
    aborted: Sequence[AbortedTransaction] = ()
    leader: tuple[int, int] | None = None
    """Id and epoch of the leader, for who asks the wrong broker or in an old epoch; told since version 12."""
    word: str = ""
    """For followers: which error `code` stands for; see `broker_words`."""


class _Cursor:
    __slots__ = ("at", "data", "flexible", "room")

    def __init__(self, data: memoryview, at: int, flexible: bool, room: int) -> None:
        self.data = data
        self.at = at
        self.flexible = flexible
        self.room = room

    def i32(self) -> int:
        value: int = _I32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def i64(self) -> int:
        value: int = _I64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def count(self) -> int:
        if self.flexible:
            claimed, self.at = read_uvarint(self.data, self.at)
            claimed = max(claimed - 1, 0)
        else:
            claimed = max(self.i32(), 0)
        self.room -= claimed
        if claimed > len(self.data) - self.at or self.room < 0:
            raise PeerError(
                f"{claimed} elements claimed, {len(self.data) - self.at} bytes left, {self.room + claimed} allowed"
            )
        return claimed

    def topic(self, by_id: bool) -> TopicKey:
        if by_id:
            size = 16
        elif self.flexible:
            size, self.at = read_uvarint(self.data, self.at)
            size -= 1
        else:
            size = _I16.unpack_from(self.data, self.at)[0]
            self.at += 2
        if not 0 <= size <= _LONGEST_NAME or self.at + size > len(self.data):
            raise PeerError(f"a name of {size} bytes, {len(self.data) - self.at} left, {_LONGEST_NAME} allowed")
        key = bytes(self.data[self.at : self.at + size])
        self.at += size
        return key

    def tags(self) -> None:
        if self.flexible:
            self.at = skip_tags(self.data, self.at)


def decode(frame: memoryview, position: int, version: int, most: int = MAX_PARTITIONS) -> FetchRequest:
    """Raises `PeerError`, also for a request that names more than `most` topics and partitions."""
    try:
        return _decode(frame, position, version, min(most, MAX_PARTITIONS))
    except (StructError, IndexError):
        raise PeerError("a Fetch request ends too early") from None


def _decode(frame: memoryview, position: int, version: int, most: int) -> FetchRequest:
    cursor = _Cursor(frame, position, version >= FLEXIBLE_FROM, most)
    replica_id = replica_epoch = -1
    if version < STATE_TAG_FROM:
        replica_id = cursor.i32()
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(frame, cursor.at)
    cursor.at += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, cursor.at)
        cursor.at += _SESSION.size
    wanted: list[Wanted] = []
    for _ in range(cursor.count()):
        topic = cursor.topic(version >= IDS_FROM)
        wanted += [_decode_partition(cursor, topic, version) for _ in range(cursor.count())]
        cursor.tags()
    forgotten: list[tuple[TopicKey, int]] = []
    if version >= 7:
        for _ in range(cursor.count()):
            topic = cursor.topic(version >= IDS_FROM)
            forgotten += [(topic, cursor.i32()) for _ in range(cursor.count())]
            cursor.tags()
    if version >= STATE_TAG_FROM:
        size, cursor.at = read_uvarint(frame, cursor.at)
        cursor.at += max(size - 1, 0)  # the rack
        replica_id, replica_epoch = _decode_replica(cursor)
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        wanted,
        forgotten,
        replica_id,
        replica_epoch,
    )


def _decode_replica(cursor: _Cursor) -> tuple[int, int]:
    """Id and epoch of a follower, in the last tags of a request."""
    replica = (-1, -1)
    count, cursor.at = read_uvarint(cursor.data, cursor.at)
    for _ in range(count):
        tag, cursor.at = read_uvarint(cursor.data, cursor.at)
        size, cursor.at = read_uvarint(cursor.data, cursor.at)
        if tag == _REPLICA_TAG:
            replica = _REPLICA.unpack_from(cursor.data, cursor.at)
        cursor.at += size
        if cursor.at > len(cursor.data):
            raise PeerError("a tagged field reaches past the request")
    return replica


def _decode_partition(cursor: _Cursor, topic: TopicKey, version: int) -> Wanted:
    index = cursor.i32()
    leader_epoch = cursor.i32() if version >= 9 else -1
    fetch_offset = cursor.i64()
    last_fetched_epoch = cursor.i32() if version >= 12 else -1
    if version >= 5:
        cursor.i64()  # a follower's log start
    max_bytes = cursor.i32()
    cursor.tags()
    return Wanted(topic, index, fetch_offset, max_bytes, leader_epoch, last_fetched_epoch)


def encode(
    rows: list[Row], version: int, code: int, session_id: int, last_tags: bytes = b"\0"
) -> tuple[list[Part], int]:
    """The parts of a response body and their size in bytes. Rows of one topic must stand together.

    Args:
        last_tags: those of the whole response, since version 16: where the leaders are that rows name.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Part] = []
    size = 0
    out = bytearray(4)  # throttle time
    if version >= 7:
        out += _I16.pack(code) + _I32.pack(session_id)
    topics: list[list[Row]] = []
    for row in rows:
        if topics and topics[-1][0].topic == row.topic:
            topics[-1].append(row)
        else:
            topics.append([row])
    out += encode_uvarint(len(topics) + 1) if flexible else _I32.pack(len(topics))
    for group in topics:
        topic = group[0].topic
        if version >= IDS_FROM:
            out += topic
        else:
            out += (encode_uvarint(len(topic) + 1) if flexible else _I16.pack(len(topic))) + topic
        out += encode_uvarint(len(group) + 1) if flexible else _I32.pack(len(group))
        for row in group:
            _encode_row(out, row, version, flexible)
            if row.data is not None:
                parts += (bytes(out), row.data[:3])
                size += len(out) + row.data.size
                out = bytearray()
            if flexible:
                out += _row_tags(row)
        if flexible:
            out += b"\0"
    if flexible:
        out += last_tags if version >= ENDPOINTS_FROM else b"\0"
    parts.append(bytes(out))
    return parts, size + len(out)


def encode_refusal(request: FetchRequest, version: int, code: int) -> bytes:
    """A response body that has `code` and nothing else for every partition listed."""
    rows = [Row(wanted.topic, wanted.index, code, -1, -1, -1, None) for wanted in request.wanted]
    rows.sort(key=lambda row: row.topic)
    (body,), _ = encode(rows, version, 0, 0)
    assert isinstance(body, bytes)
    return body


def _encode_row(out: bytearray, row: Row, version: int, flexible: bool) -> None:
    out += _ROW.pack(row.partition_index, row.code, row.high_watermark, row.stable_offset)
    if version >= 5:
        out += _I64.pack(row.log_start)
    out += encode_uvarint(len(row.aborted) + 1) if flexible else _I32.pack(len(row.aborted))
    for aborted in row.aborted:
        out += _ABORTED.pack(aborted.producer_id, aborted.first_offset)
        if flexible:
            out += b"\0"
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica
    size = row.data.size if row.data is not None else 0  # empty, never null: librdkafka takes null for damage
    out += encode_uvarint(size + 1) if flexible else _I32.pack(size)


def _row_tags(row: Row) -> bytes:
    if row.diverging is None and row.leader is None and not row.word:
        return b"\0"
    tags = []
    if row.diverging is not None:
        tags.append(b"\x00\x0d" + _EPOCH_END.pack(*row.diverging) + b"\0")
    if row.leader is not None:
        tags.append(b"\x01\x09" + _LEADER.pack(*row.leader) + b"\0")
    if row.word:
        word = encode_uvarint(len(row.word) + 1) + row.word.encode()
        tags.append(encode_uvarint(broker_words.TAG) + encode_uvarint(len(word)) + word)
    return bytes((len(tags),)) + b"".join(tags)
