"""Background tasks: kept referenced while they run; an error nobody expected in one stops the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The background work of one broker.

    Args:
        fail: called with the exception of a task that ended in one; the broker fail-stops on it.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._running: dict[asyncio.Task[None], None] = {}  # in their order, so that a run can be repeated

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(error)

    async def cancel_all(self) -> None:
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
