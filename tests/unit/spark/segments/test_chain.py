"""Files opened while compaction swaps them: whatever the order of steps, what is read is the old log or the new one."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest
from tests.unit.spark.segments.stored_topic import Row, StoredTopic, UnsyncedDisk, rows_in
from tests.unit.storage.compaction.sealed_log import SealedLog

from penstock.ports.disk import File
from penstock.records.control import Marker
from penstock.spark.segments import chain, segments
from penstock.spark.segments.segments import Piece
from penstock.storage.compaction.swap import finish_swap, prepare_swap
from penstock.storage.offline.read_only_disk import ReadOnlyDisk

ABORTED = ((1, 2, 8),)
"""Producer, first and last offset of what `write` aborts."""


class SteppedDisk(UnsyncedDisk):
    """A disk whose changes each wait for leave."""

    def __init__(self) -> None:
        super().__init__()
        self.leave: Queue[None] = Queue()
        self.waits: Queue[bool] = Queue()

    def rename(self, source: str, target: str) -> None:
        self._wait()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._wait()
        super().unlink(path)

    def _wait(self) -> None:
        self.waits.put(True)
        self.leave.get(timeout=30)


class Swapping:
    """Two passes of compaction, whose swaps go on by one change whenever `step` is called."""

    def __init__(self, log: SealedLog, segment_bytes: int) -> None:
        self._disk = SteppedDisk()
        self._log = log
        self._segment_bytes = segment_bytes
        self._thread = Thread(target=self._run)
        self.steps = self.passes = 0
        self._thread.start()
        self.is_over = not self._disk.waits.get(timeout=30)

    def _run(self) -> None:
        try:
            for _ in range(2):
                result = self._log.clean(segment_bytes=self._segment_bytes, aborted=ABORTED)
                assert prepare_swap(self._disk, self._log.directory, result)
                finish_swap(self._disk, self._log.directory)
                self._log.take(result)
                self.passes += 1
        finally:
            self._disk.waits.put(False)

    def step(self) -> None:
        if not self.is_over:
            self.steps += 1
            self._disk.leave.put(None)
            self.is_over = not self._disk.waits.get(timeout=30)

    def finish(self) -> None:
        while not self.is_over:
            self.step()
        self._thread.join()
        assert self.passes == 2


class WatchedDisk(ReadOnlyDisk):
    """A disk that lets something happen before each look at it."""

    def __init__(self, happen: Callable[[], None]) -> None:
        super().__init__()
        self._happen = happen

    def open(self, path: str, *, create: bool = False) -> File:
        self._happen()
        return super().open(path, create=create)

    def list_dir(self, path: str) -> list[str]:
        self._happen()
        return super().list_dir(path)

    def exists(self, path: str) -> bool:
        self._happen()
        return super().exists(path)


def write(log: SealedLog) -> None:
    """A transaction in three segments, aborted in the fourth; one pass drops its records, the next one its mention."""
    fields = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    log.write((b"a", b"old"), (b"b", b"old"))  # 0, 1
    log.write((b"x", b"aborted"), base_sequence=0, **fields)  # 2
    log.seal()
    log.write((b"c", b"stays"), (b"a", b"new"))  # 3, 4
    log.write((b"y", b"aborted"), base_sequence=1, **fields)  # 5
    log.seal()
    log.write((b"z", b"aborted"), base_sequence=2, **fields)  # 6
    log.write((b"d", b"stays"))  # 7
    log.seal()
    log.mark(1, Marker.ABORT)  # 8
    log.write((b"b", b"new"))  # 9
    log.seal()


Watch = Callable[[Callable[[], None]], None]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Lets something happen before each look of a reader at the files."""
    is_same = chain._is_same
    monkeypatch.setattr(chain, "_RETRY_S", 0.0)

    def begin(happen: Callable[[], None]) -> None:
        def is_same_later(path: str, file: File) -> bool:
            happen()
            return is_same(path, file)

        monkeypatch.setattr(segments, "open_disk", lambda _path: WatchedDisk(happen))
        monkeypatch.setattr(chain, "_is_same", is_same_later)

    return begin


def planned(path: Path) -> tuple[StoredTopic, Piece]:
    stored = StoredTopic(path)
    write(stored.log)
    ((piece,), _) = stored.plan()
    return stored, piece


def views(path: Path, segment_bytes: int) -> tuple[list[Row], list[Row]]:
    """What is read before and after a pass; the second one changes no records."""
    stored, piece = planned(path)
    before = stored.read([piece])
    stored.log.compact(segment_bytes=segment_bytes, aborted=ABORTED)
    after = stored.read([piece])
    assert not any(row[3] == b"aborted" for row in (*before, *after))
    assert len(after) < len(before)
    return before, after


def part(rows: list[Row], piece: Piece) -> list[Row]:
    return [row for row in rows if piece.first <= row[0] < piece.end]


def looks_and_steps(path: Path, watch: Watch, segment_bytes: int, offsets: tuple[int, int]) -> tuple[int, int]:
    """How often a read looks at the files when nothing happens, and how many steps a swap has."""
    stored, piece = planned(path)
    looks = 0

    def happen() -> None:
        nonlocal looks
        looks += 1

    watch(happen)
    segments.read(stored.path, piece._replace(first=offsets[0], end=offsets[1]), read_committed=True)
    swapping = Swapping(stored.log, segment_bytes)
    swapping.finish()
    return looks, swapping.steps


@pytest.mark.parametrize("offsets", [(0, 6), (3, 6)], ids=["two segments", "the second one"])
@pytest.mark.parametrize("segment_bytes", [1, 350])
def test_a_read_amid_a_swap_is_of_one_moment(
    tmp_path: Path, watch: Watch, segment_bytes: int, offsets: tuple[int, int]
) -> None:
    """Every number of steps of a swap, at every moment of a read's opening."""
    before, after = views(tmp_path / "model", segment_bytes)
    looks, steps = looks_and_steps(tmp_path / "count", watch, segment_bytes, offsets)
    assert looks > 5 and steps > 5
    for moment, burst in product(range(looks), range(1, steps + 1)):
        stored, piece = planned(tmp_path / f"{moment} {burst}")
        piece = piece._replace(first=offsets[0], end=offsets[1])
        swapping = Swapping(stored.log, segment_bytes)
        moments = iter(range(1 << 30))

        def happen(
            swapping: Swapping = swapping, moments: Iterator[int] = moments, at: tuple[int, int] = (moment, burst)
        ) -> None:
            if next(moments) == at[0]:
                for _ in range(at[1]):
                    swapping.step()

        watch(happen)
        try:
            reading = segments.read(stored.path, piece, read_committed=True)
            swapping.finish()
            rows = rows_in(reading, piece)
        finally:
            swapping.finish()
        where = f"{burst} steps before look {moment}"
        assert rows in (part(before, piece), part(after, piece)), f"neither the old log nor the new one: {where}"


@pytest.mark.parametrize("steps", range(25))
def test_a_swap_that_stops_anywhere_is_read_as_the_next_start_would_finish_it(tmp_path: Path, steps: int) -> None:
    before, after = views(tmp_path / "model", 350)
    stored, piece = planned(tmp_path)
    swapping = Swapping(stored.log, 350)
    try:
        for _ in range(steps):
            swapping.step()
        assert stored.read([piece]) == (before if steps == 0 else after)
    finally:
        swapping.finish()
    if steps == 24:
        assert swapping.steps < steps, "more steps than are tried"
