"""The data directory: one broker at a time, every partition's owner known, removed topics out of sight at once."""

from uuid import UUID

import pytest

from penstock.errors import StartupError
from penstock.storage.data_directory import DataDirectory
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
