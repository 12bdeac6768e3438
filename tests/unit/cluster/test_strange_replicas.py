"""Replicas that are not what they pass for: of a deleted topic, of a forgotten epoch, or without their beginning."""

import asyncio
import errno
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.simulation.cluster import SETTINGS, host_of
from tests.unit.cluster.trial import DIRECTORY, SMALL, Trial, play, trial

from penstock.cluster import keys
from penstock.engine.partition_state import PartitionState

quietly = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@quietly
@pytest.mark.parametrize("becomes", ["missing", "damaged"])
def test_records_of_a_deleted_topic_that_do_not_say_whose_they_are_stay_apart_from_the_next_one(becomes: str) -> None:
    async def check(trial: Trial) -> None:
        disk, meta = trial.cluster.disks[3], f"{DIRECTORY}/partition.meta"
        if becomes == "missing":
            disk.lose(meta)
        else:
            disk.flip_byte(meta, 30)
        await trial.do(1, lambda broker: broker.engine.delete_topic(broker.engine.topics.get("t")))
        await trial.until(lambda: not any(trial.knows(node_id, "t") for node_id in (1, 2, 3)))
        await asyncio.sleep(2)
        link = trial.cluster.etcd.link(host_of(3))
        link.cut = True  # it hears of the new topic when that is longer than what it has of the old one

        async def create() -> None:
            with suppress(Exception):
                await trial.do(1, lambda broker: broker.engine.create_topic("t", 1, SMALL, assignment=[[1, 2, 3]]))

        made = asyncio.ensure_future(create())
        await trial.until(lambda: trial.led() == 1)
        writing = [asyncio.ensure_future(trial.produce(100 + number)) for number in range(14)]
        await asyncio.sleep(0.3)
        link.cut = False
        await asyncio.gather(made, *writing, return_exceptions=True)
        await trial.until(lambda: trial.state().isr == (1, 2))
        assert not trial.cluster.crashes
        offline = trial.partition(3).offline
        assert offline is not None and "partition.meta" in str(offline), offline
        assert trial.durable(1) == trial.durable(2)
        assert [path for path in disk.files() if path.startswith(f"/{DIRECTORY}/") and path.endswith(".log")], "deleted"

    play(check)


@trial
async def test_one_that_may_be_elected_does_not_begin_anew_because_its_leader_begins_earlier(trial: Trial) -> None:
    """Elected right then, it would lead without a record, and give their offsets to others."""
    await trial.do(1, lambda broker: broker.engine.create_topic("e", 1, SMALL, assignment=[[1, 3, 2]]))
    await trial.until(lambda: all(trial.knows(node_id, "e") for node_id in (1, 2, 3)) and trial.led("e") == 1)
    for number in range(12):
        await trial.produce(number, "e")
    await trial.until(lambda: trial.partition(3, "e").high_watermark == trial.partition(2, "e").high_watermark == 12)
    trial.cluster.network.block(host_of(1), host_of(3))  # it is not to hear of what follows
    await trial.do(1, lambda broker: broker.engine.replicas.move_start(trial.partition(1, "e").opened(), 12))
    await trial.until(lambda: trial.partition(2, "e").opened().log_start == 12)
    assert trial.partition(3, "e").opened().log_start == 0, "it has heard of it, too"
    trial.cluster.kill(1)
    trial.cluster.network.unblock(host_of(1), host_of(3))
    await trial.until(lambda: trial.led("e") == 3)
    await asyncio.sleep(1)
    await trial.cluster.stop(2)
    await trial.until(lambda: trial.state("e").elr == (2,))
    await asyncio.sleep(2)
    trial.cluster.start(2)
    deadline = trial.cluster.loop.time() + 20
    while trial.state("e").isr != (3, 2):
        await asyncio.sleep(0.0005)
        assert trial.cluster.loop.time() < deadline, trial.state("e")
        log = trial.partition(2, "e").log if trial.knows(2, "e") else None
        assert log is None or log.end_offset == 12, "may be elected, and has given up what it had"


@quietly
def test_after_an_old_store_was_accepted_no_epoch_has_the_number_of_one_it_has_forgotten() -> None:
    """Or two would take their records for the same, because both wrote some in an epoch of that number."""

    async def check(trial: Trial) -> None:
        one = {"min.insync.replicas": "1"}
        await trial.do(1, lambda broker: broker.engine.create_topic("m", 1, one, assignment=[[1, 2]]))
        await trial.until(lambda: trial.knows(1, "m") and trial.knows(2, "m") and trial.led("m") == 1)
        for number in range(5):
            await trial.produce(number, "m")
        await trial.until(lambda: trial.partition(2, "m").high_watermark == 5)
        key = keys.partition_key(trial.partition(1, "m").topic_id, 0)
        await trial.cluster.stop(1)
        await trial.until(lambda: trial.led("m") == 2)
        await trial.cluster.stop(2)
        trial.cluster.start(2)
        await trial.until(lambda: trial.led("m") == 2)
        for number in range(3):
            await trial.produce(10 + number, "m")
        epoch = trial.state("m").leader_epoch
        await trial.cluster.stop(2)
        trial.cluster.kill(3)
        # As if nothing had been decided since: the next one to lead does so in the epoch by this number.
        old = PartitionState((1, 2), (1,), 1, epoch - 2)
        await trial.cluster.etcd.client("operator").transact(put={key: old.encode()})
        trial.cluster.start(3)
        trial.cluster.start(1)
        await trial.until(lambda: trial.led("m") == 1)
        for number in range(10):
            await trial.produce(20 + number, "m")
        trial.cluster.start(2)
        await trial.until(lambda: trial.cluster.is_up(2) and trial.knows(2, "m"))
        await asyncio.sleep(10)
        assert 2 not in trial.state("m").isr or trial.durable(1, "m") == trial.durable(2, "m"), "in sync with others"
        assert not trial.cluster.crashes

    play(check, replace(SETTINGS, accept_older_store=True))


@trial
async def test_an_empty_epoch_that_could_not_be_forgotten_for_want_of_room_is_forgotten_later(trial: Trial) -> None:
    """Recovery would cut off what was written behind it in an earlier epoch, and acknowledged."""
    await trial.do(1, lambda broker: broker.engine.create_topic("f", 1, {}, assignment=[[1, 2, 3]]))
    await trial.until(lambda: all(trial.knows(node_id, "f") for node_id in (1, 2, 3)) and trial.led("f") == 1)
    for number in range(12):
        await trial.produce(number, "f")
    await trial.until(lambda: trial.partition(3, "f").high_watermark == 12)
    replicas, log = trial.cluster.lives[3].engine.replicas, trial.partition(3, "f").opened()

    async def lead_without_a_record(_: object) -> None:
        await replicas.begin_epochs([(log, 5)])
        trial.cluster.disks[3].fail("write_at", errno.ENOSPC, path_contains="f/0/state")
        with pytest.raises(OSError, match="No space"):
            await replicas.forget_empty_epochs(log)
        await replicas.forget_empty_epochs(log)

    await trial.do(3, lead_without_a_record)
    for number in range(3):
        await trial.produce(20 + number, "f")
    await trial.until(lambda: trial.partition(3, "f").high_watermark == 15)
    for node_id in (1, 2, 3):
        trial.cluster.kill(node_id)
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3) and trial.knows(3, "f"))
    assert trial.partition(3, "f").opened().end_offset == 15


@trial
async def test_when_nobody_has_room_leaders_do_not_change_all_the_time(trial: Trial) -> None:
    for node_id in (1, 2, 3):
        trial.cluster.disks[node_id].capacity_bytes = 0
    with suppress(Exception):
        await trial.produce(12)
    await asyncio.sleep(30)
    assert len(trial.states) < 20, [(state.leader, state.leader_epoch) for state in trial.states[:20]]
    for node_id in (1, 2, 3):
        trial.cluster.disks[node_id].capacity_bytes = None
    await trial.until(lambda: trial.state().isr == (1, 2, 3) and trial.led() is not None)
    await trial.produce(13)


@trial
async def test_a_full_follower_is_not_taken_for_silent_while_the_store_is_away(trial: Trial) -> None:
    for node_id in trial.cluster.ids:
        trial.cluster.etcd.link(host_of(node_id)).cut = True
    await asyncio.sleep(10)
    trial.cluster.disks[3].capacity_bytes = 0
    writing = asyncio.ensure_future(trial.produce(12))
    for _ in range(300):
        await asyncio.sleep(0.1)
        assert not trial.partition(1).is_cut_off
    writing.cancel()
