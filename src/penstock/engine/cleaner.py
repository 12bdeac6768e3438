"""Looks for logs that are worth compacting or thinning, and has that done to one after the other."""

import asyncio
from collections.abc import Callable, Iterable

from penstock.storage.log.compacting import Compaction
from penstock.storage.log.log import Log
from penstock.storage.log.needs import Needs
from penstock.storage.log.rewriting import Rewriting
from penstock.storage.log.thinning import Thinning

_LOOKED_AT_ONCE = 200


class Cleaner:
    """Args:
    logs: with those who can tell what they need of them, if anybody can.
    every_ms: between two rounds; `thin_every_ms` between two looks at a log of which nothing was worth thinning.
    compacted: told each log that was.
    """

    def __init__(
        self,
        rewriting: Rewriting,
        now_ms: Callable[[], int],
        logs: Callable[[], Iterable[tuple[Log, Needs | None]]],
        every_ms: int,
        thin_every_ms: int,
        compacted: Callable[[Log], None],
    ) -> None:
        self._rewriting = rewriting
        self._compaction = Compaction(rewriting)
        self._thinning = Thinning(rewriting, thin_every_ms)
        self._compacted = compacted
        self._now_ms = now_ms
        self._logs = logs
        self._every_ms = every_ms
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> None:
        self._task = asyncio.current_task()
        while not self._stopping:
            await asyncio.sleep(self._every_ms / 1000)
            for at, (log, needs) in enumerate(list(self._logs())):
                if at % _LOOKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                await self._compact(log)
                if needs is not None:
                    await self._thin(log, needs)

    async def _compact(self, log: Log) -> None:
        job = self._compaction.next_job(log, self._now_ms())
        if job is None or self._stopping:
            return
        if await self._compaction.run(log, job, self._now_ms()) is not None:
            self._compacted(log)

    async def _thin(self, log: Log, needs: Needs) -> None:
        job = await self._thinning.next_job(log, needs, self._now_ms())
        if job is not None and not self._stopping:
            await self._thinning.run(log, needs, job, self._now_ms())

    async def stop(self) -> None:
        """Return when nothing is rewritten any more: a pass is given up, one being put into place is finished."""
        self._stopping = True
        if self._task is not None and not self._task.done():
            if not self._rewriting.placing:
                self._task.cancel()
            await asyncio.wait({self._task})
