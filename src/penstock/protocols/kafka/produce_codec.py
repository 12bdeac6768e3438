"""The bytes of Produce: requests with their batches as views of the frame, and answers.

Hot path, written by hand; kio is its oracle in tests/property/test_produce_codec.py.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from penstock.net.connection import PeerError
from penstock.protocols.kafka import leader_hints
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka_wire.codec import encode_uvarint, read_uvarint, skip_tags

FLEXIBLE_FROM = 9
IDS_FROM = 13
_HINTS_FROM = 10
_MAX_ELEMENTS = 20_000  # topics and partitions of one request; a broker has 10,000 partitions at most

_I16 = Struct(">h")
_I32 = Struct(">i")
_ACKS_AND_TIMEOUT = Struct(">hi")
_RESULT = Struct(">ihqq")  # index, error, base offset, log append time
_LOG_START = Struct(">q")
_LEADER = Struct(">ii")  # id, epoch


class Result(NamedTuple):
    partition_index: int
    code: int
    base_offset: int
    append_time: int
    log_start: int
    text: str | None
    bad_records: tuple[int, ...] = ()
    leader: leader_hints.Leader | None = None


class Produced(NamedTuple):
    """A decoded request: topics as (name or id as sent, its partitions as (index, batch))."""

    transactional_id: bytes | None
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, list[tuple[int, memoryview | None]]]]


def decode(frame: memoryview, position: int, version: int) -> Produced:
    """Raises `PeerError`. Batches are views of the frame."""
    try:
        if version >= FLEXIBLE_FROM:
            return _decode_flexible(frame, position, version)
        return _decode_old(frame, position)
    except (StructError, IndexError):
        raise PeerError("a Produce request ends too early") from None


def _decode_flexible(frame: memoryview, position: int, version: int) -> Produced:
    size, position = read_uvarint(frame, position)
    transactional_id = None if size == 0 else bytes(frame[position : position + size - 1])
    position += max(size - 1, 0)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    position += 6
    topic_count, position = read_uvarint(frame, position)
    topics = []
    room = _MAX_ELEMENTS - _claimed(topic_count - 1, frame, position, _MAX_ELEMENTS)
    for _ in range(topic_count - 1):
        if version >= IDS_FROM:
            size = 16
        else:
            size, position = read_uvarint(frame, position)
            size -= 1
        topic = _slice(frame, position, size)
        position += size
        count, position = read_uvarint(frame, position)
        partitions = []
        room -= _claimed(count - 1, frame, position, room)
        for _ in range(count - 1):
            index = _I32.unpack_from(frame, position)[0]
            size, position = read_uvarint(frame, position + 4)
            records = None if size == 0 else _slice(frame, position, size - 1)
            position += max(size - 1, 0)
            # an empty tag section, the usual case, is one zero byte
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
            partitions.append((index, records))
        position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
        topics.append((bytes(topic), partitions))
    return Produced(transactional_id, acks, timeout_ms, topics)


def _decode_old(frame: memoryview, position: int) -> Produced:
    size = _I16.unpack_from(frame, position)[0]
    transactional_id = None if size < 0 else bytes(_slice(frame, position + 2, size))
    position += 2 + max(size, 0)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count = _I32.unpack_from(frame, position + 6)[0]
    position += 10
    topics = []
    room = _MAX_ELEMENTS - _claimed(topic_count, frame, position, _MAX_ELEMENTS)
    for _ in range(topic_count):
        size = _I16.unpack_from(frame, position)[0]
        topic = _slice(frame, position + 2, size)
        position += 2 + size
        count = _I32.unpack_from(frame, position)[0]
        position += 4
        partitions = []
        room -= _claimed(count, frame, position, room)
        for _ in range(count):
            index = _I32.unpack_from(frame, position)[0]
            size = _I32.unpack_from(frame, position + 4)[0]
            position += 8
            records = None if size == -1 else _slice(frame, position, size)
            position += max(size, 0)
            partitions.append((index, records))
        topics.append((bytes(topic), partitions))
    return Produced(transactional_id, acks, timeout_ms, topics)


def _slice(frame: memoryview, position: int, size: int) -> memoryview:
    if size < 0 or position + size > len(frame):
        raise PeerError(f"{size} bytes claimed, {len(frame) - position} left")
    return frame[position : position + size]


def _claimed(count: int, frame: memoryview, position: int, room: int) -> int:
    if not 0 <= count <= min(len(frame) - position, room):
        raise PeerError(f"{count} elements claimed, {len(frame) - position} bytes left")
    return count


def encode(results: list[tuple[bytes, list[Result]]], version: int, context: Context | None = None) -> bytes:
    """A Produce response body; `context` tells where the leaders are that refusals name."""
    if version >= FLEXIBLE_FROM:
        return _encode_flexible(results, version, context)
    out = bytearray(_I32.pack(len(results)))
    for topic, rows in results:
        out += _I16.pack(len(topic)) + topic + _I32.pack(len(rows))
        for row in rows:
            out += _RESULT.pack(row.partition_index, row.code, row.base_offset, row.append_time)
            if version >= 5:
                out += _LOG_START.pack(row.log_start)
            if version >= 8:
                out += _I32.pack(len(row.bad_records))
                for at in row.bad_records:
                    out += _I32.pack(at) + b"\xff\xff"  # no text of its own
                if row.text is None:
                    out += b"\xff\xff"
                else:
                    text = row.text.encode()[:32000]
                    out += _I16.pack(len(text)) + text
    out += b"\0\0\0\0"  # throttle time
    return bytes(out)


def _encode_flexible(results: list[tuple[bytes, list[Result]]], version: int, context: Context | None) -> bytes:
    leaders: list[leader_hints.Leader] = []
    out = bytearray(encode_uvarint(len(results) + 1))
    for topic, rows in results:
        out += topic if version >= IDS_FROM else encode_uvarint(len(topic) + 1) + topic
        out += encode_uvarint(len(rows) + 1)
        for row in rows:
            out += _RESULT.pack(row.partition_index, row.code, row.base_offset, row.append_time)
            out += _LOG_START.pack(row.log_start)
            if row.text is None:
                out += b"\x01\x00\x00"  # no record errors, no text, no tags
            else:
                text = row.text.encode()
                out += encode_uvarint(len(row.bad_records) + 1)
                for at in row.bad_records:
                    out += _I32.pack(at) + b"\0\0"  # no text of its own, no tags
                out += encode_uvarint(len(text) + 1) + text
                if row.leader is not None and version >= _HINTS_FROM:
                    leaders.append(row.leader)
                    out += b"\x01\x00\x09" + _LEADER.pack(*row.leader) + b"\0"
                else:
                    out += b"\0"
        out += b"\0"
    out += b"\0\0\0\0"  # throttle time
    out += leader_hints.encode_endpoints(context, leaders) if leaders and context is not None else b"\0"
    return bytes(out)
