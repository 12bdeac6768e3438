"""Metadata stores beside a plain model, step by step: SQLite, the simulated etcd, and etcd, which keeps it honest."""

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.etcd import Etcd

from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.cluster.metadata.etcd import EtcdStore
from penstock.ports.metadata import Change, Entry, LeaseLost, MetadataConflict, MetadataStore, WatchLost
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import VirtualLoop

T = TypeVar("T")
KEYS = st.sampled_from(["a", "a/b", "a/c", "a0", "b", "é"])
PREFIXES = st.sampled_from(["", "a", "a/", "b", "é", "x"])
VALUES = st.binary(max_size=3)
TTL_S = 600
_prefixes = count()


class Model:
    """What a store should hold: entries, leases, and every change since it was opened."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, set[str]] = {}
        self.told: list[list[Change]] = []

    def under(self, prefix: str) -> list[Entry]:
        return [self.entries[key] for key in sorted(self.entries) if key.startswith(prefix)]

    def change(self, put: dict[str, bytes], delete: set[str], leased: dict[str, bytes], lease: int = 0) -> None:
        gone = delete & set(self.entries)
        changed = put | leased
        if not gone and not changed:
            return
        self.revision += 1
        for keys in self.leases.values():
            keys -= gone | set(changed)
        for key in gone:
            del self.entries[key]
        self.entries |= {key: Entry(key, value, self.revision) for key, value in changed.items()}
        if leased:
            self.leases[lease] |= set(leased)
        told = [Change(key, None, self.revision) for key in gone]
        self.told.append(sorted(told + [Change(key, value, self.revision) for key, value in changed.items()]))

    def end(self, leases: list[int]) -> None:
        for lease in leases:
            self.change({}, self.leases.pop(lease), {})

    def after(self, revision: int, prefix: str) -> list[list[Change]]:
        lists = [[change for change in changes if change.key.startswith(prefix)] for changes in self.told]
        return [changes for changes in lists if changes and changes[0].revision > revision]


class StoreMachine(RuleBasedStateMachine):
    """Opens a store, changes it, and compares everything it says with the model."""

    loop: asyncio.AbstractEventLoop
    leases = Bundle("leases")
    watches = Bundle("watches")

    async def open(self) -> MetadataStore:
        raise NotImplementedError

    def do(self, call: Awaitable[T]) -> T:
        async def within() -> T:
            async with asyncio.timeout(60):
                return await call

        return self.loop.run_until_complete(within())

    @initialize(target=leases)
    def begin(self) -> Any:
        self.store = self.do(self.open())
        self.model = Model(self.do(self.store.snapshot("")).revision)
        self.oldest = self.model.revision  # that can be watched from
        self.life = 0  # a watch does not outlive the store it was opened on
        self.opened: list[Any] = []
        return multiple(self.grant_one(), self.grant_one())

    def teardown(self) -> None:
        for watch in getattr(self, "opened", []):
            self.do(watch.aclose())
        if hasattr(self, "store"):
            self.do(self.store.close())

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.do(self.store.get(key)) == self.model.entries.get(key)

    @rule(prefix=PREFIXES)
    def list_(self, prefix: str) -> None:
        assert self.do(self.store.list(prefix)) == self.model.under(prefix)

    @rule(prefix=PREFIXES)
    def snapshot(self, prefix: str) -> None:
        assert self.do(self.store.snapshot(prefix)) == (self.model.under(prefix), self.model.revision)

    @rule(
        right=st.sets(KEYS, max_size=3),
        wrong=st.dictionaries(KEYS, st.integers(-2, 2).filter(bool), max_size=1),
        put=st.dictionaries(KEYS, VALUES, max_size=3),
        delete=st.sets(KEYS, max_size=2),
    )
    def transact(self, right: set[str], wrong: dict[str, int], put: dict[str, bytes], delete: set[str]) -> None:
        self.change(right, wrong, put, delete - set(put), {}, 0)

    @rule(
        right=st.sets(KEYS, max_size=2),
        wrong=st.dictionaries(KEYS, st.integers(1, 2), max_size=1),
        put=st.dictionaries(KEYS, VALUES, max_size=2),
        delete=st.sets(KEYS, max_size=2),
        leased=st.dictionaries(KEYS, VALUES, min_size=1, max_size=3),
        lease=leases,
    )
    def transact_leased(
        self,
        right: set[str],
        wrong: dict[str, int],
        put: dict[str, bytes],
        delete: set[str],
        leased: dict[str, bytes],
        lease: int,
    ) -> None:
        put = {key: value for key, value in put.items() if key not in leased}
        self.change(
            right, wrong if lease in self.model.leases else {}, put, delete - set(put) - set(leased), leased, lease
        )

    def change(
        self,
        right: set[str],
        wrong: dict[str, int],
        put: dict[str, bytes],
        delete: set[str],
        leased: dict[str, bytes],
        lease: int,
    ) -> None:
        """Transact, expecting what is so of the keys in `right`, and something else of those in `wrong`."""
        found = {key: entry.revision for key, entry in self.model.entries.items()}
        expect = {key: found.get(key, 0) for key in right}
        expect |= {key: max(found.get(key, 0) + by, 0) for key, by in wrong.items()}
        conflicts = {key for key, revision in expect.items() if revision != found.get(key, 0)}
        call = self.store.transact(expect=expect, put=put, delete=delete, put_leased=leased, lease=lease)
        if conflicts:
            with pytest.raises(MetadataConflict) as caught:
                self.do(call)
            assert caught.value.key in conflicts
            assert caught.value.found == found.get(caught.value.key, 0)
        elif leased and lease not in self.model.leases:
            with pytest.raises(LeaseLost):
                self.do(call)
        else:
            self.model.change(put, delete, leased, lease)
            assert self.do(call) == self.model.revision

    @rule(target=leases)
    def grant(self) -> int:
        return self.grant_one()

    def grant_one(self) -> int:
        lease = self.do(self.store.grant(TTL_S))
        assert lease not in self.model.leases
        self.model.leases[lease] = set()
        return lease

    @rule(lease=leases)
    def keep_alive(self, lease: int) -> None:
        if lease in self.model.leases:
            self.do(self.store.keep_alive(lease))
        else:
            with pytest.raises(LeaseLost):
                self.do(self.store.keep_alive(lease))

    @rule(lease=leases)
    def revoke(self, lease: int) -> None:
        self.do(self.store.revoke(lease))
        if lease in self.model.leases:
            self.model.end([lease])

    @rule(target=watches, prefix=PREFIXES, back=st.integers(0, 6))
    def watch(self, prefix: str, back: int) -> tuple[Any, str, int, int]:
        after = max(self.model.revision - back, self.oldest)
        watch = self.store.watch(prefix, after)
        self.opened.append(watch)
        return watch, prefix, after, self.life

    @rule(opened=consumes(watches), more=st.dictionaries(KEYS, VALUES, min_size=1, max_size=2))
    def read_watch(self, opened: tuple[Any, str, int, int], more: dict[str, bytes]) -> None:
        """Read all that a watch has to tell, then one more change, which it waits for."""
        watch, prefix, after, life = opened
        if life != self.life:
            with pytest.raises(WatchLost):
                self.do(read_to_the_end(watch))
            return
        told = [sorted(self.do(anext(watch))) for _ in self.model.after(after, prefix)]
        assert told == self.model.after(after, prefix)
        self.change(set(), {}, more, set(), {}, 0)
        if any(key.startswith(prefix) for key in more):
            assert sorted(self.do(anext(watch))) == self.model.after(after, prefix)[-1]

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if hasattr(self, "store"):
            assert self.do(self.store.snapshot("")) == (self.model.under(""), self.model.revision)


async def read_to_the_end(watch: Any) -> None:
    async for _ in watch:
        pass


class EmbeddedMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = TemporaryDirectory()

    async def open(self) -> MetadataStore:
        return await EmbeddedStore.open(f"{self.directory.name}/store.db")

    def teardown(self) -> None:
        super().teardown()
        self.loop.close()
        self.directory.cleanup()

    @precondition(lambda self: hasattr(self, "store"))
    @rule(leased=st.dictionaries(KEYS, VALUES, max_size=2))
    def reopen(self, leased: dict[str, bytes]) -> None:
        """As after a restart: leases and watches are gone."""
        self.change(set(), {}, {}, set(), leased, self.grant_one())
        self.do(self.store.close())
        self.store = self.do(self.open())
        bound = set().union(*self.model.leases.values())
        self.model.leases.clear()
        self.model.change({}, bound, {})
        self.oldest = self.model.revision
        self.life += 1


class SimulatedMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop(0)

    async def open(self) -> MetadataStore:
        self.etcd = SimulatedEtcd(0, max_delay_s=0.01)
        return self.etcd.client("machine")

    def teardown(self) -> None:
        super().teardown()
        self.loop.close()

    @precondition(lambda self: hasattr(self, "store"))
    @rule(kept=st.sets(st.integers(0, 3)))
    def time_passes(self, kept: set[int]) -> None:
        """Leases run out, but for those that are kept alive; which goes first is for the store to say."""
        leases = list(self.model.leases)
        left = [lease for number, lease in enumerate(leases) if number not in kept]
        before = self.model.revision

        async def pass_time() -> list[str]:
            gone: list[str] = []
            self.etcd.state.on_change = lambda changes: gone.append(changes[0].key)
            for _ in range(2):
                await asyncio.sleep(TTL_S * 0.6)
                for lease in leases:
                    if lease not in left:
                        await self.store.keep_alive(lease)
            return gone

        changed = self.loop.run_until_complete(pass_time())
        order = [next(lease for lease in left if key in self.model.leases[lease]) for key in changed]
        self.model.end([*order, *(lease for lease in left if lease not in order)])
        assert self.model.revision == before + len(order)


class EtcdMachine(StoreMachine):
    url: ClassVar[str]
    shared_loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(self) -> None:
        super().__init__()
        self.loop = self.shared_loop

    async def open(self) -> MetadataStore:
        return await EtcdStore.open(f"{self.url}/machine-{next(_prefixes)}")


def run(machine: type[StoreMachine], examples: int, *, shrink: bool) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
            phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        ),
    )


def test_embedded() -> None:
    run(EmbeddedMachine, 60, shrink=False)  # which takes minutes on a real device


def test_simulated() -> None:
    run(SimulatedMachine, 120, shrink=True)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as running:
        yield running


def test_etcd(etcd: Etcd) -> None:
    EtcdMachine.url = etcd.url
    EtcdMachine.shared_loop = asyncio.new_event_loop()
    try:
        run(EtcdMachine, 40, shrink=False)
    finally:
        EtcdMachine.shared_loop.close()
