"""Fetch 17 as a follower speaks it: requests out, responses in, by hand; kio is the oracle in
tests/property/test_replica_fetch_codec.py.

The server's side is fetch_codec. What a follower does not use is left out of a request (rack, cluster id, directory id)
and passed over in a response (throttle time, stable offset, aborted transactions, preferred replica, endpoints).
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from penstock.cluster.replication.source import FetchedRow, Position
from penstock.net.connection import PeerError
from penstock.protocols.kafka_wire import broker_words
from penstock.protocols.kafka_wire.codec import encode_uvarint, read_uvarint, skip_tags

KEY: Final = 1
VERSION: Final = 17

_HEAD = Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id, session epoch
_PARTITION = Struct(">iiqiqiB")  # index, leader epoch, fetch offset, last fetched epoch, log start, max bytes, no tags
_REPLICA = Struct(">iqB")  # id, epoch, no tags
_I32 = Struct(">i")
_ANSWER = Struct(">ihi")  # throttle time, error, session id
_ROW = Struct(">ihqqq")  # index, error, high watermark, stable offset, log start
_EPOCH_END = Struct(">iq")
_LEADER = Struct(">ii")
_ABORTED_BYTES: Final = 16  # without its tags
_ID_BYTES: Final = 16
_LAST_EPOCH: Final = (1 << 31) - 1


class Fetched(NamedTuple):
    code: int
    session_id: int
    rows: list[FetchedRow]


def encode(
    positions: Iterable[Position],
    *,
    replica_id: int,
    replica_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Iterable[tuple[bytes, int]] = (),
) -> bytes:
    """A request body. `forgotten` are topic ids and indexes to take out of the session."""
    topics: dict[bytes, list[bytes]] = {}
    for at in positions:
        topics.setdefault(at.topic_id, []).append(_PARTITION.pack(*at[1:], 0))
    dropped: dict[bytes, list[bytes]] = {}
    for topic_id, index in forgotten:
        dropped.setdefault(topic_id, []).append(_I32.pack(index))
    return b"".join(
        (
            _HEAD.pack(max_wait_ms, min_bytes, max_bytes, 0, session_id, session_epoch),
            _encode_topics(topics),
            _encode_topics(dropped),
            b"\x01\x01\x01\x0d",  # no rack; one tag, the replica's state
            _REPLICA.pack(replica_id, replica_epoch, 0),
        )
    )


def next_epoch(epoch: int) -> int:
    """Of a fetch session, for the request after this one (KIP-227); the leader counts by itself."""
    return 1 if epoch == _LAST_EPOCH else epoch + 1


def _encode_topics(topics: dict[bytes, list[bytes]]) -> bytes:
    out = bytearray(encode_uvarint(len(topics) + 1))
    for topic_id, partitions in topics.items():
        out += topic_id + encode_uvarint(len(partitions) + 1)
        out += b"".join(partitions)
        out += b"\0"
    return bytes(out)


def decode(body: memoryview) -> Fetched:
    """A response body; the records in it are views of `body`. Raises `PeerError`."""
    try:
        return _decode(body)
    except (StructError, IndexError):
        raise PeerError("a Fetch response ends too early") from None


def _decode(body: memoryview) -> Fetched:
    _, code, session_id = _ANSWER.unpack_from(body, 0)
    rows: list[FetchedRow] = []
    count, at = _count(body, _ANSWER.size)
    for _ in range(count):
        topic_id = bytes(body[at : at + _ID_BYTES])
        partitions, at = _count(body, at + _ID_BYTES)
        for _ in range(partitions):
            row, at = _decode_row(body, at, topic_id)
            rows.append(row)
        at = skip_tags(body, at)
    skip_tags(body, at)
    return Fetched(code, session_id, rows)


def _decode_row(body: memoryview, at: int, topic_id: bytes) -> tuple[FetchedRow, int]:
    index, code, high_watermark, _, log_start = _ROW.unpack_from(body, at)
    aborted, at = _count(body, at + _ROW.size)
    for _ in range(aborted):
        at = skip_tags(body, at + _ABORTED_BYTES)
    size, at = read_uvarint(body, at + 4)  # behind the preferred replica
    start = at
    at += max(size - 1, 0)
    if at >= len(body):
        raise PeerError(f"{size - 1} bytes of records claimed, {len(body) - start} left")
    records = body[start:at]
    row = FetchedRow(topic_id, index, code, high_watermark, log_start, records)
    return (row, at + 1) if body[at] == 0 else _decode_tags(row, body, at)


def _decode_tags(row: FetchedRow, body: memoryview, at: int) -> tuple[FetchedRow, int]:
    diverging, leader, word = None, None, ""
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        if tag == 0:
            diverging = _EPOCH_END.unpack_from(body, at)
        elif tag == 1:
            leader = _LEADER.unpack_from(body, at)
        elif tag == broker_words.TAG:
            _, start = read_uvarint(body, at)
            word = str(body[start : at + size], "ascii", "replace")
        at += size
    return row._replace(diverging=diverging, leader=leader, word=word), at


def _count(body: memoryview, at: int) -> tuple[int, int]:
    """The elements of an array, null or not."""
    claimed, at = read_uvarint(body, at)
    if claimed - 1 > len(body) - at:
        raise PeerError(f"{claimed - 1} elements claimed, {len(body) - at} bytes left")
    return max(claimed - 1, 0), at
