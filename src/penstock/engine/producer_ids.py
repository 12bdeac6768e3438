"""Ids for idempotent producers: taken in blocks from the metadata store, so that none is handed out twice, ever."""

import asyncio

from penstock.errors import Code, PenstockError
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable

_KEY = "producer-ids"
_BLOCK = 1000


class ProducerIds:
    """A crash loses the rest of a block, never gives it out again."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._spare: int | None = None
        """Where a block begins that is taken as well."""
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Raises PenstockError COORDINATOR_LOADING while the store does not answer."""
        async with self._lock:
            if self._next == self._end:
                try:
                    await self._take_block()
                except MetadataUnavailable as error:  # a block that was taken all the same stays unused
                    raise PenstockError(Code.COORDINATOR_LOADING, f"no producer id now: {error}") from error
            taken = self._next
            self._next += 1
            return taken

    async def keep_some(self) -> None:
        """Have ids at hand, so that producers may come while the store is away. Raises MetadataUnavailable."""
        async with self._lock:
            if self._next == self._end:
                await self._take_block()
            if self._spare is None:
                self._spare = await self._ask_for_block()

    async def _take_block(self) -> None:
        start = self._spare if self._spare is not None else await self._ask_for_block()
        self._next, self._end, self._spare = start, start + _BLOCK, None

    async def _ask_for_block(self) -> int:
        while True:
            entry = await self._store.get(_KEY)
            start = int(entry.value) if entry else 0
            revision = entry.revision if entry else 0
            try:
                await self._store.transact(expect={_KEY: revision}, put={_KEY: b"%d" % (start + _BLOCK)})
            except MetadataConflict:
                continue  # another broker took this block
            return start
