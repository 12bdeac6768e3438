"""What the steps of one turn of the event loop have come to, until it is appended as one batch."""

from collections.abc import Sequence

from penstock.engine.coordination.outcome import Reply

Kept = tuple[bytes, bytes | None]
"""Key and value of a record."""


class Turn:
    __slots__ = ("records", "replies", "size_bytes")

    def __init__(self) -> None:
        self.records: list[Kept] = []
        self.replies: list[Reply] = []
        self.size_bytes = 0

    def add(self, records: Sequence[Kept], replies: Sequence[Reply]) -> None:
        self.records += records
        self.replies += replies
        for key, value in records:
            self.size_bytes += len(key) + (len(value) if value is not None else 0)
