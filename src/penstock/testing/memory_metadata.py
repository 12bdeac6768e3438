"""The metadata port in a dictionary, with the behaviour of the embedded store and none of its disk."""

from collections.abc import Iterable, Mapping

from penstock.ports.metadata import Entry, MetadataConflict


class MemoryStore:
    """A metadata store for simulations. Keep it across simulated restarts: it stands for the device too."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, prefix: str) -> list[Entry]:
        return [self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)]

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
    ) -> int:
        put = put or {}
        gone = set(delete)
        if not gone.isdisjoint(put):
            raise ValueError(f"keys both put and deleted: {sorted(gone.intersection(put))}")
        for key, expected in (expect or {}).items():
            entry = self._entries.get(key)
            found = entry.revision if entry else 0
            if found != expected:
                raise MetadataConflict(key, expected, found)
        if put or not gone.isdisjoint(self._entries):
            self._revision += 1
        for key, value in put.items():
            self._entries[key] = Entry(key, bytes(value), self._revision)
        for key in gone:
            self._entries.pop(key, None)
        return self._revision

    async def close(self) -> None:
        """Nothing to let go of."""
