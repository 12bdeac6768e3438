"""Sealed segments for a follower that copies them whole: the card, and a range of the file ready to be sent.

The bytes are not checked here: whoever copies them does, against the card. A segment may be replaced by compaction, or
removed, between two ranges of it; the copy then does not match.
"""

from bisect import bisect_left
from typing import NamedTuple

from penstock.ports.disk import File
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.card import BLOCK_BYTES, Card
from penstock.storage.log.loading import card_of, file_of
from penstock.storage.log.log import Log
from penstock.storage.log.segment import FileSlice, Segment

MOST_BYTES = 8 << 20


class SegmentRange(NamedTuple):
    card: bytes
    """Encoded; with the first range only."""
    data: FileSlice


def find_segment(log: Log, offset: int, limit: int, least_bytes: int) -> Segment | None:
    """The first sealed segment that begins at `offset` or later, if it lies wholly below `limit`.

    Args:
        least_bytes: None if there is less than that in it and behind it.
    """
    at = bisect_left(log.segments, offset, key=_base)
    if at >= len(log.segments) - 1:
        return None
    segment = log.segments[at]
    if not segment.sealed or segment.next_offset > limit:
        return None
    return segment if sum(each.size for each in log.segments[at:]) >= least_bytes else None


def read_range(log: Log, segment: Segment, position: int, max_bytes: int) -> SegmentRange:
    """Whole blocks from `position` on, brought into memory: sending them must not wait for the device. Blocking.

    Raises:
        PenstockError: CORRUPT_LOG, when the file is too short.
        FileNotFoundError: retention was quicker.
    """
    file = file_of(log, segment)
    whole = min(max_bytes, MOST_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    size = max(0, min(whole, segment.size - position))
    if file.size() < segment.size:
        raise segment.damaged(position, "is too short")
    if size and not segment.is_in_memory(file, position, size):  # its receiver checks it, other readers do not
        file.read_at(size, position)
    card = _card_of(log, segment).encode() if position == 0 else b""
    return SegmentRange(card, FileSlice(file, position, size, segment.base))


def keep_open(log: Log, segment: Segment, file: File) -> None:
    """For the next range; on the event loop. A segment that was replaced has a file of its own."""
    if segment.file is None:
        log.shelf.files.put(segment.path, file)


def _card_of(log: Log, segment: Segment) -> Card:
    """Not kept with the segment: the cards of all of a large log would be."""
    if segment.card is not None:
        return segment.card
    try:
        card = segment.load_card(log.shelf.disk)
    except (DamagedFile, FileNotFoundError):
        return card_of(log, segment)
    return segment.card or card  # one that was replaced meanwhile has been given its own


def _base(segment: Segment) -> int:
    return segment.base
