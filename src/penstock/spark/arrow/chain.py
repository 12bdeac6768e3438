"""Where each record of a section starts: the only part of decoding that has to go from one record to the next.

Many sections are walked in step, one record of each at a time, by numpy. What is left when too few are on the way is
walked record by record, but for runs of records of one size, whose lengths are compared all at once.

Nothing is proved here: a walk over bytes that are no records leads somewhere in the data, or out of it, which is an
error. That every start is the end of the record before is for `fields.decode_fields` to check.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.records import varint
from penstock.records.record import RecordError
from penstock.spark.arrow.data import Data, Integers

_LANES = 64
"""Below this many sections, walking one after the other is faster than all in step."""
_BLOCK, _LARGEST_BLOCK = 16, 4096
"""Records walked before the next look for a run; more after each look in vain."""
_STRIDES = 4
"""Records of one size in a row that promise a run."""
_PROBE = 256
"""Records of a run compared at first; four times as many after each success."""

# The size of a record with its length field, by a length of one byte; and, but for the second byte's share, by the
# first byte of a length of two.
_SHORT = [1 + (byte >> 1) for byte in range(0x80)]
_LONG = [2 + ((byte & 0x7F) >> 1) for byte in range(0x100)]


def _step_table() -> NDArray[np.int64]:
    """The size of a record by its first two bytes as a little-endian word; 0 if its length has more bytes than two."""
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    return np.where(low < 0x80, 1 + (low >> 1), np.where(high < 0x80, 2 + ((low & 0x7F) >> 1) + (high << 6), 0))


_STEPS = _step_table()


def record_starts(data: Data, starts: Integers, ends: Integers, counts: Integers) -> Integers:
    """Where the records of all sections start, if their bytes are records.

    Args:
        data: where the sections lie.
        starts: the sections' starts.
        ends: the sections' ends.
        counts: how many records each section says to have: at most as many as fit into it.

    Raises:
        RecordError: a record leads outside the data, or a length is none.
    """
    found = np.empty(int(counts.sum()), np.int64)
    rows = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    try:
        positions, done = _walk_in_step(data, starts[order], rows[order], counts[order], found)
        left = order[: positions.size]
        for section, position in zip(left.tolist(), positions.tolist(), strict=True):
            row = int(rows[section])
            part = found[row + done : row + int(counts[section])]
            _walk(data, position, int(ends[section]), part)
    except IndexError as error:
        raise RecordError("a record leads outside the data") from error
    return found


def _walk_in_step(
    data: Data, positions: Integers, rows: Integers, counts: Integers, found: Integers
) -> tuple[Integers, int]:
    """Walk sections, those with the most records first, until too few are on the way.

    Returns:
        Where in each section left the walk has come to, and after how many of its records.
    """
    positions = positions.copy()
    lanes = np.searchsorted(
        -counts, -np.arange(int(counts[_LANES - 1]) if counts.size >= _LANES else 0), "left"
    ).tolist()
    done = 0
    for done, count in enumerate(lanes, 1):
        at = positions[:count]
        found[rows[:count] + (done - 1)] = at
        steps = _STEPS[data.pairs[at]]
        if not steps.all():
            for lane in np.flatnonzero(steps == 0).tolist():
                steps[lane] = _step(data, int(at[lane]))
        at += steps
    left = int(np.searchsorted(-counts, -done, "left"))
    return positions[:left], done


def _walk(data: Data, position: int, end: int, found: Integers) -> None:
    done, count, block = 0, found.size, _BLOCK
    while done < count:
        starts = np.fromiter(_positions(data, position), np.int64, min(block, count - done) + 1)
        position = int(starts[-1])
        found[done : done + starts.size - 1] = starts[:-1]
        done += starts.size - 1
        run = 0
        stride = position - int(starts[-2])
        if done < count and starts.size > _STRIDES and (np.diff(starts[-_STRIDES - 1 :]) == stride).all():
            run = _run(data, position - stride, stride, min(count - done, (end - position) // stride))
            found[done : done + run] = np.arange(position, position + run * stride, stride)
            done += run
            position += run * stride
        block = _BLOCK if run >= _PROBE else min(2 * block, _LARGEST_BLOCK)


def _positions(data: Data, position: int) -> Iterator[int]:
    """The starts of records from this one on, without end."""
    view = data.view
    while True:
        yield position
        low = view[position]
        if low < 0x80:
            position += _SHORT[low]
            continue
        high = view[position + 1]
        position += (high << 6) + _LONG[low] if high < 0x80 else _step(data, position)


def _run(data: Data, start: int, stride: int, most: int) -> int:
    """How many records after the one at `start` have the same length field, and so the same size."""
    width = 1
    while data.view[start + width - 1] > 0x7F:
        width += 1
    length = data.bytes[start : start + width]
    done, probe = 0, _PROBE
    while done < most:
        count = min(probe, most - done)
        same = np.ones(count, np.bool_)
        for at in range(width):
            first = start + (done + 1) * stride + at
            same &= data.bytes[first : first + (count - 1) * stride + 1 : stride] == length[at]
        if not same.all():
            return done + int(same.argmin())
        done += count
        probe *= 4
    return done


def _step(data: Data, position: int) -> int:
    """The size of the record at `position`, which may have any length."""
    try:
        size, width = varint.decode_varint(bytes(data.view[position : position + varint.MAX_VARINT_BYTES]), 0)
    except ValueError as error:
        raise RecordError(f"record length: {error}") from error
    if size < 0:
        raise RecordError(f"record of {size} bytes")
    return width + size
