"""The swap, cut short at every point: all old segments or all new ones, and new ones for good once it is decided."""

from collections.abc import Callable

import pytest
from tests.unit.storage.compaction.sealed_log import DIRECTORY, SealedLog, save

from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.job import CompactionError, Result
from penstock.storage.compaction.swap import FILE_NAME, drop_leftovers, finish_swap, prepare_swap
from penstock.testing.faulty_disk import FaultyDisk, PowerCut

Files = dict[str, bytes]


def cleaned_log(seed: int = 0) -> tuple[SealedLog, Result]:
    """Three groups: one merged of two segments, one left alone, one emptied; with checkpoints left behind."""
    log = SealedLog(FaultyDisk(seed))
    for pairs in (
        [(b"a", b"1"), (b"b", b"1")],
        [(b"a", b"2" * 300), (b"c", b"1")],
        [(b"x", b"1" * 700)],
        [(b"b", b"2")],
        [(b"b", b"3" * 700)],
    ):
        log.write(*pairs)
        base = log.card.base
        log.seal()
        if base in (0, 2):
            save(log.disk, f"{DIRECTORY}/{base:020d}.checkpoint", b"old")
    log.disk.sync_dir(DIRECTORY)
    result = log.clean(segment_bytes=600)
    assert [(group.replaced, group.size > 0, group.changed) for group in result.groups] == [
        ((0, 2), True, True),
        ((4,), True, False),
        ((5,), False, True),
        ((6,), True, False),
    ]
    return log, result


def files_of(disk: FaultyDisk) -> Files:
    log = SealedLog(disk)
    return {name: data for name, data in log.files().items() if not name.endswith(".tmp")}


def before_and_after() -> tuple[Files, Files]:
    log, result = cleaned_log()
    before = {name: data for name, data in log.files().items() if ".cleaned" not in name}
    assert prepare_swap(log.disk, DIRECTORY, result)
    finish_swap(log.disk, DIRECTORY)
    after = log.files()
    return before, after


def recovered(disk: FaultyDisk) -> Files:
    """What a start does."""
    finish_swap(disk, DIRECTORY)
    drop_leftovers(disk, DIRECTORY)
    return files_of(disk)


def test_the_new_segments_are_all_there_is() -> None:
    before, after = before_and_after()
    names = [0, 4, 5, 6]
    assert sorted(after) == sorted(f"{base:020d}{end}" for base in names for end in (".index", ".log"))
    for base in (4, 6):
        assert after[f"{base:020d}.log"] == before[f"{base:020d}.log"]
    assert after[f"{5:020d}.log"] == b""
    assert after[f"{0:020d}.log"] != before[f"{0:020d}.log"]


def test_done_twice_is_done_once() -> None:
    log, result = cleaned_log()
    prepare_swap(log.disk, DIRECTORY, result)
    assert [(swap.into, swap.replaced) for swap in finish_swap(log.disk, DIRECTORY)] == [(0, (0, 2)), (5, (5,))]
    after = log.files()
    assert finish_swap(log.disk, DIRECTORY) == []
    assert log.files() == after


@pytest.mark.parametrize("how", ["power cut", "kill"])
def test_every_crash_leaves_the_old_log_or_the_new_one(how: str) -> None:
    before, after = before_and_after()
    seen = set()
    for seed in range(6):
        for operation in range(1, 60):
            log, result = cleaned_log(seed)
            log.disk.cut_power_after(operation)
            decided = False
            try:
                prepare_swap(log.disk, DIRECTORY, result)
                decided = True
                finish_swap(log.disk, DIRECTORY)
            except PowerCut:
                disk = log.disk.after_power_cut() if how == "power cut" else log.disk.abandon()
            else:
                break
            # The next start may be cut short as well.
            disk.cut_power_after(1 + (operation * 7 + seed) % 9)
            try:
                found = recovered(disk)
            except PowerCut:
                found = recovered(disk.after_power_cut() if how == "power cut" else disk.abandon())
            assert found == after or (found == before and not decided), (seed, operation, sorted(found))
            seen.add(found == after)
        else:
            pytest.fail("it never ended")
        assert operation > 10
    assert seen == {True, False}


def test_each_step_is_durable_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of names between two syncs may survive in any order, on real disks at least."""
    log, result = cleaned_log()
    steps: list[str] = []

    def note(operation: str) -> None:
        real: Callable[..., None] = getattr(log.disk, operation)

        def noting(*paths: str) -> None:
            steps.append(f"{operation} {paths[0]}")
            real(*paths)

        monkeypatch.setattr(log.disk, operation, noting)

    for operation in ("rename", "unlink", "sync_dir"):
        note(operation)
    prepare_swap(log.disk, DIRECTORY, result)
    assert steps == [f"rename {DIRECTORY}/{FILE_NAME}.tmp", f"sync_dir {DIRECTORY}"]
    steps.clear()
    finish_swap(log.disk, DIRECTORY)
    sync = f"sync_dir {DIRECTORY}"
    assert steps[-3:] == [sync, f"unlink {DIRECTORY}/{FILE_NAME}", sync] and steps.count(sync) == 2
    assert len(steps) == 3 + 4 + 4, "four names taken; a segment, its card and two checkpoints removed"


def test_a_damaged_decision_is_not_guessed_at() -> None:
    log, result = cleaned_log()
    prepare_swap(log.disk, DIRECTORY, result)
    files = log.files()
    for position in range(len(files[FILE_NAME])):
        log.disk.flip_byte(f"{DIRECTORY}/{FILE_NAME}", position, 1 << position % 8)
        with pytest.raises(DamagedFile, match=f"{DIRECTORY}/{FILE_NAME}"):
            finish_swap(log.disk, DIRECTORY)
        log.disk.flip_byte(f"{DIRECTORY}/{FILE_NAME}", position, 1 << position % 8)
    assert log.files() == files


@pytest.mark.parametrize("name", [f"{0:020d}.cleaned", f"{5:020d}.cleaned"])
def test_nothing_is_removed_when_a_new_segment_is_missing(name: str) -> None:
    log, result = cleaned_log()
    prepare_swap(log.disk, DIRECTORY, result)
    log.disk.unlink(f"{DIRECTORY}/{name}")
    files = log.files()
    with pytest.raises(DamagedFile, match=r"nothing was removed"):
        finish_swap(log.disk, DIRECTORY)
    assert log.files() == files


@pytest.mark.parametrize("name", [f"{0:020d}.cleaned", f"{0:020d}.cleaned.index"])
def test_nothing_is_decided_when_a_cleaned_file_is_missing(name: str) -> None:
    log, result = cleaned_log()
    log.disk.unlink(f"{DIRECTORY}/{name}")
    with pytest.raises(CompactionError, match=r"new pass"):
        prepare_swap(log.disk, DIRECTORY, result)
    assert FILE_NAME not in log.files()


def test_a_pass_that_changed_nothing_decides_nothing() -> None:
    log, result = cleaned_log()
    prepare_swap(log.disk, DIRECTORY, result)
    finish_swap(log.disk, DIRECTORY)
    log.take(result)
    files = log.files()
    again = log.clean(segment_bytes=1)
    assert not again.changed
    assert not prepare_swap(log.disk, DIRECTORY, again)
    assert log.files() == files


def test_leftovers_of_a_pass_given_up_go() -> None:
    before, _ = before_and_after()
    log, result = cleaned_log()
    assert sorted(drop_leftovers(log.disk, DIRECTORY)) == sorted(name for each in result.changed for name in each.files)
    assert log.files() == before
    assert drop_leftovers(log.disk, DIRECTORY) == []


def test_cleaned_files_that_are_decided_for_are_no_leftovers() -> None:
    log, result = cleaned_log()
    prepare_swap(log.disk, DIRECTORY, result)
    with pytest.raises(AssertionError, match="finish the swap"):
        drop_leftovers(log.disk, DIRECTORY)


def test_a_pass_over_leftovers_of_another_writes_them_anew() -> None:
    _, after = before_and_after()
    log, _ = cleaned_log()
    save(log.disk, f"{DIRECTORY}/{0:020d}.cleaned", bytes(5000))
    save(log.disk, f"{DIRECTORY}/{0:020d}.cleaned.index", bytes(5000))
    prepare_swap(log.disk, DIRECTORY, log.clean(segment_bytes=600))
    finish_swap(log.disk, DIRECTORY)
    assert log.files() == after
