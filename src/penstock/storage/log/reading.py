"""Reading a log: slices of its files, ready to be sent, and whole batches for the broker's own use.

`read_slice` runs on the event loop and looks only at what is in memory. When the disk is needed first it raises
`NotReady`, and `warm` does what was missing in a thread.
"""

from bisect import bisect_right
from typing import NamedTuple

from penstock.errors import Code, PenstockError
from penstock.ports.disk import File
from penstock.records.batch import HEADER_BYTES, crc_matches, decode_header
from penstock.storage.log.card import Card
from penstock.storage.log.loading import prepare
from penstock.storage.log.log import Log
from penstock.storage.log.segment import FileSlice, NotReady, Segment
from penstock.storage.log.transactions import AbortedTransaction

_RECENT_BYTES = 64 << 20  # this far behind the end of the active segment, pages are taken to be in memory
READY_BYTES = 1 << 20
"""What one `warm` makes ready at least, if asked for that much."""


class Stretch(NamedTuple):
    batches: list[memoryview]
    next_offset: int
    """Where to go on."""


def read_slice(
    log: Log,
    offset: int,
    limit: int,
    max_bytes: int,
    at_least_one: bool,
    warmed: bool = False,
    *,
    everything: bool = False,
) -> FileSlice | None:
    """Whole batches from the one that holds `offset` up to `limit`, as a slice of a file.

    Returns None when there is nothing below `limit`, or when the first batch is larger than `max_bytes` and
    `at_least_one` is not set. `warmed` says that `warm` was called for this read: pages the kernel dropped again, or
    will not tell about, are then no reason to wait once more. With `everything` also what lies below the log start and
    has not been removed yet, as the beginning of a batch that holds it.

    Raises:
        NotReady: the disk is needed first; `await warm(...)` and call again.
        PenstockError: OFFSET_OUT_OF_RANGE, CORRUPT_LOG.
    """
    start_offset = log.first_offset if everything else log.state.log_start
    if offset >= limit:
        if offset > log.end_offset or offset < start_offset:
            raise _out_of_range(log, offset)
        return None
    segment = segment_of(log, offset, start_offset)
    while True:
        card = segment.card
        file = segment.file if segment.file is not None else log.shelf.files.peek(segment.path)
        if card is None or file is None:
            raise NotReady
        start = _position_of(segment, card, file, offset, warmed)
        if start < segment.size or segment is log.segments[-1]:
            break
        offset = segment.next_offset  # what was left of the segment has been compacted away
        if offset >= limit:
            return None
        segment = segment_of(log, offset, start_offset)
    if not warmed and not _is_recent(segment, start) and not segment.is_in_memory(file, start, 1):
        raise NotReady  # the next lines may read the batch's header
    end = _end_of(log, segment, card, file, limit, start, max_bytes, at_least_one)
    if end <= start:
        return None
    if not _is_ready(segment, file, start, end, warmed):
        # `warm` makes the beginning ready; asking for all of a large range again would never end.
        end = _end_of(log, segment, card, file, limit, start, min(max_bytes, READY_BYTES), at_least_one)
        if not _is_ready(segment, file, start, end, warmed):
            raise NotReady
    log.shelf.stats.fetched_bytes += end - start
    return FileSlice(file, start, end - start, segment.base)


async def warm(log: Log, offset: int, max_bytes: int) -> None:
    """Do off the loop what `read_slice` at `offset` lacked: open, load the card, check blocks, page in.

    Raises:
        PenstockError: CORRUPT_LOG, OFFSET_OUT_OF_RANGE.
    """
    log.shelf.stats.cold_reads += 1
    while True:
        segment = segment_of(log, offset, log.first_offset)  # whoever reads below the log start may
        try:
            card, file, good = await log.shelf.disk.run(prepare, log, segment, offset, max_bytes)
        except FileNotFoundError:
            if offset < max(log.log_start, log.first_offset):
                raise _out_of_range(log, offset) from None  # retention was quicker
            log.damage = segment.damaged(0, "is missing")
            raise log.damage from None
        if segment.card is None:
            segment.card = card
        if segment.file is None:
            log.shelf.files.put(segment.path, file)
        segment.note_checked(good)
        if segment.find(file, offset) < segment.size or segment.next_offset >= log.end_offset:
            return
        offset = segment.next_offset  # nothing is left of the segment from there on


def aborted_in(log: Log, offset: int, data: FileSlice, limit: int) -> list[AbortedTransaction]:
    """Aborted transactions with records among those in `data`, which was read at `offset` up to `limit`.

    A transaction's marker may lie in a later segment; the cards are walked until nothing older is open.

    Raises:
        NotReady: a card is needed first.
    """
    at = bisect_right(log.segments, data.base, key=_base) - 1
    card = log.segments[at].card
    if card is None:
        raise NotReady
    end = min(card.offset_at_or_after(data.position + data.size), limit)
    found: list[AbortedTransaction] = []
    for segment in log.segments[at:]:
        if segment.aborted_count:
            if segment.card is None:
                raise NotReady
            found += segment.card.transactions.overlapping(offset, end)
        if not 0 <= segment.first_open < end:
            break
    found.sort(key=_first_offset)
    return found


def read_batches(log: Log, offset: int, limit: int, max_bytes: int) -> Stretch:
    """Batches from the one that holds `offset` up to `limit`, some `max_bytes` of them, of one segment.

    Checked, and copied into memory. Blocking, for a thread.

    Raises:
        PenstockError: OFFSET_OUT_OF_RANGE, CORRUPT_LOG.
    """
    segment = segment_of(log, offset)
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


def segment_of(log: Log, offset: int, start_offset: int | None = None) -> Segment:
    """The segment that holds `offset`. Raises OFFSET_OUT_OF_RANGE or, for a hole, CORRUPT_LOG."""
    segment = log.segments[-1]
    if offset < (log.state.log_start if start_offset is None else start_offset):
        raise _out_of_range(log, offset)
    if offset < segment.base:
        at = bisect_right(log.segments, offset, key=_base) - 1
        segment = log.segments[max(at, 0)]
    if not segment.base <= offset < segment.next_offset:
        if offset > log.end_offset:
            raise _out_of_range(log, offset)
        raise PenstockError(
            Code.CORRUPT_LOG,
            f"{log.name}: offset {offset} is missing, {segment.path} ends at {segment.next_offset - 1}",
            help="restore the missing segment from a replica or backup; nothing was deleted",
        )
    return segment


def _position_of(segment: Segment, card: Card, file: File, offset: int, warmed: bool) -> int:
    position = card.position_before(offset)
    at = bisect_right(card.positions, position) - 1
    if at >= 0 and card.offsets[at] == offset - segment.base:
        return position  # the index names this very batch
    walk = segment.walk_bytes(card, position)
    if segment.is_unchecked(position, walk):
        raise NotReady
    needed = min(walk, READY_BYTES)
    if not warmed and not _is_recent(segment, position) and not segment.is_in_memory(file, position, needed):
        raise NotReady
    return segment.find(file, offset)


def _end_of(
    log: Log,
    segment: Segment,
    card: Card,
    file: File,
    limit: int,
    start: int,
    max_bytes: int,
    at_least_one: bool,
) -> int:
    if limit >= segment.next_offset:
        limit_position = segment.size
    elif limit == log.durable_end and segment is log.segments[-1]:
        limit_position = log.durable_position
    else:
        limit_position = segment.find(file, limit)
    if limit_position - start <= max_bytes:
        return limit_position
    end = card.batch_start_up_to(start + max_bytes)
    if end > start:
        return end
    first = start + segment.batch_size_at(file, start)
    return first if at_least_one or first - start <= max_bytes else start


def _is_ready(segment: Segment, file: File, start: int, end: int, warmed: bool) -> bool:
    if segment.is_unchecked(start, end - start):
        return False
    return warmed or _is_recent(segment, start) or segment.is_in_memory(file, start, end - start)


def _out_of_range(log: Log, offset: int) -> PenstockError:
    return PenstockError(
        Code.OFFSET_OUT_OF_RANGE,
        f"{log.name}: offset {offset} is outside {log.log_start} to {log.end_offset}",
    )


def _is_recent(segment: Segment, position: int) -> bool:
    return segment.file is not None and not segment.sealed and segment.size - position <= _RECENT_BYTES


def _base(segment: Segment) -> int:
    return segment.base


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset
