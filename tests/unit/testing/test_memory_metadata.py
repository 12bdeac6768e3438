"""The simulated etcd: what a link may do to its clients, in virtual time. What any store does is in the contract."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from penstock.cluster.metadata.transaction import make_transaction
from penstock.ports.metadata import (
    Change,
    Entry,
    LeaseLost,
    MetadataConflict,
    MetadataStore,
    MetadataUnavailable,
    WatchLost,
)
from penstock.testing.memory_metadata import MemoryStore, SimulatedEtcd, SimulatedWatch
from penstock.testing.virtual_clock import VirtualLoop, run_virtual

T = TypeVar("T")


def virtual(function: Callable[[], Coroutine[Any, Any, T]]) -> Callable[[], T]:
    """A test in virtual time."""

    def test() -> T:
        return run_virtual(function, 0)

    test.__name__ = function.__name__
    return test


def now() -> float:
    return asyncio.get_running_loop().time()


async def raised(call: Coroutine[Any, Any, object]) -> BaseException | None:
    return (await asyncio.gather(call, return_exceptions=True))[0]  # type: ignore[return-value]


async def heard(watch: SimulatedWatch, lists: int) -> list[tuple[float, int]]:
    """When a watch told what revision."""
    return [(now(), changes[0].revision) for changes in [await anext(watch) for _ in range(lists)]]


# --- the way there and back


def trace_of(seed: int) -> list[object]:
    """What two clients with every fault there is live through."""
    trace: list[object] = []

    async def live(etcd: SimulatedEtcd, name: str, seed: int) -> None:
        choices, store = Random(seed), etcd.client(name)
        link = etcd.link(name)
        link.loss = link.watch_repeats = link.watch_losses = 0.1
        for number in range(60):
            link.cut = choices.random() < 0.1
            try:
                lease = await store.grant(2)
                found = await store.transact(put={name: b""}, put_leased={f"{name}-{number}": b""}, lease=lease)
                trace.append((now(), name, found, lease))
            except MetadataUnavailable as error:
                trace.append((now(), name, str(error)))

    async def look(etcd: SimulatedEtcd, name: str) -> None:
        while True:
            store = etcd.client(name)
            revision = 0
            try:
                async for changes in store.watch("", revision):
                    revision = changes[-1].revision
                    trace.append((now(), name, changes))
            except WatchLost as error:
                trace.append((now(), name, str(error)))
                await asyncio.sleep(0.5)

    async def main() -> None:
        etcd = SimulatedEtcd(seed, history_revisions=20)
        looking = [asyncio.ensure_future(look(etcd, name)) for name in "ab"]
        await asyncio.gather(live(etcd, "a", 1), live(etcd, "b", 2))
        for task in looking:
            task.cancel()
        trace.append(etcd.state.snapshot())

    run_virtual(main, 7)
    return trace


def test_a_seed_decides_everything() -> None:
    first = trace_of(1)
    assert len(first) > 200
    assert any("broke off" in str(event) for event in first)
    assert any("did not answer" in str(event) for event in first)
    assert trace_of(1) == first
    assert trace_of(2) != first


@virtual
async def test_requests_and_answers_travel() -> None:
    etcd = SimulatedEtcd(1, max_delay_s=0.5)
    made: list[float] = []
    etcd.state.on_change = lambda _: made.append(now())
    store, there, back = etcd.client("a"), [], []
    for _ in range(200):
        start = now()
        await store.transact(put={"a": b""})
        there.append(made[-1] - start)
        back.append(now() - made[-1])
    for way in (there, back):
        assert 0 <= min(way) < 0.05
        assert 0.45 < max(way) <= 0.5
    start = now()
    assert await raised(store.transact(expect={"a": 1})) is not None
    assert now() > start, "a refusal travels too"


@virtual
async def test_the_store_without_faults_answers_before_any_other_task_runs() -> None:
    store = MemoryStore()
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    lease = await store.grant(5)
    await store.transact(put={"a": b""}, put_leased={f"b{n}": b"" for n in range(200)}, lease=lease)
    await store.revoke(lease)
    assert await store.snapshot("") == ([Entry("a", b"", 1)], 2)
    assert ran == []


# --- what gets lost


@virtual
async def test_a_client_that_is_cut_off_gives_up_after_its_timeout() -> None:
    etcd = SimulatedEtcd(1, max_delay_s=0.0, timeout_s=4.0)
    store, other = etcd.client("a"), etcd.client("b")
    lease = await store.grant(1000)
    etcd.link("a").cut = True
    calls: tuple[Callable[[MetadataStore], Coroutine[Any, Any, object]], ...] = (
        lambda store: store.get("a"),
        lambda store: store.list("a"),
        lambda store: store.snapshot("a"),
        lambda store: store.transact(put={"a": b""}),
        lambda store: store.grant(1),
        lambda store: store.keep_alive(lease),
        lambda store: store.revoke(lease),
    )
    for call in calls:
        start = now()
        with pytest.raises(MetadataUnavailable, match=r"did not answer a within 4\.0 s"):
            await call(store)
        assert now() == start + 4
    assert await raised(calls[0](other)) is None
    etcd.link("a").cut = False
    assert await raised(calls[0](store)) is None
    assert await raised(calls[0](etcd.client("a"))) is None
    etcd.down = True
    for client in (store, other):
        assert isinstance(await raised(calls[0](client)), MetadataUnavailable)


async def lost_changes(etcd: SimulatedEtcd, count: int) -> tuple[int, int]:
    """How many of the changes asked for over a dead link were made in time, and how many at all."""
    store = etcd.client("a")
    etcd.link("a").cut = True
    calls = [store.transact(put={f"k{number}": b""}) for number in range(count)]
    assert all(isinstance(each, MetadataUnavailable) for each in await asyncio.gather(*calls, return_exceptions=True))
    in_time = len(etcd.state.list(""))
    await asyncio.sleep(2 * etcd.timeout_s)
    return in_time, len(etcd.state.list(""))


@virtual
async def test_a_lost_change_may_have_been_made_or_be_made_when_nobody_waits_for_it_any_more() -> None:
    in_time, at_all = await lost_changes(SimulatedEtcd(1), 400)
    assert 60 < in_time < 140
    assert 160 < at_all < 240
    assert await lost_changes(SimulatedEtcd(1, lost_but_made=0.0), 100) == (0, 0)
    assert (await lost_changes(SimulatedEtcd(1, lost_but_made=1.0), 100))[1] == 100


@virtual
async def test_a_late_change_still_expects_what_it_expected() -> None:
    etcd = SimulatedEtcd(1, lost_but_made=1.0)
    store, other = etcd.client("a"), etcd.client("b")
    etcd.link("a").cut = True
    late = asyncio.ensure_future(raised(store.transact(expect={"a": 0}, put={"a": b"late"})))
    await other.transact(put={"a": b"first"})
    assert isinstance(await late, MetadataUnavailable)
    await asyncio.sleep(10)
    assert etcd.state.get("a") == Entry("a", b"first", 1)


@virtual
async def test_an_answer_gets_lost_although_the_change_was_made() -> None:
    etcd = SimulatedEtcd(1, max_delay_s=1.0)
    etcd.state.on_change = lambda _: setattr(etcd.link("a"), "cut", True)
    assert isinstance(await raised(etcd.client("a").transact(put={"a": b""})), MetadataUnavailable)
    assert etcd.state.get("a") == Entry("a", b"", 1)


@virtual
async def test_some_calls_get_lost_on_a_bad_link() -> None:
    etcd = SimulatedEtcd(1, lost_but_made=0.0)
    etcd.link("a").loss = 0.25
    calls = [etcd.client("a").transact(put={f"k{number}": b""}) for number in range(400)]
    lost = sum(isinstance(each, MetadataUnavailable) for each in await asyncio.gather(*calls, return_exceptions=True))
    assert 60 < lost < 140
    assert len(etcd.state.list("")) == 400 - lost


# --- leases


@virtual
async def test_a_lease_ends_by_the_loops_time_and_a_little_late() -> None:
    etcd = SimulatedEtcd(1, max_delay_s=0.0, expiry_lag_s=0.5)
    store, ends = etcd.client("a"), []
    etcd.state.on_change = lambda changes: ends.append(now()) if changes[0].value is None else None
    for number in range(50):
        lease = await store.grant(10)
        start = now()
        await store.transact(put_leased={"a": b""}, lease=lease)
        await asyncio.sleep(8)
        await store.keep_alive(lease)
        await asyncio.sleep(10)
        with pytest.raises(LeaseLost):
            await store.keep_alive(lease)
        await asyncio.sleep(1)
        assert len(ends) == number + 1
        ends[-1] -= start + 18
    assert 0 <= min(ends) < 0.1
    assert 0.4 < max(ends) <= 0.5


@virtual
async def test_no_lease_ends_while_etcd_is_down_and_each_begins_anew_afterwards() -> None:
    etcd = SimulatedEtcd(1, expiry_lag_s=0.0)
    store = etcd.client("a")
    lease = await store.grant(10)
    await store.transact(put_leased={"a": b""}, lease=lease)
    etcd.down = True
    await asyncio.sleep(100)
    etcd.down = False
    await asyncio.sleep(9)
    assert await store.get("a") is not None
    await asyncio.sleep(1)
    assert await store.get("a") is None


# --- watches


@virtual
async def test_a_watch_lags_for_its_own_client_only() -> None:
    etcd = SimulatedEtcd(1, max_delay_s=0.0)
    etcd.link("slow").watch_lag_s = 7.0
    watches = [etcd.client(name).watch("", 0) for name in ("slow", "quick")]
    listening = [asyncio.ensure_future(heard(watch, 1)) for watch in watches]
    await asyncio.sleep(1)
    await etcd.client("quick").transact(put={"a": b""})
    assert await asyncio.gather(*listening) == [[(8.0, 1)], [(1.0, 1)]]
    assert await etcd.client("slow").snapshot("") == ([Entry("a", b"", 1)], 1)


@virtual
async def test_a_watch_repeats_itself() -> None:
    etcd = SimulatedEtcd(1)
    etcd.link("a").watch_repeats = 1.0
    store = etcd.client("a")
    for _ in range(3):
        await store.transact(put={"a": b""})
    watch = store.watch("", 0)
    assert [revision for _, revision in await heard(watch, 6)] == [1, 2, 3, 1, 2, 3]
    await store.transact(put={"a": b""})
    assert [revision for _, revision in await heard(watch, 2)] == [4, 4]


@virtual
async def test_watches_are_broken_off_one_client_at_a_time() -> None:
    etcd = SimulatedEtcd(1)
    broken, whole = (asyncio.ensure_future(heard(etcd.client(name).watch("", 0), 1)) for name in "ab")
    await asyncio.sleep(1)
    etcd.link("a").break_watches()
    assert isinstance(await raised(broken), WatchLost)  # type: ignore[arg-type]
    again = asyncio.ensure_future(heard(etcd.client("a").watch("", 0), 1))
    await etcd.client("b").transact(put={"a": b""})
    assert [told[0][1] for told in await asyncio.gather(whole, again)] == [1, 1]
    etcd.link("a").watch_losses = 1.0
    with pytest.raises(WatchLost):
        await anext(etcd.client("a").watch("", 0))


@pytest.mark.parametrize("fault", ["cut", "down"])
def test_a_watch_hangs_in_an_outage_and_goes_on_or_is_lost_afterwards(fault: str) -> None:
    async def main(seed: int) -> object:
        etcd = SimulatedEtcd(seed, max_delay_s=0.0)
        listening = asyncio.ensure_future(raised(heard(etcd.client("a").watch("", 0), 1)))
        await asyncio.sleep(1)
        broken = etcd.link("a") if fault == "cut" else etcd
        setattr(broken, fault, True)
        etcd.state.transact(make_transaction(None, {"a": b""}, (), None, 0))  # past all links
        await asyncio.sleep(50)
        assert not listening.done()
        setattr(broken, fault, False)
        return await listening

    outcomes = [run_virtual(lambda seed=seed: main(seed), seed) for seed in range(20)]  # type: ignore[misc]
    lost = [outcome for outcome in outcomes if isinstance(outcome, WatchLost)]
    assert 3 < len(lost) < 17
    assert [outcome for outcome in outcomes if outcome not in lost] == [[(51.0, 1)]] * (20 - len(lost))


@virtual
async def test_news_that_travel_when_the_link_is_cut_do_not_arrive_before_it_is_whole() -> None:
    etcd = SimulatedEtcd(3, max_delay_s=0.0)
    etcd.link("a").watch_lag_s = 2.0
    listening = asyncio.ensure_future(heard(etcd.client("a").watch("", 0), 1))
    await etcd.client("b").transact(put={"a": b""})
    await asyncio.sleep(1)
    etcd.link("a").cut = True
    await asyncio.sleep(10)
    assert not listening.done()
    etcd.link("a").cut = False
    assert etcd.link("a").breaks == 0, "this seed keeps the watch"
    assert await listening == [(13.0, 1)]


@virtual
async def test_a_compacted_revision_cannot_be_watched_from() -> None:
    etcd = SimulatedEtcd(1, history_revisions=10)
    store = etcd.client("a")
    for _ in range(100):
        await store.transact(put={"a": b""})
    with pytest.raises(WatchLost):
        await anext(store.watch("", 70))
    assert [revision for _, revision in await heard(store.watch("", 90), 10)] == list(range(91, 101))
    etcd.compact(95)
    with pytest.raises(WatchLost):
        await anext(store.watch("", 94))
    assert [revision for _, revision in await heard(store.watch("", 95), 5)] == list(range(96, 101))


# --- an old copy


@virtual
async def test_an_old_copy_is_put_back() -> None:
    etcd = SimulatedEtcd(1, expiry_lag_s=0.0)
    store = etcd.client("a")
    old = await store.grant(10)
    await store.transact(put={"a": b"1"}, put_leased={"old": b""}, lease=old)
    copy = etcd.copy()
    young = await store.grant(100)
    await store.transact(put={"a": b"2"}, put_leased={"young": b""}, lease=young, delete=["old"])
    await store.transact(put={"b": b""})
    listening = asyncio.ensure_future(raised(heard(store.watch("", 3), 1)))
    await asyncio.sleep(5)
    etcd.restore(copy)
    assert await store.snapshot("") == ([Entry("a", b"1", 1), Entry("old", b"", 1)], 1)
    assert isinstance(await listening, WatchLost)
    with pytest.raises(WatchLost, match="old copy"):
        await anext(store.watch("", 3))
    with pytest.raises(LeaseLost):
        await store.keep_alive(young)
    with pytest.raises(MetadataConflict):
        await store.transact(expect={"a": 2}, put={"a": b"3"})
    watch = store.watch("", 1)
    await asyncio.sleep(9)
    assert await store.get("old") is not None, "its time began anew"
    assert await anext(watch) == [Change("old", None, 2)]
    assert 15 < now() < 15.1
    etcd.restore(copy)
    assert await store.get("old") == Entry("old", b"", 1), "a copy may be put back twice"


# --- killed processes


def test_a_killed_process_gets_no_answer_and_its_request_may_have_arrived() -> None:
    async def main(seed: int) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        etcd, answers = SimulatedEtcd(seed, max_delay_s=1.0), []

        async def live() -> None:
            answers.append(await etcd.client("a").transact(put={"a": b""}))

        process = loop.process("a")
        process.create_task(live())
        await asyncio.sleep(0.6)
        alive = bool(answers)
        process.kill()
        await asyncio.sleep(60)
        assert bool(answers) == alive
        return bool(etcd.state.list("")) and not alive

    outcomes = [run_virtual(lambda seed=seed: main(seed), seed) for seed in range(30)]  # type: ignore[misc]
    assert 5 < sum(outcomes) < 25


@virtual
async def test_late_requests_and_ends_of_leases_outlive_the_process() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    etcd = SimulatedEtcd(1, max_delay_s=0.01, lost_but_made=1.0)

    async def live() -> None:
        store = etcd.client("a")
        await store.transact(put_leased={"leased": b""}, lease=await store.grant(10))
        etcd.link("a").cut = True
        await store.transact(put={"late": b""})

    process = loop.process("a")
    process.create_task(live())
    await asyncio.sleep(0.1)
    process.kill()
    assert [entry.key for entry in etcd.state.list("")] == ["leased"]
    await asyncio.sleep(7)
    assert [entry.key for entry in etcd.state.list("")] == ["late", "leased"]
    await asyncio.sleep(4)
    assert [entry.key for entry in etcd.state.list("")] == ["late"]
