"""What whoever takes roles has to look at next: keys of the image that are not as they were, or everything."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.observe.logs import get_logger
from penstock.ports.disk import is_shortage

log_ = get_logger("cluster")
PAUSE_S = 0.5


class Agenda:
    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._all_dirty = True

    def add(self, changed: Iterable[str]) -> None:
        self._dirty.update(changed)
        self._wake.set()

    def add_everything(self) -> None:
        self._all_dirty = True
        self._wake.set()

    def add_again(self, key: str) -> None:
        """What could not be done now is tried again in a moment, news or not."""
        self._dirty.add(key)
        asyncio.get_running_loop().call_later(PAUSE_S, self._wake.set)

    def wake(self) -> None:
        """There is something else to be done."""
        self._wake.set()

    async def wait(self) -> None:
        """Return when there may be something."""
        await self._wake.wait()
        self._wake.clear()

    def take(self) -> set[str] | None:
        """The keys to be looked at, which are not on the agenda any more; None is everything."""
        dirty, self._dirty = self._dirty, set()
        everything, self._all_dirty = self._all_dirty, False
        return None if everything else dirty

    @contextmanager
    def short_of_room(self) -> Iterator[None]:
        """What there is no room for is tried again in a moment, and what comes after it goes on."""
        try:
            yield
        except OSError as error:
            if not is_shortage(error):
                raise
            log_.limited("room").error("no room to take on a partition", error=str(error))
            self._all_dirty = True
            asyncio.get_running_loop().call_later(PAUSE_S, self._wake.set)
