"""What a simulated etcd holds: keys, revisions, leases, and the record of changes that watches read.

Every method works at one moment, so whoever calls them in some order sees one history. Leases end by the event loop's
time, a little late, as etcd's do; the timers run in the context in which the state was made.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import NamedTuple

from penstock.cluster.metadata.history import History
from penstock.cluster.metadata.transaction import Transaction
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataConflict, Snapshot

Entries = list[Entry]  # inside a class, `list` is a method
Changes = list[Change]


class Copy(NamedTuple):
    """The whole store at one moment, as a backup holds it."""

    entries: dict[str, Entry]
    leases: dict[int, int]
    bound: dict[str, int]
    revision: int


class EtcdState:
    """The truth, and nothing in its way.

    Args:
        expiry_lag_s: how late the end of a lease may be noticed.
        history_revisions: how far back watches may begin, at least.

    Attributes:
        revision: the store's.
        on_change: told of the changes of each revision, at its moment: for oracles.
    """

    def __init__(self, random: Random, expiry_lag_s: float, history_revisions: int) -> None:
        self.random = random
        self.revision = 0
        self.history = History(0, history_revisions)
        self.on_change: Callable[[Changes], None] | None = None
        self.context = copy_context()
        self._expiry_lag_s = expiry_lag_s
        self._history_revisions = history_revisions
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted
        self._leases: dict[int, _Lease] = {}
        self._bound: dict[str, int] = {}
        self._down = False

    @property
    def down(self) -> bool:
        """Whether there is no majority. No lease ends meanwhile, and each begins anew afterwards, as etcd does it."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        if self._down and not down:
            for number, lease in self._leases.items():
                self._begin(number, lease)
        self._down = down
        self.history.wake()

    def compact(self, revision: int | None = None) -> None:
        """Forget the changes up to a revision, or all: watches that have not read them are lost."""
        self.history.compact(self.revision if revision is None else revision)
        self.history.wake()

    def copy(self) -> Copy:
        leases = {number: lease.ttl_s for number, lease in self._leases.items()}
        return Copy(dict(self._entries), leases, dict(self._bound), self.revision)

    def restore(self, copy: Copy) -> None:
        """Put an old copy back: the revision falls, younger leases are gone, every watch breaks off."""
        for lease in self._leases.values():
            lease.stop()
        self._entries, self._bound, self.revision = dict(copy.entries), dict(copy.bound), copy.revision
        self._keys = sorted(self._entries)
        self._leases = {}
        for number, ttl_s in copy.leases.items():
            self._leases[number] = lease = _Lease(ttl_s)
            self._begin(number, lease)
            for key, holder in copy.bound.items():
                if holder == number:
                    lease.keys[key] = None
        old, self.history = self.history, History(self.revision, self._history_revisions)
        old.end("an old copy of the store was put back")

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def list(self, prefix: str) -> Entries:
        found = []
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[index]
            if not key.startswith(prefix):
                break
            found.append(self._entries[key])
        return found

    def snapshot(self, prefix: str = "") -> Snapshot:
        return Snapshot(self.list(prefix), self.revision)

    def transact(self, transaction: Transaction) -> int:
        for key, expected in transaction.expect.items():
            entry = self._entries.get(key)
            found = entry.revision if entry else 0
            if found != expected:
                raise MetadataConflict(key, expected, found)
        if transaction.lease is not None and transaction.lease not in self._leases:
            raise LeaseLost(f"lease {transaction.lease} has ended")
        revision = self.revision + 1
        changes = [Change(key, None, revision) for key in transaction.delete if self._remove(key)]
        for key, (value, lease) in transaction.put.items():
            self._put(Entry(key, value, revision), lease)
            changes.append(Change(key, value, revision))
        self._commit(changes)
        return self.revision

    def grant(self, ttl_s: int) -> int:
        if ttl_s <= 0:
            raise ValueError(f"a lease of {ttl_s} s; it needs at least 1 s")
        number = self.random.getrandbits(62) + 1
        self._leases[number] = lease = _Lease(ttl_s)
        self._begin(number, lease)
        return number

    def keep_alive(self, number: int) -> None:
        lease = self._leases.get(number)
        if lease is None or lease.deadline <= asyncio.get_running_loop().time():
            raise LeaseLost(f"lease {number} has ended")
        lease.deadline = asyncio.get_running_loop().time() + lease.ttl_s  # its timer looks again by itself

    def revoke(self, number: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.stop()
            revision = self.revision + 1
            self._commit([Change(key, None, revision) for key in sorted(lease.keys) if self._remove(key)])

    def _commit(self, changes: Changes) -> None:
        if changes:
            self.revision += 1
            self.history.append(changes)
            if self.on_change is not None:
                self.on_change(changes)

    def _put(self, entry: Entry, lease: int) -> None:
        key = entry.key
        if key not in self._entries:
            insort(self._keys, key)
        self._entries[key] = entry
        self._unbind(key)
        if lease:
            self._bound[key] = lease
            self._leases[lease].keys[key] = None

    def _remove(self, key: str) -> bool:
        if self._entries.pop(key, None) is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        self._unbind(key)
        return True

    def _unbind(self, key: str) -> None:
        holder = self._leases.get(self._bound.pop(key, 0))
        if holder is not None:
            del holder.keys[key]

    def _begin(self, number: int, lease: "_Lease") -> None:
        lease.deadline = asyncio.get_running_loop().time() + lease.ttl_s
        self._set_timer(number, lease)

    def _set_timer(self, number: int, lease: "_Lease") -> None:
        lease.stop()
        when = lease.deadline + self.random.random() * self._expiry_lag_s
        loop = asyncio.get_running_loop()
        lease.timer = loop.call_at(when, self._look_at, number, lease, context=self.context)

    def _look_at(self, number: int, lease: "_Lease") -> None:
        """Runs when a lease's time would be over, had nobody kept it alive."""
        if not self._down:
            if lease.deadline > asyncio.get_running_loop().time():
                self._set_timer(number, lease)
            else:
                self.revoke(number)


class _Lease:
    __slots__ = ("deadline", "keys", "timer", "ttl_s")

    def __init__(self, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        self.deadline = 0.0
        self.keys: dict[str, None] = {}
        self.timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
