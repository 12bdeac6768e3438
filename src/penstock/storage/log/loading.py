"""What a reader of an old segment needs first: an open file, its card, checked blocks. Blocking, for a thread.

A segment may be replaced by compaction meanwhile. It was given its own file and card before another took its name, so
whatever was opened by name is used only if the segment still has none of its own.
"""

import errno

from penstock.errors import Code, PenstockError
from penstock.ports.disk import File
from penstock.records.batch import Header
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.card import Card
from penstock.storage.log.log import Log
from penstock.storage.log.scan import scan
from penstock.storage.log.segment import Segment


def prepare(log: Log, segment: Segment, offset: int, max_bytes: int) -> tuple[Card, File, list[int]]:
    """Make a read at `offset` ready: the card, an open file, the blocks found good."""
    file = file_of(log, segment)
    card = card_of(log, segment)
    _load_following_cards(log, segment)
    start = card.position_before(offset)
    # The first batch may be larger than asked for and is sent whole; its length is in its header.
    good: list[int] = []
    read_whole = segment.sealed  # to be checked; it may be sealed while this runs
    try:
        head = segment.walk_bytes(card, start)
        if not file.resident(max(1, min(max(max_bytes, head), segment.size - start)), start):
            segment.distrust(start)  # before anything is read, and more than that comes to memory
        good += segment.check_blocks(file, start, max(head, 1))
        exact = segment.find(file, offset)
        needed = max(max_bytes, segment.batch_size_at(file, exact)) if exact < segment.size else 1
        span = min(exact + needed, segment.size) - start
        good += segment.check_blocks(file, start, max(span, 1), good)
        position = start
        while not read_whole and position < start + span:
            position += len(file.read_at(min(1 << 20, start + span - position), position)) or span
    except PenstockError as error:
        if error.code is Code.CORRUPT_LOG:
            log.shelf.stats.corrupt_blocks += 1
            log.damage = error
        raise
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        log.shelf.stats.corrupt_blocks += 1
        log.damage = segment.damaged(start, "cannot be read")
        raise log.damage from error
    return card, file, good


def file_of(log: Log, segment: Segment) -> File:
    """The open file of a segment."""
    files = log.shelf.files
    file = segment.file or files.peek(segment.path) or files.open(segment.path)
    return segment.file or file


def card_of(log: Log, segment: Segment) -> Card:
    """The card of a segment, kept with it from now on."""
    if segment.card is None:
        card = _load_card(log, segment)
        if segment.card is None:
            segment.card = card
    return segment.card


def _load_card(log: Log, segment: Segment) -> Card:
    """The saved card of a sealed segment; made again from the batches if it is damaged and they are not."""
    try:
        return segment.load_card(log.shelf.disk)
    except (DamagedFile, FileNotFoundError):
        log.shelf.stats.corrupt_blocks += 1
        file = file_of(log, segment)
        card = Card(segment.base, _open_before(log, segment))

        def found(header: Header, batch: memoryview) -> None:
            card.take(header, batch, log.options.index_interval_bytes)

        gaps_to = log.state.gaps_to
        result = scan(file, segment.size, 0, segment.base, log.state.epochs, found, gaps_to)
        if result.problem or (result.next_offset != segment.next_offset and segment.next_offset > gaps_to):
            problem = result.problem or "a batch is missing"
            log.damage = segment.damaged(result.position, f"lost its card, and {problem}")
            raise log.damage from None
        card.next_offset = segment.next_offset
        return card  # in memory only: several readers may be here at once


def _load_following_cards(log: Log, segment: Segment) -> None:
    """The cards a reader needs to know which of this segment's transactions were aborted later."""
    segments = list(log.segments)
    try:
        at = segments.index(segment)
    except ValueError:
        return  # retention or compaction was quicker
    while segments[at].first_open >= 0 and at + 1 < len(segments):
        at += 1
        if segments[at].aborted_count:
            card_of(log, segments[at])


def _open_before(log: Log, segment: Segment) -> dict[int, int]:
    """The transactions open where a sealed segment begins."""
    segments = list(log.segments)
    at = segments.index(segment) if segment in segments else 0
    if at == 0 or segments[at - 1].first_open < 0:
        return {}
    return card_of(log, segments[at - 1]).transactions.open
