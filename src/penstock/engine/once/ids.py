"""The ids of a batch's records, and a batch without some of them. Blocking: for a thread, or for small batches."""

from collections.abc import Container
from hashlib import blake2b
from typing import Final

from penstock.engine.once.memory import ID_BYTES
from penstock.engine.queues.headers import LONGEST_ID_BYTES, MESSAGE_ID
from penstock.records.batch import HEADER_BYTES, LARGEST_OPENED_BYTES, Header, decode_header
from penstock.records.compression import decompress
from penstock.records.control import build_gap
from penstock.records.header_values import header_values
from penstock.records.rewrite import read_section
from penstock.storage.compaction.sieve import with_only
from penstock.storage.compaction.spans import spans

Ids = list[tuple[int, bytes]]
"""Offset deltas of the records that have an id, and its hash."""
_NAME: Final = MESSAGE_ID.encode()


def read_ids(batch: memoryview, header: Header) -> Ids:
    """Of a batch as a client sent it, which is looked at record by record. Raises PenstockError."""
    return _hashed(read_section(batch, header), header)


def read_kept_ids(batch: memoryview, header: Header) -> Ids:
    """Of a batch in a log. Raises `CompressionError`, `RecordError`."""
    return _hashed(_open(batch, header), header)


def _hashed(section: bytes, header: Header) -> Ids:
    if _NAME not in section:  # a fraction of the time that it takes to go from record to record
        return []
    found = header_values(section, header.record_count, _NAME)
    return [(at, blake2b(value, digest_size=ID_BYTES).digest()) for at, value in found if _can_be_read(value)]


def _can_be_read(value: bytes) -> bool:
    """As `queues.headers` has it: one that is none is as if it were not there."""
    if not 0 < len(value) <= LONGEST_ID_BYTES:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def without(batch: memoryview, header: Header, dropped: Container[int]) -> tuple[memoryview, Header]:
    """A batch without the records at these offset deltas. The others stay at theirs, and its sequences stay whole.

    If none is left it is a control batch: what logs are read by takes a batch without any record for damage, and
    librdkafka a fetch of nothing else for one that was too small.
    """
    section = _open(batch, header)
    there = spans(section, header.record_count, header.last_offset_delta)
    kept = [each for each in there if each.offset_delta not in dropped]
    if not kept:
        made = memoryview(bytearray(build_gap(header)))
        return made, decode_header(made)
    left = with_only(header, batch, section, kept)
    return left.data, left.header


def _open(batch: memoryview, header: Header) -> bytes:
    section = batch[HEADER_BYTES:]
    if not header.codec:
        return bytes(section)
    return decompress(header.codec, section, max(LARGEST_OPENED_BYTES, len(batch)))
