"""The watcher: the image follows the store through everything that befalls a watch, and never back in time."""

import asyncio
from random import Random
from typing import Any

import orjson
import pytest

from penstock.cluster import keys
from penstock.cluster.image import Image
from penstock.cluster.watcher import OlderStore, Watcher
from penstock.ports.metadata import MetadataStore, MetadataUnavailable, Snapshot
from penstock.testing.memory_metadata import SimulatedClient, SimulatedEtcd
from penstock.testing.virtual_clock import VirtualClock, run_virtual

NAME = "etcd://etcd1:2379"


class WatchedEtcd:
    """A watcher on a simulated etcd, and somebody who writes to it."""

    def __init__(self, seed: int = 0, remembered: int = 0, **options: int) -> None:
        self.etcd = SimulatedEtcd(seed, **options)
        self.link = self.etcd.link("broker")
        self.writer = self.etcd.client("writer")
        self.image = Image()
        self.failures: list[BaseException] = []
        self.heard: list[list[str]] = []
        self.use(self.etcd.client("broker"), remembered)
        self._tasks: list[asyncio.Task[None]] = []

    def use(self, store: MetadataStore, remembered: int = 0) -> None:
        self.watcher = Watcher(
            store, self.image, VirtualClock(), self.failures.append, name=NAME, remembered=remembered
        )
        self.watcher.listeners.append(self.heard.append)

    async def write(self, member: int, incarnation: int) -> int:
        return await self.writer.transact(put={keys.member_key(member): started(incarnation)})

    async def remove(self, member: int) -> None:
        await self.writer.transact(delete=[keys.member_key(member)])

    def run(self) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self.watcher.run())
        self._tasks.append(task)
        return task

    @property
    def truth(self) -> dict[int, int]:
        return {
            int(entry.key.removeprefix(keys.MEMBERS)): orjson.loads(entry.value)["incarnation"]
            for entry in self.etcd.state.list(keys.MEMBERS)
        }


class SlowLooks(SimulatedClient):
    """Snapshots that are as of the moment they were asked for, and arrive when `arrive` is set."""

    def __init__(self, etcd: SimulatedEtcd, name: str) -> None:
        super().__init__(etcd, etcd.link(name))
        self.arrive = asyncio.Event()
        self.arrive.set()
        self.looks = 0

    async def snapshot(self, prefix: str) -> Snapshot:
        self.looks += 1
        snapshot = await super().snapshot(prefix)
        await self.arrive.wait()
        return snapshot


class DeafWatches(SimulatedClient):
    """Watches that hear nothing, except those begun after `healed`."""

    healed = False
    begun = 0

    def watch(self, prefix: str, after_revision: int) -> Any:
        self.begun += 1
        return super().watch(prefix if self.healed else "nothing/", after_revision)


def started(incarnation: int) -> bytes:
    return orjson.dumps({"incarnation": incarnation})


async def settle(seconds: float = 0.1) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)


def test_changes_come_to_the_listeners_in_order_and_once() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        bench.link.watch_repeats = 1.0
        await bench.write(1, 1)
        await bench.watcher.start()
        assert (bench.image.members, bench.heard) == ({1: 1}, [[keys.member_key(1)]])
        bench.run()
        await bench.write(1, 2)
        await bench.remove(1)
        await bench.write(2, 1)
        await settle()
        assert bench.image.members == {2: 1}
        assert bench.heard[1:] == [[keys.member_key(1)], [keys.member_key(1)], [keys.member_key(2)]]
        await settle(60)  # looks that find nothing new
        assert len(bench.heard) == 4

    run_virtual(main, 1)


def test_a_start_waits_for_the_store_and_says_which(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        await bench.write(1, 1)
        bench.link.cut = True
        asyncio.get_running_loop().call_later(31.0, setattr, bench.link, "cut", False)
        await bench.watcher.start()
        assert bench.image.members == {1: 1}

    with caplog.at_level("WARNING", "penstock.cluster"):
        run_virtual(main, 1)
    lines = [vars(record)["penstock_fields"] for record in caplog.records]
    assert 4 <= len(lines) <= 8  # every few seconds, not every attempt
    assert all(line["store"] == NAME and "first look" in line["waiting_for"] for line in lines)


@pytest.mark.parametrize("fault", ["break", "compact", "outage", "cut"])
def test_a_watch_that_broke_off_is_begun_again(fault: str) -> None:
    async def main() -> None:
        bench = WatchedEtcd(3)
        await bench.watcher.start()
        bench.run()
        await settle()
        if fault == "break":
            bench.link.break_watches()
        elif fault == "compact":
            bench.link.watch_lag_s = 5.0
            for incarnation in range(1, 5):
                await bench.write(1, incarnation)
            bench.etcd.compact()
            bench.link.watch_lag_s = 0.0
        elif fault == "outage":
            bench.etcd.down = True
            await settle(60)
            bench.etcd.down = False
        else:
            bench.link.cut = True
            await bench.write(2, 7)
            await settle(60)
            bench.link.cut = False
        await bench.write(1, 10)
        await settle(5)
        assert bench.image.members == bench.truth
        await bench.write(1, 11)  # and the watch is one that hears
        await settle(0.1)
        assert bench.image.members == bench.truth

    run_virtual(main, 2)


def test_a_watch_that_says_nothing_is_found_out() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        deaf = DeafWatches(bench.etcd, bench.link)
        bench.use(deaf)
        await bench.watcher.start()
        bench.run()
        await settle(35)
        assert deaf.begun == 1  # silent, but nothing has changed
        await bench.write(1, 1)
        deaf.healed = True
        await settle(11.5)
        assert (bench.image.members, deaf.begun) == ({1: 1}, 2)
        await bench.write(1, 2)
        await settle(0.1)
        assert bench.image.members == {1: 2}

    run_virtual(main, 1)


def test_a_watch_that_is_a_little_behind_a_look_is_left_alone() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        deaf = DeafWatches(bench.etcd, bench.link)
        deaf.healed = True
        bench.link.watch_lag_s = 0.5
        bench.use(deaf)
        await bench.watcher.start()
        bench.run()
        for incarnation in range(200):
            await bench.write(1, incarnation)
            await settle(0.31)
        assert deaf.begun == 1

    run_virtual(main, 1)


def test_an_old_copy_of_the_store_stops_the_broker() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        await bench.write(1, 1)
        backup = bench.etcd.copy()
        await bench.watcher.start()
        running = bench.run()
        for incarnation in range(2, 6):
            await bench.write(1, incarnation)
        await settle()
        bench.etcd.restore(backup)
        await settle(12)
        assert running.done()
        (failure,) = bench.failures
        assert isinstance(failure, OlderStore)
        text = str(failure)
        assert NAME in text and "revision 1," in text and " 5:" in text and "cluster.accept_older_store" in text
        assert bench.image.members == {1: 5}
        with pytest.raises(OlderStore):
            await bench.watcher.refresh()
        assert len(bench.failures) == 1

    run_virtual(main, 1)


def test_an_old_copy_is_found_at_the_start_by_what_is_remembered() -> None:
    async def main() -> None:
        bench = WatchedEtcd(remembered=3)
        await bench.write(1, 1)
        await bench.write(1, 2)
        with pytest.raises(OlderStore, match=r"revision 2, .* at 3"):
            await bench.watcher.start()
        assert bench.failures == [] and bench.image.members == {}
        same = WatchedEtcd(remembered=2)
        await same.write(1, 1)
        await same.write(1, 2)
        await same.watcher.start()

    run_virtual(main, 1)


def test_a_look_that_a_watch_has_overtaken_is_no_old_copy() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        slow = SlowLooks(bench.etcd, "broker")
        bench.use(slow)
        await bench.watcher.start()
        bench.run()
        await settle()
        slow.arrive.clear()
        looking = asyncio.ensure_future(bench.watcher.refresh())
        await settle()
        await bench.write(1, 1)
        await settle()
        assert bench.image.members == {1: 1}  # by the watch
        slow.arrive.set()
        await looking
        assert bench.failures == [] and bench.image.members == {1: 1}

    run_virtual(main, 1)


def test_a_refresh_sees_what_was_there_when_it_was_asked_for() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        slow = SlowLooks(bench.etcd, "broker")
        bench.use(slow)
        await bench.watcher.start()
        slow.arrive.clear()
        first = asyncio.ensure_future(bench.watcher.refresh())
        await settle()
        await bench.write(1, 1)
        later = [asyncio.ensure_future(bench.watcher.refresh()) for _ in range(5)]
        await settle()
        slow.arrive.set()
        await first
        assert bench.image.members == {}
        await asyncio.gather(*later)
        assert bench.image.members == {1: 1}
        assert slow.looks == 3  # the start's, the first, and one for all five

    run_virtual(main, 1)


def test_those_who_share_a_look_share_its_failure() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        await bench.watcher.start()
        bench.link.cut = True
        loop = asyncio.get_running_loop()
        before = loop.time()
        answers = await asyncio.gather(*(bench.watcher.refresh() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(answer, MetadataUnavailable) for answer in answers)
        assert loop.time() - before < 3 * bench.etcd.timeout_s
        bench.link.cut = False
        await bench.watcher.refresh()

    run_virtual(main, 1)


def test_a_cancelled_refresh_leaves_the_others_theirs() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        slow = SlowLooks(bench.etcd, "broker")
        bench.use(slow)
        slow.arrive.clear()
        await bench.write(1, 1)
        first, second = (asyncio.ensure_future(bench.watcher.refresh()) for _ in range(2))
        await settle()
        first.cancel()
        slow.arrive.set()
        await second
        assert bench.image.members == {1: 1}

    run_virtual(main, 1)


def test_until_wakes_by_changes_and_by_hand_and_gives_up() -> None:
    async def main() -> None:
        bench = WatchedEtcd()
        await bench.watcher.start()
        bench.run()
        waiting = asyncio.ensure_future(bench.watcher.until(lambda: 1 in bench.image.members, 30))
        await settle()
        await bench.write(1, 1)
        assert await asyncio.wait_for(waiting, 1)
        flag: list[int] = []
        waiting = asyncio.ensure_future(bench.watcher.until(lambda: bool(flag), 30))
        await settle()
        flag.append(1)
        bench.watcher.wake()
        await settle(0)
        await settle(0)
        assert waiting.done() and await waiting
        assert not await bench.watcher.until(lambda: False, 5)

    run_virtual(main, 1)


@pytest.mark.parametrize("seed", range(20))
def test_under_every_fault_the_image_ends_as_the_store_is(seed: int) -> None:
    async def main() -> None:
        bench = WatchedEtcd(seed, history_revisions=5)
        random = Random(seed)
        await bench.watcher.start()
        bench.run()
        link = bench.link
        for _ in range(60):
            link.watch_lag_s = random.choice((0.0, 0.0, 0.3))
            link.watch_repeats, link.watch_losses, link.loss = 0.2, 0.1, 0.1
            link.cut = random.random() < 0.1
            if random.random() < 0.05:
                bench.etcd.compact()
            for _ in range(random.randrange(8)):
                member = random.randrange(5)
                await (bench.remove(member) if random.random() < 0.3 else bench.write(member, random.randrange(100)))
            await settle(random.choice((0.01, 0.5, 3.0)))
        link.cut = False
        link.watch_losses = link.loss = 0.0
        await settle(15)
        assert bench.image.members == bench.truth
        assert bench.failures == []

    run_virtual(main, seed)
