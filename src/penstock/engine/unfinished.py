"""What a shortage of space or descriptors kept from being taken away, of topics that were not made or are deleted.

It is tried again every moment, and before anything else happens under the topic's name. Its intent stays in the
metadata store until it is done, so a start finishes it as well.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, is_shortage
from penstock.ports.metadata import MetadataStore
from penstock.tasks import Tasks

_PAUSE_S = 1.0
log_ = get_logger("storage")


class _Removal(NamedTuple):
    topic: str
    remove: Callable[[], None]


class Unfinished:
    """The removals of one catalogue.

    Args:
        changing: held by whoever changes topics, and by a caller of anything here.
    """

    def __init__(
        self,
        store: MetadataStore,
        disk: Disk,
        tasks: Tasks,
        changing: asyncio.Lock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._disk = disk
        self._tasks = tasks
        self._changing = changing
        self._fail = fail
        self._removals: dict[str, _Removal] = {}
        """By the key of their intent."""

    async def remove(self, topic: str, remove: Callable[[], None], intent: str) -> None:
        """Take away what is there and then its intent; later, if there is a shortage. Raises OSError, PenstockError."""
        try:
            await self._disk.run(remove)
            await self._store.transact(delete=[intent])
        except (OSError, PenstockError) as error:
            if not _is_shortage(error):
                raise
            log_.limited("unfinished").error("what is left of a topic is removed later", topic=topic, error=str(error))
            if not self._removals:
                self._tasks.spawn(self._try_again(), "remove what is left of topics")
            self._removals[intent] = _Removal(topic, remove)
        else:
            self._removals.pop(intent, None)

    async def finish(self, topic: str) -> None:
        """Let nothing of an earlier topic of this name be in the way. Raises PenstockError, which passes."""
        for intent in [intent for intent, removal in self._removals.items() if removal.topic == topic]:
            await self._finish(intent)
            if intent in self._removals:
                raise PenstockError(
                    Code.STORAGE_FULL,
                    f"what is left of an earlier topic {topic!r} cannot be removed yet: no space or no descriptors",
                    help="try again in a moment; make room, or raise the limit of descriptors, if it goes on",
                )

    async def _try_again(self) -> None:
        while self._removals:
            await asyncio.sleep(_PAUSE_S)
            async with self._changing:
                for intent in list(self._removals):
                    await self._finish(intent)

    async def _finish(self, intent: str) -> None:
        removal = self._removals[intent]
        try:
            await self.remove(removal.topic, removal.remove, intent)
        except (OSError, PenstockError) as error:
            self._fail(error)  # the next start will do it
            raise PenstockError(
                Code.STORAGE_FAILED, f"cannot remove what is left of {removal.topic!r}: {error}"
            ) from error


def _is_shortage(error: OSError | PenstockError) -> bool:
    return is_shortage(error) if isinstance(error, OSError) else error.code is Code.STORAGE_FULL
