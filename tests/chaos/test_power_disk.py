"""The forgetful disk: synced bytes and names stay, others go, and a torn cut lies in between."""

import errno
import random
import stat

import pytest

from tests.chaos.power_disk import PAGE, PowerDisk

REGULAR = stat.S_IFREG | 0o644


def durable_file(disk: PowerDisk, path: str, data: bytes) -> None:
    file = disk.create(path, REGULAR)
    disk.write(file, data, 0)
    disk.sync_file(file)
    disk.sync_directory(disk.directory(path.rpartition("/")[0]))


def test_synced_bytes_stay_and_later_ones_go() -> None:
    disk = PowerDisk()
    durable_file(disk, "/a", b"kept")
    file = disk.file("/a")
    disk.write(file, b"XX", 1)
    disk.write(file, b"tail" * PAGE, 4)
    assert disk.volatile_paths() == ["/a"]
    disk.cut()
    assert disk.file("/a").data == b"kept"
    assert disk.counters.lost_bytes > 0
    assert disk.volatile_paths() == []


def test_a_truncation_is_volatile_too() -> None:
    disk = PowerDisk()
    durable_file(disk, "/a", bytes(range(256)) * 64)
    disk.file("/a").truncate(100)
    disk.write(disk.file("/a"), b"Z" * 50, 200)
    disk.cut()
    assert disk.file("/a").data == bytes(range(256)) * 64
    disk.file("/a").truncate(100)
    disk.sync_file(disk.file("/a"))
    disk.cut()
    assert disk.file("/a").data == bytes(range(100))


def test_a_name_needs_its_directory_synced() -> None:
    disk = PowerDisk()
    file = disk.create("/a", REGULAR)
    disk.write(file, b"data", 0)
    disk.sync_file(file)
    disk.cut()
    with pytest.raises(FileNotFoundError):
        disk.find("/a")
    assert disk.counters.lost_names == 1


def test_without_strict_syncing_the_file_keeps_its_name() -> None:
    disk = PowerDisk(strict=False)
    disk.make_directory("/d", 0o755)
    file = disk.create("/d/a", REGULAR)
    disk.write(file, b"data", 0)
    disk.sync_file(file)
    disk.cut()
    assert disk.file("/d/a").data == b"data"


def test_unlink_and_rename_come_back_unless_synced() -> None:
    disk = PowerDisk()
    durable_file(disk, "/a", b"a")
    durable_file(disk, "/b", b"b")
    disk.rename("/a", "/b")
    assert disk.file("/b").data == b"a"
    disk.cut()
    assert [bytes(disk.file(path).data) for path in ("/a", "/b")] == [b"a", b"b"]
    disk.unlink("/b")
    disk.rename("/a", "/c")
    disk.sync_directory(disk.root)
    disk.cut()
    assert sorted(disk.root.names) == ["c"]


def test_a_new_directory_keeps_only_what_was_synced_in_it() -> None:
    disk = PowerDisk()
    disk.make_directory("/d", 0o755)
    disk.sync_directory(disk.root)
    disk.create("/d/a", REGULAR)
    disk.cut()
    assert disk.directory("/d").names == {}


def test_errors_are_the_operating_systems() -> None:
    disk = PowerDisk(capacity_bytes=PAGE)
    disk.make_directory("/d", 0o755)
    file = disk.create("/d/a", REGULAR)
    for action, code in (
        (lambda: disk.find("/none"), errno.ENOENT),
        (lambda: disk.create("/d/a", REGULAR), errno.EEXIST),
        (lambda: disk.remove_directory("/d"), errno.ENOTEMPTY),
        (lambda: disk.file("/d"), errno.EISDIR),
        (lambda: disk.find("/d/a/b"), errno.ENOTDIR),
        (lambda: disk.rename("/d/a", "/d"), errno.EISDIR),
        (lambda: disk.write(file, bytes(PAGE + 1), 0), errno.ENOSPC),
    ):
        with pytest.raises(OSError, match="E") as caught:
            action()
        assert caught.value.errno == code
    disk.write(file, bytes(PAGE), 0)
    disk.unlink("/d/a")
    disk.write(disk.create("/d/b", REGULAR), bytes(PAGE), 0)


def test_a_torn_cut_keeps_synced_bytes_and_mixes_the_rest() -> None:
    """Over many seeds: changed pages are old or new, and synced, untouched pages never change."""
    outcomes = set()
    for seed in range(200):
        disk = PowerDisk()
        durable_file(disk, "/a", b"o" * (3 * PAGE + 100))
        disk.write(disk.file("/a"), b"n" * (4 * PAGE), 2 * PAGE)
        disk.cut("torn", seed)
        data = disk.file("/a").data
        assert data[: 2 * PAGE] == b"o" * 2 * PAGE
        assert len(data) >= 3 * PAGE + 100
        for low in range(2 * PAGE, len(data), PAGE):
            page = bytes(data[low : low + PAGE])
            if page not in (b"n" * len(page), b"o" * len(page)):
                # Beyond the old end nothing was ever there but zeros.
                assert page.strip(b"\0") in (b"", b"o" * 100)
        outcomes.add(bytes(data))
    assert len(outcomes) > 10


def test_the_same_seed_cuts_the_same_way() -> None:
    def run() -> bytes:
        disk = PowerDisk()
        durable_file(disk, "/a", b"o" * 10 * PAGE)
        disk.write(disk.file("/a"), b"n" * 12 * PAGE, 3)
        disk.cut("torn", 5)
        return bytes(disk.file("/a").data)

    assert run() == run()


def test_a_dropping_cut_equals_a_copy_taken_at_the_last_sync() -> None:
    """Random writes, truncations and syncs against the obvious model: a copy per sync."""
    for seed in range(50):
        coin = random.Random(seed)
        disk = PowerDisk()
        durable_file(disk, "/a", b"")
        file = disk.file("/a")
        live, synced = bytearray(), b""
        for _ in range(60):
            step = coin.random()
            if step < 0.6:
                offset, data = coin.randrange(5 * PAGE), coin.randbytes(coin.randrange(1, 2 * PAGE))
                disk.write(file, data, offset)
                live.extend(bytes(max(0, offset - len(live))))
                live[offset : offset + len(data)] = data
            elif step < 0.75:
                size = coin.randrange(6 * PAGE)
                file.truncate(size)
                live = live[:size] + bytes(max(0, size - len(live)))
            elif step < 0.9:
                disk.sync_file(file)
                synced = bytes(live)
            else:
                disk.cut()
                live = bytearray(synced)
            assert file.data == live
        disk.cut()
        assert file.data == synced
