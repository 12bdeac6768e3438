"""The metadata store as the controller of one term writes to it: nothing, once the term is over."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import TypeVar

from penstock.cluster import keys
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable, Snapshot

T = TypeVar("T")
AT_ONCE = 99
"""Keys to a transaction, which may have 100: the controller's is one of them."""


class Deposed(Exception):
    """The controller's key is not the one of this term."""


class FencedStore:
    """See the module's text.

    Args:
        epoch: the revision of the controller's key, which every change expects.
    """

    def __init__(self, store: MetadataStore, epoch: int) -> None:
        self.epoch = epoch
        self._store = store

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._store.snapshot(prefix)

    async def transact(
        self, expect: Mapping[str, int], put: Mapping[str, bytes] | None = None, delete: Iterable[str] = ()
    ) -> int:
        """Raises Deposed, MetadataConflict about another key, MetadataUnavailable."""
        try:
            return await self._store.transact(expect={keys.CONTROLLER: self.epoch, **expect}, put=put, delete=delete)
        except MetadataConflict as conflict:
            if conflict.key == keys.CONTROLLER:
                raise Deposed from conflict
            raise


async def all_at_once(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Have several transactions under way together. If some fail, the worst failure is raised when all have ended."""
    results = await asyncio.gather(*works, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise min(failures, key=lambda failure: isinstance(failure, MetadataUnavailable))
    return [result for result in results if not isinstance(result, BaseException)]
