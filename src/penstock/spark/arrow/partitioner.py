"""Which partition each row goes to: `records.partitioning`'s murmur2, which Kafka's own producers use, of many keys."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.partitioning import MURMUR2_FACTOR, MURMUR2_SEED, WITHOUT_SIGN, mix_murmur2

_M = np.uint32(MURMUR2_FACTOR)
_FEW = 16
"""Below this many rows, a Python loop over a key's words is faster than numpy's."""

Hashes = NDArray[np.uint32]


def choose_partitions(
    keys: pa.Array | None, chosen: pa.Array | None, partitions: int, sticky: int
) -> NDArray[np.int32]:
    """The partition of each row: the one it names, else its key's, else `sticky`.

    Args:
        keys: `binary`, or None if no row has a key.
        chosen: `int32`, or None if no row names a partition; its length or that of `keys` is the number of rows.
        partitions: how many the topic has.
        sticky: where rows with neither go.

    Raises:
        ValueError: a row names a partition that the topic has not, or both columns are None.
    """
    rows = keys if chosen is None else chosen
    if rows is None:
        raise ValueError("neither keys nor partitions: how many rows there are is not said")
    count = len(rows)
    result = np.full(count, sticky, np.int32)
    if keys is not None and keys.null_count < count:
        hashed = (murmur2(keys) & WITHOUT_SIGN) % np.int32(partitions)
        result = np.where(_present(keys), hashed, result)
    if chosen is not None and chosen.null_count < count:
        named = np.asarray(chosen.fill_null(0))
        wrong = (named < 0) | (named >= partitions)
        if wrong.any():
            raise ValueError(f"partition {named[wrong][0]} is asked for; the topic has 0 to {partitions - 1}")
        result = np.where(_present(chosen), named.astype(np.int32), result)
    return result


def murmur2(keys: pa.Array) -> NDArray[np.int32]:
    """Kafka's hash of each key, as Java's signed integer; 0 for null."""
    bounds, data = _bytes(keys)
    starts, sizes = bounds[:-1], np.diff(bounds)
    hashes = sizes.astype(np.uint32) ^ np.uint32(MURMUR2_SEED)
    words = np.ndarray((max(data.size - 3, 0),), "<u4", data, strides=(1,))
    rows = np.flatnonzero(sizes >= 4)
    done = 0
    while rows.size >= _FEW:
        hashes[rows] = _mix(hashes[rows], words[starts[rows] + done])
        done += 4
        rows = rows[sizes[rows] >= done + 4]
    for row in rows.tolist():
        rest = words[starts[row] + done : starts[row] + sizes[row] - 3 : 4]
        hashes[row] = mix_murmur2(int(hashes[row]), rest.tolist())
    _mix_tails(hashes, data, starts, sizes)
    hashes ^= hashes >> 13
    hashes *= _M
    hashes ^= hashes >> 15
    result = hashes.view(np.int32)
    return np.where(_present(keys), result, 0) if keys.null_count else result


def _present(array: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(array.is_valid())


def _bytes(keys: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    if keys.type != pa.binary():
        raise TypeError(f"keys of type {keys.type}, not binary")
    _, bounds, data = keys.buffers()
    if bounds is None or not len(keys):
        return np.zeros(len(keys) + 1, np.int64), np.zeros(0, np.uint8)
    rows = np.frombuffer(bounds, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    return rows.astype(np.int64), np.frombuffer(data or b"", np.uint8)


def _mix(hashes: Hashes, words: Hashes) -> Hashes:
    words = words * _M
    words ^= words >> 24
    words *= _M
    return hashes * _M ^ words


def _mix_tails(hashes: Hashes, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    """The one to three bytes after the last whole word, the last of them first."""
    left = sizes & 3
    tails = starts + (sizes - left)
    for at in (2, 1, 0):
        rows = np.flatnonzero(left > at)
        hashes[rows] ^= data[tails[rows] + at].astype(np.uint32) << np.uint32(8 * at)
    rows = np.flatnonzero(left)
    hashes[rows] *= _M
