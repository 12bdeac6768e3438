"""The last changes of a metadata store, for watches: every watch reads the same record at a place of its own.

So a slow reader costs nothing but its place. When the record no longer goes back that far, the watch is lost, which
is what the port allows.
"""

import asyncio
from collections import deque

from penstock.ports.metadata import Change, WatchLost


class History:
    """The changes of each revision after `forgotten`, up to `newest`.

    Args:
        revision: the store's revision now; nothing up to it is known.
        limit: revisions kept at least; twice as many at most.
    """

    def __init__(self, revision: int, limit: int) -> None:
        self.forgotten = revision
        self.ended = ""
        self._limit = limit
        self._revisions: list[list[Change]] = []
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def newest(self) -> int:
        return self.forgotten + len(self._revisions)

    def append(self, changes: list[Change]) -> None:
        """Note the changes of the revision after the newest one, and wake who waits for one."""
        self._revisions.append(changes)
        if len(self._revisions) > 2 * self._limit:
            self.compact(self.newest - self._limit)
        self.wake()

    def compact(self, revision: int) -> None:
        """Forget the changes up to and including a revision."""
        count = min(max(revision - self.forgotten, 0), len(self._revisions))
        del self._revisions[:count]
        self.forgotten += count

    def after(self, revision: int, prefix: str) -> list[list[Change]]:
        """Changes of keys that start with `prefix`, one list for each later revision that has some.

        Raises:
            WatchLost: some of them may have been forgotten; or there is no such revision yet, as when an old copy of
                the store was put back.
        """
        if revision < self.forgotten:
            raise WatchLost(f"changes up to revision {self.forgotten} are forgotten, those after {revision} asked for")
        if revision > self.newest:
            raise WatchLost(f"the store is at revision {self.newest}, before {revision}: an old copy was put back")
        found = []
        for changes in self._revisions[revision - self.forgotten :]:
            matching = [change for change in changes if change.key.startswith(prefix)]
            if matching:
                found.append(matching)
        return found

    def end(self, reason: str) -> None:
        """Say that nothing will be appended any more; every watch is lost when it has read what there is."""
        self.ended = reason
        self.wake()

    async def news(self) -> None:
        """Wait until there may be something new."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


class HistoryWatch:
    """A watch that reads a history without delay."""

    def __init__(self, history: History, prefix: str, after_revision: int) -> None:
        self._history = history
        self._prefix = prefix
        self._revision = after_revision
        self._ready: deque[list[Change]] = deque()
        self._closed = False

    def __aiter__(self) -> "HistoryWatch":
        return self

    async def __anext__(self) -> list[Change]:
        history = self._history
        while not self._closed:
            if self._ready:
                return self._ready.popleft()
            if history.newest != self._revision:
                self._ready.extend(history.after(self._revision, self._prefix))
                self._revision = history.newest
            elif history.ended:
                raise WatchLost(history.ended)
            else:
                await history.news()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration, also for a task that waits in it."""
        self._closed = True
        self._history.wake()
