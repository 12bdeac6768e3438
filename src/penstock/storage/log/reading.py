"""Whole batches out of a log for the broker's own use: checked, copied into memory. Blocking, for a thread."""

from typing import NamedTuple

from penstock.records.batch import HEADER_BYTES, crc_matches, decode_header
from penstock.storage.log.loading import prepare
from penstock.storage.log.log import Log


class Stretch(NamedTuple):
    batches: list[memoryview]
    next_offset: int
    """Where to go on."""


def read_batches(log: Log, offset: int, limit: int, max_bytes: int) -> Stretch:
    """Batches from the one that holds `offset` up to `limit`, some `max_bytes` of them, of one segment.

    Raises:
        PenstockError: OFFSET_OUT_OF_RANGE, CORRUPT_LOG.
    """
    segment = log.segment_of(offset)
    end = min(limit, segment.next_offset)
    _, file, _ = prepare(log, segment, offset, max_bytes)
    position = segment.find(file, offset)
    data = memoryview(file.read_at(min(max_bytes, segment.size - position), position))
    batches: list[memoryview] = []
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = decode_header(data, at)
        if header.base_offset >= end:
            break
        if at + header.size > len(data):
            if batches:
                return Stretch(batches, header.base_offset)
            data, at = memoryview(file.read_at(header.size, position)), 0
        batch = data[at : at + header.size]
        if len(batch) < header.size or not crc_matches(batch, header):
            raise segment.damaged(position + at, "has a batch that does not match its CRC-32C")
        batches.append(batch)
        at += header.size
        if header.last_offset + 1 >= end:
            return Stretch(batches, header.last_offset + 1)
    more = position + at < segment.size and batches
    return Stretch(batches, decode_header(batches[-1]).last_offset + 1 if more else end)
