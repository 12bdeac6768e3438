"""Checked files: what was written comes back or is refused, and a crash leaves the old or the new one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.testing.faulty_disk import FaultyDisk, PowerCut


@given(st.binary(max_size=300), st.integers(0, 65535))
def test_what_is_encoded_is_decoded(payload: bytes, version: int) -> None:
    data = checked_file.encode(b"kind", version, payload)
    assert checked_file.decode(b"kind", version, data, "x") == (version, payload)


def test_every_flipped_bit_is_found() -> None:
    data = checked_file.encode(b"kind", 1, b'{"some": "payload"}')
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedFile, match=r"some/path"):
                checked_file.decode(b"kind", 1, bytes(damaged), "some/path")


def test_every_other_length_is_found() -> None:
    data = checked_file.encode(b"kind", 1, b"payload")
    for size in range(len(data)):
        with pytest.raises(DamagedFile):
            checked_file.decode(b"kind", 1, data[:size], "x")
    with pytest.raises(DamagedFile):
        checked_file.decode(b"kind", 1, data + b"\0", "x")


def test_another_kind_and_a_later_version_are_refused() -> None:
    data = checked_file.encode(b"kind", 2, b"payload")
    with pytest.raises(DamagedFile, match="kind"):
        checked_file.decode(b"king", 2, data, "x")
    with pytest.raises(DamagedFile, match="version 2"):
        checked_file.decode(b"kind", 1, data, "x")


def test_a_power_cut_leaves_the_old_or_the_new_file() -> None:
    left = set()
    for seed in range(20):
        operation = 1
        while True:
            disk = FaultyDisk(seed)
            disk.make_dirs("d")
            checked_file.save(disk, "d/file", b"kind", 1, b"old")
            disk.cut_power_after(operation)
            try:
                checked_file.save(disk, "d/file", b"kind", 1, b"the new one")
                break
            except PowerCut:
                pass
            left.add(checked_file.load(disk.after_power_cut(), "d/file", b"kind", 1))
            operation += 1
        assert operation >= 5
        assert checked_file.load(disk.after_power_cut(), "d/file", b"kind", 1) == b"the new one"
    assert left == {b"old", b"the new one"}


def test_many_files_cost_one_sync_round_and_each_directory_one_more() -> None:
    disk = FaultyDisk()
    disk.make_dirs("a")
    disk.make_dirs("b")
    disk.counts.clear()
    checked_file.save_all(disk, {"a/1": b"x", "a/2": b"y", "b/1": b"z"})
    assert disk.counts["sync_files"] == 1
    assert disk.counts["sync_dir"] == 2
    assert [disk.read_durable(path) for path in ("a/1", "a/2", "b/1")] == [b"x", b"y", b"z"]


def test_a_missing_file_is_not_a_damaged_one() -> None:
    disk = FaultyDisk()
    disk.make_dirs("d")
    with pytest.raises(FileNotFoundError):
        checked_file.load(disk, "d/none", b"kind", 1)


def test_thousands_of_files_are_not_all_open_at_once() -> None:
    disk = FaultyDisk(1)
    disk.make_dirs("d")
    contents = {f"d/{number}": checked_file.encode(b"test", 1, b"%d" % number) for number in range(3000)}
    before = disk.counts["sync_files"]
    checked_file.save_all(disk, contents)
    assert disk.counts["sync_files"] - before == 6
    after = disk.after_power_cut()
    assert all(checked_file.load(after, path, b"test", 1) == path[2:].encode() for path in contents)
