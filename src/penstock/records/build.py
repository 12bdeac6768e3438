"""Builds a whole batch v2 out of records: for doors that receive records one by one, and for tests."""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 - struct names its error in lower case
from typing import NamedTuple

from crc32c import crc32c

from penstock.records.batch import BATCH_HEADER, CONTROL, MAGIC, PREFIX_BYTES, TRANSACTIONAL
from penstock.records.compression import Codec, compress
from penstock.records.record import encode

_CRC = Struct(">I")
_CRC_AT = 17
_CRC_END = _CRC_AT + _CRC.size  # the checksum covers everything after itself


class NewRecord(NamedTuple):
    """A record to be written; a plain tuple of the same shape will do."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


def build_batch(
    records: Sequence[NewRecord | tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]],
    *,
    codec: int = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """One batch with consecutive offsets from `base_offset`, and its checksum.

    Raises:
        ValueError: no records, a number out of its range, or (`CompressionError`) no such codec.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = max_timestamp = records[0][3]
    section = bytearray()
    for delta, (key, value, headers, timestamp_ms) in enumerate(records):
        max_timestamp = max(max_timestamp, timestamp_ms)
        encode(section, delta, timestamp_ms - base_timestamp, key, value, headers)
    body = section if codec == Codec.NONE else compress(codec, section)
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    header = bytearray(BATCH_HEADER.size)
    try:
        BATCH_HEADER.pack_into(
            header,
            0,
            base_offset,
            len(header) - PREFIX_BYTES + len(body),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            len(records) - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    except StructError as error:
        raise ValueError(f"batch header: {error}") from error
    _CRC.pack_into(header, _CRC_AT, crc32c(body, crc32c(memoryview(header)[_CRC_END:])))
    return b"".join((header, body))
