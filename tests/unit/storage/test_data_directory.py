"""The data directory: one broker at a time, every partition's owner known, removed topics out of sight at once."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from penstock.errors import StartupError, WrongSettings
from penstock.storage.attached_names import attached_id
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.testing.faulty_disk import FaultyDisk

ONE, TWO = UUID(int=1), UUID(int=2)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(1)


@pytest.fixture
def directory(disk: FaultyDisk) -> DataDirectory:
    directory = DataDirectory(disk, "data")
    directory.open()
    return directory


def test_a_second_broker_is_refused_until_the_first_lets_go(disk: FaultyDisk, directory: DataDirectory) -> None:
    with pytest.raises(StartupError, match="in use"):
        DataDirectory(disk, "data").open()
    directory.release()
    DataDirectory(disk, "data").open()


def test_owners_survive_a_power_cut(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    directory.create_partitions("a", ONE, [10])
    directory.create_partitions("b", TWO, [2])
    directory.create_partitions("a", ONE, [0])  # harmless
    again = DataDirectory(disk.after_power_cut(), "data")
    again.open()
    found = [(one.topic, one.topic_id, one.partition, one.path) for one in again.partitions()]
    assert found == [
        ("a", ONE, 0, "data/logs/a/0"),
        ("a", ONE, 10, "data/logs/a/10"),
        ("b", TWO, 2, "data/logs/b/2"),
    ]


def test_another_topics_directory_is_never_taken_over(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    with pytest.raises(OSError, match="another topic"):
        directory.create_partitions("a", TWO, [0])
    assert [one.topic_id for one in directory.partitions()] == [ONE]


def test_segments_without_an_owner_stop_the_start(disk: FaultyDisk, directory: DataDirectory) -> None:
    disk.make_dirs("data/logs/a/0")
    assert directory.partitions() == []  # a creation cut short
    disk.open(f"data/logs/a/0/{0:020d}.log", create=True)
    with pytest.raises(StartupError, match=r"data/logs/a/0 has segments but no partition\.meta"):
        directory.partitions()


def test_a_directory_that_was_moved_stops_the_start(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    disk.rename("data/logs/a/0", "data/logs/a/1")
    with pytest.raises(StartupError, match="belongs to a-0"):
        directory.partitions()


def test_a_removed_topic_is_out_of_sight_and_its_name_free(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    directory.remove_topic("a", ONE)
    directory.remove_topic("a", ONE)  # harmless
    assert directory.partitions() == []
    again = DataDirectory(disk.after_power_cut(), "data")
    again.open()
    assert again.partitions() == []
    again.create_partitions("a", TWO, [0])
    again.empty_removed()
    assert [one.topic_id for one in again.partitions()] == [TWO]


def test_the_clean_mark_is_good_for_one_start(disk: FaultyDisk, directory: DataDirectory) -> None:
    assert directory.take_clean_mark() is None
    directory.leave_clean_mark({"a-0": 7})
    again = DataDirectory(disk.after_power_cut(), "data")
    again.open()
    assert again.take_clean_mark() == {"a-0": 7}
    last = DataDirectory(again._disk.after_power_cut(), "data")  # type: ignore[attr-defined]
    last.open()
    assert last.take_clean_mark() is None, "a mark that comes back would call a crash a clean stop"


# --- one partition goes, or is set aside


def write(disk: FaultyDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.write_at(data, 0)
    disk.sync_files([file])
    disk.sync_dir(path.rpartition("/")[0])


def in_logs(disk: FaultyDisk) -> list[str]:
    return [path.split("/logs/")[1] for path in disk.files() if "/logs/" in path]


def test_one_partition_is_removed_and_the_others_stay(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0, 1])
    directory.remove_partition("a", TWO, 0)
    assert [one.partition for one in directory.partitions()] == [0, 1], "another topic's was removed"
    directory.remove_partition("a", ONE, 0)
    directory.remove_partition("a", ONE, 0)  # harmless
    assert [one.partition for one in directory.partitions()] == [1]
    again = DataDirectory(disk.after_power_cut(), "data")
    again.open()
    assert [one.partition for one in again.partitions()] == [1]
    again.empty_removed()


def test_a_removed_partition_that_comes_and_goes_again_is_emptied(disk: FaultyDisk, directory: DataDirectory) -> None:
    for _ in range(3):
        directory.create_partitions("a", ONE, [0])
        directory.remove_partition("a", ONE, 0)
    directory.empty_removed()
    assert in_logs(disk) == []


def _cut_short(disk: FaultyDisk, directory: DataDirectory, topic: str, index: int) -> str:
    """Make a directory that does not get as far as to say whose it is."""
    disk.fail("sync_files", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        directory.create_partitions(topic, ONE, [index])
    return directory.log_path(topic, index)


def test_a_creation_that_was_cut_short_is_found_and_removed(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    begun = [_cut_short(disk, directory, "a", 1), _cut_short(disk, directory, "b", 0)]
    strange = _cut_short(disk, directory, "b", 1)
    disk.open(f"{strange}/state", create=True).close()
    disk.make_dirs("data/logs/c/0")
    again = DataDirectory(disk.abandon(), "data")
    again.open()
    unfinished: list[str] = []
    assert [one.path for one in again.partitions({}, unfinished)] == ["data/logs/a/0"]
    assert unfinished == [*begun, strange, "data/logs/c/0"]
    again.remove_unfinished(unfinished)
    left: list[str] = []
    assert [one.path for one in again.partitions({}, left)] == ["data/logs/a/0"]
    assert left == [strange], "something was removed that a creation does not leave"


def test_a_partition_whose_creation_was_cut_short_is_removed(disk: FaultyDisk, directory: DataDirectory) -> None:
    path = _cut_short(disk, directory, "a", 0)
    directory.remove_partition("a", ONE, 0)
    assert not disk.is_dir(path)
    directory.empty_removed()
    assert disk.list_dir("data/logs/~removed") == []


def test_a_damaged_replica_is_kept_out_of_the_way(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    write(disk, "data/logs/a/0/rotten", b"as it was found")
    directory.set_aside("a", ONE, 0)
    assert directory.partitions() == []
    directory.create_partitions("a", ONE, [0])
    after = disk.after_power_cut()
    again = DataDirectory(after, "data")
    again.open()
    assert again.set_aside_before() == {(ONE, 0)}
    assert [one.partition for one in again.partitions()] == [0]
    assert after.read_durable(f"data/logs/~damaged/{ONE}-0/rotten") == b"as it was found"


def test_of_two_damaged_replicas_the_first_is_kept(disk: FaultyDisk, directory: DataDirectory) -> None:
    """What takes its place was empty to begin with: it never had more."""
    directory.create_partitions("a", ONE, [0])
    write(disk, "data/logs/a/0/rotten", b"first")
    directory.set_aside("a", ONE, 0)
    directory.create_partitions("a", ONE, [0])
    write(disk, "data/logs/a/0/rotten", b"second")
    directory.set_aside("a", ONE, 0)
    directory.empty_removed()
    assert [name for name in in_logs(disk) if name.endswith("rotten")] == [f"~damaged/{ONE}-0/rotten"]
    assert disk.read_durable(f"data/logs/~damaged/{ONE}-0/rotten") == b"first"


def test_what_was_set_aside_goes_when_it_is_not_needed_or_its_topic_goes(
    disk: FaultyDisk, directory: DataDirectory
) -> None:
    for index in (0, 1):
        directory.create_partitions("a", ONE, [index])
        directory.set_aside("a", ONE, index)
    directory.drop_set_aside(ONE, 0)
    directory.drop_set_aside(ONE, 0)  # harmless
    assert directory.set_aside_before() == {(ONE, 1)}
    directory.remove_owned("a", TWO)
    assert directory.set_aside_before() == {(ONE, 1)}
    directory.remove_owned("a", ONE)
    assert directory.set_aside_before() == set()
    directory.empty_removed()
    assert in_logs(disk) == []


def test_what_does_not_say_whose_it_is_outlives_its_topic(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0, 1])
    disk.open(f"data/logs/a/0/{0:020d}.log", create=True)
    disk.unlink("data/logs/a/0/partition.meta")
    directory.remove_owned("a", ONE)
    assert disk.list_dir("data/logs/a") == ["0"]


def test_a_stranger_among_damaged_replicas_is_left_alone(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.create_partitions("a", ONE, [0])
    directory.set_aside("a", ONE, 0)
    disk.make_dirs("data/logs/~damaged/lost+found")
    assert directory.set_aside_before() == {(ONE, 0)}


@pytest.mark.parametrize(
    ("there", "is_member", "refused"),
    [
        ("", True, ""),
        ("", False, ""),
        ("meta/metadata.db", False, ""),
        ("meta/metadata.db", True, r"broker on its own \(data/meta/metadata.db\).*start it without --cluster"),
        ("cluster", True, ""),
        ("cluster", False, r"broker of a cluster \(data/cluster.*--cluster STORE"),
        ("cluster meta/metadata.db", True, ""),  # a member for long; the other file is from before that
        ("cluster meta/metadata.db", False, ""),  # tried in a cluster once; records of one would be found
        ("meta/etcd", True, ""),
    ],
)
def test_a_single_brokers_directory_and_a_members_are_not_taken_for_each_other(
    disk: FaultyDisk, there: str, is_member: bool, refused: str
) -> None:
    for path in there.split():
        disk.make_dirs(f"data/{path}".rpartition("/")[0])
        disk.open(f"data/{path}", create=True).close()
    before = disk.files()
    directory = DataDirectory(disk, "data")
    if refused:
        with pytest.raises(WrongSettings, match=refused):
            directory.check_owner(is_member=is_member)
    else:
        directory.check_owner(is_member=is_member)
    assert disk.files() == before


@contextmanager
def as_somebody() -> Iterator[None]:
    """Not as root, who may do everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def refusal_of(path: str) -> str:
    disk = LocalDisk()
    try:
        with pytest.raises(WrongSettings) as refusal:
            DataDirectory(disk, path).open()
    finally:
        disk.close()
    return str(refusal.value)


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    way_out = "choose another --data-dir"
    assert refusal_of(str(file)) == f"data directory {file}: {file} is a file; {way_out}"
    assert refusal_of(f"{file}/below") == f"data directory {file}/below: {file} is a file; {way_out}"
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "logs").write_text("")
    assert f"{tmp_path}/half/logs is a file; {way_out}" in refusal_of(str(tmp_path / "half"))


def test_a_place_where_no_directory_can_be_made() -> None:
    told = "data directory /proc/none: /proc/none: No such file or directory; choose another --data-dir"
    assert refusal_of("/proc/none") == told


@pytest.mark.parametrize("rights", [0o000, 0o500])
def test_a_directory_of_somebody_else(rights: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # noqa: S103 - so that it is not this one that is refused
        path = Path(place) / "data"
        path.mkdir()
        path.chmod(rights)
        with as_somebody():
            told = refusal_of(str(path))
        path.chmod(0o700)
        assert list(path.iterdir()) == []
    assert told.startswith(f"data directory {path}: {path}")
    assert "Permission denied; give user " in told
    assert told.endswith(" access to it, or choose another --data-dir")


def test_a_file_in_it_that_is_somebody_elses() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)  # noqa: S103 - whoever runs this may make the rest
        with as_somebody():
            first = LocalDisk()
            directory = DataDirectory(first, place)
            directory.open()
            directory.release()
            first.close()
        (Path(place) / ".lock").chmod(0)
        with as_somebody():
            assert f"{place}/.lock: Permission denied; give user" in refusal_of(place)


def test_a_disk_that_fails_is_no_wrong_setting(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(disk, "make_dirs", fail)
    with pytest.raises(OSError, match="Input/output"):
        DataDirectory(disk, "data").open()


def test_what_never_was_here_is_set_aside_as_nothing(disk: FaultyDisk, directory: DataDirectory) -> None:
    directory.set_aside("a~kind", ONE, 0)
    assert directory.set_aside_before() == set() and in_logs(disk) == []


def test_what_is_attached_goes_with_its_topic_and_no_other(disk: FaultyDisk, directory: DataDirectory) -> None:
    for topic, topic_id in (("a", ONE), ("b", TWO)):
        directory.create_partitions(topic, topic_id, [0])
        directory.create_partitions(f"{topic}~kind", attached_id(topic_id, "kind"), [0])
    directory.create_partitions("a~other", attached_id(ONE, "other"), [0, 1])
    directory.set_aside("a~other", attached_id(ONE, "other"), 1)
    directory.create_partitions("a~stale", attached_id(TWO, "stale"), [0])
    directory.remove_owned("a", ONE)
    directory.empty_removed()
    assert directory.set_aside_before() == set()
    assert sorted(one.topic for one in directory.partitions()) == ["a~stale", "b", "b~kind"]
