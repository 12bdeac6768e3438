"""The 61-byte header of a record batch v2: read it, check it, patch it in place; the records behind it stay opaque.

Layout (big endian), with the byte each field starts at:

    0 baseOffset i64 · 8 batchLength i32 · 12 partitionLeaderEpoch i32 · 16 magic i8 · 17 crc u32
    21 attributes i16 · 23 lastOffsetDelta i32 · 27 baseTimestamp i64 · 35 maxTimestamp i64
    43 producerId i64 · 51 producerEpoch i16 · 53 baseSequence i32 · 57 recordCount i32 · 61 records

The CRC-32C covers everything from `attributes` on, so offset and leader epoch are patched without a new one.
"""

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import Code, PenstockError

BATCH_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = Struct(">qi")
_OFFSET = Struct(">q")
_I32 = Struct(">i")
_CRC_AND_ATTRIBUTES = Struct(">Ih")

HEADER_BYTES = BATCH_HEADER.size
MAGIC = 2
PREFIX_BYTES = 12  # baseOffset and batchLength, which batchLength does not count
CRC_START = 21
_EPOCH_AT = 12
_CRC_AT = 17
_MAX_TIMESTAMP_AT = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""KIP-534: the base timestamp says when tombstones and markers in the batch may go."""
KNOWN_ATTRIBUTES = 0x3F
HIGHEST_CODEC = 4

NO_TIMESTAMP = -1
LARGEST_OPENED_BYTES = 16 << 20
"""What a batch may open to: producers gather a megabyte at most, a bomb of a few kilobytes opens to gigabytes."""
_LEAST_RECORD_BYTES = 7  # length, attributes, time, offset, no key, no value, no headers: a byte each
# What a byte of each codec's format can stand for at most: deflate, snappy, lz4, and zstd with a block of one value.
_MOST_RATIO = (1, 1032, 22, 255, 1 << 15)


class Header(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, its header included."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF  # records may be gone, offsets stay

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def decode_header(data: bytes | bytearray | memoryview, position: int = 0) -> Header:
    """The header at `position`, unchecked. The caller has made sure that 61 bytes are there."""
    return Header._make(BATCH_HEADER.unpack_from(data, position))


def decode_offset_and_size(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Base offset and whole size of the batch at `position`, from its first 12 bytes."""
    base_offset, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
    return base_offset, length + PREFIX_BYTES


def crc_matches(batch: memoryview, header: Header) -> bool:
    return bool(crc32c(batch[CRC_START:]) == header.crc)


def check_produced(batch: memoryview) -> Header:
    """Check a batch a client sent and return its header.

    Raises:
        PenstockError: CORRUPT_BATCH when bytes were damaged on the way, INVALID_BATCH when the client built it
            wrong, UNSUPPORTED_CODEC for a codec nobody knows.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise PenstockError(Code.CORRUPT_BATCH, f"a record batch has at least {HEADER_BYTES} bytes, not {size}")
    header = Header._make(BATCH_HEADER.unpack_from(batch, 0))
    if header.magic != MAGIC:
        raise PenstockError(Code.INVALID_BATCH, f"record batch magic is {header.magic}; only 2 is spoken here")
    if header.batch_length + PREFIX_BYTES != size:
        if HEADER_BYTES <= header.batch_length + PREFIX_BYTES < size:
            raise PenstockError(Code.INVALID_BATCH, "more than one record batch for one partition in a request")
        raise PenstockError(
            Code.CORRUPT_BATCH,
            f"record batch says {header.batch_length + PREFIX_BYTES} bytes, came with {size}",
        )
    if crc32c(batch[CRC_START:]) != header.crc:
        raise PenstockError(Code.CORRUPT_BATCH, "record batch does not match its CRC-32C")
    _check_claims(header)
    return header


def _check_claims(header: Header) -> None:
    attributes = header.attributes
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise PenstockError(
            Code.INVALID_BATCH,
            f"record count {header.record_count} does not fit last offset delta {header.last_offset_delta}",
        )
    if attributes & ~KNOWN_ATTRIBUTES:
        raise PenstockError(Code.INVALID_BATCH, f"unknown record batch attributes {attributes & 0xFFFF:#06x}")
    codec = attributes & CODEC_MASK
    if codec > HIGHEST_CODEC:
        raise PenstockError(Code.UNSUPPORTED_CODEC, f"compression codec {codec} is unknown; 0 to 4 are known")
    body_bytes = header.size - HEADER_BYTES
    if codec:
        body_bytes = min(body_bytes * _MOST_RATIO[codec], LARGEST_OPENED_BYTES)
    if header.record_count * _LEAST_RECORD_BYTES > body_bytes:  # offsets would be given away to nobody
        raise PenstockError(
            Code.INVALID_BATCH,
            f"record count {header.record_count} in a batch of {header.size} bytes, which cannot hold that many",
        )
    if attributes & CONTROL:
        raise PenstockError(Code.INVALID_BATCH, "control batches are written by the broker only")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise PenstockError(
                Code.INVALID_BATCH,
                f"producer id {header.producer_id} with epoch {header.producer_epoch} "
                f"and sequence {header.base_sequence}: neither may be negative",
            )
    elif attributes & TRANSACTIONAL:
        raise PenstockError(Code.INVALID_BATCH, "a transactional batch needs a producer id")
    if attributes & LOG_APPEND_TIME:
        raise PenstockError(Code.INVALID_TIMESTAMP, "log-append time is the broker's to set, not the producer's")


def patch_place(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log; the CRC stays right."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _I32.pack_into(batch, _EPOCH_AT, leader_epoch)


def patch_append_time(batch: memoryview, header: Header, now_ms: int) -> Header:
    """Stamp a batch with the broker's time and give it a new CRC."""
    attributes = header.attributes | LOG_APPEND_TIME
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, 0, attributes)
    _OFFSET.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    crc = crc32c(batch[CRC_START:])
    _CRC_AND_ATTRIBUTES.pack_into(batch, _CRC_AT, crc, attributes)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)
