"""The budget: no more bytes a second than allowed, no debt for time that went by unused."""

from collections.abc import Callable

import pytest
from tests.unit.storage.compaction.sealed_log import SealedLog

from penstock.ports.disk import File
from penstock.storage.compaction.cleaning import clean
from penstock.storage.compaction.offset_map import OffsetMap
from penstock.storage.compaction.pace import STEP_BYTES, STEP_RECORDS, Pace
from penstock.testing.faulty_disk import FaultyDisk


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.paused = 0.0

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.paused += seconds


def test_bytes_take_their_time() -> None:
    time = Time()
    pace = Pace(1000, time.monotonic, time.pause)
    for _ in range(50):
        pace.spend(200)
    assert time.paused == pytest.approx(10, abs=0.3)


def test_time_spent_elsewhere_counts_but_cannot_be_saved_up() -> None:
    time = Time()
    pace = Pace(1000, time.monotonic, time.pause)
    for _ in range(10):
        time.now += 0.3
        pace.spend(200)
    assert time.paused == 0
    time.now += 3600
    pace.spend(5000)
    assert time.paused == pytest.approx(5, abs=0.3)


def test_without_a_limit_nothing_waits() -> None:
    time = Time()
    Pace(0, time.monotonic, time.pause).spend(1 << 40)
    assert time.paused == 0


def test_a_pass_pays_for_all_it_reads_and_writes() -> None:
    log = SealedLog(FaultyDisk())
    for number in range(20):
        log.write((b"%d" % (number % 3), b"v" * 1000))
    log.seal()
    time = Time()
    before = log.disk.bytes_read
    result = clean(log.disk, log.job(bytes_per_second=1000), monotonic=time.monotonic, pause=time.pause)
    moved = log.disk.bytes_read - before + result.bytes_written
    moved -= len(log.files()[f"{0:020d}.index"]) * 2  # read once in each of the two rounds
    assert moved > 40_000
    assert time.paused == pytest.approx(moved / 1000, abs=1.5)


class Stretches:
    """How much a pass does between two offers of its core."""

    def __init__(self, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offers = 0
        self.records = self.most_records = 0
        self.most_bytes = 0
        for name in ("put", "get"):
            monkeypatch.setattr(OffsetMap, name, self._counting(getattr(OffsetMap, name)))
        file = type(disk.open("any", create=True))
        read_at, write_at = file.read_at, file.write_at

        def read(this: File, size: int, position: int) -> bytes:
            self.most_bytes = max(self.most_bytes, size)
            return read_at(this, size, position)

        def write(this: File, data: bytes, position: int) -> None:
            self.most_bytes = max(self.most_bytes, len(data))
            write_at(this, data, position)

        monkeypatch.setattr(file, "read_at", read)
        monkeypatch.setattr(file, "write_at", write)

    def _counting(self, original: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object) -> object:
            self.records += 1
            self.most_records = max(self.most_records, self.records)
            return original(*args)

        return counting

    def give_way(self) -> None:
        self.offers += 1
        self.records = 0


def test_a_pass_offers_its_core_to_others_after_few_records_and_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle class alone is not enough: now and then a broker that wakes up would wait for the next tick."""
    log = SealedLog(FaultyDisk())
    log.write(*((b"%d" % (number % 300), b"v" * 500) for number in range(1000)))
    log.seal()
    log.write(*((b"other %d" % number, b"v" * 500) for number in range(700)))
    log.seal()
    stretches = Stretches(log.disk, monkeypatch)
    clean(log.disk, log.job(), monotonic=lambda: 0.0, pause=lambda _: None, give_way=stretches.give_way)
    assert stretches.most_records == STEP_RECORDS
    assert stretches.most_bytes == STEP_BYTES
    assert stretches.offers > 2 * 1700 / STEP_RECORDS + 2 * 1700 * 500 / STEP_BYTES


def test_a_pass_nobody_wants_any_more_stops_before_it_makes_a_file() -> None:
    log = SealedLog(FaultyDisk())
    log.write((b"a", b"1"), (b"a", b"2"))
    log.seal()
    calls = 0

    def proceed() -> None:
        nonlocal calls
        calls += 1
        if calls > 2:  # both reads of the one segment
            raise InterruptedError

    with pytest.raises(InterruptedError):
        clean(log.disk, log.job(), monotonic=lambda: 0.0, pause=lambda _: None, proceed=proceed)
    assert sorted(log.files()) == [f"{0:020d}.index", f"{0:020d}.log"]
