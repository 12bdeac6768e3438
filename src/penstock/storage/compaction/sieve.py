"""Batches made of others: of some of their records, of none, or with a delete horizon.

The horizon (KIP-534) is set when a pass first keeps a tombstone or a marker nobody needs: attribute bit 6 says that the
base timestamp is the time from which they may go, and records count their times from it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from crc32c import crc32c

from penstock.records import varint
from penstock.records.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    LARGEST_OPENED_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    Header,
)
from penstock.records.compression import Codec, compress, decompress
from penstock.records.record import RecordError
from penstock.storage.compaction.spans import Span, spans


class Sifted(NamedTuple):
    """A batch to be written; the very same object as the one read if it is to be copied."""

    header: Header
    data: memoryview


def open_section(header: Header, batch: memoryview) -> bytes:
    """The records of a batch, decompressed. Raises `CompressionError`."""
    section = batch[HEADER_BYTES:]
    return bytes(section) if header.codec == Codec.NONE else decompress(header.codec, section, LARGEST_OPENED_BYTES)


def horizon_of(header: Header) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


class Rule(Protocol):
    """What a pass keeps of data; markers are the same matter in all of them."""

    def sift(self, header: Header, batch: memoryview) -> Sifted | None:
        """What is left of a data batch, None if no record is.

        Raises:
            CompressionError, RecordError: nobody can open it.
        """
        ...


class Horizons:
    """By the time of one pass."""

    def __init__(self, now_ms: int, delete_retention_ms: int) -> None:
        self._now_ms = now_ms
        self._new_horizon = now_ms + delete_retention_ms

    def is_over(self, header: Header) -> bool:
        horizon = horizon_of(header)
        return horizon is not None and horizon <= self._now_ms

    def sift_marker(self, header: Header, batch: memoryview) -> Sifted | None:
        """What is left of a control batch that nobody needs any more, but readers may still be waiting for."""
        horizon = horizon_of(header)
        if horizon is not None:
            return None if horizon <= self._now_ms else Sifted(header, batch)
        section = open_section(header, batch)
        kept = list(spans(section, header.record_count, header.last_offset_delta))
        return self.set(header, section, kept) or Sifted(header, batch)

    def set(self, header: Header, section: bytes, kept: Sequence[Span]) -> Sifted | None:
        """The batch with its times counted from a new horizon; None for times so far off that they do not fit."""
        shift = header.base_timestamp - self._new_horizon
        body = bytearray()
        try:
            for span in kept:
                time = varint.encode(span.timestamp_delta + shift)
                body += varint.encode(1 + len(time) + span.stop - span.tail)
                body.append(section[span.body])
                body += time
                body += section[span.tail : span.stop]
        except ValueError:
            return None
        attributes = header.attributes | DELETE_HORIZON
        stamped = header._replace(attributes=attributes, base_timestamp=self._new_horizon)
        return _made_of(stamped, body, kept, header.base_timestamp)


def emptied(header: Header, batch: memoryview) -> Sifted:
    """The batch without records; its header still tells its producer's epoch and sequences."""
    if header.record_count == 0 and header.size == HEADER_BYTES:
        return Sifted(header, batch)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _assembled(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def with_only(header: Header, batch: memoryview, section: bytes, kept: Sequence[Span]) -> Sifted:
    """The batch with no more than some of its records; itself if these are all."""
    if len(kept) == header.record_count:
        return Sifted(header, batch)
    body = b"".join(section[span.start : span.stop] for span in kept)
    return _made_of(header, body, kept, header.base_timestamp)


def _made_of(header: Header, section: bytes | bytearray, kept: Sequence[Span], base_timestamp: int) -> Sifted:
    """A batch of the records kept, whose time deltas were counted from `base_timestamp`."""
    max_timestamp = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        max_timestamp = base_timestamp + max(span.timestamp_delta for span in kept)
        if not -1 << 63 <= max_timestamp < 1 << 63:
            raise RecordError(f"timestamp {max_timestamp} does not fit in 64 bits")
    body = section if header.codec == Codec.NONE else compress(header.codec, section)
    return _assembled(header._replace(max_timestamp=max_timestamp, record_count=len(kept)), body)


def _assembled(header: Header, body: bytes | bytearray) -> Sifted:
    header = header._replace(batch_length=HEADER_BYTES - PREFIX_BYTES + len(body), crc=0)
    made = memoryview(bytearray(HEADER_BYTES + len(body)))
    made[HEADER_BYTES:] = body
    BATCH_HEADER.pack_into(made, 0, *header)
    header = header._replace(crc=crc32c(made[CRC_START:]))
    BATCH_HEADER.pack_into(made, 0, *header)
    return Sifted(header, made)
