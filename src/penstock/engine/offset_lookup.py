"""Find an offset by time: segments by their largest time, batches by their index, records by opening one batch."""

from typing import NamedTuple

from penstock.records.batch import crc_matches, decode_header
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError, iterate_batch
from penstock.storage.log.log import Log
from penstock.storage.log.scan import headers
from penstock.storage.log.segment import Segment

_LARGEST_OPENED_BATCH = 64 << 20


class Found(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


def find_by_time(log: Log, timestamp: int, limit: int) -> Found | None:
    """The first record at or after `timestamp` below `limit`. Blocking."""
    for segment in list(log.segments):
        if segment.max_timestamp >= timestamp and segment.next_offset > log.log_start:
            found = _find_in_segment(log, segment, timestamp, limit)
            if found is not None:
                return found
    return None


def find_largest_time(log: Log, limit: int) -> Found | None:
    """The first record that carries the largest time below `limit`. Blocking."""
    best: tuple[int, Segment] | None = None
    for segment in list(log.segments):
        largest = segment.max_timestamp if segment.next_offset <= limit else _largest_below(log, segment, limit)
        if largest >= 0 and (best is None or largest > best[0]):
            best = largest, segment
    return _find_in_segment(log, best[1], best[0], limit) if best is not None else None


def _largest_below(log: Log, segment: Segment, limit: int) -> int:
    """The largest time in a segment whose end nobody may see yet."""
    if segment.base >= limit:
        return -1
    _, file, _ = log.prepare(segment, max(segment.base, log.log_start), 1)
    seen = (header for header, _ in headers(file, segment.size, 0) if header.base_offset < limit)
    return max((header.max_timestamp for header in seen), default=-1)


def _find_in_segment(log: Log, segment: Segment, timestamp: int, limit: int) -> Found | None:
    card, file, _ = log.prepare(segment, max(segment.base, log.log_start), 1)
    position = card.position_before_time(timestamp)
    segment.check_blocks(file, position, max(segment.walk_bytes(card, position), 1))
    for header, at in headers(file, segment.size, position):
        if header.base_offset >= limit:
            return None
        if header.max_timestamp < timestamp or header.last_offset < log.log_start:
            continue
        data = file.read_at(header.size, at)
        if len(data) < header.size or not crc_matches(memoryview(data), decode_header(data)):
            raise segment.damaged(at, "has a batch that does not match its CRC-32C")
        try:
            for offset, record_time, _ in iterate_batch(data, _LARGEST_OPENED_BATCH):
                if record_time >= timestamp and log.log_start <= offset < limit:
                    return Found(offset, record_time, header.leader_epoch)
        except (RecordError, CompressionError):
            # Batches are taken unopened, so one that nobody can open may lie here: it is as far as one can tell.
            return Found(max(header.base_offset, log.log_start), header.max_timestamp, header.leader_epoch)
    return None
