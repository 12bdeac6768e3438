"""How much one answer may hold: a request of a few bytes can ask for everything, and again, and again."""

from penstock.errors import Code, PenstockError

LARGEST_ANSWER_BYTES = 64 << 20
"""As much as the largest group has; it is in memory two or three times until it is sent."""


class AnswerRoom:
    """What is left for the rest of an answer."""

    __slots__ = ("_left_bytes",)

    def __init__(self) -> None:
        self._left_bytes = LARGEST_ANSWER_BYTES

    def take(self, what: str, size_bytes: int) -> None:
        """Raises PenstockError LIMIT_EXCEEDED for what does not fit any more; something smaller still may."""
        if size_bytes > self._left_bytes:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"{what} takes {size_bytes} bytes, and this answer has room for {self._left_bytes} more",
                help="ask for less at once",
            )
        self._left_bytes -= size_bytes
