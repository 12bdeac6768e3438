"""A replica that was being made, or was damaged, when its partition moved on: nothing of it stays."""

import errno

from tests.unit.cluster.trial import SMALL, Trial, trial

_DIRECTORY = "data/logs/m/0"


async def _begin(trial: Trial) -> None:
    await trial.do(1, lambda broker: broker.engine.create_topic("m", 1, SMALL, assignment=[[1, 2]]))
    await trial.until(lambda: trial.knows(1, "m") and trial.knows(3, "m") and trial.led("m") == 1)


async def _move(trial: Trial, to: list[int] | None) -> None:
    outcomes = await trial.do(1, lambda broker: broker.node.operations.move({("m", 0): to}))
    assert set(outcomes.values()) == {None}


def _is_begun(trial: Trial) -> bool:
    return _is_left(trial) and not trial.cluster.disks[3].exists(f"{_DIRECTORY}/partition.meta")


def _is_left(trial: Trial) -> bool:
    return trial.cluster.disks[3].is_dir(_DIRECTORY)


@trial
async def test_of_one_cut_short_by_a_crash_nothing_is_left_after_the_next_start(trial: Trial) -> None:
    await _begin(trial)
    trial.cluster.disks[3].fail("sync_files", errno.EIO, path_contains="m/0/partition.meta")
    await _move(trial, [1, 2, 3])
    await trial.until(lambda: trial.cluster.crashes)
    assert _is_begun(trial)
    await _move(trial, None)
    await trial.until(lambda: trial.state("m").replicas == (1, 2))
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3))
    assert not _is_left(trial)


@trial
async def test_one_that_there_was_no_room_for_is_removed_when_its_partition_has_moved_on(trial: Trial) -> None:
    await _begin(trial)
    trial.cluster.disks[3].capacity_bytes = 0
    await _move(trial, [1, 2, 3])
    await trial.until(lambda: _is_begun(trial))
    await _move(trial, None)
    await trial.until(lambda: trial.state("m").replicas == (1, 2))
    await trial.until(lambda: not _is_left(trial))
    trial.cluster.disks[3].capacity_bytes = None
    await _move(trial, [1, 2, 3])
    await trial.until(lambda: trial.state("m").isr == (1, 2, 3))
    assert not trial.cluster.crashes


@trial
async def test_one_that_does_not_say_whose_it_is_is_not_in_the_way_when_its_partition_comes_back(trial: Trial) -> None:
    await _begin(trial)
    await _move(trial, [1, 2, 3])
    await trial.until(lambda: trial.state("m").isr == (1, 2, 3))
    trial.cluster.kill(3)
    trial.cluster.disks[3].flip_byte(f"{_DIRECTORY}/partition.meta", 30)
    await _move(trial, [1, 2])
    await trial.until(lambda: trial.state("m").replicas == (1, 2))
    trial.cluster.start(3)
    await trial.until(lambda: trial.cluster.is_up(3) and not _is_left(trial))
    await _move(trial, [1, 2, 3])
    await trial.until(lambda: trial.state("m").isr == (1, 2, 3))
    assert not [path for path in trial.cluster.disks[3].files() if "~damaged" in path]
    assert not trial.cluster.crashes
