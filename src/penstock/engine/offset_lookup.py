"""Find an offset by time: segments by their largest time, batches by their index, records by opening one batch."""

from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from penstock.records.batch import crc_matches, decode_header
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError, iterate_batch
from penstock.storage.log.loading import prepare
from penstock.storage.log.log import Log
from penstock.storage.log.scan import headers
from penstock.storage.log.segment import Segment

_LARGEST_OPENED_BATCH = 64 << 20
_NO_TIME_LIMIT = 1 << 63


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
    segments = list(log.segments)
    candidates: list[tuple[int, int]] = []
    """The largest time, negative so that it comes first, and the segment's place."""
    for at, segment in enumerate(segments):
        largest = segment.max_timestamp if segment.next_offset <= limit else _largest_below(log, segment, limit)
        if largest >= 0:
            candidates.append((-largest, at))
    heapify(candidates)
    while candidates:
        largest, at = -candidates[0][0], candidates[0][1]
        found = _find_in_segment(log, segments[at], largest, limit)
        if found is not None:
            return found
        # A batch that compaction has emptied still carries the time of its records; so may one below the log start.
        smaller = _largest_below(log, segments[at], limit, largest)
        if smaller >= 0:
            heapreplace(candidates, (-smaller, at))
        else:
            heappop(candidates)
    return None


def _largest_below(log: Log, segment: Segment, limit: int, time_limit: int = _NO_TIME_LIMIT) -> int:
    """The largest time, below a time, of a segment's batches that may be seen; -1 if there is none."""
    if segment.base >= limit:
        return -1
    _, file, _ = prepare(log, segment, max(segment.base, log.log_start), 1)
    seen = (header for header, _ in headers(file, segment.size, 0) if header.base_offset < limit)
    times = (header.max_timestamp for header in seen if header.record_count)
    return max((each for each in times if each < time_limit), default=-1)


def _find_in_segment(log: Log, segment: Segment, timestamp: int, limit: int) -> Found | None:
    card, file, _ = prepare(log, segment, max(segment.base, log.log_start), 1)
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
