"""One contract for every metadata store, sentence by sentence of the port: SQLite, memory, simulated etcd, etcd."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.etcd import Etcd

from penstock.cluster.metadata import embedded
from penstock.cluster.metadata.embedded import EmbeddedStore
from penstock.cluster.metadata.etcd import EtcdStore
from penstock.errors import PenstockError
from penstock.ports.metadata import (
    Change,
    Entry,
    LeaseLost,
    MetadataConflict,
    MetadataStore,
    MetadataUnavailable,
    WatchLost,
)
from penstock.testing.memory_metadata import MemoryStore, SimulatedEtcd

KINDS = ("embedded", "memory", "simulated", "etcd")
PATIENCE_S = 60
HISTORY_REVISIONS = 20
_prefixes = count()


def closing(watch: Any) -> aclosing[Any]:
    """The port promises an iterator; what a store gives can be closed."""
    return aclosing(watch)


class Stores(NamedTuple):
    """One truth and two clients of it; a store for one process only is its own second client."""

    kind: str
    first: MetadataStore
    second: MetadataStore
    forget: Callable[[int], Awaitable[None]]
    """Have the truth forget the changes up to a revision."""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(params=KINDS)
async def stores(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stores]:
    monkeypatch.setattr(embedded, "_HISTORY_REVISIONS", HISTORY_REVISIONS)
    made = await make(request.param, tmp_path, request)
    yield made
    await made.first.close()
    await made.second.close()


@pytest.fixture
def store(stores: Stores) -> MetadataStore:
    return stores.first


async def make(kind: str, directory: Path, request: pytest.FixtureRequest) -> Stores:
    if kind == "embedded":
        alone = await EmbeddedStore.open(str(directory / "meta" / "store.db"))

        async def crowd_out(revision: int) -> None:
            while alone._history.forgotten < revision:
                await alone.transact(put={"elsewhere": b""})

        return Stores(kind, alone, alone, crowd_out)
    if kind == "etcd":
        etcd = request.getfixturevalue("etcd")
        url = f"{etcd.url}/test-{next(_prefixes)}"

        async def compact_etcd(revision: int) -> None:
            await asyncio.to_thread(etcd.ctl, "compact", str(revision))

        return Stores(kind, await EtcdStore.open(url), await EtcdStore.open(url), compact_etcd)
    memory = MemoryStore()
    simulated = memory.etcd if kind == "memory" else SimulatedEtcd(1)

    async def compact(revision: int) -> None:
        simulated.compact(revision)

    if kind == "memory":
        return Stores(kind, memory, memory, compact)
    return Stores(kind, simulated.client("first"), simulated.client("second"), compact)


async def revision_of(store: MetadataStore) -> int:
    return (await store.snapshot("")).revision


async def gone(store: MetadataStore, key: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await store.get(key) is not None:
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(0.05)


async def read(watch: Any, lists: int) -> list[list[Change]]:
    """The next lists of a watch, each sorted: a revision's changes have no order among themselves."""
    async with asyncio.timeout(PATIENCE_S):
        return [sorted(await anext(watch)) for _ in range(lists)]


# --- keys and revisions


async def test_a_key_is_read_as_written(store: MetadataStore) -> None:
    assert await store.get("a") is None
    first = await store.transact(put={"a": b"1", "b": b"", "c": bytes(range(256))})
    assert first > 0
    assert await store.get("a") == Entry("a", b"1", first)
    assert await store.get("b") == Entry("b", b"", first)
    assert await store.get("c") == Entry("c", bytes(range(256)), first)
    second = await store.transact(put={"a": b"2"})
    assert second == first + 1
    assert await store.get("a") == Entry("a", b"2", second)
    assert await store.get("b") == Entry("b", b"", first)


async def test_what_one_client_changed_another_sees_at_once(stores: Stores) -> None:
    for number in range(20):
        revision = await stores.first.transact(put={"a": b"%d" % number})
        assert await stores.second.get("a") == Entry("a", b"%d" % number, revision)
        assert await stores.second.snapshot("") == ([Entry("a", b"%d" % number, revision)], revision)


async def test_list_and_snapshot_are_sorted_and_stop_at_the_prefix(store: MetadataStore) -> None:
    keys = ["z", "topics/\uffff", "topics/b", "topics/a", "topicsx", "topic", "topics/", "topics/é"]
    keys.append("topics/\U0010ffff")
    revision = await store.transact(put={key: key.encode() for key in keys})
    found = ["topics/", "topics/a", "topics/b", "topics/é", "topics/\uffff", "topics/\U0010ffff"]
    for prefix, wanted in (("topics/", found), ("", sorted(keys)), ("topics/b/", []), ("topics/b", ["topics/b"])):
        entries = [Entry(key, key.encode(), revision) for key in wanted]
        assert await store.list(prefix) == entries
        assert await store.snapshot(prefix) == (entries, revision)


async def test_a_snapshot_has_the_revision_of_the_store_not_of_its_keys(store: MetadataStore) -> None:
    first = await store.transact(put={"a": b"1"})
    second = await store.transact(put={"b": b"1"})
    assert await store.snapshot("a") == ([Entry("a", b"1", first)], second)
    third = await store.transact(delete=["b"])
    assert await store.snapshot("b") == ([], third)


async def test_a_conflict_changes_nothing(store: MetadataStore) -> None:
    lease = await store.grant(60)
    first = await store.transact(put={"a": b"1"})
    second = await store.transact(put={"b": b"1"})
    with pytest.raises(MetadataConflict) as caught:
        await store.transact(
            expect={"b": second, "a": second},
            put={"a": b"2", "c": b"2"},
            delete=["b"],
            put_leased={"d": b""},
            lease=lease,
        )
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("a", second, first)
    with pytest.raises(MetadataConflict) as caught:
        await store.transact(expect={"a": 0}, put={"a": b"2"})
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("a", 0, first)
    with pytest.raises(MetadataConflict) as caught:
        await store.transact(expect={"none": first}, put={"a": b"2"})
    assert (caught.value.key, caught.value.expected, caught.value.found) == ("none", first, 0)
    assert await store.snapshot("") == ([Entry("a", b"1", first), Entry("b", b"1", second)], second)
    assert await store.transact(expect={"a": first, "c": 0}, put={"c": b"3"}) == second + 1


async def test_a_transaction_changes_all_its_keys_at_one_revision(store: MetadataStore) -> None:
    lease = await store.grant(60)
    first = await store.transact(put={"a": b"1", "b": b"1"})
    revision = await store.transact(
        expect={"a": first, "b": first, "c": 0}, put={"a": b"2"}, delete=["b"], put_leased={"c": b"2"}, lease=lease
    )
    assert revision == first + 1
    assert await store.list("") == [Entry("a", b"2", revision), Entry("c", b"2", revision)]


async def test_a_revision_is_never_used_twice_even_after_deletes(store: MetadataStore) -> None:
    first = await store.transact(put={"a": b"1"})
    assert await store.transact(delete=["a"]) == first + 1
    assert await store.get("a") is None
    assert await store.transact(expect={"a": 0}, put={"a": b"2"}) == first + 2
    assert await store.get("a") == Entry("a", b"2", first + 2)


async def test_a_transaction_without_an_effect_keeps_the_revision(store: MetadataStore) -> None:
    before = await revision_of(store)
    assert await store.transact() == before
    first = await store.transact(put={"a": b"1"})
    assert await store.transact(expect={"a": first}) == first
    assert await store.transact(delete=["nothing"]) == first
    assert await store.transact(put={"a": b"1"}) == first + 1, "the same value again is a change"


async def test_a_key_that_is_to_become_two_things_is_refused(store: MetadataStore) -> None:
    lease = await store.grant(60)
    before = await revision_of(store)
    with pytest.raises(ValueError, match="'a'"):
        await store.transact(put={"a": b"1", "b": b""}, delete=["a"])
    with pytest.raises(ValueError, match="'a'"):
        await store.transact(put_leased={"a": b"1"}, lease=lease, delete=["a"])
    with pytest.raises(ValueError, match="'a'"):
        await store.transact(put={"a": b"1"}, put_leased={"a": b"1"}, lease=lease)
    with pytest.raises(ValueError, match=r"lease.*'a'"):
        await store.transact(put={"b": b""}, put_leased={"a": b"1"})
    assert await store.snapshot("") == ([], before)


async def test_a_hundred_keys_are_changed_at_once(stores: Stores) -> None:
    store = stores.first
    keys = [f"k{number:03}" for number in range(100)]
    first = await store.transact(expect=dict.fromkeys(keys, 0), put=dict.fromkeys(keys, b"1"))
    assert await store.list("") == [Entry(key, b"1", first) for key in keys]
    if stores.kind in ("simulated", "etcd"):  # the others may, and one broker does: it has all its topics to itself
        for one_more in ({"expect": {"x": 0}}, {"put": {"x": b""}}):
            with pytest.raises(ValueError, match="101 keys"):
                await store.transact(delete=keys, **one_more)
        with pytest.raises(ValueError, match="101 keys"):
            await store.transact(delete=[*keys, "x"])
    assert await store.transact(expect=dict.fromkeys(keys, first), delete=iter(keys)) == first + 1
    assert await store.list("") == []


async def test_of_many_racing_writers_one_wins_each_round(stores: Stores) -> None:
    async def add(store: MetadataStore) -> None:
        while True:
            entry = await store.get("n")
            value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
            try:
                await store.transact(expect={"n": revision}, put={"n": b"%d" % (value + 1)})
            except MetadataConflict:
                continue
            return

    before = await revision_of(stores.first)
    await asyncio.gather(*(add(store) for _ in range(5) for store in (stores.first, stores.second)))
    assert await stores.first.get("n") == Entry("n", b"10", before + 10)


# --- leases


async def test_keys_vanish_with_their_lease_and_others_stay(store: MetadataStore) -> None:
    lease, other = await store.grant(60), await store.grant(60)
    assert lease != other
    await store.transact(put={"stays": b""}, put_leased={"goes/1": b"", "goes/2": b""}, lease=lease)
    last = await store.transact(put_leased={"other": b""}, lease=other)
    await store.revoke(lease)
    assert [entry.key for entry in await store.list("")] == ["other", "stays"]
    assert await revision_of(store) == last + 1, "all at one revision"
    await store.revoke(lease)
    await store.revoke(123_456_789)
    assert await revision_of(store) == last + 1
    with pytest.raises(LeaseLost):
        await store.keep_alive(lease)
    await store.keep_alive(other)


async def test_an_ended_lease_binds_nothing(store: MetadataStore) -> None:
    lease = await store.grant(60)
    await store.revoke(lease)
    before = await store.transact(put={"a": b"1"})
    for absent in (lease, 123_456_789):
        with pytest.raises(LeaseLost):
            await store.transact(put={"b": b""}, put_leased={"c": b""}, delete=["a"], lease=absent)
    assert await store.snapshot("") == ([Entry("a", b"1", before)], before)


async def test_a_key_is_bound_to_the_lease_of_its_last_change(store: MetadataStore) -> None:
    first, second = await store.grant(60), await store.grant(60)
    await store.transact(put_leased={"freed": b"", "moved": b"", "again": b""}, lease=first)
    await store.transact(put={"freed": b"2"}, delete=["again"])
    await store.transact(put={"again": b"2"}, put_leased={"moved": b"2"}, lease=second)
    await store.revoke(first)
    assert [entry.key for entry in await store.list("")] == ["again", "freed", "moved"]
    await store.revoke(second)
    assert [entry.key for entry in await store.list("")] == ["again", "freed"]


async def test_a_lease_ends_unless_it_is_kept_alive(stores: Stores) -> None:
    kept, left = await stores.first.grant(1), await stores.first.grant(1)
    await stores.first.transact(put_leased={"kept": b""}, lease=kept)
    revision = await stores.first.transact(put_leased={"left": b"", "left too": b""}, lease=left)
    await gone(stores.second, "left", lambda: stores.first.keep_alive(kept))
    assert await stores.first.get("left too") is None
    assert await stores.first.get("kept") is not None
    assert await revision_of(stores.first) == revision + 1
    with pytest.raises(LeaseLost):
        await stores.first.keep_alive(left)
    await gone(stores.second, "kept")
    with pytest.raises(LeaseLost):
        await stores.first.keep_alive(kept)


# --- watches


async def test_a_watch_tells_later_changes_in_order_revision_by_revision(stores: Stores) -> None:
    lease = await stores.first.grant(60)
    await stores.first.transact(put={"a/1": b"before"})
    start = await revision_of(stores.first)
    await stores.first.transact(put={"a/1": b"1", "b": b"", "a/2": b"2"})
    async with closing(stores.second.watch("a/", start)) as watch:
        assert await read(watch, 1) == [[Change("a/1", b"1", start + 1), Change("a/2", b"2", start + 1)]]
        await stores.first.transact(put={"b": b"", "a": b"", "a0": b""})
        await stores.first.transact(put_leased={"a/3": b""}, lease=lease, delete=["a/1", "a/none"])
        await stores.first.transact(put={"a/2": b"3"})
        await stores.first.transact(put={"a/2": b"4"})
        await stores.first.revoke(lease)
        assert await read(watch, 4) == [
            [Change("a/1", None, start + 3), Change("a/3", b"", start + 3)],
            [Change("a/2", b"3", start + 4)],
            [Change("a/2", b"4", start + 5)],
            [Change("a/3", None, start + 6)],
        ]


async def test_a_watch_of_everything_tells_of_a_lease_that_ran_out(stores: Stores) -> None:
    lease = await stores.first.grant(1)
    revision = await stores.first.transact(put_leased={"a": b"", "b": b""}, lease=lease)
    async with closing(stores.second.watch("", revision)) as watch:
        assert await read(watch, 1) == [[Change("a", None, revision + 1), Change("b", None, revision + 1)]]


async def test_a_watch_waits_while_nothing_changes(stores: Stores) -> None:
    start = await revision_of(stores.first)
    watch: Any = stores.second.watch("a", start)
    waiting = asyncio.ensure_future(read(watch, 1))
    await stores.first.transact(put={"b": b""})
    await revision_of(stores.second)
    assert not waiting.done()
    revision = await stores.first.transact(put={"a": b""})
    assert await waiting == [[Change("a", b"", revision)]]
    await watch.aclose()


async def test_several_watches_have_places_of_their_own(stores: Stores) -> None:
    start = await revision_of(stores.first)
    for number in range(3):
        await stores.first.transact(put={"a": b"%d" % number})
    for after in (2, 0, 1):
        async with closing(stores.second.watch("", start + after)) as watch:
            told = await read(watch, 3 - after)
        assert told == [[Change("a", b"%d" % number, start + number + 1)] for number in range(after, 3)]


async def test_a_snapshot_and_a_watch_from_there_miss_nothing(stores: Stores) -> None:
    async def write() -> None:
        for number in range(30):
            await stores.first.transact(put={f"k{number % 7}": b"%d" % number}, delete=[f"k{(number + 3) % 7}"])

    start = await revision_of(stores.first)
    writing = asyncio.ensure_future(write())
    entries, revision = await stores.second.snapshot("k")
    seen = {entry.key: entry for entry in entries}
    async with closing(stores.second.watch("k", revision)) as watch:
        while revision < start + 30:
            for key, value, revision in (await read(watch, 1))[0]:
                if value is None:
                    del seen[key]
                else:
                    seen[key] = Entry(key, value, revision)
    await writing
    assert [seen[key] for key in sorted(seen)] == await stores.first.list("")


async def test_a_watch_of_forgotten_changes_is_lost(stores: Stores) -> None:
    store = stores.first
    start = await revision_of(store)
    for number in range(3):
        await store.transact(put={"a": b"%d" % number})
    await stores.forget(start + 2)
    with pytest.raises(WatchLost):
        await read(store.watch("", start), 1)
    entries, revision = await store.snapshot("a")
    watch: Any = store.watch("a", revision)
    after = await store.transact(put={"a": b"4"}, expect={"a": entries[0].revision})
    assert await read(watch, 1) == [[Change("a", b"4", after)]]
    await watch.aclose()


async def test_a_watch_from_a_revision_that_is_still_to_come_is_lost(store: MetadataStore) -> None:
    revision = await store.transact(put={"a": b""})
    with pytest.raises(WatchLost):
        await read(store.watch("", revision + 1000), 1)


async def test_a_closed_watch_has_ended(store: MetadataStore) -> None:
    revision = await store.transact(put={"a": b"1"})
    watch: Any = store.watch("a", revision - 1)
    assert await read(watch, 1) == [[Change("a", b"1", revision)]]
    await store.transact(put={"a": b"2"})
    await watch.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_closed_store_answers_nobody_and_ends_its_watches(stores: Stores) -> None:
    if stores.kind == "memory":  # it stands for the device too, which nobody closes
        await stores.first.close()
        assert await stores.first.get("a") is None
        return
    watch: Any = stores.first.watch("", await revision_of(stores.first))
    waiting = asyncio.ensure_future(read(watch, 1))
    await revision_of(stores.first)
    await stores.first.close()
    with pytest.raises(WatchLost):
        await waiting
    for call in (stores.first.get("a"), stores.first.transact(put={"a": b""}), stores.first.grant(1)):
        with pytest.raises((MetadataUnavailable, PenstockError)):
            await call
