"""The member file: a data directory stays with its broker and cluster, and an old copy of the store is noticed."""

import asyncio
import errno

import pytest

from penstock.cluster.member_file import MemberFile
from penstock.cluster.watcher import OlderStore
from penstock.errors import StartupError
from penstock.testing.faulty_disk import FaultyDisk, PowerCut
from penstock.testing.virtual_clock import run_virtual

STORE = "etcd://etcd1:2379"


def make_disk(seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed)
    disk.make_dirs("data")
    return disk


def make_file(disk: FaultyDisk, node_id: int = 1, *, accept_older: bool = False) -> MemberFile:
    return MemberFile(disk, "data", node_id, accept_older=accept_older, store_name=STORE)


async def join(disk: FaultyDisk, cluster_id: str = "red", revision: int = 10) -> MemberFile:
    file = make_file(disk)
    await file.load()
    await file.join(cluster_id, revision)
    return file


def test_what_is_noted_is_remembered_after_a_power_cut() -> None:
    async def main() -> None:
        disk = make_disk()
        assert await make_file(disk).load() == 0
        file = await join(disk)
        await file.save(17)
        after = make_file(disk.after_power_cut())
        assert await after.load() == 17
        await after.join("red", 17)

    run_virtual(main, 1)


def test_a_directory_of_another_node_or_cluster_is_refused() -> None:
    async def main() -> None:
        disk = make_disk()
        await join(disk)
        with pytest.raises(StartupError, match=r"data/cluster: .* node 1, this is node 2"):
            await make_file(disk, 2).load()
        for accept_older in (False, True):
            file = make_file(disk, accept_older=accept_older)
            await file.load()
            with pytest.raises(StartupError, match=rf"cluster red, but {STORE} is that of cluster blue"):
                await file.join("blue", 99)
        assert await make_file(disk).load() == 10

    run_virtual(main, 1)


def test_an_old_copy_of_the_store_is_refused_unless_an_operator_accepts_it() -> None:
    async def main() -> None:
        disk = make_disk()
        await join(disk, revision=10)
        file = make_file(disk)
        await file.load()
        with pytest.raises(OlderStore, match=rf"{STORE} is at revision 9, .* at 10"):
            await file.join("red", 9)
        accepting = make_file(disk, accept_older=True)
        assert await accepting.load() == 0
        await accepting.join("red", 9)
        assert await make_file(disk.after_power_cut()).load() == 9

    run_virtual(main, 1)


def test_every_flipped_bit_is_found_and_the_way_out_works() -> None:
    async def main() -> None:
        disk = make_disk()
        await join(disk)
        good = disk.read_durable("data/cluster")
        for position in range(len(good)):
            damaged = bytearray(good)
            damaged[position] ^= 1 << position % 8
            disk.open("data/cluster").write_at(damaged, 0)
            with pytest.raises(StartupError, match=r"data/cluster: .* remove this one file"):
                await make_file(disk).load()
        disk.unlink("data/cluster")
        await join(disk)
        assert await make_file(disk).load() == 10

    run_virtual(main, 1)


def test_a_power_cut_leaves_the_old_or_the_new_note() -> None:
    left = set()

    async def crash(seed: int, operation: int) -> bool:
        disk = make_disk(seed)
        file = await join(disk)
        disk.cut_power_after(operation)
        try:
            await file.save(11)
            survived = True
        except PowerCut:
            survived = False
        found = await make_file(disk.after_power_cut()).load()
        assert found == 11 or not survived
        left.add(found)
        return survived

    async def main() -> None:
        for seed in range(10):
            operation = 1
            while not await crash(seed, operation):
                operation += 1
            assert operation >= 5

    run_virtual(main, 1)
    assert left == {10, 11}


def test_the_revision_is_saved_every_ten_seconds_while_it_grows() -> None:
    async def main() -> None:
        disk = make_disk()
        file = await join(disk)
        seen = [10]
        rounds = disk.counts["sync_files"]
        task = asyncio.ensure_future(file.run(lambda: seen[0]))
        await asyncio.sleep(35)
        assert disk.counts["sync_files"] == rounds
        for _ in range(100):
            seen[0] += 1
            await asyncio.sleep(0.99)
        assert 8 <= disk.counts["sync_files"] - rounds <= 11
        assert await make_file(disk).load() >= seen[0] - 11
        task.cancel()

    run_virtual(main, 1)


def test_a_full_disk_is_waited_for_and_a_bad_one_is_not() -> None:
    async def main() -> None:
        disk = make_disk()
        file = await join(disk)
        seen = [11]
        task = asyncio.ensure_future(file.run(lambda: seen[0]))
        disk.fail("write_at", errno.ENOSPC)
        await asyncio.sleep(15)
        assert not task.done() and await make_file(disk).load() == 10
        await asyncio.sleep(10)
        assert await make_file(disk).load() == 11
        seen[0] = 12
        disk.fail("sync_files", errno.EIO)
        with pytest.raises(OSError, match=r"[Ii]nput/output"):
            await task

    run_virtual(main, 1)


def test_a_save_that_nobody_waits_for_any_more_is_not_written_over() -> None:
    async def main() -> None:
        for seed in range(20):
            disk = make_disk(seed)
            disk.max_delay_s = 0.5
            file = await join(disk)
            first = asyncio.ensure_future(file.save(11))
            await asyncio.sleep(0.1)
            first.cancel()
            await file.save(12)
            await asyncio.sleep(2)
            assert await make_file(disk).load() == 12

    run_virtual(main, 1)
