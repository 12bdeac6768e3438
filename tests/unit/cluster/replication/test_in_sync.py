"""In-sync sets on a simulated etcd: who lags is out, who has caught up is in, and no outcome is taken for granted."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
from tests.simulated_broker import batch_of, wait_for
from tests.simulated_log import Bench, open_log

from penstock.cluster import keys
from penstock.cluster.image import BrokerRecord, Image
from penstock.cluster.replication.in_sync import InSync
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.engine.topic_config import make_config
from penstock.observe.stats import Stats
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import run_virtual

ME = 1
TOPIC = UUID(int=5)
KEY = keys.partition_key(TOPIC, 0)
LAG_S = 10.0


class Scene:
    """The leader of a partition with three replicas, and a store that may be spoiled.

    The image is as old as the last `look`; what `refresh` asks for is done only if the scene is told to.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.clock = bench.clock
        self.etcd = SimulatedEtcd(4)
        self.admin = self.etcd.client("admin")
        self.image = Image()
        self.refreshes = 0
        self.changes = 0
        self.stats = Stats()
        self.link = self.etcd.link("leader")
        config = make_config({"min.insync.replicas": "2"}, {})
        self.partition = Partition("t", TOPIC, 0, PartitionState((1, 2, 3), (), -1, 0), config, self.clock, ME)
        self.partition.hold(bench.log, 0)
        self.incarnations = {1: 1, 2: 1, 3: 1}
        self.full: list[Partition] = []
        self.in_sync = InSync(
            self.etcd.client("leader"),
            self.image,
            self.clock,
            self.stats,
            lambda: [self.partition] if self.partition.led is not None else [],
            self._refresh,
            self._changed,
            self.full.append,
            LAG_S,
        )
        self.partition.on_followers_moved = lambda: self.in_sync.look_at(self.partition)

    async def begin(self, isr: tuple[int, ...], elr: tuple[int, ...] = (), *, least: int = 2) -> None:
        self.partition.config = make_config({"min.insync.replicas": str(least)}, {})
        for broker_id in (1, 2, 3):
            await self.register(broker_id)
        await self.put(PartitionState((1, 2, 3), isr, ME, 0, elr))
        await self.look()
        self.partition.lead(self.image.states[TOPIC][0])
        self.task = asyncio.get_running_loop().create_task(self.in_sync.run())

    def _refresh(self) -> None:
        self.refreshes += 1

    def _changed(self) -> None:
        self.changes += 1

    async def register(self, broker_id: int, *, leaving: bool = False, admitted: bool = True) -> None:
        incarnation = self.incarnations[broker_id]
        record = BrokerRecord(broker_id, "h", 1, "h", 2, None, incarnation, clean=True, leaving=leaving)
        put = {keys.broker_key(broker_id): record.encode()}
        if admitted:
            put[keys.admitted_key(broker_id)] = orjson.dumps({"incarnation": incarnation})
        await self.admin.transact(put=put)

    async def put(self, state: PartitionState) -> None:
        """As the controller does."""
        await self.admin.transact(put={KEY: state.encode()})

    async def look(self) -> None:
        """Bring the image up to date, and the partition with it."""
        self.image.replace(await self.admin.snapshot(""))
        state = self.image.states[TOPIC][0]
        if self.partition.led is not None and state.revision > self.partition.state.revision:
            self.partition.use_state(state)

    @property
    def stored(self) -> PartitionState:
        entry = self.etcd.state.get(KEY)
        assert entry is not None
        return PartitionState.decode(entry.value, entry.revision)

    async def write(self, count: int = 1) -> int:
        values = [b"%d" % number for number in range(count)]
        end = self.partition.append(memoryview(batch_of(values, self.clock))).last_offset + 1
        await self.bench.commit()
        return end

    def fetched(self, broker_id: int, offset: int) -> None:
        self.partition.replica_fetched(broker_id, self.incarnations[broker_id], offset)

    async def until_isr(self, *isr: int) -> None:
        await wait_for(lambda: self.stored.isr == isr and self.partition.state == self.stored)

    async def pass_by(self, seconds: float = 4.0) -> None:
        """Let the rounds of some time go by."""
        await asyncio.sleep(seconds)


def scene(function: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def play() -> None:
        it = Scene(await open_log(FaultyDisk(3), epoch=0))
        await function(it)
        assert not it.task.done()

    def test() -> None:
        run_virtual(play, 5)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


# --- out and in


@scene
async def test_who_lags_is_taken_out_and_let_in_when_it_has_everything(it: Scene) -> None:
    await it.begin((1, 2, 3))
    end = await it.write(3)
    it.fetched(3, end)
    began = it.clock.monotonic()
    while it.stored.isr == (1, 2, 3):
        it.fetched(3, end)
        await asyncio.sleep(0.5)
    assert LAG_S < it.clock.monotonic() - began < LAG_S + 3
    await it.until_isr(1, 3)
    assert it.stored.elr == () and it.stored.leader_epoch == 0
    assert it.partition.high_watermark == end
    assert (it.changes, it.stats.isr_changes) == (1, 1)
    it.fetched(2, end - 1)
    await it.pass_by()
    assert it.stored.isr == (1, 3), "it lacks what is committed"
    it.fetched(2, end)
    await it.until_isr(1, 2, 3)
    assert (it.changes, it.stats.isr_changes) == (2, 2)
    revision = it.stored.revision
    it.fetched(2, end)
    it.fetched(3, end)
    await it.pass_by()
    assert it.stored.revision == revision, "nothing to change, and something was written"


@scene
async def test_who_leaves_when_too_few_stay_stays_eligible(it: Scene) -> None:
    await it.begin((1, 2), least=2)
    end = await it.write()
    await wait_for(lambda: it.stored.isr == (1,))
    await it.until_isr(1)
    assert it.stored.elr == (2,)
    assert it.partition.high_watermark == 0, "it was never acknowledged"
    it.fetched(3, end)
    await it.until_isr(1, 3)
    assert it.stored.elr == ()
    assert it.partition.high_watermark == end


@scene
async def test_who_asks_no_more_is_not_let_in_for_what_it_has(it: Scene) -> None:
    await it.begin((1, 2, 3), least=2)
    end = await it.write()
    for follower in (2, 3):
        it.fetched(follower, end)
    await wait_for(lambda: it.partition.high_watermark == end)
    await it.write()  # nobody fetches it
    await it.until_isr(1)
    revision = it.stored.revision
    await it.pass_by(10 * LAG_S)
    assert it.stored.revision == revision, "let in and taken out again, and nobody has asked for anything"
    it.fetched(2, end + 1)
    await it.until_isr(1, 2)


@scene
async def test_who_has_lost_what_was_committed_is_not_eligible(it: Scene) -> None:
    await it.begin((1, 2), least=2)
    end = await it.write(3)
    it.fetched(2, end)
    assert it.partition.high_watermark == end
    it.incarnations[2] = 2  # it comes back, and its disk has lied
    it.fetched(2, end - 1)
    await it.until_isr(1)
    assert (it.stored.elr, it.stored.last) == ((), ())


@scene
async def test_the_beginning_of_the_epoch_must_be_there(it: Scene) -> None:
    """R4: what an earlier leader left uncommitted is part of what the next one may be elected by."""
    for number in range(3):
        await it.bench.write(b"%d" % number)
    await it.begin((1, 2))
    it.fetched(2, 1)
    it.fetched(3, 2)
    assert it.partition.high_watermark == 1 and it.partition.leadership.epoch_start == 3
    await it.pass_by()
    assert it.stored.isr == (1, 2), "a follower without the beginning of the epoch was let in"
    it.fetched(3, 3)
    await it.until_isr(1, 2, 3)


@scene
async def test_only_live_brokers_in_the_life_they_fetch_with_are_let_in(it: Scene) -> None:
    await it.begin((1, 2))
    end = await it.write()
    it.fetched(2, end)

    async def tries(expected: tuple[int, ...]) -> None:
        it.fetched(2, end)
        it.fetched(3, end)
        await it.pass_by(2.5)
        it.fetched(2, end)
        assert it.stored.isr == expected

    await it.register(3, leaving=True)
    await it.look()
    await tries((1, 2))
    it.incarnations[3] = 2
    await tries((1, 2))  # it has started again, and the image does not know
    await it.register(3, admitted=False)
    await it.look()
    await tries((1, 2))
    await it.admin.transact(delete=[keys.broker_key(3)])
    await it.look()
    await tries((1, 2))
    await it.register(3)
    await it.look()
    await tries((1, 2, 3))


# --- what others change meanwhile


@scene
async def test_a_broker_that_has_gone_meanwhile_is_not_let_in(it: Scene) -> None:
    """The image is old: only the store knows. Until the set was written again, the one that has gone counts."""
    await it.begin((1, 2))
    end = await it.write()
    await it.admin.transact(delete=[keys.broker_key(3)])
    it.fetched(3, end)
    it.fetched(2, end)
    await wait_for(lambda: it.refreshes)
    assert it.stored.isr == (1, 2)
    later = await it.write()
    it.fetched(2, later)
    assert it.partition.high_watermark == end, "who may be in sync does not count"
    revision = it.stored.revision
    await it.look()
    await it.pass_by(1.5)
    assert it.stored.isr == (1, 2) and it.stored.revision > revision, "the same set was not written again"
    assert it.partition.high_watermark == later


@scene
async def test_a_broker_that_has_started_again_meanwhile_is_let_in_by_its_new_life(it: Scene) -> None:
    await it.begin((1, 2))
    end = await it.write()
    it.incarnations[3] = 2
    await it.register(3)
    it.partition.replica_fetched(3, 1, end)  # a late one of its old life
    it.fetched(2, end)
    await wait_for(lambda: it.refreshes)
    assert it.stored.isr == (1, 2)
    await it.look()
    it.fetched(2, end)
    await it.pass_by(2.0)
    assert it.stored.isr == (1, 2), "its old life has caught up, not this one"
    it.fetched(3, end)
    await it.until_isr(1, 2, 3)


@scene
async def test_a_set_that_somebody_else_has_changed_is_looked_at_again(it: Scene) -> None:
    await it.begin((1, 2))
    end = await it.write()
    await it.put(replace(it.stored, isr=(1,), elr=(2,)))
    it.fetched(3, end)
    await wait_for(lambda: it.refreshes)
    assert (it.stored.isr, it.changes) == ((1,), 0)
    it.fetched(2, end)
    later = await it.write()
    it.fetched(2, later)
    assert it.partition.high_watermark == end, "broker 3 counts until the outcome is known"
    await it.look()
    assert it.partition.high_watermark == end, "too few are in sync"
    await it.until_isr(1, 2, 3)
    assert it.partition.high_watermark == end, "it counted before it was in"
    it.fetched(3, later)
    assert it.partition.high_watermark == later


# --- outcomes nobody knows


@scene
async def test_a_change_that_was_not_made_counts_until_it_cannot_be_made_any_more(it: Scene) -> None:
    it.etcd.lost_but_made = 0.0
    await it.begin((1, 2))
    end = await it.write()
    it.fetched(2, end)
    it.link.cut = True
    it.fetched(3, end)
    await it.pass_by(0.5)
    later = await it.write()
    it.fetched(2, later)
    assert it.partition.high_watermark == end, "broker 3 may be in sync, and lacks it"
    await it.pass_by(it.etcd.timeout_s)
    it.fetched(2, later)
    assert (it.stored.isr, it.partition.high_watermark) == ((1, 2), end)
    await it.admin.transact(delete=[keys.broker_key(3)])  # so that it is not wanted any more
    it.image.replace(await it.admin.snapshot(""))
    it.link.cut = False
    revision = it.stored.revision
    await wait_for(lambda: it.stored.revision > revision)
    await it.until_isr(1, 2)
    assert it.partition.high_watermark == later
    assert it.changes == 1


@scene
async def test_a_change_that_was_made_late_and_unseen_counts(it: Scene) -> None:
    it.etcd.lost_but_made = 1.0
    await it.begin((1, 2))
    end = await it.write()
    it.fetched(2, end)
    it.link.cut = True
    it.fetched(3, end)
    await wait_for(lambda: it.stored.isr == (1, 2, 3))
    assert it.partition.state.isr == (1, 2), "nobody has told the leader"
    later = await it.write()
    it.fetched(2, later)
    assert it.partition.high_watermark == end, "broker 3 could be elected, and lacks it"
    it.link.cut = False
    it.etcd.lost_but_made = 0.0
    await wait_for(lambda: it.refreshes)
    assert it.partition.high_watermark == end
    await it.look()
    it.fetched(3, later)
    assert it.partition.high_watermark == later
    assert it.partition.state.isr == (1, 2, 3)


@scene
async def test_all_that_may_have_been_let_in_count(it: Scene) -> None:
    """Another one wants in while the outcome for the first is unknown, and the first is not wanted any more."""
    it.etcd.lost_but_made = 1.0
    await it.begin((1,), least=1)
    end = await it.write()
    it.link.cut = True
    it.fetched(2, end)
    await wait_for(lambda: it.stored.isr == (1, 2))
    it.image.brokers.pop(2)  # the leader hears of its leaving before it hears of the change
    it.fetched(3, end)
    await it.pass_by(it.etcd.timeout_s + 0.5)
    later = await it.write()
    it.fetched(3, later)
    assert it.partition.high_watermark == end, "broker 2 is in sync, and lacks it"
    assert it.stored.isr == (1, 2)


@scene
async def test_who_is_not_out_for_certain_counts(it: Scene) -> None:
    it.etcd.lost_but_made = 0.0
    await it.begin((1, 2, 3))
    end = await it.write()
    it.link.cut = True
    while it.clock.monotonic() < LAG_S + 5:
        it.fetched(2, end)
        await asyncio.sleep(0.5)
    assert it.partition.high_watermark == 0, "broker 3 is in sync until the store says otherwise"
    it.link.cut = False
    while it.stored.isr != (1, 2):
        it.fetched(2, end)
        await asyncio.sleep(0.5)
    await it.until_isr(1, 2)
    assert it.partition.high_watermark == end


@scene
async def test_who_leads_no_more_changes_nothing(it: Scene) -> None:
    await it.begin((1, 2))
    end = await it.write()
    it.fetched(2, end)
    it.fetched(3, end)
    it.partition.follow(replace(it.partition.state, leader=2, leader_epoch=1))
    it.in_sync.lost(it.partition)
    revision = it.stored.revision
    it.in_sync.look_at(it.partition)
    await it.pass_by(LAG_S + 3)
    assert it.stored.revision == revision


@scene
async def test_an_answer_of_an_epoch_that_is_over_changes_nothing_here(it: Scene) -> None:
    it.link.max_delay_s = 2.0
    await it.begin((1, 2))
    end = await it.write()
    it.fetched(3, end)
    await wait_for(lambda: it.stored.isr == (1, 2, 3))
    assert it.partition.state.isr == (1, 2), "the answer has arrived already"
    it.partition.follow(replace(it.partition.state, leader=2, leader_epoch=1, revision=50))
    await it.bench.upkeep.begin_epochs([(it.bench.log, 2)])
    it.partition.lead(replace(it.partition.state, leader=ME, leader_epoch=2, isr=(1, 2), revision=51))
    await it.pass_by(4.0)
    assert it.partition.state.revision == 51
    assert it.changes == 0
