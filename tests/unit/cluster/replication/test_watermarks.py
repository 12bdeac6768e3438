"""High watermarks over a restart: what was saved, something older, or nothing; never anything else."""

from tests.simulated_broker import virtual
from tests.simulated_log import copy_disk

from penstock.cluster.replication.watermarks import FILE_NAME, load_watermarks, save_watermarks
from penstock.testing.faulty_disk import FaultyDisk, PowerCut

OLD = {"a/0": 3, "a/1": 0}
NEW = {"a/0": 5, "b/0": 1 << 60}


def disk_with(*saved: dict[str, int], seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed, max_delay_s=0.0)
    disk.make_dirs("data")
    for each in saved:
        save_watermarks(disk, "data", each)
    return disk


def test_they_are_read_as_they_were_saved_last() -> None:
    assert load_watermarks(disk_with(), "data") == {}
    assert load_watermarks(disk_with({}), "data") == {}
    disk = disk_with(OLD, NEW)
    assert load_watermarks(disk, "data") == NEW
    assert load_watermarks(disk.after_power_cut(), "data") == NEW


@virtual
async def test_a_flipped_bit_anywhere_loses_them_and_does_no_harm() -> None:
    disk = disk_with(NEW)
    size = disk.open(f"data/{FILE_NAME}").size()
    outcomes = set()
    for position in range(size):
        for bit in range(8):
            damaged = copy_disk(disk, "data")
            damaged.flip_byte(f"data/{FILE_NAME}", position, 1 << bit)
            found = load_watermarks(damaged, "data")
            assert found in ({}, NEW), f"bit {bit} of byte {position}"
            outcomes.add(bool(found))
    assert outcomes == {False}
    for shorter in range(size):
        damaged = copy_disk(disk, "data")
        damaged.open(f"data/{FILE_NAME}").truncate(shorter)
        assert load_watermarks(damaged, "data") == {}


def test_a_power_cut_leaves_the_old_or_the_new_ones() -> None:
    rehearsal = disk_with(OLD)
    before = rehearsal.operations
    save_watermarks(rehearsal, "data", NEW)
    outcomes = []
    for moment in range(1, rehearsal.operations - before + 1):
        for seed in range(8):
            disk = disk_with(OLD, seed=seed)
            disk.cut_power_after(moment)
            try:
                save_watermarks(disk, "data", NEW)
            except PowerCut:
                pass
            else:
                raise AssertionError("the power was not cut")
            again = disk.after_power_cut()
            found = load_watermarks(again, "data")
            assert found in (OLD, NEW), f"moment {moment}, seed {seed}"
            outcomes.append(found)
            save_watermarks(again, "data", NEW)
            assert load_watermarks(again, "data") == NEW
    assert OLD in outcomes and NEW in outcomes
