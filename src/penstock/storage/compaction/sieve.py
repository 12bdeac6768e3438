"""What stays of one batch, and the batch made of it.

A record stays if it has a key, no later record of that key is known, and it has a value or its batch's delete horizon
has not come. The horizon (KIP-534) is set when a pass first keeps a tombstone or a marker nobody needs: attribute bit 6
says that the base timestamp is the time from which they may go, and records count their times from it.
"""

from collections.abc import Callable
from typing import NamedTuple

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
from penstock.storage.compaction.offset_map import OffsetMap
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


class Sieve:
    """The rules of one pass."""

    def __init__(self, latest: OffsetMap, now_ms: int, delete_retention_ms: int, give_way: Callable[[], None]) -> None:
        self._latest = latest
        self._now_ms = now_ms
        self._new_horizon = now_ms + delete_retention_ms
        self._give_way = give_way

    def sift(self, header: Header, batch: memoryview) -> Sifted | None:
        """What is left of a data batch, None if no record is.

        Raises:
            CompressionError, RecordError: nobody can open it.
        """
        section = open_section(header, batch)
        horizon = horizon_of(header)
        expired = horizon is not None and horizon <= self._now_ms
        latest, base_offset = self._latest.get, header.base_offset
        tombstones = False
        kept: list[Span] = []
        for span in spans(section, header.record_count, header.last_offset_delta, self._give_way):
            if span.key is None or latest(span.key) > base_offset + span.offset_delta:
                continue
            if not span.has_value:
                if expired:
                    continue
                tombstones = True
            kept.append(span)
        if not kept:
            return None
        self._give_way()
        if tombstones and horizon is None:
            made = self._with_horizon(header, section, kept)
            if made is not None:
                return made
        if len(kept) == header.record_count:
            return Sifted(header, batch)
        return _rebuilt(header, b"".join(section[span.start : span.stop] for span in kept), kept)

    def sift_marker(self, header: Header, batch: memoryview) -> Sifted | None:
        """What is left of a control batch that nobody needs any more, but readers may still be waiting for."""
        horizon = horizon_of(header)
        if horizon is not None:
            return None if horizon <= self._now_ms else Sifted(header, batch)
        section = open_section(header, batch)
        kept = list(spans(section, header.record_count, header.last_offset_delta))
        return self._with_horizon(header, section, kept) or Sifted(header, batch)

    def _with_horizon(self, header: Header, section: bytes, kept: list[Span]) -> Sifted | None:
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
        return _rebuilt(stamped, body, kept, header.base_timestamp)


def emptied(header: Header, batch: memoryview) -> Sifted:
    """The batch without records; its header still tells its producer's epoch and sequences."""
    if header.record_count == 0 and header.size == HEADER_BYTES:
        return Sifted(header, batch)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _assembled(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _rebuilt(header: Header, section: bytes | bytearray, kept: list[Span], base_timestamp: int | None = None) -> Sifted:
    """A batch of the records kept, whose time deltas were counted from `base_timestamp`."""
    if base_timestamp is None:
        base_timestamp = header.base_timestamp
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
