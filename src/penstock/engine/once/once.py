"""One partition with a window of duplicates, while this broker leads it.

One batch at a time is decided on and appended, so that an id that comes twice at once is appended once:

    ids known?  ->  a retry, by its sequence?  ->  duplicates found  ->  left out  ->  append  ->  ids remembered

Ids are remembered when their records are in the log, and never before: an append that failed leaves nothing behind.
What is told of a duplicate waits until its original is as safe as the publisher wants the duplicate to be. A broker
that leads no more tells nothing, and the next one knows the ids of what its own log has, and no others (`recall.py`).

A record in a transaction is neither dropped nor remembered, as nobody knows yet whether it will be there. What brokers
move is never dropped: a dead letter that goes back to its queue has the id that it came with.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.engine.once.ids import Ids, without
from penstock.engine.once.memory import Memory
from penstock.engine.once.recall import find_start, recall
from penstock.engine.steady_clock import SteadyClock
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.records.batch import Header
from penstock.storage.log.log import Appended

if TYPE_CHECKING:
    from penstock.engine.partition import Partition

log_ = get_logger("duplicates")
MOST_IDS: Final = 4_000_000
"""Of one partition; 120 MB and more."""
MOST_IDS_HERE: Final = 16_000_000
"""Of all partitions that a broker leads."""
MOST_SKEW_MS: Final = 10_000
"""By how much the clocks of two brokers may differ, so that an id is not forgotten early when the leader changes; no
more than the window.
"""
_IN_THIS_BATCH: Final = -1
_IDS_PER_SLICE: Final = 512
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0


@dataclass(slots=True)
class Around:
    """What all partitions of a broker with a window share.

    Attributes:
        steady: by which ids grow old; who sets the machine's clock expires none.
        clock: what batches are stamped with.
        reading: held by who reads a log, one at a time.
        count: of ids that are remembered in all, and `most` of them; `most_each` is of one partition.
    """

    clock: Clock
    steady: SteadyClock
    disk: Disk
    reading: asyncio.Lock
    most: int = MOST_IDS_HERE
    most_each: int = MOST_IDS
    count: int = 0


class Once:
    """Args:
    dropped: told of how many duplicates were dropped.
    """

    def __init__(self, partition: "Partition", window_ms: int, around: Around, dropped: Callable[[int], None]) -> None:
        self.partition = partition
        self.window_ms = window_ms
        self.memory = Memory(window_ms)
        self._around = around
        self._dropped = dropped
        self._turn = asyncio.Lock()
        self._told = asyncio.Event()
        self._is_known = False
        self._log = partition.leading()
        self._until = self._log.end_offset
        self._log.floors.append(self.floor)

    @property
    def is_over(self) -> bool:
        """Whether another one decides by now, or nobody here."""
        return self.partition.once is not self

    def end(self) -> None:
        """Decide nothing any more: another broker leads, or the window is another one."""
        if self.floor in self._log.floors:
            self._log.floors.remove(self.floor)
        self._around.count -= self.memory.count
        self.memory = Memory(self.window_ms)
        self._told.set()

    def floor(self) -> int | None:
        """Asked by retention: the log is where ids come from when the next one leads."""
        return self.memory.first_offset if self._is_known else 0

    def tend(self) -> bool:
        """Forget what is too old, and pack a little; whether there is more to do. Called now and then."""
        before = self.memory.count
        self.memory.expire(self._around.steady.now_ms())
        self._around.count += self.memory.count - before
        return self.memory.pack()

    # --- appending

    async def append(
        self,
        batch: memoryview,
        header: Header,
        ids: Ids,
        check: "Callable[[Partition], None] | None",
        *,
        drops: bool,
    ) -> Appended | None:
        """Append what of a batch is no duplicate, or say where the originals are.

        Args:
            ids: of the batch's records.
            check: called right before the append; what it raises refuses the batch.
            drops: whether duplicates are dropped; otherwise ids are only remembered.

        Returns:
            None if somebody else decides by now, see `Partition.once`; nothing has changed.

        Raises:
            PenstockError: nothing was appended.
        """
        partition = self.partition
        async with self._turn:
            await self._told.wait()
            if self.is_over:
                return None
            if check is not None:
                check(partition)
            if partition.is_there(header):
                return partition.append_checked(batch, header)
            found = self._find(ids) if drops and ids else {}
            self._check_room(len(ids) - len(found))
            is_all = len(found) == header.record_count
            if is_all and header.producer_id < 0:
                self._dropped(len(found))
                return Appended(found[0], max(found.values()), -1)
            if found:
                batch, header = await self._around.disk.run(without, batch, header, found)
                if self.is_over:
                    return None
                if check is not None:
                    check(partition)
            appended = partition.append_checked(batch, header)
            self._dropped(len(found))
            self._remember([(each, appended.base_offset + at) for at, each in ids if at not in found])
            return appended._replace(base_offset=found[0]) if is_all else appended

    def _find(self, ids: Ids) -> dict[int, int]:
        """Duplicates by their place in the batch, and the offsets of their originals."""
        self.tend()
        found: dict[int, int] = {}
        here: set[bytes] = set()
        for at, each in ids:
            offset = self.memory.get(each)
            if offset is not None:
                found[at] = offset
            elif each in here:
                found[at] = _IN_THIS_BATCH
            else:
                here.add(each)
        return found

    def _check_room(self, more: int) -> None:
        """Raises PenstockError LIMIT_EXCEEDED: an id that is forgotten early could let a duplicate in."""
        around = self._around
        if more and self.memory.count + more > around.most_each:
            whose, count, most = self.partition.name, self.memory.count, around.most_each
        elif more and around.count + more > around.most:
            whose, count, most = "this broker", around.count, around.most
        else:
            return
        raise PenstockError(
            Code.LIMIT_EXCEEDED,
            f"{whose} remembers {count} message ids of the last {self.window_ms} ms, and {more} more are too many; "
            f"allowed: {most}",
            help="send more slowly, give the queue a shorter dedup-window, or spread it over more partitions",
        )

    def _remember(self, ids: list[tuple[bytes, int]]) -> None:
        if ids:
            before = self.memory.count
            self.memory.add(self._around.steady.now_ms(), ids)
            self._around.count += self.memory.count - before

    # --- recalling

    async def recall(self) -> None:
        """Learn from the log what came within the window; batches wait for it."""
        pause_s = _FIRST_PAUSE_S
        while not self.is_over:
            try:
                await self._recall()
            except (PenstockError, OSError) as error:
                if self.is_over or self._log.closed:
                    return
                log_.limited("recall").error(
                    "ids of messages cannot be read from the log; what is sent to it waits",
                    partition=self.partition.name,
                    error=str(error),
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return

    async def _recall(self) -> None:
        around, log, limit = self._around, self._log, self._until
        now_ms, steady_ms = around.clock.now_ms(), around.steady.now_ms()
        skew_ms = min(MOST_SKEW_MS, self.window_ms)
        since_ms = now_ms - self.window_ms - skew_ms
        async with around.reading:
            offset = await around.disk.run(find_start, log, since_ms, limit)
        while offset < limit:
            async with around.reading:
                found = await around.disk.run(recall, log, offset, limit, since_ms)
            if self.is_over:
                return
            for stamp_ms, ids in found.batches:
                self._take(steady_ms + skew_ms - max(now_ms - stamp_ms, 0), ids)
            offset = found.next_offset
        if not self.is_over:
            self.tend()
            self._is_known = True
            self._told.set()

    def _take(self, time_ms: int, ids: list[tuple[bytes, int]]) -> None:
        """Of a batch in the log. Those beyond what may be remembered are there already: the oldest ones go for them."""
        memory, around = self.memory, self._around
        before = memory.count
        memory.add(time_ms, ids)
        while memory.count and (memory.count > around.most_each or around.count + memory.count - before > around.most):
            memory.drop_oldest()
            log_.limited("room").warning(
                "there are more message ids within the window than may be remembered; duplicates of the oldest may "
                "come to be there twice",
                partition=self.partition.name,
                remembered=memory.count,
            )
        around.count += memory.count - before
        for _ in range(len(ids) // _IDS_PER_SLICE + 1):
            memory.pack()
