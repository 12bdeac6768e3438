"""Bytes under numpy: single ones, and words that start at any of them."""

import numpy as np
from numpy.typing import NDArray

from penstock.records.record import RecordError

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

_WORD_BYTES = 8


class Data:
    """Views of some bytes. Positions are never negative; one beyond the end is an error."""

    __slots__ = ("_words", "bytes", "pairs", "view")

    def __init__(self, view: memoryview):
        if len(view) < _WORD_BYTES:
            view = memoryview(bytes(view).ljust(_WORD_BYTES, b"\x00"))
        size = len(view)
        self.view = view
        self.bytes: NDArray[np.uint8] = np.frombuffer(view, np.uint8)
        self.pairs: NDArray[np.uint16] = np.ndarray((size - 1,), "<u2", view, strides=(1,))
        self._words: Words = np.ndarray((size - _WORD_BYTES + 1,), "<u8", view, strides=(1,))

    def small(self, at: Integers) -> NDArray[np.uint8] | None:
        """The bytes at these positions, or None if one is 0x80 or more; such a first one ends the search.

        Raises:
            RecordError: a position is beyond the end.
        """
        try:
            if self.view[at[0]] > 0x7F:
                return None
            found = self.bytes[at]
        except IndexError:
            raise _beyond() from None
        return found if found.max() < 0x80 else None

    def words(self, at: Integers) -> Words:
        """The eight bytes from each position on, the first one lowest; zeros stand for those after the end.

        Raises:
            RecordError: a position is beyond the end.
        """
        try:
            return self._words[at]
        except IndexError:
            if at.max() >= self.bytes.size:
                raise _beyond() from None
        inside = np.minimum(at, self._words.size - 1)
        return self._words[inside] >> ((at - inside) << 3).astype(np.uint64)


def _beyond() -> RecordError:
    return RecordError("a record's fields reach beyond the data")
