"""A partition of messages in memory, as far as queues ask one: what they read of it, and how much it holds.

`reading()` has what is received read such a partition.
"""

from contextlib import AbstractContextManager
from unittest.mock import patch

from penstock.engine.queues.receiving import size_of
from penstock.engine.reading import Message
from penstock.records.record import Headers


class MessageLog:
    """The partition that is led, and its log. Offsets may have no message."""

    leader_epoch = 0

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.name = f"{topic}-0"
        self.messages: dict[int, Message] = {}
        self.log_start = self.end_offset = 0

    def append(self, timestamp: int, headers: Headers = (), value: bytes = b"", key: bytes | None = None) -> int:
        """Its offset."""
        offset = self.end_offset
        self.messages[offset] = Message(offset, timestamp, key, value, headers)
        self.end_offset += 1
        return offset

    def cut(self, end: int) -> None:
        """Another leader has no more than that."""
        self.end_offset = end
        for offset in [offset for offset in self.messages if offset >= end]:
            del self.messages[offset]

    def leading(self) -> "MessageLog":
        return self

    def size_from(self, offset: int) -> int:
        return sum(size_of(message) for message in self.messages.values() if message.offset >= offset)


class LogCursor:
    """What `reading.Cursor` is to a partition."""

    def __init__(self, partition: MessageLog, offset: int) -> None:
        self._partition = partition
        self.offset = offset

    async def records(self, max_bytes: int, wait_s: float, most: int) -> list[Message]:
        """Up to some bytes, but at least one."""
        log, found = self._partition, list[Message]()
        while max_bytes > 0 and len(found) < most and self.offset < log.end_offset:
            if (message := log.messages.get(self.offset)) is not None:
                found.append(message)
                max_bytes -= size_of(message)
            self.offset += 1
        return found


def reading() -> AbstractContextManager[object]:
    return patch("penstock.engine.queues.receiving.Cursor", LogCursor)
