"""Which bytes and which offsets a share consumer is sent for what was leased to it.

Offsets are leased, batches are sent. Between and among the batches there are offsets that nobody can have: holes where
batches were compacted away, markers of transactions, and what was aborted. The consumer never hears of these: the
broker says itself that there is nothing. What is missing inside a batch the consumer finds out, and says so.

Only the headers of batches are read here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.engine.reading import AbortedTransaction, Slice
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.share_codec import Acquired
from penstock.records.batch import HEADER_BYTES, Header, decode_header

_WINDOW_BYTES: Final = 4096
_MOST_BATCHES: Final = 5000
"""In one stretch: 10 ms."""
_SENT_ALONG_BYTES: Final = 64 * 1024
"""Between two batches that are sent; one piece of a file is cheaper than two, and clients pass over the rest."""


class Batch(NamedTuple):
    first: int
    last: int
    place: Slice
    """Its bytes."""
    is_given: bool
    """Whether a consumer may have what is in it."""


class Stretch(NamedTuple):
    """All batches that hold offsets from `start` on, below `end`."""

    start: int
    end: int
    batches: Sequence[Batch]

    @property
    def size(self) -> int:
        return sum(batch.place.size for batch in self.batches)

    @property
    def has_any(self) -> bool:
        """Whether there is anything that a consumer may have."""
        return any(batch.is_given for batch in self.batches)


class Range(NamedTuple):
    """Offsets that were leased, all of them as often."""

    first: int
    last: int
    deliveries: int


class Part(NamedTuple):
    """What was leased of one batch."""

    first: int
    last: int
    deliveries: int
    batch: Batch


class Sorted(NamedTuple):
    """What leased offsets turned out to be."""

    parts: list[Part]
    nothing: list[tuple[int, int]]
    """First and last offsets of where there is nothing that a consumer could have."""
    unread: list[tuple[int, int]]
    """The same of where nobody has looked."""


class Layout(NamedTuple):
    slices: Sequence[Slice]
    acquired: Sequence[Acquired]


def find_stretch(
    data: Slice, aborted: Sequence[AbortedTransaction], start: int, last: int, max_bytes: int, name: str
) -> Stretch:
    """The batches of a slice that was read at `start`, up to the one that holds `last`, as far as they fit.

    Args:
        aborted: transactions whose records are given to nobody.
        name: of the partition, for the error.

    Raises:
        PenstockError: CORRUPT_LOG.
    """
    batches: list[Batch] = []
    end = start
    position, stop = data.position, data.position + data.size
    window, at = b"", 0
    while position < stop and len(batches) < _MOST_BATCHES and end <= last:
        if at + HEADER_BYTES > len(window):
            window, at = data.file.read_at(min(_WINDOW_BYTES, stop - position), position), 0
        header = _header(window, at, end if batches else 0, name)
        if position + header.size - data.position > max_bytes:
            end = max(end, header.base_offset)
            break
        is_given = not header.is_control and not _is_aborted(header, aborted)
        place = Slice(data.file, position, header.size, data.base)
        batches.append(Batch(header.base_offset, header.last_offset, place, is_given))
        position += header.size
        at += header.size
        end = header.last_offset + 1
    return Stretch(start, end, batches)


def sort_out(ranges: Iterable[Range], stretches: Sequence[Stretch]) -> Sorted:
    """What ranges of offsets in rising order are, as far as the stretches, in rising order, tell."""
    found = Sorted([], [], [])
    at = 0
    for first, last, deliveries in ranges:
        while first <= last:
            while at < len(stretches) and stretches[at].end <= first:
                at += 1
            if at == len(stretches) or stretches[at].start > last:
                _add(found.unread, first, last)
                break
            stretch = stretches[at]
            if stretch.start > first:
                _add(found.unread, first, stretch.start - 1)
                first = stretch.start
            until = min(last, stretch.end - 1)
            _sort_out_within(found, Range(first, until, deliveries), stretch.batches)
            first = until + 1
    return found


def without(parts: Iterable[Part], gone: Sequence[tuple[int, int]]) -> list[Part]:
    """Parts less some offsets, both in rising order."""
    left: list[Part] = []
    for part in parts:
        at = part.first
        for first, last in gone:
            if last < at or first > part.last:
                continue
            if first > at:
                left.append(part._replace(first=at, last=first - 1))
            at = last + 1
        if at <= part.last:
            left.append(part._replace(first=at))
    return left


def lay_out(parts: Iterable[Part], batch_size: int | None) -> Layout:
    """What to send for parts of batches in any order.

    Args:
        batch_size: end what is acquired together at the end of a batch when it has so many offsets; None: never.
    """
    acquired: list[Acquired] = []
    slices: list[Slice] = []
    sent: Batch | None = None
    for part in sorted(parts, key=_first_of):
        _acquire(acquired, part, batch_size)
        if part.batch is not sent:
            sent = part.batch
            _send(slices, sent.place)
    return Layout(slices, acquired)


def _header(window: bytes, at: int, least: int, name: str) -> Header:
    if at + HEADER_BYTES <= len(window):
        header = decode_header(window, at)
        if header.size >= HEADER_BYTES and header.base_offset >= least and header.last_offset >= header.base_offset:
            return header
    raise PenstockError(
        Code.CORRUPT_LOG,
        f"{name} has no batch where one should be, behind offset {least}",
        help="restore the file from a replica or backup; nothing was deleted",
    )


def _is_aborted(header: Header, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def _sort_out_within(found: Sorted, range_: Range, batches: Sequence[Batch]) -> None:
    """The same for a range that lies in one stretch."""
    first, last, deliveries = range_
    for batch in _from(batches, first):
        if batch.first > last:
            break
        if first < batch.first:
            _add(found.nothing, first, batch.first - 1)
            first = batch.first
        until = min(last, batch.last)
        if batch.is_given:
            found.parts.append(Part(first, until, deliveries, batch))
        else:
            _add(found.nothing, first, until)
        first = until + 1
        if first > last:
            return
    _add(found.nothing, first, last)


def _from(batches: Sequence[Batch], offset: int) -> Iterator[Batch]:
    """The batches from the one that holds an offset on."""
    low, high = 0, len(batches)
    while low < high:
        middle = (low + high) // 2
        if batches[middle].last < offset:
            low = middle + 1
        else:
            high = middle
    return (batches[at] for at in range(low, len(batches)))


def _add(found: list[tuple[int, int]], first: int, last: int) -> None:
    if found and found[-1][1] + 1 == first:
        found[-1] = found[-1][0], last
    else:
        found.append((first, last))


def _acquire(acquired: list[Acquired], part: Part, batch_size: int | None) -> None:
    """Add neighbours to those before, unless these are enough and a batch begins, or were given as often."""
    if acquired:
        first, last, deliveries = acquired[-1]
        is_enough = batch_size is not None and part.first == part.batch.first and part.first - first >= batch_size
        if last + 1 == part.first and deliveries == part.deliveries and not is_enough:
            acquired[-1] = Acquired(first, part.last, deliveries)
            return
    acquired.append(Acquired(part.first, part.last, part.deliveries))


def _send(slices: list[Slice], place: Slice) -> None:
    """Add a batch to what is sent before it, if it is near."""
    if slices:
        before = slices[-1]
        gap = place.position - before.position - before.size
        if before.file is place.file and 0 <= gap <= _SENT_ALONG_BYTES:
            slices[-1] = before._replace(size=before.size + gap + place.size)
            return
    slices.append(place)


def _first_of(part: Part) -> int:
    return part.first
