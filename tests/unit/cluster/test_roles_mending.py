"""Damaged replicas in a cluster of three, in virtual time: out of every set, made anew, and back in sync."""

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.simulation.cluster import SETTINGS, host_of
from tests.unit.cluster.trial import DIRECTORY, SMALL, Trial, play, trial

from penstock.cluster import keys
from penstock.engine.partition_state import PartitionState
from penstock.errors import PenstockError


@trial
async def test_rot_on_a_follower_makes_it_resign_in_a_new_epoch_before_it_is_made_anew(trial: Trial) -> None:
    await trial.until(lambda: len(trial.sealed(3)) >= 2)
    trial.cluster.disks[3].flip_byte(trial.sealed(3)[0], 200)
    await trial.until(lambda: trial.states)
    resigned = trial.states[0]
    assert (resigned.isr, resigned.leader) == ((1, 2), 1)
    assert resigned.leader_epoch == 1, "the leader may count how far the damaged replica was"
    await trial.until_mended(3)


@pytest.mark.parametrize("operation", ["sync_dir", "open", "list_dir"])
def test_a_replica_is_made_anew_although_descriptors_run_out_meanwhile(operation: str) -> None:
    async def mend(trial: Trial) -> None:
        await trial.until(lambda: len(trial.sealed(3)) >= 2)
        disk = trial.cluster.disks[3]
        disk.flip_byte(trial.sealed(3)[0], 200)
        await trial.until(lambda: trial.states)
        for when in (1, 3, 6, 9):
            disk.fail(operation, errno.EMFILE, when=when, path_contains="~")
        await trial.until_mended(3)
        disk.clear_faults()
        await trial.until(lambda: disk.list_dir(f"{DIRECTORY.partition('/logs/')[0]}/logs/~removed") == [])

    play(mend)


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
        filled = [path for path in disk.files() if path.endswith(".log") and disk.size_of(path)]
        lost = DIRECTORY if what == "directory" else max(filled)
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
    await trial.until(lambda: trial.led("one") == 1)
    for number in range(12):
        await trial.produce(number, "one")
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
        await asyncio.sleep(5)
        assert (trial.led() is not None) is accepted
        if accepted:
            await trial.produce(99)

    play(restore, replace(SETTINGS, accept_older_store=accepted))


@pytest.mark.parametrize(
    ("operation", "code", "where"), [("rename", errno.ENOSPC, "~removed"), ("open", errno.EMFILE, "partition.meta")]
)
def test_a_replica_that_has_moved_away_goes_when_the_shortage_is_over(operation: str, code: int, where: str) -> None:
    async def check(trial: Trial) -> None:
        disk, state = trial.cluster.disks[3], trial.state()
        disk.fail(operation, code, path_contains=where)
        key = keys.partition_key(trial.partition(3).topic_id, 0)
        moved = replace(state, replicas=(1, 2), isr=(1, 2))
        await trial.cluster.etcd.client("test").transact(put={key: moved.encode()})
        await trial.until(lambda: not any(path.startswith(f"/{DIRECTORY}/") for path in disk.files()))

    play(check)
