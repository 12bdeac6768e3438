"""Walk the batches of a segment and check each one: length, CRC, contiguous offsets, the epoch the log was in.

Where a log has been compacted, offsets only rise: batches are missing, and one may have lost all its records.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.ports.disk import File
from penstock.records.batch import HEADER_BYTES, Header, crc_matches, decode_header
from penstock.storage.log.epochs import LeaderEpochs

_WINDOW_BYTES = 1 << 20


@dataclass(slots=True)
class Scan:
    """How far a walk came: everything below `position` is good; `problem` says why it stopped, None at the end."""

    position: int
    next_offset: int
    problem: str | None = None


def scan(
    file: File,
    size: int,
    position: int,
    next_offset: int,
    epochs: LeaderEpochs | None,
    found: Callable[[Header, memoryview], None],
    gaps_to: int = 0,
) -> Scan:
    """Check every batch from `position`, calling `found(header, batch)` for each good one. Blocking.

    Args:
        next_offset: the offset the first batch must have.
        epochs: the epochs on record, or None when they are to be rebuilt and only must not fall.
        gaps_to: below this offset the log may have been compacted.
    """
    window, window_at = memoryview(b""), position
    last_epoch = -1
    while position < size:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = memoryview(file.read_at(_WINDOW_BYTES, position)), position, 0
            if len(window) < HEADER_BYTES:
                return Scan(position, next_offset, "the file ends inside a batch header")
        header = decode_header(window, at)
        problem = _problem(header, size - position, next_offset, epochs, last_epoch, gaps_to)
        if problem:
            return Scan(position, next_offset, problem)
        if at + header.size > len(window):
            window = memoryview(file.read_at(max(_WINDOW_BYTES, header.size), position))
            window_at, at = position, 0
        batch = window[at : at + header.size]
        if not crc_matches(batch, header):
            return Scan(position, next_offset, "a batch does not match its CRC-32C")
        found(header, batch)
        last_epoch = header.leader_epoch
        next_offset = header.last_offset + 1
        position += header.size
    return Scan(position, next_offset)


def _problem(
    header: Header, room: int, next_offset: int, epochs: LeaderEpochs | None, last_epoch: int, gaps_to: int
) -> str | None:
    if header.magic != 2 or header.size < HEADER_BYTES:
        return "no batch starts here"
    if header.size > room:
        return "the file ends inside a batch"
    compacted = next_offset <= header.base_offset and header.last_offset < gaps_to
    if header.base_offset != next_offset and not compacted:
        return f"a batch has offset {header.base_offset}, expected {next_offset}"
    if header.record_count < (0 if compacted else 1) or header.last_offset_delta < header.record_count - 1:
        return "a batch's record count does not fit its offsets"
    expected = -1 if epochs is None else epochs.at(header.base_offset)
    if expected < 0:  # to be rebuilt, or below the log start, where epochs are forgotten
        return "a leader epoch falls" if header.leader_epoch < last_epoch else None
    if header.leader_epoch != expected:
        return f"a batch has leader epoch {header.leader_epoch}, expected {expected}"
    return None


def headers(file: File, size: int, position: int) -> Iterator[tuple[Header, int]]:
    """Headers only, from bytes already known to be good. Blocking; reads little of large batches."""
    window, window_at = b"", position
    while position + HEADER_BYTES <= size:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = file.read_at(8192, position), position, 0
        header = decode_header(window, at)
        if header.size < HEADER_BYTES:
            return
        yield header, position
        position += header.size
