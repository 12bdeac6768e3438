"""Read: what a reader gets of a partition next, or a wait until there is something, whichever broker leads it.

The one way out for records, whatever door they leave by. Doors that send file ranges of many partitions `look` and
`warm` themselves. A `Cursor` does it all for who reads one partition on and on, as slices of whole batches or, with
`Cursor.records`, as records one by one: control batches and what was aborted are left out there.

What another broker leads comes from there (`elsewhere`). Nothing but its offset is a cursor's place, and what it gets
lies below a high watermark, so it may go on with any later leader: what was below one stays where it is.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.engine.access import ANONYMOUS, Subject
from penstock.engine.elsewhere import Ends, ReceivedBatches, Search, ends_of
from penstock.engine.looking import COLD, READY_BYTES, Found, Slice, look, look_until, until_moved, warm
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.records.batch import LARGEST_OPENED_BYTES, decode_header
from penstock.records.compression import CompressionError
from penstock.records.record import Headers, RecordError, iterate_batch
from penstock.storage.log.transactions import AbortedTransaction

PATIENCE_S: Final = 30.0
"""How long a partition may be without a leader that answers, unless a reader says otherwise."""
_DECODED_AT_ONCE: Final = 64 * 1024
"""Bytes of batches that are not compressed and are decoded on the event loop; all else is decoded in a thread."""

__all__ = [
    "COLD",
    "READY_BYTES",
    "AbortedTransaction",
    "Cursor",
    "Ends",
    "Found",
    "Message",
    "Slice",
    "find_ends",
    "look",
    "warm",
]


class Message(NamedTuple):
    """A record where it is."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def _everybody_may() -> None:
    return None


class Cursor:
    """One reader's place in one partition. Not for two tasks at a time.

    Args:
        committed: read no record of a transaction that is open or was aborted.
        subject: who reads; another broker that leads asks whether it may.
        patience_s: how long the partition may be without a leader that answers.
        check: asked before anything is given; what it raises is raised.
    """

    __slots__ = ("_check", "committed", "ends", "offset", "partition", "patience_s", "subject")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        *,
        committed: bool = True,
        subject: Subject = ANONYMOUS,
        patience_s: float = PATIENCE_S,
        check: Callable[[], None] = _everybody_may,
    ) -> None:
        self._check = check
        self.partition = partition
        self.offset = offset
        """Of the next record."""
        self.committed = committed
        self.subject = subject
        self.patience_s = patience_s
        self.ends: Ends | None = None
        """Of the partition, when it was last read."""

    async def next(self, max_bytes: int, wait_s: float) -> Found:
        """The next slice, or nothing when there was none for so long. The cursor stays where it is.

        A slice that came from another broker is in memory: `ReceivedBatches.content` of its file.

        Raises:
            PenstockError: OFFSET_OUT_OF_RANGE, CORRUPT_LOG, UNKNOWN_TOPIC, NOT_AUTHORISED; NOT_LEADER, NOT_AVAILABLE
                and the like if no leader has answered for `patience_s`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        search = Search(self.partition, self.patience_s)
        while True:
            is_elsewhere = self.partition.is_elsewhere
            try:
                if is_elsewhere:
                    found = await self._ask(max_bytes, max(deadline - loop.time(), 0))
                else:
                    found = await look_until(self.partition, self.offset, max_bytes, committed=self.committed)
                    self.ends = ends_of(self.partition)
            except PenstockError as error:
                await search.failed(error)
                continue
            search.succeeded()
            left_s = deadline - loop.time()
            if found.data is not None or left_s <= 0:
                self._check()
                return found
            if not is_elsewhere:
                await until_moved(self.partition, left_s)

    async def records(self, max_bytes: int, wait_s: float, most: int = 1 << 30) -> list[Message]:
        """The next records, at most so many, and moves behind them; none when there were none for so long.

        Raises:
            PenstockError: as `next`; CORRUPT_LOG for a batch that cannot be decoded.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        search = Search(self.partition, self.patience_s)
        while True:
            left_s = deadline - asyncio.get_running_loop().time()
            found = await self.next(max_bytes, max(left_s, 0))
            if found.data is None:
                return []
            try:
                messages, self.offset = await self._decode(found.data, found.aborted, most)
            except PenstockError as error:  # it is not led here any more, perhaps, and its files are closed
                await search.failed(error)
                continue
            if messages:
                return messages
            await asyncio.sleep(0)  # there was nothing but markers and what was aborted, perhaps for long

    async def _ask(self, max_bytes: int, wait_s: float) -> Found:
        """The same of the broker that leads, or NOT_LEADER when another one does, which may be this one."""
        partition = self.partition
        assert partition.elsewhere is not None
        asked_of = partition.state.leader, partition.leader_epoch
        asking = asyncio.get_running_loop().create_task(
            partition.elsewhere.read(
                partition,
                self.offset,
                max_bytes,
                wait_s,
                committed=self.committed,
                subject=self.subject,
                least_epoch=self.ends.leader_epoch if self.ends is not None else -1,
            )
        )

        def moved() -> None:
            if (partition.state.leader, partition.leader_epoch) == asked_of and partition.led is None:
                partition.watch(moved)
            else:
                asking.cancel()

        partition.watch(moved)
        try:
            await asyncio.wait([asking])
        finally:
            partition.unwatch(moved)
            asking.cancel()
        if asking.cancelled():
            raise PenstockError(Code.NOT_LEADER, f"{partition.name} is not led by broker {asked_of[0]} any more")
        given = asking.result()
        self.ends = given.ends
        if not given.batches:
            return Found(None)
        return Found(ReceivedBatches(given.batches, partition.name).as_slice(), given.aborted)

    async def _decode(self, data: Slice, aborted: Sequence[AbortedTransaction], most: int) -> tuple[list[Message], int]:
        if data.size <= _DECODED_AT_ONCE:
            batches = data.file.read_at(data.size, data.position)
            if not _has_compressed(batches):
                return decode(batches, aborted, self.offset, self.partition.name, most)
        if isinstance(data.file, ReceivedBatches):
            assert self.partition.elsewhere is not None
            disk = self.partition.elsewhere.disk
        else:
            disk = self.partition.leading().shelf.disk
        return await disk.run(_read_and_decode, data, aborted, self.offset, self.partition.name, most)


async def find_ends(
    partition: Partition,
    timestamp: int | None = None,
    *,
    committed: bool = True,
    subject: Subject = ANONYMOUS,
    patience_s: float = PATIENCE_S,
) -> Ends:
    """Where a partition begins and ends, whichever broker leads it.

    Args:
        timestamp: find the first record at or after it, too.
        committed: among those that a committed reader sees.

    Raises:
        PenstockError: UNKNOWN_TOPIC, NOT_AUTHORISED, STORAGE_FAILED; NOT_LEADER, NOT_AVAILABLE and the like if no
            leader has answered for `patience_s`.
    """
    assert partition.elsewhere is not None
    search = Search(partition, patience_s)
    while True:
        try:
            return await partition.elsewhere.ends(partition, timestamp, committed=committed, subject=subject)
        except PenstockError as error:
            await search.failed(error)


def _has_compressed(batches: bytes) -> bool:
    position = 0
    while position < len(batches):
        header = decode_header(batches, position)
        if header.codec:
            return True
        position += header.size
    return False


def _read_and_decode(
    data: Slice, aborted: Sequence[AbortedTransaction], offset: int, name: str, most: int
) -> tuple[list[Message], int]:
    return decode(data.file.read_at(data.size, data.position), aborted, offset, name, most)


def decode(
    data: bytes, aborted: Sequence[AbortedTransaction], offset: int, name: str, most: int
) -> tuple[list[Message], int]:
    """The records of whole batches from `offset` on, and the offset behind the last of them.

    Args:
        aborted: transactions to leave out.
        name: of the partition, for the error.
        most: records; what is left is for the next call.

    Raises:
        PenstockError: CORRUPT_LOG.
    """
    messages: list[Message] = []
    position = 0
    while position < len(data) and len(messages) < most:
        header = decode_header(data, position)
        batch = data[position : position + header.size]
        position += header.size
        if header.is_control or _is_aborted(aborted, header.producer_id, header.base_offset):
            offset = header.last_offset + 1
            continue
        try:
            for at, timestamp, record in iterate_batch(batch, LARGEST_OPENED_BYTES):
                if at < offset:
                    continue
                messages.append(Message(at, timestamp, record.key, record.value, record.headers))
                offset = at + 1
                if len(messages) == most:
                    return messages, offset
        except (RecordError, CompressionError) as error:
            raise PenstockError(
                Code.CORRUPT_LOG,
                f"{name}: the batch at offset {header.base_offset} cannot be decoded: {error}",
                help="read on behind it, or have the broker check what is produced (records.check)",
            ) from None
        offset = header.last_offset + 1  # the last records may have been compacted away
    return messages, offset


def _is_aborted(aborted: Sequence[AbortedTransaction], producer_id: int, offset: int) -> bool:
    return any(each.producer_id == producer_id and each.first_offset <= offset <= each.last_offset for each in aborted)
