"""Thinning of a log in use: what is needed stays at its offsets, whoever asks for more and whatever crashes."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.simulated_broker import virtual
from tests.simulated_log import DIRECTORY, Bench, copy_disk, open_log
from tests.unit.storage.log.test_compacting import mark, put, seal, shown
from tests.unit.storage.log.test_transactions import read_committed

from penstock.errors import Code, PenstockError
from penstock.records.control import Marker
from penstock.storage.compaction.job import Job, Range, Result
from penstock.storage.compaction.kept_ranges import joined, within
from penstock.storage.compaction.process import InlineCompaction
from penstock.storage.log.copied import append_copied
from penstock.storage.log.needs import Needed
from penstock.storage.log.options import LogOptions
from penstock.storage.log.rewriting import Rewriting
from penstock.storage.log.thinning import Thinning
from penstock.storage.log.upkeep import held_back_bytes
from penstock.storage.offline.log_inspection import inspect_partition
from penstock.testing.faulty_disk import FaultyDisk, PowerCut

HOUR_MS = 3_600_000
OPTIONS = LogOptions(segment_bytes=4000, retention_ms=HOUR_MS)
APART = LogOptions(segment_bytes=1, retention_ms=HOUR_MS)
"""No neighbours are made one."""
PER_SEGMENT = 20


@dataclass
class Wanted:
    """A holder that tells what it needs; `now` is what it needs beyond what is safe."""

    safe: set[int]
    now: set[int] = field(default_factory=set)
    most: int = 1_000_000
    is_known: bool = True
    asked: int = 0

    async def ask(self, first: int, last: int) -> Needed:
        self.asked += 1
        if not self.is_known:
            raise PenstockError(Code.NOT_COORDINATOR, "led by another broker")
        return self._of(self.safe, first, last)

    def ask_now(self, first: int, last: int) -> Needed:
        return self._of(self.safe | self.now, first, last)

    def _of(self, offsets: set[int], first: int, last: int) -> Needed:
        found = within(joined((at, at) for at in sorted(offsets)), first, last)
        if len(found) <= self.most:
            return Needed(found, last)
        return Needed(found[: self.most], found[self.most][0] - 1)

    def floor(self) -> int | None:
        return min(self.safe | self.now, default=None)


async def _nothing() -> None:
    return None


def thinning_of(bench: Bench, before_placing: Callable[[], Awaitable[None]] = _nothing) -> Thinning:
    class Compactor(InlineCompaction):
        async def run(self, job: Job) -> Result:
            result = await super().run(job)
            await before_placing()
            return result

    return Thinning(Rewriting(bench.upkeep._shelf, Compactor(bench.disk), 0), every_ms=60_000)


async def written(segments: int = 5, disk: FaultyDisk | None = None, options: LogOptions = OPTIONS) -> Bench:
    """Sealed segments of `PER_SEGMENT` records in batches of four, all past retention, and a young one behind them."""
    bench = await open_log(disk or FaultyDisk(max_delay_s=0.0), options)
    for number in range(segments * PER_SEGMENT // 4):
        await bench.write(*(b"%d" % (4 * number + at) + b"." * 40 for at in range(4)))
        if number % (PER_SEGMENT // 4) == PER_SEGMENT // 4 - 1:
            await seal(bench)
    bench.clock.jump_ms(2 * HOUR_MS)
    await bench.write(b"young")
    return bench


async def thin(bench: Bench, wanted: Wanted, thinning: Thinning | None = None) -> list[Result]:
    """All that is worth it."""
    thinning = thinning or thinning_of(bench)
    results = []
    while (job := await thinning.next_job(bench.log, wanted, now := bench.clock.now_ms())) is not None:
        result = await thinning.run(bench.log, wanted, job, now)
        if result is None:
            break
        results.append(result)
    return results


async def offsets(bench: Bench) -> list[int]:
    found = await shown(bench)
    assert all(value == b"young" or value == b"%d" % at + b"." * 40 for at, _, value in found)
    return [at for at, _, _ in found]


def need(bench: Bench, wanted: Wanted) -> Wanted:
    bench.log.floors.append(wanted.floor)
    return wanted


@virtual
async def test_what_is_needed_stays_and_nothing_else_of_what_is_past_retention() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3, 41, 42}))
    before = bench.log.size_bytes
    await thin(bench, wanted)
    assert await offsets(bench) == [3, 41, 42, 100]
    assert bench.log.size_bytes < before / 4
    assert bench.stats.thinnings > 0 and bench.stats.compactions == 0
    assert held_back_bytes(bench.log, 3, bench.clock.now_ms()) == bench.log.size_bytes - bench.log.active.size
    for segment, following in zip(bench.log.segments, bench.log.segments[1:], strict=False):
        assert segment.next_offset == following.base, "every offset is somebody's"


@virtual
async def test_nothing_is_thinned_that_retention_would_not_remove() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3}))
    bench.log.use_options(LogOptions(segment_bytes=4000, retention_ms=3 * HOUR_MS))
    assert await thin(bench, wanted) == []
    bench.log.use_options(LogOptions(segment_bytes=4000, retention_ms=-1, retention_bytes=bench.log.size_bytes - 1500))
    await thin(bench, wanted)
    assert await offsets(bench) == [3, *range(20, 101)]


@virtual
async def test_a_segment_of_which_a_fifth_is_needed_stays_as_it_is() -> None:
    bench = await written(3)
    wanted = need(bench, Wanted({*range(3), *range(20, 24), *range(40, 43)}))
    await thin(bench, wanted)
    assert await offsets(bench) == [0, 1, 2, *range(20, 40), 40, 41, 42, 60]


@virtual
async def test_when_nothing_is_needed_any_more_retention_goes_on() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3}))
    await thin(bench, wanted)
    wanted.safe.clear()
    await bench.tend()
    assert (bench.log.log_start, await offsets(bench)) == (100, [100])


@virtual
async def test_what_was_thinned_is_not_thinned_again_for_a_little() -> None:
    bench = await written()
    wanted = need(bench, Wanted({0, 20, 40, 41, 60, 80}))
    bench.log.use_options(APART)
    thinning = thinning_of(bench)
    await thin(bench, wanted, thinning)
    written_bytes = bench.stats.compaction_read_bytes
    wanted.safe -= {20}
    bench.clock.jump_ms(120_000)
    assert len(await thin(bench, wanted, thinning)) == 1, "of one segment nothing is needed any more"
    assert await offsets(bench) == [0, 40, 41, 60, 80, 100]
    wanted.safe -= {41}
    bench.clock.jump_ms(120_000)
    assert await thin(bench, wanted, thinning) == [], "half of it is"
    assert bench.stats.compaction_read_bytes - written_bytes < 200


@virtual
async def test_a_log_is_not_asked_about_all_the_time() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3}))
    thinning = thinning_of(bench)
    await thin(bench, wanted, thinning)
    asked = wanted.asked
    assert await thinning.next_job(bench.log, wanted, bench.clock.now_ms() + 59_000) is None
    assert wanted.asked == asked
    await thinning.next_job(bench.log, wanted, bench.clock.now_ms() + 61_000)
    assert wanted.asked > asked


@virtual
async def test_after_a_restart_a_thinned_log_is_read_once_and_nothing_is_written() -> None:
    bench = await written(3)
    wanted = need(bench, Wanted({3, 30}))
    await thin(bench, wanted)
    await bench.checkpoint()
    again = await open_log(bench.disk.after_power_cut(), OPTIONS, clock=bench.clock)
    need(again, wanted)
    again.log.use_options(APART)
    before = again.disk.operations
    thinning = thinning_of(again)
    results = await thin(again, wanted, thinning)
    assert results and not any(result.bytes_written for result in results)
    assert again.disk.operations == before
    assert await thin(again, wanted, thinning) == []


@virtual
async def test_small_neighbours_are_made_one_when_there_are_enough() -> None:
    bench = await written(40)
    wanted = need(bench, Wanted({5}))
    thinning = thinning_of(bench)
    for _ in range(4):
        bench.clock.jump_ms(120_000)
        await thin(bench, wanted, thinning)
    assert await offsets(bench) == [5, 800]
    assert len(bench.log.segments) <= 3
    names = [name for name in bench.disk.list_dir(DIRECTORY) if name.endswith(".log")]
    assert len(names) == len(bench.log.segments)


def test_more_ranges_than_a_job_may_have_are_joined_and_hold_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.log.thinning.MOST_RANGES", 1)

    @virtual
    async def body() -> None:
        bench = await written(4)
        wanted = need(bench, Wanted({1, 20, 22, 40, 60}, most=1))
        thinning = thinning_of(bench)
        for _ in range(8):  # each look gets as far as one job
            await thin(bench, wanted, thinning)
        assert await offsets(bench) == [1, 20, 21, 22, 40, 60, 80]

    body()


@virtual
async def test_it_is_given_up_when_somebody_needs_more_before_it_is_in_place() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3}))
    all_offsets = list(range(101))

    async def need_more() -> None:
        wanted.now.add(70)

    thinning = thinning_of(bench, need_more)
    assert await thin(bench, wanted, thinning) == []
    assert await offsets(bench) == all_offsets
    assert bench.stats.compaction_failures == 0
    assert not [name for name in bench.disk.list_dir(DIRECTORY) if "cleaned" in name or name == "swap"]
    bench.clock.jump_ms(120_000)
    wanted.safe.add(70)
    await thin(bench, wanted)
    assert await offsets(bench) == [3, 70, 100]


@virtual
async def test_what_is_needed_by_what_is_not_safe_yet_stays() -> None:
    """A verdict that a crash may take back leaves the message needed."""
    bench = await written()
    wanted = need(bench, Wanted({3, 50}))
    job = await thinning_of(bench).next_job(bench.log, wanted, bench.clock.now_ms())
    assert job is not None and job.kept == ((3, 3), (50, 50))


@virtual
async def test_nothing_happens_where_nobody_can_tell() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3}, is_known=False))
    assert await thin(bench, wanted) == []
    wanted.is_known = True
    bench.log.closed = True
    assert await thin(bench, wanted) == []


@virtual
async def test_a_segment_that_retention_took_meanwhile_costs_the_pass() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3, 45}))

    async def expire() -> None:
        wanted.safe = {45}
        await bench.tend()
        assert bench.log.log_start == 40

    assert await thin(bench, wanted, thinning_of(bench, expire)) == []
    assert bench.stats.compaction_failures == 0
    assert await offsets(bench) == list(range(40, 101))


@virtual
async def test_a_flipped_byte_gives_the_pass_up_and_harms_nothing() -> None:
    source = await written(2)
    await source.checkpoint()
    name = f"{DIRECTORY}/{0:020d}.log"
    for position in range(0, source.log.segments[0].size, 37):
        bench = await open_log(copy_disk(source.disk), OPTIONS, clock=source.clock)
        wanted = need(bench, Wanted({3}))
        bench.disk.flip_byte(name, position, 1 << position % 8)
        size = bench.log.size_bytes
        assert await thin(bench, wanted) == [], position
        assert (bench.stats.compaction_failures, bench.log.size_bytes) == (1, size)
        assert not [each for each in bench.disk.list_dir(DIRECTORY) if each == "swap"]


@virtual
async def test_transactions_in_what_was_thinned() -> None:
    """A marker stays while anything it speaks about does; aborted records are never shown."""
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    fields = {"producer_epoch": 0, "transactional": True}
    put(bench, None, b"committed", producer_id=7, base_sequence=0, **fields)
    put(bench, None, b"aborted", producer_id=8, base_sequence=0, **fields)
    for _ in range(20):
        put(bench, None, b"plain")
    await seal(bench)
    mark(bench, 7, Marker.COMMIT)
    mark(bench, 8, Marker.ABORT)
    for _ in range(20):
        put(bench, None, b"plain")
    await seal(bench)
    bench.log.settle_transactions(bench.log.visible_end)
    bench.clock.jump_ms(2 * HOUR_MS)
    await bench.write(b"young")
    wanted = need(bench, Wanted({0, 1}))
    await thin(bench, wanted)
    assert await read_committed(bench) == [0, 44]
    assert [batch.header.base_offset for batch in await bench.read_all()] == [0, 1, 22, 23, 44]
    await bench.checkpoint()
    disk = bench.disk.after_power_cut()
    for lost in ((), (".index",), ("state",), (".index", "state")):
        for each in disk.list_dir(DIRECTORY):
            if lost and each.endswith(lost):
                disk.unlink(f"{DIRECTORY}/{each}")
        again = await open_log(disk, OPTIONS)
        assert again.recovered.damage == "", lost
        assert await read_committed(again) == [0, 44], lost


@virtual
async def test_a_marker_behind_a_segment_that_stays_whole_is_kept() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    put(bench, None, b"aborted", producer_id=8, base_sequence=0, producer_epoch=0, transactional=True)
    put(bench, None, b"plain")
    await seal(bench)
    mark(bench, 8, Marker.ABORT)
    for _ in range(20):
        put(bench, None, b"plain")
    await seal(bench)
    bench.log.settle_transactions(bench.log.visible_end)
    bench.clock.jump_ms(2 * HOUR_MS)
    await bench.write(b"young")
    wanted = need(bench, Wanted({0, 1, 5}))
    for _ in range(4):
        bench.clock.jump_ms(2 * 86_400_000)
        await thin(bench, wanted)
    assert [batch.header.base_offset for batch in await bench.read_all()] == [0, 1, 2, 5, 23]
    assert await read_committed(bench) == [1, 5, 23]


@virtual
async def test_nothing_above_an_open_transaction_is_thinned() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    for number in range(3):
        if number == 1:
            put(bench, None, b"open", producer_id=8, base_sequence=0, producer_epoch=0, transactional=True)
        for _ in range(20):
            put(bench, None, b"plain")
        await seal(bench)
    bench.clock.jump_ms(2 * HOUR_MS)
    await bench.write(b"young")
    wanted = need(bench, Wanted({3}))
    await thin(bench, wanted)
    assert [batch.header.base_offset for batch in await bench.read_all()] == [3, *range(20, 62)]


@virtual
async def test_a_thinned_log_is_no_damaged_one_whatever_is_lost_of_its_small_files() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3, 41, 42}))
    await thin(bench, wanted)
    await bench.checkpoint()
    for lost in ((), (".index",), (".checkpoint",), ("state",), (".index", ".checkpoint", "state"), ("gaps",)):
        disk = copy_disk(bench.disk)
        for name in disk.list_dir(DIRECTORY):
            if lost and name.endswith(lost):
                disk.unlink(f"{DIRECTORY}/{name}")
        report = inspect_partition(disk, DIRECTORY, "t-0")
        blamed = [each for each in report.findings if each.is_damage and "state" not in each.path]
        assert blamed == [], lost
        again = await open_log(disk, OPTIONS)
        assert again.recovered.damage == "" and again.recovered.cut_bytes == 0, lost
        assert await offsets(again) == [3, 41, 42, 100], lost
        assert again.log.end_offset == 101
        for segment in again.log.segments[:-1]:  # of a state that was rebuilt, too
            if segment.sealed and again.disk.exists(segment.index_path):
                segment.card = None
                again.disk.unlink(segment.index_path)
        assert await offsets(again) == [3, 41, 42, 100], lost


@virtual
async def test_a_follower_that_copies_a_thinned_log_has_the_same() -> None:
    bench = await written()
    wanted = need(bench, Wanted({3, 41, 42}))
    await thin(bench, wanted)
    follower = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS, directory=DIRECTORY)
    for batch in await bench.read_all():
        append_copied(follower.log, memoryview(batch.data))
    await follower.commit()
    await follower.upkeep.save_state(follower.log)
    assert await offsets(follower) == [3, 41, 42, 100]
    again = await open_log(follower.disk.after_power_cut(), OPTIONS)
    assert await offsets(again) == [3, 41, 42, 100]
    assert "gaps" in again.disk.list_dir(DIRECTORY)


def crash(cut_after: int, how: str, needed: Iterable[int]) -> tuple[bool, bool]:
    """Thin with a crash after so many operations; whether it came to that, and whether the log was thinned then."""
    outcome: list[bool] = []
    wanted = Wanted(set(needed))

    @virtual
    async def body() -> None:
        bench = await written(3, FaultyDisk(cut_after, max_delay_s=0.0))
        need(bench, wanted)
        bench.disk.cut_power_after(cut_after)
        is_cut = False
        try:
            await thin(bench, wanted)
        except PowerCut:
            is_cut = True
        disk = bench.disk.after_power_cut() if how == "power cut" else bench.disk.abandon()
        disk.cut_power_after(1 + cut_after % 7)
        with suppress(PowerCut):
            await open_log(disk, OPTIONS)
        again = await open_log(disk.after_power_cut() if how == "power cut" else disk.abandon(), OPTIONS)
        left = await offsets(again)
        assert set(left) >= {*wanted.safe, 60}, (cut_after, left)
        assert again.recovered.damage == "" and again.log.end_offset == 61
        names = again.disk.list_dir(DIRECTORY)
        assert not [name for name in names if "cleaned" in name or name == "swap"]
        assert not [each for each in inspect_partition(again.disk, DIRECTORY, "t-0").findings if each.is_damage]
        need(again, wanted)
        again.clock = bench.clock
        await thin(again, wanted)
        assert await offsets(again) == sorted({*wanted.safe, 60})
        outcome.extend((is_cut, len(left) < 61))

    body()
    return outcome[0], outcome[1]


@pytest.mark.parametrize("how", ["power cut", "kill"])
def test_every_crash_leaves_what_is_needed(how: str) -> None:
    seen, cut_after, was_cut = set(), 0, True
    while was_cut:
        cut_after += 1
        was_cut, was_thinned = crash(cut_after, how, {3, 41, 42})
        seen.add(was_thinned)
    assert cut_after > 15 and seen == {True, False}


def test_ranges_stay_sorted_and_apart() -> None:
    ranges: list[Range] = [(0, 3), (2, 5), (6, 6), (8, 9)]
    assert joined(ranges) == [(0, 6), (8, 9)]
    assert within([(0, 6), (8, 9), (12, 20)], 5, 14) == [(5, 6), (8, 9), (12, 14)]
