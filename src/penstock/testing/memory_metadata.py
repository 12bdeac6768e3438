"""An etcd in memory, for simulations: one truth, and for each broker a link to it that a test can spoil.

The truth (`SimulatedEtcd`) changes at single moments, so whatever clients see is linearizable. Time is the event
loop's. Between a client and the truth lies its `Link`: requests and answers travel for a while, get lost, and a lost
change may have been made all the same, even after the client has given up. Watches lag behind, repeat themselves and
break off. That is all that etcd may do to its clients, and no more: an old snapshot is never given.

A call runs in the caller's task. A process killed before its request arrived has changed nothing; one killed while the
answer travels has. Late requests and the ends of leases run in the context in which the truth was made, so make it
outside of any simulated process.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import TypeVar

from penstock.cluster.metadata.transaction import check_size, make_transaction
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataConflict, MetadataUnavailable, Snapshot, WatchLost
from penstock.testing.etcd_state import Copy, EtcdState

T = TypeVar("T")
Entries = list[Entry]  # inside a class, `list` is a method
Changes = list[Change]

_WATCHES_BROKEN_BY_AN_OUTAGE = 0.5


class SimulatedEtcd:
    """The truth, and the links of its clients.

    Args:
        seed: decides delays, losses, lease ids.
        max_delay_s: how long a request, an answer or a watch's news may travel; far less than `timeout_s`. 0: calls
            do not even yield to other tasks.
        timeout_s: after which a client without an answer gives up.
        lost_but_made: the share of lost changes that are made, at some moment within twice the timeout.
        expiry_lag_s: how late the end of a lease may be noticed.
        history_revisions: how far back watches may begin, at least.

    Attributes:
        state: the truth, for oracles: `state.snapshot(prefix)`, `state.on_change`.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        max_delay_s: float = 0.002,
        timeout_s: float = 3.0,
        lost_but_made: float = 0.5,
        expiry_lag_s: float = 0.5,
        history_revisions: int = 1000,
    ) -> None:
        self.random = Random(seed)  # noqa: S311 - a replayable simulation, not a secret
        self.state = EtcdState(self.random, expiry_lag_s, history_revisions)
        self.max_delay_s = max_delay_s
        self.timeout_s = timeout_s
        self.lost_but_made = lost_but_made
        self._links: dict[str, Link] = {}

    def client(self, name: str) -> "SimulatedClient":
        """A store for one life of a broker; its faults are those of `link(name)`."""
        return SimulatedClient(self, self.link(name))

    def link(self, name: str) -> "Link":
        """What lies between the truth and all clients of that name."""
        if name not in self._links:
            self._links[name] = Link(self, name)
        return self._links[name]

    @property
    def down(self) -> bool:
        """Whether nobody gets an answer, for lack of a majority."""
        return self.state.down

    @down.setter
    def down(self, down: bool) -> None:
        if self.state.down and not down:
            for link in self._links.values():
                link.shake()
        self.state.down = down

    def compact(self, revision: int | None = None) -> None:
        self.state.compact(revision)

    def copy(self) -> Copy:
        """A backup."""
        return self.state.copy()

    def restore(self, copy: Copy) -> None:
        """Put a backup back: the revision falls, younger leases are gone, every watch breaks off."""
        self.state.restore(copy)


class Link:
    """What a test may do to the clients of one name. All of it may be changed at any time.

    Attributes:
        max_delay_s: how long a request or an answer may travel.
        loss: the share of calls that get no answer although nothing is cut.
        watch_lag_s: how much later than others its watches hear of changes.
        watch_repeats: the share of news that a watch tells twice.
        watch_losses: the share of news at which a watch breaks off instead.
        limits_transactions: whether large transactions are refused, as etcd does.
    """

    def __init__(self, etcd: SimulatedEtcd, name: str) -> None:
        self.name = name
        self.max_delay_s = etcd.max_delay_s
        self.loss = 0.0
        self.watch_lag_s = 0.0
        self.watch_repeats = 0.0
        self.watch_losses = 0.0
        self.limits_transactions = True
        self.breaks = 0
        self._etcd = etcd
        self._cut = False

    @property
    def cut(self) -> bool:
        """Whether nothing gets through. Watches hang, and go on or break off when the link is whole again."""
        return self._cut

    @cut.setter
    def cut(self, cut: bool) -> None:
        if self._cut and not cut:
            self.shake()
        self._cut = cut
        self._etcd.state.history.wake()

    def break_watches(self) -> None:
        """End every watch that is open now by `WatchLost`."""
        self.breaks += 1
        self._etcd.state.history.wake()

    def shake(self) -> None:
        """After an outage: watches may have been broken off by it."""
        if self._etcd.random.random() < _WATCHES_BROKEN_BY_AN_OUTAGE:
            self.break_watches()


class SimulatedClient:
    """The metadata port at the far end of a link. Make one with `SimulatedEtcd.client`."""

    def __init__(self, etcd: SimulatedEtcd, link: Link) -> None:
        self.etcd = etcd
        self.link = link
        self.closed = False

    async def get(self, key: str) -> Entry | None:
        return await self._call(False, self.etcd.state.get, key)

    async def list(self, prefix: str) -> Entries:
        return await self._call(False, self.etcd.state.list, prefix)

    async def snapshot(self, prefix: str) -> Snapshot:
        return await self._call(False, self.etcd.state.snapshot, prefix)

    async def transact(
        self,
        *,
        expect: Mapping[str, int] | None = None,
        put: Mapping[str, bytes] | None = None,
        delete: Iterable[str] = (),
        put_leased: Mapping[str, bytes] | None = None,
        lease: int = 0,
    ) -> int:
        transaction = make_transaction(expect, put, delete, put_leased, lease)
        if self.link.limits_transactions:
            check_size(transaction)
        return await self._call(True, self.etcd.state.transact, transaction)

    async def grant(self, ttl_s: int) -> int:
        return await self._call(True, self.etcd.state.grant, ttl_s)

    async def keep_alive(self, lease: int) -> None:
        await self._call(True, self.etcd.state.keep_alive, lease)

    async def revoke(self, lease: int) -> None:
        await self._call(True, self.etcd.state.revoke, lease)

    def watch(self, prefix: str, after_revision: int) -> "SimulatedWatch":
        return SimulatedWatch(self, prefix, after_revision)

    async def close(self) -> None:
        """Later calls raise, watches end. The truth does not notice: leases run on."""
        self.closed = True
        self.etcd.state.history.wake()

    @property
    def is_reachable(self) -> bool:
        return not (self.link.cut or self.etcd.down)

    async def _call(self, changes: bool, work: Callable[..., T], *arguments: object) -> T:
        if self.closed:
            raise MetadataUnavailable(f"etcd: the client of {self.link.name} is closed")
        link, random = self.link, self.etcd.random.random
        if link.max_delay_s:
            await asyncio.sleep(random() * link.max_delay_s)
        if not self.is_reachable or (link.loss and random() < link.loss):
            if changes and random() < self.etcd.lost_but_made:
                self._arrive_late(work, *arguments)
            await self._give_up()
        error: Exception | None = None
        try:
            answer = work(*arguments)
        except (MetadataConflict, LeaseLost, ValueError) as raised:
            error = raised  # an answer too
        if link.max_delay_s:
            await asyncio.sleep(random() * link.max_delay_s)
        if not self.is_reachable:
            await self._give_up()
        if error is not None:
            raise error
        return answer

    def _arrive_late(self, work: Callable[..., object], *arguments: object) -> None:
        def arrive() -> None:
            if not etcd.down:
                with suppress(MetadataConflict, LeaseLost, ValueError):  # nobody is there to be told
                    work(*arguments)

        etcd = self.etcd
        delay_s = etcd.random.random() * 2 * etcd.timeout_s
        asyncio.get_running_loop().call_later(delay_s, arrive, context=etcd.state.context)

    async def _give_up(self) -> None:
        await asyncio.sleep(self.etcd.timeout_s)
        raise MetadataUnavailable(f"etcd did not answer {self.link.name} within {self.etcd.timeout_s} s")


class SimulatedWatch:
    """A watch at the far end of a link."""

    def __init__(self, client: SimulatedClient, prefix: str, after_revision: int) -> None:
        self._client = client
        self._prefix = prefix
        self._revision = after_revision
        self._history = client.etcd.state.history
        self._breaks = client.link.breaks
        self._ready: deque[Changes] = deque()
        self._closed = False

    def __aiter__(self) -> "SimulatedWatch":
        return self

    async def __anext__(self) -> Changes:
        while True:
            self._check()
            if self._ready:
                return self._ready.popleft()
            if self._history.newest == self._revision or not self._client.is_reachable:
                await self._history.news()
            else:
                await self._hear()

    async def aclose(self) -> None:
        """End the iteration, also for a task that waits in it."""
        self._closed = True
        self._history.wake()

    async def _hear(self) -> None:
        """Have the news of this moment travel."""
        link, random = self._client.link, self._client.etcd.random.random
        newest = self._history.newest
        news = self._history.after(self._revision, self._prefix)
        if news:
            delay_s = link.watch_lag_s + random() * link.max_delay_s
            if delay_s:
                await asyncio.sleep(delay_s)
            if not self._client.is_reachable:
                return
            if link.watch_losses and random() < link.watch_losses:
                raise WatchLost(f"etcd: a watch of {link.name} broke off")
            self._ready.extend(news)
            if link.watch_repeats and random() < link.watch_repeats:
                self._ready.extend(news)
        self._revision = newest

    def _check(self) -> None:
        if self._closed:
            raise StopAsyncIteration
        if self._client.closed or self._history.ended or self._client.link.breaks != self._breaks:
            raise WatchLost(self._history.ended or f"etcd: a watch of {self._client.link.name} broke off")


class MemoryStore(SimulatedClient):
    """A metadata store without faults. Keep it across simulated restarts: it stands for the device too."""

    def __init__(self) -> None:
        etcd = SimulatedEtcd(max_delay_s=0.0, expiry_lag_s=0.0)
        super().__init__(etcd, etcd.link("memory"))
        self.link.limits_transactions = False  # like the embedded store

    async def close(self) -> None:
        """Nothing to let go of."""
