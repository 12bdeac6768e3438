"""The kept ends of logs: what was saved, something older, or said to be damaged; never anything else."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from tests.simulated_broker import virtual
from tests.simulated_log import copy_disk

from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.kept_ends import FILE_NAME, end_of, load_ends, save_ends
from penstock.testing.faulty_disk import FaultyDisk, PowerCut

A, B = UUID(int=1), UUID(int=2)
OLD = {A: [3, 0]}
NEW = {A: [5, 0, 7], B: [1 << 60]}


def disk_with(*saved: Mapping[UUID, list[int]], seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed, max_delay_s=0.0)
    disk.make_dirs("meta")
    for each in saved:
        save_ends(disk, "meta", each)
    return disk


def test_they_are_read_as_they_were_saved_last() -> None:
    assert load_ends(disk_with(), "meta") == {}
    assert load_ends(disk_with({}), "meta") == {}
    disk = disk_with(OLD, NEW)
    assert load_ends(disk, "meta") == NEW
    assert load_ends(disk.after_power_cut(), "meta") == NEW


def test_a_partition_nobody_knows_has_no_end() -> None:
    assert [end_of(NEW, A, index) for index in range(4)] == [5, 0, 7, 0]
    assert end_of(NEW, UUID(int=9), 0) == 0


def test_a_directory_that_is_not_there_is_made() -> None:
    disk = FaultyDisk(max_delay_s=0.0)
    save_ends(disk, "data/meta", NEW)
    assert load_ends(disk.after_power_cut(), "data/meta") == NEW


@virtual
async def test_a_flipped_bit_or_a_missing_byte_is_found() -> None:
    disk = disk_with(NEW)
    size = disk.open(f"meta/{FILE_NAME}").size()
    for position in range(size):
        for bit in range(8):
            damaged = copy_disk(disk, "meta")
            damaged.flip_byte(f"meta/{FILE_NAME}", position, 1 << bit)
            with pytest.raises(DamagedFile, match=FILE_NAME):
                load_ends(damaged, "meta")
    for shorter in range(size):
        damaged = copy_disk(disk, "meta")
        damaged.open(f"meta/{FILE_NAME}").truncate(shorter)
        with pytest.raises(DamagedFile, match=FILE_NAME):
            load_ends(damaged, "meta")


@pytest.mark.parametrize("payload", [b"", b"[]", b"3", b'{"x":[1]}', b'{"%s":7}' % str(A).encode()])
def test_what_is_not_ends_is_damage_whatever_its_checksum(payload: bytes) -> None:
    disk = disk_with()
    checked_file.save(disk, f"meta/{FILE_NAME}", b"ends", 1, payload)
    with pytest.raises(DamagedFile, match=FILE_NAME):
        load_ends(disk, "meta")


def test_a_power_cut_leaves_the_old_or_the_new_ones() -> None:
    rehearsal = disk_with(OLD)
    before = rehearsal.operations
    save_ends(rehearsal, "meta", NEW)
    outcomes = []
    for moment in range(1, rehearsal.operations - before + 1):
        for seed in range(8):
            disk = disk_with(OLD, seed=seed)
            disk.cut_power_after(moment)
            with pytest.raises(PowerCut):
                save_ends(disk, "meta", NEW)
            again = disk.after_power_cut()
            found = load_ends(again, "meta")
            assert found in (OLD, NEW), f"moment {moment}, seed {seed}"
            outcomes.append(found)
            save_ends(again, "meta", NEW)
            assert load_ends(again, "meta") == NEW
    assert OLD in outcomes and NEW in outcomes
