"""Read 0, which brokers ask of each other: what comes next in a partition that the asked one leads, or where it begins
and ends; by hand, both sides.

It is no API of Kafka's; its key is far away from theirs. All numbers are big endian, as Kafka's are. Every body begins
with what it is about, in a byte; the first question is which versions the other one answers, as in Forward.

VERSIONS: nothing more. Answer: the newest version.
RECORDS: version, topic id, partition, least leader epoch, offset, most bytes, milliseconds to wait, whether committed
records only; the subject (`subject_codec`). Answer: leader epoch, log start, high watermark, stable offset; the error
(`error_codec`), if any; how many transactions were aborted, each as producer id, first, last and stable offset; whole
batches as they are, up to the end of the frame.
ENDS: version, topic id, partition, least leader epoch, whether a time is asked for and which, whether committed records
only; the subject. Answer: leader epoch, log start, high watermark, stable offset; offset, time and leader epoch of the
record that was found; the error.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final
from uuid import UUID

from penstock.engine.access import Subject
from penstock.engine.elsewhere import AtTime, Ends, Given, Taken, WantedEnds, WantedRecords
from penstock.engine.reading import AbortedTransaction
from penstock.errors import Code, PenstockError
from penstock.net.connection import Part, PeerError
from penstock.protocols.internal import error_codec, subject_codec
from penstock.records.batch import HEADER_BYTES, crc_matches, decode_header

KEY: Final = 20003
VERSION: Final = 0
NEWEST: Final = 1
VERSIONS, RECORDS, ENDS = 0, 1, 2
_RECORDS = Struct(">BB16siiqii?")
_WANTED_ENDS = Struct(">BB16sii?q?")
_ANSWER = Struct(">Biqqq")  # what it is about, leader epoch, log start, high watermark, stable offset
_AT_TIME = Struct(">qqi")
_COUNT = Struct(">I")
_ABORTED = Struct(">qqqq")
_MOST_MS: Final = (1 << 31) - 1
_INT64: Final = range(-(1 << 63), 1 << 63)
_UNKNOWN: Final = Ends(-1, -1, -1, -1)
_NOWHERE: Final = AtTime(-1, -1, -1)

QUESTION: Final = bytes((VERSIONS,))


def encode_versions() -> bytes:
    return bytes((VERSIONS, NEWEST))


def decode_versions(body: memoryview) -> int:
    """The newest version the broker answers. Raises `PeerError`."""
    if len(body) != 2 or body[0] != VERSIONS:
        raise PeerError(f"an answer of {len(body)} bytes to which versions of Read are answered")
    return body[1]


# --- questions


def encode_records(wanted: WantedRecords) -> bytes:
    """A request body. Raises PenstockError."""
    if wanted.offset not in _INT64:
        raise PenstockError(Code.OFFSET_OUT_OF_RANGE, f"there is no offset {wanted.offset}")
    wait_ms = min(max(int(wanted.wait_s * 1000), 0), _MOST_MS)
    head = _RECORDS.pack(
        RECORDS,
        NEWEST,
        wanted.topic_id.bytes,
        wanted.partition_index,
        wanted.least_epoch,
        wanted.offset,
        min(wanted.max_bytes, _MOST_MS),
        wait_ms,
        wanted.committed,
    )
    return head + subject_codec.encode([wanted.subject])


def encode_ends(wanted: WantedEnds) -> bytes:
    """A request body. Raises PenstockError."""
    if wanted.timestamp is not None and wanted.timestamp not in _INT64:
        raise PenstockError(Code.INVALID_TIMESTAMP, f"there is no time {wanted.timestamp}")
    head = _WANTED_ENDS.pack(
        ENDS,
        NEWEST,
        wanted.topic_id.bytes,
        wanted.partition_index,
        wanted.least_epoch,
        wanted.timestamp is not None,
        wanted.timestamp or 0,
        wanted.committed,
    )
    return head + subject_codec.encode([wanted.subject])


def decode(body: memoryview) -> WantedRecords | WantedEnds | None:
    """A request body; None asks for versions. Raises `PeerError`."""
    about = body[0] if len(body) else -1
    if about == VERSIONS and len(body) == 1:
        return None
    layout = {RECORDS: _RECORDS, ENDS: _WANTED_ENDS}.get(about)
    if layout is None or len(body) < layout.size or body[1] != NEWEST:
        raise PeerError(f"a Read request of {len(body)} bytes about {about}; version {NEWEST} is spoken here")
    _, _, topic_id, index, epoch, *fields = layout.unpack_from(body)
    subject = _decode_subject(body, layout.size)
    if about == ENDS:
        has_time, timestamp, committed = fields
        return WantedEnds(UUID(bytes=topic_id), index, epoch, timestamp if has_time else None, committed, subject)
    offset, max_bytes, wait_ms, committed = fields
    if max_bytes <= 0 or wait_ms < 0:
        raise PeerError(f"a Read request for {max_bytes} bytes within {wait_ms} ms")
    return WantedRecords(UUID(bytes=topic_id), index, epoch, offset, max_bytes, wait_ms / 1000, committed, subject)


def _decode_subject(body: memoryview, position: int) -> Subject:
    subjects, end = subject_codec.decode(body, position)
    if len(subjects) != 1 or end != len(body):
        raise PeerError(f"a Read request for {len(subjects)} subjects, of {len(body)} bytes; it ends after {end}")
    return subjects[0]


# --- answers


def encode_taken(taken: Taken) -> tuple[list[Part], int]:
    """The parts of an answer, and their size."""
    data, aborted, _ = taken.found
    head = b"".join(
        (
            _ANSWER.pack(RECORDS, *taken.ends[:4]),
            error_codec.encode(None),
            _COUNT.pack(len(aborted)),
            *(_ABORTED.pack(*each) for each in aborted),
        )
    )
    parts: list[Part] = [head]
    if data is not None:
        parts.append((data.file, data.position, data.size))
    return parts, len(head) + (data.size if data is not None else 0)


def encode_refusal(about: int, error: PenstockError) -> bytes:
    middle, end = (_AT_TIME.pack(*_NOWHERE), b"") if about == ENDS else (b"", _COUNT.pack(0))
    return _ANSWER.pack(about, *_UNKNOWN[:4]) + middle + error_codec.encode(error) + end


def encode_told_ends(ends: Ends) -> bytes:
    at_time = _AT_TIME.pack(*(ends.at_time or _NOWHERE))
    return _ANSWER.pack(ENDS, *ends[:4]) + at_time + error_codec.encode(None)


def decode_given(body: memoryview) -> Given | PenstockError:
    """What is in it is copied out. Raises `PeerError`."""
    ends, position = _decode_head(body, RECORDS)
    error, position = error_codec.decode(body, position)
    aborted, position = _decode_aborted(body, position)
    if error is not None:
        if aborted or position != len(body):
            raise PeerError(f"a Read answer with an error and {len(body) - position} bytes of batches")
        return error
    _check_whole(body[position:])
    return Given(ends, bytes(body[position:]), aborted)


def decode_told_ends(body: memoryview) -> Ends | PenstockError:
    """Raises `PeerError`."""
    ends, position = _decode_head(body, ENDS)
    try:
        at_time = AtTime(*_AT_TIME.unpack_from(body, position))
    except StructError:
        raise PeerError("a Read answer ends before what was found by time") from None
    error, end = error_codec.decode(body, position + _AT_TIME.size)
    if end != len(body):
        raise PeerError(f"a Read answer of {len(body)} bytes that ends after {end}")
    return error if error is not None else ends._replace(at_time=at_time if at_time.offset >= 0 else None)


def _decode_head(body: memoryview, about: int) -> tuple[Ends, int]:
    try:
        told, *fields = _ANSWER.unpack_from(body)
    except StructError:
        raise PeerError("a Read answer ends too early") from None
    if told != about:
        raise PeerError(f"a Read answer about {told}, and not {about}")
    return Ends(*fields), _ANSWER.size


def _decode_aborted(body: memoryview, position: int) -> tuple[Sequence[AbortedTransaction], int]:
    if position + _COUNT.size > len(body):
        raise PeerError("a Read answer ends before its aborted transactions")
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    end = position + count * _ABORTED.size
    if end > len(body):
        raise PeerError(f"{count} aborted transactions claimed, {len(body) - position} bytes left")
    return [AbortedTransaction(*each) for each in _ABORTED.iter_unpack(body[position:end])], end


def _check_whole(batches: memoryview) -> None:
    """Whether they are nothing but whole batches, as they were written. Raises `PeerError`."""
    position = 0
    while position < len(batches):
        left = len(batches) - position
        header = decode_header(batches, position) if left >= HEADER_BYTES else None
        if header is None or not HEADER_BYTES <= header.size <= left:
            raise PeerError(f"a Read answer that ends within a batch, {left} bytes before its end")
        if not crc_matches(batches[position : position + header.size], header):
            raise PeerError(
                f"a Read answer with a batch at offset {header.base_offset} that does not match its CRC-32C"
            )
        position += header.size
