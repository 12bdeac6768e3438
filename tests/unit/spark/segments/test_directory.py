"""Whose directory it is: another broker's, another topic's, a later release's, in use, stopped cleanly or not."""

import os
import uuid
from pathlib import Path

import orjson
import pytest
from tests.simulated_broker import small_blocks
from tests.simulated_log import Bench, open_log
from tests.unit.spark.segments.stored_topic import TOPIC, StoredTopic
from tests.unit.storage.log.test_transactions import SMALL, Story
from tests.unit.storage.offline.test_inspection import written

from penstock.records.control import Marker
from penstock.spark.errors import DataLossError, OptionError, SourceError
from penstock.spark.segments import segments
from penstock.storage import checked_file
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

OTHER_ID = uuid.UUID(int=8)


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopic:
    made = StoredTopic(tmp_path)
    for number in range(6):
        made.log.write((b"k", b"%d" % number))
    made.log.seal()
    return made


def save(path: Path, kind: bytes, version: int, payload: object) -> None:
    path.write_bytes(checked_file.encode(kind, version, orjson.dumps(payload)))


def test_a_path_without_a_data_directory_is_refused(stored: StoredTopic, tmp_path: Path) -> None:
    pieces, _ = stored.plan()
    for path in (tmp_path / "nothing", tmp_path, stored.directory / "partition.meta"):
        with pytest.raises(OptionError, match=r"no data directory of a broker.*--data-dir"):
            segments.plan(str(path), TOPIC, stored.id, 0, 0, 5)
        with pytest.raises(OptionError, match="no data directory of a broker"):
            segments.read(str(path), pieces[0], read_committed=True)
        with pytest.raises(OptionError, match="no data directory of a broker"):
            segments.stopped_topics(str(path))


def test_a_directory_of_a_later_release_is_refused(stored: StoredTopic) -> None:
    pieces, _ = stored.plan()
    save(Path(stored.path, "format"), b"frmt", 2, {"format": 2})
    with pytest.raises(SourceError, match="format version 2; this release reads up to 1"):
        stored.plan()
    with pytest.raises(SourceError, match="format version 2"):
        stored.read(pieces)


def test_the_directory_of_another_broker_is_refused(stored: StoredTopic) -> None:
    with pytest.raises(SourceError, match=f"topic id {stored.id}, the broker's topic 'orders' has id {OTHER_ID}"):
        segments.plan(stored.path, TOPIC, OTHER_ID, 0, 0, 5)
    for topic, partition in ((TOPIC, 1), ("others", 0)):
        with pytest.raises(SourceError, match=f"nothing of partition {partition} of topic '{topic}'"):
            segments.plan(stored.path, topic, stored.id, partition, 0, 5)


def test_a_directory_that_was_moved_is_refused(stored: StoredTopic) -> None:
    stored.directory.rename(stored.directory.with_name("1"))
    with pytest.raises(SourceError, match="belongs to partition 0 of topic 'orders': it was moved"):
        segments.plan(stored.path, TOPIC, stored.id, 1, 0, 5)


def test_an_owner_that_cannot_be_read_is_told(stored: StoredTopic) -> None:
    meta = stored.directory / "partition.meta"
    meta.write_bytes(meta.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"partition\.meta: .*Restore it"):
        stored.plan()


def test_a_topic_made_anew_between_plan_and_read_is_a_loss(stored: StoredTopic) -> None:
    pieces, _ = stored.plan()
    save(
        stored.directory / "partition.meta",
        b"part",
        1,
        {"topic": TOPIC, "topic_id": str(OTHER_ID), "partition": 0},
    )
    with pytest.raises(DataLossError, match="'orders' was deleted and made anew") as caught:
        stored.read(pieces)
    assert not isinstance(caught.value, segments.SegmentsGone), "the broker has nothing of it either"


def test_a_file_that_may_not_be_read_is_named(stored: StoredTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def refused(path: str, flags: int, mode: int = 0o777) -> int:
        if path.endswith(".log"):
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, flags, mode)

    pieces, _ = stored.plan()
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(SourceError, match=f"cannot read {stored.directory}/0+.log: Permission denied"):
        stored.read(pieces)


# --- without a broker


def test_a_directory_in_use_is_not_read_without_its_broker(stored: StoredTopic) -> None:
    stored.owner.open()
    try:
        with pytest.raises(OptionError, match=r"in use by a running broker.*kafka\.bootstrap\.servers"):
            segments.stopped_topics(stored.path)
        assert stored.rows() == stored.log.rows(), "with it, it is"
    finally:
        stored.owner.release()
    assert segments.stopped_topics(stored.path) == {TOPIC: segments.StoredTopic(TOPIC, stored.id, (0,))}


def test_looking_whether_a_broker_runs_keeps_none_from_starting(stored: StoredTopic) -> None:
    segments.stopped_topics(stored.path)
    stored.owner.open()
    stored.owner.release()


def test_after_a_clean_stop_no_lock_is_tried(stored: StoredTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _operation: int) -> None:
        raise AssertionError("a broker that starts now would find the directory in use")

    save(Path(stored.path, "clean-shutdown"), b"clsd", 1, {f"{TOPIC}-0": 6})
    monkeypatch.setattr("fcntl.flock", refuse)
    assert list(segments.stopped_topics(stored.path)) == [TOPIC]


def test_the_topics_of_a_stopped_broker(stored: StoredTopic) -> None:
    stored.owner.create_partitions(TOPIC, stored.id, [2, 1, 10])
    stored.owner.create_partitions("more", OTHER_ID, [0])
    (Path(stored.path) / "logs" / "cut short" / "0").mkdir(parents=True)
    assert segments.stopped_topics(stored.path) == {
        TOPIC: segments.StoredTopic(TOPIC, stored.id, (0, 1, 2, 10)),
        "more": segments.StoredTopic("more", OTHER_ID, (0,)),
    }
    assert segments.stopped_range(stored.path, TOPIC, stored.id, 10, read_committed=True) == (0, 0)


def stopped(stored: StoredTopic, *, read_committed: bool = True) -> tuple[int, int, list[int]]:
    """From where to where a partition can be read without its broker, and the offsets of what is there."""
    start, end = segments.stopped_range(stored.path, stored.topic, stored.id, 0, read_committed=read_committed)
    pieces, reached = stored.plan(start, end, read_committed=read_committed, stopped=True)
    assert reached == end
    return start, end, [row[0] for row in stored.read(pieces, read_committed=read_committed)]


@pytest.mark.parametrize("how", ["stopped cleanly", "killed", "killed after a checkpoint"])
def test_without_its_broker_a_log_is_read_as_far_as_it_is_checkpointed(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        bench = await written(how)
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        log_end = bench.log.end_offset
        ends = {"stopped cleanly": log_end, "killed": bench.log.active.base, "killed after a checkpoint": log_end - 1}
        if how == "stopped cleanly":
            save(Path(stored.path, "clean-shutdown"), b"clsd", 1, {f"{TOPIC}-0": log_end})
        assert stopped(stored) == (0, ends[how], list(range(ends[how])))
        assert stored.plan()[1] == bench.log.active.base, "beside a broker what is being written is not read"

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


def test_the_log_start_counts_without_a_broker(tmp_path: Path) -> None:
    async def main() -> None:
        bench = await written()
        await bench.upkeep.delete_records(bench.log, 5)
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        end = bench.log.end_offset
        assert stopped(stored) == (5, end, list(range(5, end)))

    run_virtual(main, 1)


def test_without_a_broker_a_log_begins_with_its_first_segment_if_nothing_else_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        bench = await written()
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        first, second = bench.log.segments[:2]
        (stored.directory / f"{first.name}.log").unlink()
        (stored.directory / f"{first.name}.index").unlink()
        state = stored.directory / "state"
        for _ in range(2):
            start, end, offsets = stopped(stored)
            assert (start, end) == (second.base, bench.log.end_offset) and offsets == list(range(start, end))
            state.write_bytes(b"damaged")

    run_virtual(main, 1)


def test_less_than_was_there_at_a_clean_stop_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        bench = await written()
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        end = bench.log.end_offset
        save(Path(stored.path, "clean-shutdown"), b"clsd", 1, {f"{TOPIC}-0": end})
        (stored.directory / f"{bench.log.active.name}.checkpoint").unlink()
        with pytest.raises(SourceError, match=f"up to offset {bench.log.active.base} only.*stopped at {end}"):
            stopped(stored)

    run_virtual(main, 1)


def test_a_transaction_that_never_ended_is_not_read_without_a_broker(tmp_path: Path) -> None:
    async def main() -> None:
        bench: Bench = await open_log(FaultyDisk(max_delay_s=0.0), SMALL)
        story = Story(bench)
        await story.write_plain()  # 0
        await story.write(1)  # 1, 2
        await story.end(1, Marker.ABORT)  # 3
        await story.write(2)  # 4, 5
        await story.write_plain()  # 6
        await bench.checkpoint()
        stored = StoredTopic(tmp_path)
        stored.take(bench.disk)
        assert stopped(stored) == (0, 4, [0])
        assert stopped(stored, read_committed=False) == (0, 7, [0, 1, 2, 4, 5, 6])

    run_virtual(main, 1)
