"""The simulated disk keeps what was synced, may lose anything else, and repeats itself for the same seed."""

import asyncio
import errno
from functools import partial

import pytest

from penstock.ports.disk import Disk
from penstock.testing.disk_tree import PAGE, SECTOR
from penstock.testing.faulty_disk import FaultyDisk, PowerCut
from penstock.testing.virtual_clock import VirtualLoop, run_virtual

SEEDS = range(60)


def disk_with_file(seed: int, content: bytes = b"", *, durable: bool = True) -> FaultyDisk:
    disk = FaultyDisk(seed)
    disk.make_dirs("/d")
    file = disk.open("/d/f", create=True)
    file.write_at(content, 0)
    if durable:
        disk.sync_files([file])
        disk.sync_dir("/d")
    return disk


def content_of(disk: FaultyDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read_at(file.size(), 0)


def test_it_is_a_disk() -> None:
    disk: Disk = FaultyDisk(1)
    assert disk.list_dir("/nowhere") == []


def test_written_bytes_are_read_back() -> None:
    disk = disk_with_file(1, b"abc")
    file = disk.open("/d/f")
    file.write_at(memoryview(b"XY"), 5)
    assert file.read_at(100, 0) == b"abc\0\0XY"
    assert file.read_at(2, 1) == b"bc"
    assert file.read_at(5, 7) == b""
    assert file.size() == 7
    file.truncate(2)
    assert file.read_at(100, 0) == b"ab"
    with pytest.raises(OSError, match="descriptor"):
        file.fileno()


def test_synced_content_and_names_always_survive() -> None:
    content = bytes(range(256)) * 64
    for seed in SEEDS:
        disk = disk_with_file(seed, content)
        disk.open("/d/f").write_at(b"later" * 2000, len(content))
        after = disk.after_power_cut()
        assert content_of(after, "/d/f")[: len(content)] == content
        assert content_of(after.after_power_cut(), "/d/f")[: len(content)] == content


def test_unsynced_bytes_vanish_tear_and_survive() -> None:
    new = b"n" * (3 * PAGE)
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"o" * len(new))
        disk.open("/d/f").write_at(new, 0)
        left = content_of(disk.after_power_cut(), "/d/f")
        assert len(left) == len(new)
        for start in range(0, len(left), SECTOR):
            assert left[start : start + SECTOR] in (b"n" * SECTOR, b"o" * SECTOR)
        pages = [left[start : start + PAGE] for start in range(0, len(left), PAGE)]
        for page in pages:
            assert page == b"n" * page.count(b"n") + b"o" * page.count(b"o"), "torn anywhere but after a prefix"
        outcomes.add(tuple("new" if b"o" not in page else "old" if b"n" not in page else "torn" for page in pages))
    kinds = {kind for outcome in outcomes for kind in outcome}
    assert kinds == {"new", "old", "torn"}
    assert any(outcome[0] == "old" and outcome[2] == "new" for outcome in outcomes), "pages must not keep order"


def test_an_unsynced_append_leaves_some_size_in_between_and_holes_of_zeros() -> None:
    sizes, holes = set(), 0
    for seed in SEEDS:
        disk = disk_with_file(seed, b"old")
        disk.open("/d/f").write_at(b"n" * (2 * PAGE), 3)
        left = content_of(disk.after_power_cut(), "/d/f")
        assert left[:3] == b"old"
        assert 3 <= len(left) <= 3 + 2 * PAGE
        assert set(left[3:]) <= {0, ord("n")}
        sizes.add(len(left))
        holes += 0 in left
    assert len(sizes) > 10
    assert holes > 10


def test_an_unsynced_truncate_may_be_undone_and_what_follows_it_never_shows_old_bytes() -> None:
    seen = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"o" * (2 * PAGE))
        file = disk.open("/d/f")
        file.truncate(PAGE)
        file.write_at(b"n" * PAGE, 2 * PAGE)
        left = content_of(disk.after_power_cut(), "/d/f")
        if len(left) > 2 * PAGE:
            assert left[PAGE : 2 * PAGE] == bytes(PAGE)
        seen.add(left[PAGE : PAGE + 1])
    assert seen == {b"o", b"\0", b""}


def test_pages_cut_off_before_they_were_synced_never_read_as_zeros() -> None:
    seen = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"o" * (2 * PAGE))
        file = disk.open("/d/f")
        file.write_at(b"n" * PAGE, PAGE)
        file.truncate(PAGE)
        left = content_of(disk.after_power_cut(), "/d/f")
        assert 0 not in left
        seen.add(len(left))
    assert seen == {PAGE, 2 * PAGE}


def test_a_synced_truncate_stays() -> None:
    for seed in SEEDS:
        disk = disk_with_file(seed, b"o" * 100)
        file = disk.open("/d/f")
        file.truncate(10)
        disk.sync_files([file])
        assert content_of(disk.after_power_cut(), "/d/f") == b"o" * 10


def test_a_created_name_needs_a_directory_sync() -> None:
    kept = 0
    for seed in SEEDS:
        disk = disk_with_file(seed, b"x", durable=False)
        disk.sync_files([disk.open("/d/f")])
        with pytest.raises(FileNotFoundError):
            disk.read_durable("/d/f")
        after = disk.after_power_cut()
        kept += after.exists("/d/f")
        if after.exists("/d/f"):
            assert content_of(after, "/d/f") == b"x"
    assert 0 < kept < len(SEEDS)


def test_pending_names_survive_in_order() -> None:
    counts = set()
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        disk.make_dirs("/d")
        for name in "abcde":
            disk.open(f"/d/{name}", create=True)
        names = disk.after_power_cut().list_dir("/d")
        assert names == list("abcde")[: len(names)]
        counts.add(len(names))
    assert counts == set(range(6))


def test_a_rename_is_atomic_and_never_overtakes_an_earlier_change() -> None:
    seen = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"old")
        new = disk.open("/d/f.tmp", create=True)
        new.write_at(b"new", 0)
        disk.sync_files([new])
        disk.rename("/d/f.tmp", "/d/f")
        disk.unlink("/d/f")
        after = disk.after_power_cut()
        content = content_of(after, "/d/f") if after.exists("/d/f") else b""
        seen.add((content, after.exists("/d/f.tmp")))
    assert seen == {(b"old", False), (b"old", True), (b"new", False), (b"", False)}


def test_a_rename_between_directories_happens_in_both_or_neither() -> None:
    seen = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"x")
        disk.make_dirs("/e")
        disk.open("/e/first", create=True)
        disk.rename("/d/f", "/e/g")
        after = disk.after_power_cut()
        assert after.exists("/d/f") != after.exists("/e/g")
        if after.exists("/e/g"):
            assert after.exists("/e/first")
        seen.add(after.exists("/e/g"))
        synced = disk_with_file(seed, b"x")
        synced.make_dirs("/e")
        synced.open("/e/first", create=True)
        synced.rename("/d/f", "/e/g")
        synced.sync_dir("/d")
        assert synced.after_power_cut().list_dir("/e") == ["first", "g"]
    assert seen == {True, False}


def test_a_later_name_waits_for_a_rename_from_another_directory() -> None:
    seen = set()
    for seed in SEEDS:
        disk = disk_with_file(seed, b"x")
        disk.make_dirs("/e")
        disk.rename("/d/f", "/e/g")
        disk.open("/e/later", create=True)
        disk.open("/d/later", create=True)
        after = disk.after_power_cut()
        if after.exists("/e/later") or after.exists("/d/later"):
            assert after.exists("/e/g")
        seen.add((after.exists("/e/g"), after.exists("/d/later"), after.exists("/e/later")))
    assert len(seen) == 5


def test_directories_are_renamed_and_removed_with_what_they_hold() -> None:
    disk = disk_with_file(3, b"x")
    disk.make_dirs("/d/inner")
    disk.rename("/d", "/gone")
    disk.sync_dir("/")
    assert disk.list_dir("/gone") == ["f", "inner"]
    disk.remove_tree("/gone")
    disk.sync_dir("/")
    assert disk.after_power_cut().list_dir("/") == []
    with pytest.raises(FileNotFoundError):
        disk_with_file(3).remove_tree("/nowhere")


def test_the_nth_change_cuts_the_power_and_everything_after_it_raises() -> None:
    for n in range(1, 6):
        disk = FaultyDisk(n)
        deaths: list[str] = []
        disk.on_power_cut = partial(deaths.append, "dead")
        disk.make_dirs("/d")
        disk.cut_power_after(n)
        steps = 0
        with pytest.raises(PowerCut):  # noqa: PT012 - which of these raises is what the test counts
            file = disk.open("/d/f", create=True)
            steps += 1
            file.write_at(b"1234", 0)
            steps += 1
            disk.sync_files([file])
            steps += 1
            disk.sync_dir("/d")
            steps += 1
            disk.rename("/d/f", "/d/g")
        assert steps == n - 1
        assert disk.dead
        assert deaths == ["dead"]
        for call in (partial(disk.exists, "/d"), partial(disk.open, "/d/f"), partial(disk.sync_files, [])):
            with pytest.raises(PowerCut):
                call()
        if n > 1:
            for use in (file.size, file.close, partial(file.read_at, 1, 0), partial(file.write_at, b"", 0)):
                with pytest.raises(PowerCut):
                    use()
        after = disk.after_power_cut()
        if n == 5:
            assert len(after.list_dir("/d")) == 1
            assert content_of(after, "/d/" + after.list_dir("/d")[0]) == b"1234"


def test_a_cut_write_is_torn_at_any_byte() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = disk_with_file(seed)
        disk.cut_power_after(1)
        with pytest.raises(PowerCut):
            disk.open("/d/f").write_at(b"w" * 100, 0)
        sizes.add(disk.abandon().open("/d/f").size())
    assert len(sizes) > 20
    assert max(sizes) <= 100


def test_a_cut_sync_makes_some_files_durable() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = FaultyDisk(seed)
        disk.make_dirs("/d")
        files = [disk.open(f"/d/{name}", create=True) for name in "ab"]
        disk.sync_dir("/d")
        for file in files:
            file.write_at(b"x", 0)
        disk.cut_power_after(1)
        with pytest.raises(PowerCut):
            disk.sync_files(files)
        outcomes.add(tuple(disk.read_durable(f"/d/{name}") for name in "ab"))
    assert len(outcomes) == 4


def test_a_killed_process_loses_nothing_but_its_locks() -> None:
    disk = disk_with_file(1, b"abc", durable=False)
    disk.lock("/d/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/d/.lock")
    next_disk = disk.abandon()
    assert content_of(next_disk, "/d/f") == b"abc"
    with pytest.raises(PowerCut):
        disk.exists("/d/f")
    lock = next_disk.lock("/d/.lock")
    lock.release()
    next_disk.lock("/d/.lock")
    with pytest.raises(FileNotFoundError):
        next_disk.read_durable("/d/f")


def test_equal_seeds_give_equal_outcomes() -> None:
    def outcome(seed: int) -> bytes:
        disk = disk_with_file(seed, b"o" * 10 * PAGE)
        file = disk.open("/d/f")
        for position in range(0, 20 * PAGE, 1000):
            file.write_at(b"n" * 700, position)
        return content_of(disk.after_power_cut(), "/d/f")

    assert [outcome(seed) for seed in range(10)] == [outcome(seed) for seed in range(10)]
    assert len({outcome(seed) for seed in range(10)}) > 5


def test_a_failed_sync_loses_pages_that_a_later_sync_does_not_bring_back() -> None:
    disk = disk_with_file(1, b"")
    file = disk.open("/d/f")
    file.write_at(b"a" * PAGE, 0)
    disk.fail("sync_files", errno.EIO, path_contains="/d/f")
    with pytest.raises(OSError, match="/d/f") as caught:
        disk.sync_files([file])
    assert caught.value.errno == errno.EIO
    file.write_at(b"b" * PAGE, PAGE)
    disk.sync_files([file])
    assert content_of(disk, "/d/f") == b"a" * PAGE + b"b" * PAGE
    assert content_of(disk.after_power_cut(), "/d/f") == bytes(PAGE) + b"b" * PAGE


def test_faults_hit_the_chosen_call_only() -> None:
    disk = disk_with_file(1, b"abc")
    file = disk.open("/d/f")
    other = disk.open("/d/other", create=True)
    disk.fail("read_at", errno.EIO, when=2, path_contains="f", times=2)
    assert file.read_at(1, 0) == b"a"
    assert other.read_at(1, 0) == b""
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.read_at(1, 0)
    assert file.read_at(1, 0) == b"a"


def test_a_full_device_takes_what_fits() -> None:
    disk = FaultyDisk(1, capacity_bytes=10)
    file = disk.open("f", create=True)
    file.write_at(b"1234567", 0)
    with pytest.raises(OSError, match="space") as caught:
        file.write_at(b"abcdef", 7)
    assert caught.value.errno == errno.ENOSPC
    assert content_of(disk, "f") == b"1234567abc"
    file.write_at(b"X", 0)
    disk.unlink("f")


def test_a_flipped_byte_is_wrong_in_the_cache_and_on_the_device() -> None:
    disk = disk_with_file(1, b"\x00\x00")
    disk.flip_byte("/d/f", 1)
    assert content_of(disk, "/d/f") == b"\x00\xff"
    assert disk.read_durable("/d/f") == b"\x00\xff"


def test_calls_are_counted() -> None:
    disk = disk_with_file(1, b"abc")
    operations = disk.operations
    content_of(disk, "/d/f")
    assert disk.bytes_read == 3
    assert disk.counts["sync_files"] == 1
    assert disk.operations == operations, "reading changes nothing"
    disk.is_resident = False
    assert not disk.open("/d/f").resident(1, 0)


def test_misuse_is_an_operating_system_error() -> None:
    disk = disk_with_file(1, b"abc")
    file = disk.open("/d/f")
    file.close()
    file.close()
    for use in (lambda: file.read_at(1, 0), lambda: file.write_at(b"", 0), lambda: disk.sync_files([file])):
        with pytest.raises(OSError, match="closed"):
            use()
    with pytest.raises(FileNotFoundError):
        disk.open("/no/where", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open("/d/missing")
    with pytest.raises(IsADirectoryError):
        disk.open("/d")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/d/missing")
    with pytest.raises(NotADirectoryError):
        disk.make_dirs("/d/f/below")


def test_work_given_to_run_lets_writes_in_between_and_takes_virtual_time() -> None:
    async def main() -> tuple[int, int]:
        disk = disk_with_file(5)
        file = disk.open("/d/f")
        durable_sizes: list[int] = []

        async def sync() -> None:
            before = file.size()
            await disk.run(disk.sync_files, [file])
            assert len(disk.read_durable("/d/f")) >= before
            durable_sizes.append(file.size() - len(disk.read_durable("/d/f")))

        async def append() -> None:
            for position in range(100):
                file.write_at(b"x", position)
                await asyncio.sleep(0.0001)

        appending = asyncio.ensure_future(append())
        while not appending.done():
            await sync()
        return max(durable_sizes), len(durable_sizes)

    behind, rounds = run_virtual(main, 1)
    assert behind > 0, "a write after the sync and before its report is not durable"
    assert rounds > 2


def test_a_power_cut_ends_a_simulated_process_without_its_finally() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk = FaultyDisk(1)
        process = loop.process("broker")
        disk.on_power_cut = process.kill
        seen: list[str] = []

        async def bystander() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                seen.append("finally")

        async def broker() -> None:
            process.create_task(bystander())
            await disk.run(disk.make_dirs, "/d")
            seen.append("made")
            disk.cut_power_after(1)
            await disk.run(disk.make_dirs, "/e")
            seen.append("made after death")

        process.create_task(broker())
        await asyncio.sleep(2000)
        assert disk.dead
        return [*seen, *disk.after_power_cut().list_dir("/")]

    assert run_virtual(main, 1)[:2] == ["made", "d"]


def test_a_disk_that_lies_says_synced_and_loses_it_with_the_power() -> None:
    disk = FaultyDisk(1)
    file = disk.open("/f", create=True)
    disk.sync_dir("/")
    disk.lies = True
    file.write_at(b"promised", 0)
    disk.sync_files([file])
    assert disk.read_durable("/f") == b""
    survivor = disk.abandon()
    assert survivor.lies  # a new process does not make the device honest
    assert survivor.open("/f").read_at(8, 0) == b"promised"
    assert not survivor.after_power_cut().lies


def test_a_backup_has_what_there_was_and_puts_it_back() -> None:
    disk = disk_with_file(1, b"old", durable=False)
    backup = disk.backup()
    disk.open("/d/f").write_at(b"new", 0)
    disk.open("/d/g", create=True)
    assert content_of(backup, "/d/f") == b"old"
    disk.restore("/d", backup)
    assert disk.files() == ["/d/f"]
    assert disk.read_durable("/d/f") == b"old"
    disk.open("/d/f").write_at(b"NEW", 0)
    assert content_of(backup, "/d/f") == b"old", "what was put back is still the backup's"
    with pytest.raises(FileNotFoundError):
        disk.restore("/d/g", backup)


def test_what_is_lost_stays_lost() -> None:
    disk = disk_with_file(1, b"abc")
    disk.lose("/d")
    assert disk.files() == []
    assert disk.after_power_cut().files() == []


def test_a_failed_sync_shows_what_it_lost_until_it_is_forgotten() -> None:
    disk = disk_with_file(1, b"abc")
    disk.open("/d/f").write_at(b"XYZ", 0)
    disk.fail("sync_files", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_files([disk.open("/d/f")])
    disk = disk.abandon()
    file = disk.open("/d/f")
    assert file.read_at(3, 0) == b"XYZ"
    file.forget_cached(0)
    assert file.read_at(3, 0) == b"abc"
