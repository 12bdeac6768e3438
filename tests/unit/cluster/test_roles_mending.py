"""Damaged replicas in a cluster of three, in virtual time: out of every set, made anew, and back in sync."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.simulated_broker import produce
from tests.simulation.cluster import SETTINGS, SimulatedBroker, SimulatedCluster, host_of

from penstock.cluster import keys
from penstock.cluster.node import NodeSettings
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.errors import PenstockError
from penstock.records.build import build_batch
from penstock.testing.virtual_clock import run_virtual

DIRECTORY = "data/logs/t/0"
SMALL = {"segment.bytes": "1024", "min.insync.replicas": "2"}


class Trial:
    """Three brokers and a partition of some small sealed segments, led by the first."""

    def __init__(self, settings: NodeSettings = SETTINGS) -> None:
        self.cluster = SimulatedCluster(5, settings=settings)
        self.states: list[PartitionState] = []
        self.cluster.etcd.state.on_change = lambda changes: self.states.extend(
            PartitionState.decode(change.value, change.revision)
            for change in changes
            if change.key.startswith(keys.PARTITIONS) and change.value is not None
        )

    async def begin(self) -> None:
        for node_id in self.cluster.ids:
            self.cluster.start(node_id)
        await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))
        await self.until(lambda: len(self.cluster.lives[1].node.image.live()) == 3)
        await self.do(1, lambda broker: broker.engine.create_topic("t", 1, SMALL, assignment=[[1, 2, 3]]))
        await self.until(lambda: self.states and self.states[-1].isr == (1, 2, 3) and self.led() == 1)
        for number in range(12):
            await self.produce(number)
        await self.until(lambda: len({self.partition(node_id).opened().end_offset for node_id in (1, 2, 3)}) == 1)
        self.states.clear()

    async def produce(self, number: int) -> None:
        now_ms = self.cluster.clocks[1].now_ms()
        batch = bytearray(build_batch([(None, b"%d" % number + b"." * 300, (), now_ms)]))
        leader = self.led()
        assert leader is not None
        await self.do(leader, lambda broker: produce(broker.engine.topics.partition("t", 0), batch))

    async def do(self, node_id: int, work: Callable[[SimulatedBroker], Coroutine[Any, Any, Any]]) -> Any:
        return await self.cluster.call(node_id, work, 10.0)

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        deadline = self.cluster.loop.time() + limit_s
        while not condition():
            assert self.cluster.loop.time() < deadline, f"never so; {self.states[-3:]}; {self.cluster.crashes}"
            await asyncio.sleep(0.01)

    def partition(self, node_id: int) -> Partition:
        return self.cluster.lives[node_id].engine.topics.partition("t", 0)

    def led(self) -> int | None:
        for node_id, broker in self.cluster.lives.items():
            topic = broker.engine.topics.get("t")
            if topic is not None and topic.partitions and topic.partitions[0].led is not None:
                return node_id
        return None

    def sealed(self, node_id: int) -> list[str]:
        return [segment.path for segment in self.partition(node_id).opened().segments if segment.sealed]

    async def until_mended(self, node_id: int) -> None:
        """In sync again, as long as the leader's, and nothing is left of what was damaged."""
        await self.until(lambda: self.states and self.states[-1].isr == (1, 2, 3))
        await self.until(lambda: not [path for path in self.cluster.disks[node_id].files() if "/~" in path])
        leader = self.led()
        assert leader is not None
        log = self.partition(node_id).opened()
        await self.until(lambda: log.visible_end == self.partition(leader).opened().visible_end)
        assert log.log_start == 0
        assert log.damage is None


def play(test: Callable[[Trial], Coroutine[Any, Any, None]], settings: NodeSettings = SETTINGS) -> None:
    async def begun() -> None:
        made = Trial(settings)
        await made.begin()
        await test(made)

    try:
        run_virtual(begun, 5)
    finally:
        gc.collect()  # here, where what the tasks of killed brokers say at their end is not heard


def trial(test: Callable[[Trial], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with a cluster that is up."""

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def run() -> None:
        play(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@trial
async def test_rot_on_a_follower_makes_it_resign_in_a_new_epoch_before_it_is_made_anew(trial: Trial) -> None:
    await trial.until(lambda: len(trial.sealed(3)) >= 2)
    trial.cluster.disks[3].flip_byte(trial.sealed(3)[0], 200)
    await trial.until(lambda: trial.states)
    resigned = trial.states[0]
    assert (resigned.isr, resigned.leader) == ((1, 2), 1)
    assert resigned.leader_epoch == 1, "the leader may count how far the damaged replica was"
    await trial.until_mended(3)


@trial
async def test_rot_on_a_leader_makes_another_one_lead(trial: Trial) -> None:
    await trial.until(lambda: len(trial.sealed(1)) >= 2)
    trial.cluster.disks[1].flip_byte(trial.sealed(1)[0], 200)
    await trial.until(lambda: trial.led() in (2, 3))
    await trial.produce(99)
    await trial.until_mended(1)


@trial
async def test_the_last_replica_goes_on_with_what_is_left_of_it(trial: Trial) -> None:
    await trial.until(lambda: len(trial.sealed(1)) >= 2)
    for node_id in (2, 3):
        trial.cluster.kill(node_id)
    await trial.until(lambda: trial.states and trial.states[-1].isr == (1,))
    trial.cluster.disks[1].flip_byte(trial.sealed(1)[0], 200)
    await trial.until(lambda: trial.partition(1).is_damaged)
    await asyncio.sleep(5)
    assert trial.led() == 1
    for node_id in (2, 3):
        trial.cluster.start(node_id)
    await trial.until(lambda: trial.led() in (2, 3))
    await trial.until_mended(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_clean_stop_after_which_files_are_gone_is_no_clean_start(what: str) -> None:
    async def lose(trial: Trial) -> None:
        trial.cluster.kill(2)
        await trial.until(lambda: trial.states and 2 not in trial.states[-1].isr)
        await trial.cluster.stop(3)
        trial.cluster.kill(1)
        disk = trial.cluster.disks[3]
        lost = DIRECTORY if what == "directory" else max(path for path in disk.files() if path.endswith(".log"))
        disk.lose(lost)
        trial.cluster.start(3)
        await trial.until(lambda: trial.cluster.is_up(3))
        await asyncio.sleep(20)
        assert trial.led() is None, "a broker leads that has lost its log"
        for node_id in (1, 2):
            trial.cluster.start(node_id)
        await trial.until(lambda: trial.led() in (1, 2))
        await trial.until(lambda: trial.partition(3).log is not None)
        await trial.until_mended(3)
        assert trial.partition(3).opened().end_offset >= 12

    play(lose)


@trial
async def test_a_leader_without_room_lets_another_one_lead(trial: Trial) -> None:
    trial.cluster.disks[1].capacity_bytes = 0
    with suppress(PenstockError):
        await trial.produce(12)
    await trial.until(lambda: trial.led() in (2, 3))
    handed_over = next(state for state in trial.states if state.leader != 1)
    assert handed_over.leader_epoch == 1 and handed_over.leader in handed_over.isr
    await trial.produce(13)
    trial.cluster.disks[1].capacity_bytes = None
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))


@trial
async def test_a_follower_without_room_is_not_waited_for_while_enough_others_stay(trial: Trial) -> None:
    for node_id in (2, 3):
        trial.cluster.disks[node_id].capacity_bytes = 0
    writing = asyncio.ensure_future(trial.produce(12))
    await trial.until(lambda: trial.states and len(trial.states[-1].isr) == 2, 1.0)
    await asyncio.sleep(1)  # until then no leader takes a replica out because it lags
    assert all(len(state.isr) >= 2 for state in trial.states), "fewer than min.insync.replicas"
    assert len(trial.states) <= 3, "out and in again without end"
    for node_id in (2, 3):
        trial.cluster.disks[node_id].capacity_bytes = None
    with suppress(PenstockError):
        await writing
    await trial.produce(13)
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))


@trial
async def test_who_has_no_room_for_its_epoch_lets_another_one_lead(trial: Trial) -> None:
    await trial.do(2, lambda broker: broker.engine.create_topic("u", 1, SMALL, assignment=[[2, 3, 1]]))
    trial.cluster.disks[2].capacity_bytes = 0
    trial.cluster.kill(1)
    await trial.until(lambda: trial.led() == 3, 30.0)
    assert any(state.leader == 2 for state in trial.states), "nobody without room was elected"
    await trial.until(lambda: trial.cluster.lives[2].engine.topics.partition("u", 0).led is not None)
    trial.cluster.disks[2].capacity_bytes = None
    trial.cluster.start(1)
    await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))


@trial
async def test_a_damaged_leader_leads_on_until_others_can_be_told(trial: Trial) -> None:
    await trial.until(lambda: len(trial.sealed(1)) >= 2)
    links = [trial.cluster.etcd.link(host_of(node_id)) for node_id in trial.cluster.ids]
    for link in links:
        link.cut = True
    trial.cluster.disks[1].flip_byte(trial.sealed(1)[0], 200)
    await trial.until(lambda: trial.partition(1).is_damaged)
    await asyncio.sleep(5)
    assert trial.led() == 1
    await trial.produce(12)
    for link in links:
        link.cut = False
    await trial.until(lambda: trial.led() in (2, 3))
    await trial.until_mended(1)


@trial
async def test_the_only_replica_that_has_lost_a_segment_serves_the_rest_after_a_start(trial: Trial) -> None:
    await trial.do(1, lambda broker: broker.engine.create_topic("one", 1, {"segment.bytes": "1024"}, assignment=[[1]]))
    await trial.until(lambda: trial.cluster.lives[1].engine.topics.get("one") is not None)
    one = trial.cluster.lives[1].engine.topics.partition("one", 0)
    for number in range(12):
        batch = bytearray(build_batch([(None, b"%d" % number + b"." * 300, (), trial.cluster.clocks[1].now_ms())]))
        await trial.do(1, lambda _, batch=batch: produce(one, batch))
    await trial.until(lambda: sum(segment.sealed for segment in one.opened().segments) >= 3)
    lost = one.opened().segments[1].path
    trial.cluster.kill(1)
    trial.cluster.disks[1].lose(lost)
    trial.cluster.start(1)
    await trial.until(lambda: trial.cluster.is_up(1))
    await trial.until(lambda: trial.cluster.lives[1].engine.topics.partition("one", 0).led is not None)
    again = trial.cluster.lives[1].engine.topics.partition("one", 0)
    assert again.is_damaged and again.opened().end_offset >= 12


@trial
async def test_a_broker_that_has_not_joined_says_nothing_of_the_cluster(trial: Trial) -> None:
    node = trial.cluster.lives[1].node
    assert not node.is_isolated
    del node.image.brokers[1]
    assert node.is_isolated


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("accepted", [True, False])
def test_logs_with_later_epochs_than_an_older_store_lead_only_if_an_operator_says_so(accepted: bool) -> None:
    async def restore(trial: Trial) -> None:
        key = keys.partition_key(trial.partition(1).topic_id, 0)
        for number in range(3):
            for node_id in trial.cluster.ids:
                trial.cluster.kill(node_id)
            for node_id in trial.cluster.ids:
                trial.cluster.start(node_id)
            await trial.until(lambda: trial.led() is not None)
            await trial.until(lambda: trial.states[-1].isr == (1, 2, 3))
            await trial.produce(50 + number)
        for node_id in trial.cluster.ids:
            trial.cluster.kill(node_id)
        old = PartitionState((1, 2, 3), (1, 2, 3), 1, 0)
        await trial.cluster.etcd.client("operator").transact(put={key: old.encode()})
        for node_id in trial.cluster.ids:
            trial.cluster.start(node_id)
        await trial.until(lambda: all(map(trial.cluster.is_up, trial.cluster.ids)))
        await asyncio.sleep(30)
        assert (trial.led() is not None) is accepted
        if accepted:
            await trial.produce(99)

    play(restore, replace(SETTINGS, accept_older_store=accepted))
