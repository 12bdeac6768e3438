"""The metadata store as the core sees it: a small, durable, linearizable map with compare-and-swap."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int
    """The store's revision at the key's last change; 0 never occurs."""


class MetadataConflict(Exception):
    """A key was not at the revision the caller expected; nothing was changed."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(f"metadata key {key!r} is at revision {found}, not {expected}")
        self.key, self.expected, self.found = key, expected, found


class MetadataStore(Protocol):
    """Keys are paths such as `topics/orders`. Every change is durable when the call returns."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> list[Entry]:
        """Entries whose key starts with `prefix`, sorted by key."""
        ...

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
    ) -> int:
        """Apply all changes at once if every key in `expect` is at that revision (0: absent).

        Returns the store's new revision. Raises `MetadataConflict` and changes nothing otherwise.
        """
        ...

    async def close(self) -> None: ...
