"""The budget: no more bytes a second than allowed, no debt for time that went by unused."""

import pytest
from tests.unit.storage.compaction.sealed_log import SealedLog

from penstock.storage.compaction.cleaning import clean
from penstock.storage.compaction.pace import Pace
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
