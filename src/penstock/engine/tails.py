"""Tails: the newest records of a partition for many subscribers, read and decoded once for all of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from penstock.engine.access import BROKERS
from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor, Message
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger

log_ = get_logger("reading")
Take = Callable[[Sequence[Message]], None]
Failed = Callable[[PenstockError], None]
_MAX_BYTES: Final = 64 * 1024
_LONG_S: Final = 3600.0
_PATIENCE_S: Final = 120.0
"""How long a partition may be without a leader that answers: an election takes seconds, a broker's start minutes."""


class Tail:
    """The newest records of one partition, whichever broker leads it.

    A subscriber is called with each stretch of messages, in order and without a gap, beginning with the end of the
    partition when it came. What it cannot take at once it has to keep, or it leaves and goes on with a `Cursor` from
    the offset it has come to (as a `Feed` does). When the partition can be read no more, everybody is told why, once;
    so is a subscriber whose `take` raises, and both are subscribed no more.

    It reads for this broker: who may subscribe is decided before.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        committed: bool = True,
        max_bytes: int = _MAX_BYTES,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._partition = partition
        self._committed = committed
        self._max_bytes = max_bytes
        self._subscribers: dict[Take, Failed] = {}
        self._task: asyncio.Task[None] | None = None
        self._cursor = Cursor(partition, 0, committed=committed, subject=BROKERS, patience_s=patience_s)

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def offset(self) -> int:
        """Of the first record that will come, as long as there are subscribers."""
        return self._cursor.offset

    def join(self, take: Take, failed: Failed, at: int | None = None) -> int:
        """Subscribe; returns the offset of the first record that will come.

        Args:
            at: where the tail begins if it has no subscribers; the end of the partition if not given, which only a
                broker that leads it knows at once.

        Raises:
            PenstockError: NOT_LEADER, UNKNOWN_TOPIC, when `at` is not given.
        """
        if at is None:
            self._partition.leading()
        if not self._subscribers:
            self._cursor.offset = self._end() if at is None else at
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tail of {self._partition.name}")
        self._subscribers[take] = failed
        return self._cursor.offset

    def leave(self, take: Take) -> None:
        self._subscribers.pop(take, None)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    def _end(self) -> int:
        return self._partition.stable_offset if self._committed else self._partition.high_watermark

    async def _run(self) -> None:
        try:
            while True:
                messages = await self._cursor.records(self._max_bytes, _LONG_S)
                for take in list(self._subscribers) if messages else ():
                    if take in self._subscribers:  # another's may have ended its connection
                        self._give(take, messages)
                await asyncio.sleep(0)  # records in memory come without a wait, and others want their turn
        except (PenstockError, OSError) as error:
            self._end_for_all(error if isinstance(error, PenstockError) else _disk_failed(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours: who subscribed must not wait for ever
            log_.limited("bug").exception("tail failed", partition=self._partition.name)
            self._end_for_all(self._not_passed_on(error))

    def _end_for_all(self, reason: PenstockError) -> None:
        self._task = None
        failed, self._subscribers = self._subscribers, {}
        for tell in failed.values():
            self._tell(tell, reason)

    def _give(self, take: Take, messages: Sequence[Message]) -> None:
        try:
            take(messages)
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost this subscriber only
            log_.limited("bug").exception("subscriber failed", partition=self._partition.name)
            failed = self._subscribers.pop(take, None)
            if failed is not None:
                self._tell(failed, self._not_passed_on(error))

    def _tell(self, failed: Failed, reason: PenstockError) -> None:
        try:
            failed(reason.kept())
        except Exception:  # noqa: BLE001 - as in `_give`
            log_.limited("bug").exception("subscriber could not be told", partition=self._partition.name)

    def _not_passed_on(self, error: Exception) -> PenstockError:
        name = self._partition.name
        return PenstockError(Code.NOT_AVAILABLE, f"{name}: records could not be passed on: {error!r}")


def _disk_failed(error: OSError) -> PenstockError:
    return PenstockError(Code.STORAGE_FAILED, str(error))


class Tails:
    """The tails of one broker: one for each partition, as long as somebody holds it."""

    def __init__(self) -> None:
        self._tails: WeakValueDictionary[tuple[Partition, bool], Tail] = WeakValueDictionary()

    def of(self, partition: Partition, *, committed: bool = True) -> Tail:
        """The tail that all subscribers of the partition share."""
        tail = self._tails.get((partition, committed))
        if tail is None:
            tail = self._tails[partition, committed] = Tail(partition, committed=committed)
        return tail
