"""Calls each log's upkeep when it is due: at once after a roll or a change, else in a slow round over all logs."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from penstock.observe.logs import get_logger
from penstock.ports.clock import Clock
from penstock.storage.log.log import Log
from penstock.storage.log.upkeep import Upkeep

_JUMP_MS = 3600 * 1000
_FORGET_EVERY_MS = 10 * 60 * 1000
_LOOKED_AT_ONCE = 200
log_ = get_logger("storage")


class Caretaker:
    """Runs until cancelled.

    Retention counts time by the monotonic clock from start-up on: a wall clock that jumps while the broker runs never
    makes records old. Nor does one that jumps back and stamps new records with an old time: the earlier of both counts.
    """

    def __init__(
        self,
        upkeep: Upkeep,
        clock: Clock,
        logs: Callable[[], Iterable[tuple[Log, int]]],
        every_ms: int,
    ) -> None:
        self._upkeep = upkeep
        self._clock = clock
        self._logs = logs
        self._every_ms = every_ms
        self._wanted: dict[str, Log] = {}
        self._wake = asyncio.Event()
        self._offset_ms = clock.now_ms() - int(clock.monotonic() * 1000)
        self._alarmed = False
        self._forgot_ms = 0

    def call(self, log: Log) -> None:
        """A log has a segment to seal, or other settings than before: do not wait for the round."""
        self._wanted[log.directory] = log
        self._wake.set()

    async def run(self) -> None:
        next_round = self._clock.monotonic()
        while True:
            if self._clock.monotonic() >= next_round:
                next_round = self._clock.monotonic() + self._every_ms / 1000
                await self._round()
            # Not wait_for: until Python 3.12 it may swallow the cancellation that ends this task.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_round - self._clock.monotonic())):
                    await self._wake.wait()
            await self._tend_wanted()

    async def _tend_wanted(self) -> None:
        self._wake.clear()
        wanted, self._wanted = self._wanted, {}
        for log in wanted.values():
            await self._upkeep.tend(log, self.steady_now_ms(), log.settled_end)

    async def _round(self) -> None:
        now_ms = self.steady_now_ms()
        forget = now_ms - self._forgot_ms >= _FORGET_EVERY_MS
        if forget:
            self._forgot_ms = now_ms
        for at, (log, settled) in enumerate(list(self._logs())):
            if at % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)  # let others have the loop: there may be ten thousand logs
            if forget:
                log.state.producers.expire(now_ms, log.active_transactions.open)
            if self._upkeep.is_due(log, now_ms) and not log.closed:
                await self._upkeep.tend(log, now_ms, settled)
                await self._tend_wanted()  # a round that syncs hundreds of logs takes many seconds

    def steady_now_ms(self) -> int:
        """The time that retention and compaction go by."""
        steady = int(self._clock.monotonic() * 1000) + self._offset_ms
        jump = self._clock.now_ms() - steady
        if abs(jump) > _JUMP_MS and not self._alarmed:
            self._alarmed = True
            log_.error("wall clock jumped; retention keeps to the time since start", jump_ms=jump)
        return min(steady, self._clock.now_ms())
