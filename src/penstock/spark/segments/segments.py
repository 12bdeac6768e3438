"""Reads records straight from the files of a broker's data directory, so that a backfill costs the broker nothing.

Only what never changes any more is read: segments that are sealed, and of them what their cards decide. What is being
written, and transactions whose end is not in a sealed segment, are the broker's to tell. A piece is planned by offsets,
not by files: compaction may have replaced those when a task comes to read them, and what it then finds is what the
broker would send it.

Nothing is written, and no lock is held. All functions block.
"""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from penstock.ports.disk import Disk
from penstock.spark.arrow.decode import Place
from penstock.spark.errors import DataLossError, SourceError
from penstock.spark.segments.batches import DamagedSegment, SegmentBatches, Window
from penstock.spark.segments.chain import Changed, Link, Names, Opening, OpenSegment, load_card, steadily
from penstock.spark.segments.directory import (
    StoredTopic,
    clean_ends,
    directory_of,
    open_disk,
    readable,
    stopped_topics,
)
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.decided import AbortedTransactions
from penstock.storage.log.state import load_state

__all__ = ["DamagedSegment", "Piece", "SegmentsGone", "StoredTopic", "plan", "read", "stopped_range", "stopped_topics"]

PIECE_BYTES = 256 << 20
"""What one task is given to read, about."""
_MOST_SEGMENTS = 64  # of a piece; each has a descriptor while it is read
_NO_END = 1 << 63
_MOST_CARDS = 512  # looked at for the ends of transactions


class SegmentsGone(DataLossError):
    """A piece is not in sealed segments any more. Nothing of it was given out: the broker can be asked for all."""


class Piece(NamedTuple):
    """Offsets `first` to `end`, the latter not included, that sealed segments hold; any part of one is one, too."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    first: int
    end: int
    size_bytes: int
    """On disk, about."""
    stopped: bool = False
    """Planned while no broker was running: what was being written is read as far as a checkpoint covers it."""


def plan(
    path: str,
    topic: str,
    topic_id: uuid.UUID,
    partition: int,
    start: int,
    end: int,
    *,
    read_committed: bool = True,
    stopped: bool = False,
) -> tuple[list[Piece], int]:
    """The pieces of `[start, end)` that can be read from files, in order, and the offset where the broker must go on.

    Args:
        end: not above what readers may see: the last stable offset, or the end for uncommitted reads.
        stopped: there is no broker; see `stopped_range`.

    Raises:
        OptionError: there is no data directory at `path`.
        SourceError: it is another broker's, a later release's, or cannot be read.
    """
    disk = open_disk(path)
    with readable():
        directory, owner = directory_of(disk, path, topic, partition)
        if owner != topic_id:
            raise SourceError(
                f"{directory} holds the records of topic id {owner}, the broker's topic {topic!r} has id {topic_id}; "
                "name that broker's data directory in 'path', or leave it out"
            )
        if start >= end or start < _log_start(disk, directory):
            return [], start  # the broker says what is wrong with an offset below the log's start
        try:
            chain = steadily(lambda: _chain(disk, directory, start, end, stopped=stopped))
        except Changed:
            return [], start
    readable_end = _readable_end(chain, end, read_committed=read_committed)
    if readable_end <= start:
        return [], start
    spans = [_span(link, start, readable_end) for link in chain]
    pieces = [
        Piece(topic, topic_id, partition, first, last, size, stopped)
        for first, last, size in _cut(_joined([each for each in spans if each.first < each.end]))
    ]
    return pieces, readable_end


def read(path: str, piece: Piece, *, read_committed: bool) -> Iterator[tuple[memoryview, list[Place]]]:
    """Bytes and the batches in them with records for readers, some MB at a time, each good until the next is asked for.

    All files are opened before this returns; what happens to their names later does not matter. A batch may reach
    beyond the piece's offsets at both ends.

    Raises:
        SegmentsGone: at once, when the offsets are not in sealed segments any more.
        DataLossError: at once, when the topic is another one now.
        DamagedSegment: while reading, naming file and position.
        SourceError: as `plan`.
    """
    disk = open_disk(path)
    with readable():
        directory, owner = directory_of(disk, path, piece.topic, piece.partition)
        if owner != piece.topic_id:
            raise DataLossError(
                f"topic {piece.topic!r} was deleted and made anew while offsets {piece.first} to {piece.end} of its "
                f"partition {piece.partition} were to be read: {directory} has topic id {owner}, not {piece.topic_id}"
            )
        try:
            opened, aborted = steadily(lambda: _open(disk, directory, piece, read_committed=read_committed))
        except Changed as error:
            raise _gone(piece, f"{error} again and again") from None
    return _stretches(opened, piece, aborted)


def stopped_range(
    path: str, topic: str, topic_id: uuid.UUID, partition: int, *, read_committed: bool
) -> tuple[int, int]:
    """From which offset to which a partition can be read without its broker; see `stopped_topics` for when that may be.

    After a clean stop that is everything, after a crash everything up to the last checkpoint.

    Raises:
        SourceError: less is there than was at a clean stop; or as `plan`.
    """
    disk = open_disk(path)
    with readable():
        directory, owner = directory_of(disk, path, topic, partition)
        if owner != topic_id:
            raise SourceError(f"{directory} holds the records of topic id {owner}, not of {topic_id}; plan again")
        start = _log_start(disk, directory)
        start = max(start, Names(disk, directory, stopped=True).first_base)
        try:
            chain = steadily(lambda: _chain(disk, directory, start, _NO_END, stopped=True))
        except Changed as error:
            raise SourceError(f"{error}. Start the broker and read from it, or run 'penstock log verify'") from None
        end = chain[-1].summary.next_offset if chain else start
        expected = (clean_ends(disk, path) or {}).get(f"{topic}-{partition}", 0)
    if end < expected:
        raise SourceError(
            f"{directory} can be read up to offset {end} only, but the broker was stopped at {expected}: start it and "
            "read from it, or look at the directory with 'penstock log verify'"
        )
    return start, max(start, _readable_end(chain, end, read_committed=read_committed))


def _log_start(disk: Disk, directory: str) -> int:
    try:
        state = load_state(disk, directory)
    except DamagedFile:
        return 0  # as recovery has it: then the log begins with its first segment
    return state.log_start if state is not None else 0


def _chain(disk: Disk, directory: str, start: int, end: int, *, stopped: bool) -> list[Link]:
    """Segments from the one with `start` on, to the one behind which nothing below `end` is undecided, or the last."""
    found: list[Link] = []
    for link in Names(disk, directory, stopped=stopped).chain(start):
        if not found and not link.summary.base <= start < link.summary.next_offset:
            return []  # `start` is in a hole, or behind all that is sealed
        found.append(link)
        if _is_decided(link, end):
            break
    return found


def _is_decided(link: Link, end: int) -> bool:
    """Whether no card behind this one can say anything about offsets below `end`."""
    summary = link.summary
    return summary.next_offset >= end and not 0 <= summary.first_open < end


def _readable_end(chain: list[Link], end: int, *, read_committed: bool) -> int:
    if not chain:
        return -1
    last = chain[-1].summary
    undecided = last.first_open if read_committed and last.first_open >= 0 else end
    readable_end: int = min(end, undecided, last.next_offset)
    return readable_end


class _Span(NamedTuple):
    """Offsets and the bytes they take, about."""

    first: int
    end: int
    size: int


def _span(link: Link, start: int, end: int) -> _Span:
    """The part of a segment that lies in `[start, end)`."""
    summary = link.summary
    first, last = max(summary.base, start), min(summary.next_offset, end)
    size = summary.size * max(last - first, 0) // max(summary.next_offset - summary.base, 1)
    return _Span(first, last, max(size, 1) if summary.size else 0)  # 0 means that there is nothing to be read


def _joined(spans: list[_Span]) -> list[_Span]:
    """Neighbours put together as long as they are no more than a piece."""
    joined: list[_Span] = []
    count = 0
    for span in spans:
        if joined and count < _MOST_SEGMENTS and joined[-1].size + span.size <= PIECE_BYTES:
            before = joined.pop()
            span = _Span(before.first, span.end, before.size + span.size)
            count += 1
        else:
            count = 1
        joined.append(span)
    return joined


def _cut(spans: list[_Span]) -> Iterator[_Span]:
    for span in spans:
        offsets = span.end - span.first
        count = min(-(-span.size // PIECE_BYTES), offsets)
        bounds = [span.first + offsets * at // count for at in range(count + 1)] if count else []
        for first, end in pairwise(bounds):
            yield _Span(first, end, span.size // count)


def _open(
    disk: Disk, directory: str, piece: Piece, *, read_committed: bool
) -> tuple[list[OpenSegment], AbortedTransactions | None]:
    """The segments of a piece, and what to leave out of them. Raises `Changed`, `SegmentsGone`."""
    opening = Opening(disk, directory, stopped=piece.stopped)
    opened: list[OpenSegment] = []
    rows: list[tuple[int, int, int]] = []
    reached, decided = piece.first, False
    with suppress(DamagedFile):  # the broker can make a card again
        for link in opening.chain(piece.first):
            if link.summary.base <= reached < min(link.summary.next_offset, piece.end):
                opened.append(opening.segment(link))
                reached = link.summary.next_offset
            if read_committed and link.summary.aborted:
                aborted = load_card(link).transactions.overlapping(piece.first, piece.end)
                rows += [(row.producer_id, row.first_offset, row.last_offset) for row in aborted]
            decided = _is_decided(link, piece.end)
            if decided or (reached >= piece.end and not read_committed) or len(opening.links) >= _MOST_CARDS:
                break
    opening.check()
    if reached < piece.end or (read_committed and not decided):
        raise _gone(piece, f"retention removed files from {directory}, or the broker was started again")
    return opened, AbortedTransactions(rows) if read_committed else None


def _gone(piece: Piece, why: str) -> SegmentsGone:
    return SegmentsGone(
        f"offsets {piece.first} to {piece.end} of partition {piece.partition} of topic {piece.topic!r} are not all in "
        f"sealed segments any more: {why}. Read them from the broker"
    )


def _stretches(
    opened: list[OpenSegment], piece: Piece, aborted: AbortedTransactions | None
) -> Iterator[tuple[memoryview, list[Place]]]:
    window = Window()
    with readable():
        for segment in opened:
            yield from SegmentBatches(segment, piece.first, piece.end, aborted).stretches(window)
            segment.file.close()
