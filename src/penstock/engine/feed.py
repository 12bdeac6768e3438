"""Feed: the records of one partition for one who takes them as long as it can, from a place on.

    placed ──► catches up with a cursor ──► shares the tail ──┐
                      ▲                                       │ cannot take more
                      └────────── told to go on ◄── behind ◄──┘

It keeps a place and no records. From the cursor to the tail there is no gap and nothing twice: a tail that has not come
further than the place is joined, and what it brings below the place is left out; one that has is caught up with first.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine.access import ANONYMOUS, NotAuthorised, Subject
from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor, Message, find_ends
from penstock.engine.tails import Tails
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger

log_ = get_logger("reading")
FIRST: Final = -2
"""Where to begin, instead of an offset: with the first record there is."""
NEW: Final = -1
"""With what comes after the feed was placed."""
_MAX_BYTES: Final = 64 * 1024
_AHEAD_S: Final = 1.0
"""How long to wait for what the tail has and the cursor has not found: a new leader does not know of all of it yet."""


def _everybody_may() -> None:
    return None


class Feed:
    """Of one partition, whichever broker leads it.

    Attributes:
        next: offset of the next record; until it is placed `FIRST` or `NEW`, perhaps.

    Args:
        start: an offset, `FIRST` or `NEW`.
        is_writable: whether one more record can be taken; asked before each.
        take: called with each record.
        failed: called once, when the partition can be read no more or `take` has raised; the feed has stopped then.
        subject: who reads.
        check: asked before anything is taken; the feed fails by what it raises.
    """

    def __init__(
        self,
        tails: Tails,
        partition: Partition,
        start: int,
        *,
        is_writable: Callable[[], bool],
        take: Callable[[Message], None],
        failed: Callable[[PenstockError], None],
        committed: bool = True,
        subject: Subject = ANONYMOUS,
        check: Callable[[], None] = _everybody_may,
    ) -> None:
        self._check = check
        self._partition = partition
        self._tail = tails.of(partition, committed=committed)
        self._is_writable = is_writable
        self._take = take
        self._failed = failed
        self._committed = committed
        self._subject = subject
        self.next = start
        self._is_behind = True
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    async def place(self) -> int:
        """Find out where it begins, unless that is known; `next`. Raises PenstockError, as `find_ends`.

        Who waits for it before the first `go_on` knows that every record published from then on will come.
        """
        if self.next in (FIRST, NEW):
            ends = await find_ends(self._partition, committed=self._committed, subject=self._subject)
            if self.next in (FIRST, NEW):
                end = ends.stable_offset if self._committed else ends.high_watermark
                self.next = ends.log_start if self.next == FIRST else end
        return self.next

    def go_on(self) -> None:
        """Begin, or go on when more can be taken; harmless at any other time."""
        if self._is_behind and not self._is_over:
            self._is_behind = False
            self._task = asyncio.get_running_loop().create_task(
                self._catch_up(), name=f"catch up with {self._partition.name}"
            )

    def stop(self) -> None:
        """Nothing is taken any more."""
        self._is_over = True
        self._tail.leave(self._take_from_tail)
        if self._task is not None:
            self._task.cancel()

    # --- behind

    async def _catch_up(self) -> None:
        try:
            cursor = Cursor(self._partition, await self.place(), committed=self._committed, subject=self._subject)
            wait_s = 0.0
            while not self._joins(cursor.offset, is_at_end=False):
                records = await cursor.records(_MAX_BYTES, wait_s)
                if not self._take_all(records):
                    self._is_behind = True
                    return
                self.next = cursor.offset
                if not records and self._joins(self.next, is_at_end=True):
                    return
                wait_s = 0.0 if records else _AHEAD_S
                await asyncio.sleep(0)  # records in memory come without a wait
        except PenstockError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost this feed only
            log_.limited("bug").exception("feed failed", partition=self._partition.name)
            self._fail(
                PenstockError(Code.NOT_AVAILABLE, f"{self._partition.name}: records could not be passed on: {error!r}")
            )

    def _joins(self, offset: int, *, is_at_end: bool) -> bool:
        """Share the tail, if all that it will bring begins no further than here."""
        if len(self._tail) == 0:
            if not is_at_end:
                return False
        elif self._tail.offset > offset:
            return False
        self._tail.join(self._take_from_tail, self._fail, at=offset)
        return True

    # --- taking

    def _take_all(self, records: Sequence[Message]) -> bool:
        """Whether all of them could be taken. Raises PenstockError, if the subject may read no more."""
        self._check()
        for record in records:
            if record.offset < self.next:
                continue  # the tail was behind the cursor
            if self._is_over or not self._is_writable():
                return False
            self._take(record)
            self.next = record.offset + 1
        return True

    def _take_from_tail(self, records: Sequence[Message]) -> None:
        try:
            goes_on = self._take_all(records)
        except NotAuthorised as error:
            self._fail(error)
            return
        if not goes_on:
            self._tail.leave(self._take_from_tail)
            self._is_behind = True

    def _fail(self, error: PenstockError) -> None:
        if not self._is_over:
            self.stop()
            self._failed(error.kept())
