"""Produce 3-13 (advertised from 0): append each partition's batch straight from the network buffer.

Hot path, written by hand; kio is its oracle in tests/property/test_produce_codec.py. Everything up to the append
happens before this function returns, because the frame's view dies then; only batches that are opened in a thread are
copied and appended later. `acks=all` answers when every partition's high watermark has passed the batch, or fails when
this broker leads it no more or the client's time is up;
`acks=1` at once; `acks=0` never, and an error closes the connection, unless it comes when the batch is appended later.

Version notes: 7 zstd; 8 error texts; 9 flexible; 10 leader hints (KIP-951); 11 knows TRANSACTION_ABORTABLE; 12 adds
partitions to a transaction by writing to them, older ones are checked with the coordinator (KIP-890); 13 topic ids
instead of names.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple
from uuid import UUID

from penstock.engine.partition import ACKS_ALL, MOST_BYTES_AT_ONCE, Partition
from penstock.engine.transactions.transaction import ProducerIdentity
from penstock.engine.transactions.transactions import Admissions
from penstock.engine.waiters import AckWait
from penstock.errors import Code, PenstockError
from penstock.net.connection import Answer, PeerError
from penstock.protocols.kafka import errors, leader_hints
from penstock.protocols.kafka.codec import encode_response_head, encode_uvarint, read_uvarint, skip_tags
from penstock.protocols.kafka.handlers import Api, Context
from penstock.records.batch import Header
from penstock.storage.log.log import Appended

API = Api(0, "produce", 3, 13)
FLEXIBLE_FROM = 9
_ABORTABLE_FROM = 11
_ADDS_FROM = 12
_IDS_FROM = 13
_HINTS_FROM = 10
_MAX_ELEMENTS = 20_000  # topics and partitions of one request; a broker has 10,000 partitions at most
_NAME_BYTES = 250  # one more than a name may have, so what is cut to it is unknown all the same

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
        if version >= _IDS_FROM:
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


class Opening(NamedTuple):
    """A batch that is appended later, and the place of its result."""

    rows: list[Result]
    at: int
    partition: Partition
    batch: memoryview
    header: Header
    begins: bool
    """Whether it is a transaction's first batch in the partition, as far as the partition knows."""
    looked_at: bool

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.header.producer_id, self.header.producer_epoch)


def handle(
    context: Context, frame: memoryview, position: int, version: int, correlation_id: int, answer: Answer
) -> None:
    """Append everything, then answer when `acks` allows. Raises `PeerError`."""
    request = decode(frame, position, version)
    acks = request.acks
    results, appended, openings = _append_all(context, request, version)
    if acks == 0:
        answer.skip()
    timer: asyncio.TimerHandle | None = None
    is_held = False

    def reply() -> None:
        nonlocal is_held
        if timer is not None:
            timer.cancel()
        if is_held:
            is_held = False  # a late end of this request must not release the next one's hold
            answer.release()
        if acks and not answer.done:
            body = encode(results, version, context)
            answer.send((encode_response_head(correlation_id, len(body), flexible=version >= FLEXIBLE_FROM) + body,))

    wait = AckWait(reply, _fail)
    unfinished: dict[tuple[int, int], Opening] = {}
    if openings:
        _append_later(context, request, version, openings, wait, appended, unfinished)
        if context.engine.opener.is_crowded:
            is_held = True
            answer.hold()
    if acks == ACKS_ALL or openings:
        if context.cluster and acks == ACKS_ALL:  # on its own a broker waits for its disk only
            timeout_s = max(request.timeout_ms, 0) / 1000
            timer = asyncio.get_running_loop().call_later(timeout_s, _time_is_up, appended, unfinished, reply)
        _wait(appended if acks == ACKS_ALL else [], wait)
    else:
        reply()


def _append_all(
    context: Context, request: Produced, version: int
) -> tuple[list[tuple[bytes, list[Result]]], list["Waiting"], list[Opening]]:
    """Results by topic, what was appended, and what is to be appended later. Raises `PeerError` if acks=0 failed."""
    results: list[tuple[bytes, list[Result]]] = []
    appended: list[Waiting] = []
    openings: list[Opening] = []
    failed = False
    room = MOST_BYTES_AT_ONCE
    for topic, partitions in request.topics:
        rows: list[Result] = []
        for index, batch in partitions:
            row, partition, last_offset = _append(context, topic, index, batch, request, version, rows, openings, room)
            rows.append(row)
            room -= len(batch) if batch is not None else 0
            if partition is not None:
                appended.append(Waiting(partition, last_offset, rows, len(rows) - 1))
            failed = failed or (partition is None and bool(row.code))
        results.append((topic, rows))
    if failed and request.acks == 0:
        raise PeerError("an acks=0 produce failed")
    return results, appended, openings


class Waiting(NamedTuple):
    """A batch that was appended, and the place of its result."""

    partition: Partition
    last_offset: int
    rows: list[Result]
    at: int


def _wait(appended: list[Waiting], wait: AckWait) -> None:
    """Let `wait` be done when all is safe that `appended` lists, and what it waits for already."""
    for waiting in appended:
        if waiting.partition.high_watermark <= waiting.last_offset:
            waiting.partition.waiters.add_ack(waiting.last_offset, wait, waiting)
    wait.arrive()


def _fail(waiting: Waiting, error: PenstockError) -> None:
    waiting.rows[waiting.at] = _refused(waiting.partition.index, error, waiting.partition)


def _time_is_up(appended: list[Waiting], unfinished: dict[tuple[int, int], Opening], reply: Callable[[], None]) -> None:
    """The client waits no longer. What is not safe yet may become so: it has to send it again to know."""
    for waiting in appended:
        if waiting.partition.high_watermark <= waiting.last_offset:
            _fail(waiting, PenstockError(Code.TIMED_OUT, f"{waiting.partition.name} is not replicated in time"))
    for opening in unfinished.values():
        late = PenstockError(Code.TIMED_OUT, f"a batch for {opening.partition.name} still waits for its turn")
        opening.rows[opening.at] = _refused(opening.partition.index, late, opening.partition)
    reply()


def _append(
    context: Context,
    topic: bytes,
    index: int,
    batch: memoryview | None,
    request: Produced,
    version: int,
    rows: list[Result],
    openings: list[Opening],
    room: int,
) -> tuple[Result, Partition | None, int]:
    """The result row, and for a success the partition and last offset to wait for.

    Args:
        room: bytes of compressed batches that the request may still open at once.
    """
    topics = context.engine.topics
    partition: Partition | None = None
    try:
        if version >= _IDS_FROM:
            partition = topics.partition_by_id(UUID(bytes=topic), index)
        else:
            partition = topics.partition(topic[:_NAME_BYTES].decode("utf-8", "replace"), index)
        if request.acks not in (ACKS_ALL, 0, 1):
            return (
                Result(index, errors.INVALID_REQUIRED_ACKS, -1, -1, -1, "acks must be -1, 0 or 1"),
                None,
                -1,
            )
        batch = batch if batch is not None else memoryview(b"")
        if request.acks == ACKS_ALL:
            partition.check_in_sync()
        header = partition.check(batch, zstd_allowed=version >= 7)
        looked_at = partition.look(batch, header, room)
        begins = header.is_transactional and not partition.is_in_transaction(header)
        if begins or not looked_at or partition.must_wait(header):
            openings.append(Opening(rows, len(rows), partition, batch, header, begins, looked_at))
            return Result(index, errors.NONE, -1, -1, -1, None), None, -1
        done = partition.append_checked(batch, header)
    except PenstockError as error:
        return _refused(index, error, partition), None, -1
    return _appended(partition, done), partition, done.last_offset


def _append_later(
    context: Context,
    request: Produced,
    version: int,
    openings: list[Opening],
    wait: AckWait,
    appended: list[Waiting],
    unfinished: dict[tuple[int, int], Opening],
) -> None:
    """Have batches appended when they may be; each row is filled in, and `wait` goes on, when that is done.

    Args:
        appended: gets what was appended and has to become safe.
        unfinished: has those that are not appended yet.
    """
    beginning: dict[ProducerIdentity, list[tuple[str, int]]] = {}
    for opening in openings:
        if opening.begins:
            place = (opening.partition.topic, opening.partition.index)
            beginning.setdefault(opening.identity, []).append(place)
    admissions: dict[ProducerIdentity, Admissions] = {}
    if request.transactional_id is not None:
        transactional_id = request.transactional_id.decode("utf-8", "replace")
        for identity, places in beginning.items():
            add = version >= _ADDS_FROM
            admissions[identity] = context.engine.transactions.admission(
                transactional_id, identity, tuple(places), add=add
            )
    for opening in openings:
        admission = admissions.get(opening.identity) if opening.begins else None
        _open(context, opening, admission, version, request.acks, wait, appended, unfinished)


def _open(
    context: Context,
    opening: Opening,
    admission: Admissions | None,
    version: int,
    acks: int,
    wait: AckWait,
    appended: list[Waiting],
    unfinished: dict[tuple[int, int], Opening],
) -> None:
    partition = opening.partition
    place = id(opening.rows), opening.at
    unfinished[place] = opening

    def done(result: Appended | PenstockError) -> None:
        unfinished.pop(place, None)
        if isinstance(result, PenstockError):
            opening.rows[opening.at] = _refused(partition.index, _for_producer(result, version), partition)
        else:
            opening.rows[opening.at] = _appended(partition, result)
            if acks == ACKS_ALL and partition.high_watermark <= result.last_offset:
                waiting = Waiting(partition, result.last_offset, opening.rows, opening.at)
                appended.append(waiting)
                partition.waiters.add_ack(result.last_offset, wait, waiting)
        wait.arrive()

    wait.add()
    try:
        if opening.begins and admission is None:
            raise PenstockError(
                Code.INVALID_TRANSACTION_STATE, "a transactional batch in a request without a transactional id"
            )
        context.engine.opener.append(
            partition, opening.batch, opening.header, done, admission, looked_at=opening.looked_at
        )
    except PenstockError as error:
        done(error)


def _for_producer(error: PenstockError, version: int) -> PenstockError:
    """What a coordinator said, in words that a producer of this version knows."""
    code = error.code
    if code is Code.PRODUCER_FENCED:
        code = Code.INVALID_PRODUCER_EPOCH
    elif code is Code.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        code = Code.INVALID_TRANSACTION_STATE
    elif code in (Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOADING, Code.NOT_COORDINATOR) or (
        code is Code.CONCURRENT_TRANSACTIONS and version < _ADDS_FROM
    ):
        code = Code.NOT_AVAILABLE
    return error if code is error.code else PenstockError(code, str(error), help=error.help)


def _appended(partition: Partition, done: Appended) -> Result:
    return Result(partition.index, errors.NONE, done.base_offset, done.timestamp, partition.leading().log_start, None)


def _refused(index: int, error: PenstockError, partition: Partition | None) -> Result:
    leader = leader_hints.hint(partition, error)
    return Result(index, errors.kafka_code(error), -1, -1, -1, errors.describe(error), error.records, leader)


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
        out += topic if version >= _IDS_FROM else encode_uvarint(len(topic) + 1) + topic
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
