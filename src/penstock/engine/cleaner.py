"""Looks for logs that are worth compacting, and has one after the other compacted."""

import asyncio
from collections.abc import Callable, Iterable

from penstock.storage.log.compacting import Compaction
from penstock.storage.log.log import Log

_LOOKED_AT_ONCE = 200


class Cleaner:
    """Args:
    compacted: told each log that was.
    """

    def __init__(
        self,
        compaction: Compaction,
        now_ms: Callable[[], int],
        logs: Callable[[], Iterable[tuple[Log, int]]],
        every_ms: int,
        compacted: Callable[[Log], None],
    ) -> None:
        self._compaction = compaction
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
            for at, (log, _) in enumerate(list(self._logs())):
                if at % _LOOKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                job = self._compaction.next_job(log, self._now_ms())
                if job is None or self._stopping:
                    continue
                if await self._compaction.run(log, job, self._now_ms()) is not None:
                    self._compacted(log)

    async def stop(self) -> None:
        """Return when nothing is compacted any more: a pass is given up, one being put into place is finished."""
        self._stopping = True
        if self._task is not None and not self._task.done():
            if not self._compaction.placing:
                self._task.cancel()
            await asyncio.wait({self._task})
