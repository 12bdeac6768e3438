"""The metadata store as the core sees it: a small, durable, linearizable map with compare-and-swap, leases and watches.

Locks taken here are worth nothing by themselves: a holder may be asleep. So whoever writes says which revisions it has
seen (`expect`), and whoever is told of a change compares revisions before it believes it. A watch may lag, repeat
itself or break off; a `snapshot` is how things are.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int
    """The store's revision at the key's last change; 0 never occurs."""


class Change(NamedTuple):
    """One key's change, as a watch tells it."""

    key: str
    value: bytes | None
    """None: the key was deleted, or its lease ended."""
    revision: int


Changes = list[Change]  # inside a store, `list` is a method


class Snapshot(NamedTuple):
    entries: list[Entry]
    """Sorted by key."""
    revision: int
    """Of the store, when the entries were like this. It never falls, unless an old copy of the store was put back."""


class MetadataConflict(Exception):
    """A key was not at the revision the caller expected; nothing was changed."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(f"metadata key {key!r} is at revision {found}, not {expected}")
        self.key, self.expected, self.found = key, expected, found


class MetadataUnavailable(Exception):
    """The store did not answer. A change that was asked for may have been made or not: look before going on."""


class LeaseLost(Exception):
    """The lease has ended; keys bound to it are gone, or will be in a moment."""


class WatchLost(Exception):
    """The watch broke off, or asks for changes the store has forgotten: take a snapshot and watch from there."""


class MetadataStore(Protocol):
    """Keys are paths such as `topics/orders`. Every change is durable when the call returns.

    Every call may raise `MetadataUnavailable`.
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> list[Entry]:
        """Entries whose key starts with `prefix`, sorted by key."""
        ...

    async def snapshot(self, prefix: str) -> Snapshot:
        """The same, with the revision of the store that they are as of; never an old one."""
        ...

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
        put_leased: Mapping[str, bytes] | None = None,
        lease: int = 0,
    ) -> int:
        """Apply all changes at once if every key in `expect` is at that revision (0: absent).

        Keys of `put_leased` are bound to `lease` and vanish with it; those of `put` are not. Returns the store's new
        revision, which is that of every key put. Raises `MetadataConflict` and changes nothing otherwise; `LeaseLost`
        when there is no such lease. At most 100 keys in all.
        """
        ...

    async def grant(self, ttl_s: int) -> int:
        """A lease that ends when it is not kept alive for `ttl_s` seconds."""
        ...

    async def keep_alive(self, lease: int) -> None:
        """Begin the lease's time anew. Raises `LeaseLost`."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease now, and remove the keys bound to it; nothing happens if it has ended."""
        ...

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Changes]:
        """Changes of keys that start with `prefix`, later than a revision, in order; those of a revision together.

        May wait for ever while nothing changes. Ends by `WatchLost`, or when the iterator is closed.
        """
        ...

    async def close(self) -> None: ...
