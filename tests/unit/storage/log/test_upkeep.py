"""Upkeep: retention by time and size, deleted records, sealing, checkpoints; a full disk delays it, a failure stops."""

import errno

import pytest
from tests.simulated_broker import virtual
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.records.build import build_batch
from penstock.storage.log.options import LogOptions
from penstock.storage.log.upkeep import CHECKPOINT_MS, held_back_bytes
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import VirtualClock

HOUR_MS = 3600 * 1000


async def written(options: LogOptions, count: int = 12, *, seed: int = 3) -> Bench:
    bench = await open_log(FaultyDisk(seed), options)
    for number in range(count):
        await bench.write(b"%d" % number + b"." * 400)
        await bench.tend()
    assert bench.stats.segments_rolled > 3
    return bench


def files(disk: FaultyDisk, ending: str) -> list[int]:
    return [int(name[:20]) for name in contents(disk) if name.endswith(ending)]


@virtual
async def test_records_expire_by_the_time_they_carry() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_ms=HOUR_MS))
    now_ms = bench.clock.now_ms()
    await bench.tend(now_ms + HOUR_MS - 1000)
    assert bench.log.log_start == 0
    end = bench.log.end_offset
    await bench.tend(now_ms + HOUR_MS + 1000)
    assert bench.log.log_start == bench.log.active.base > 0
    # The active segment is rolled first and goes in the next round; offsets go on.
    await bench.tend(now_ms + HOUR_MS + 1000)
    await bench.tend(now_ms + HOUR_MS + 1000)
    assert bench.log.log_start == bench.log.end_offset == end
    assert len(bench.log.segments) == 1
    assert files(bench.disk, ".log") == [end]
    assert files(bench.disk, ".index") == []
    assert (await bench.write(b"next")).base_offset == end
    assert bench.stats.segments_deleted > 3


@virtual
async def test_a_record_without_a_time_never_expires_by_time() -> None:
    bench = await open_log(FaultyDisk(3), LogOptions(segment_bytes=61, retention_ms=1))
    for _ in range(3):
        batch = bytearray(build_batch([(None, b"x", [], -1)]))
        bench.append_batch(batch)
        await bench.commit()
        await bench.tend(bench.clock.now_ms() + 10**12)
    assert len(bench.log.segments) >= 3
    assert bench.log.log_start == 0


@virtual
async def test_the_oldest_segments_go_when_there_is_too_much() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_bytes=2500), 30)
    await bench.tend()
    assert 2500 <= bench.log.size_bytes < 2500 + 2000
    assert bench.log.log_start == bench.log.segments[0].base > 10
    assert min(files(bench.disk, ".log")) == bench.log.log_start
    again = await open_log(bench.disk.abandon(), LogOptions(segment_bytes=1000, retention_bytes=2500), epoch=1)
    assert again.log.log_start == bench.log.log_start
    assert again.recovered.notes == []
    assert len(await again.read_all()) == 30 - again.log.log_start


@virtual
async def test_retention_never_passes_what_is_settled() -> None:
    bench = await written(LogOptions(segment_bytes=1000))
    bench.log.options = LogOptions(segment_bytes=1000, retention_ms=1)
    settled = bench.log.segments[2].base
    await bench.upkeep.tend(bench.log, bench.clock.now_ms() + HOUR_MS, settled)
    assert bench.log.log_start == settled


class Needs:
    """Somebody who needs what is in a log from an offset on."""

    def __init__(self, bench: Bench, offset: int | None) -> None:
        self.offset = offset
        bench.log.floors.append(lambda: self.offset)


@virtual
async def test_what_somebody_needs_does_not_expire_by_time() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_ms=HOUR_MS))
    log, later = bench.log, bench.clock.now_ms() + 2 * HOUR_MS
    second, third = log.segments[1:3]
    assert third.next_offset - third.base > 1, "the floor must lie inside a segment"
    needs, above = Needs(bench, 0), Needs(bench, log.end_offset)
    await bench.tend(later)
    assert (log.log_start, log.first_offset) == (0, 0)
    needs.offset = third.base - 1
    await bench.tend(later)
    assert (log.log_start, log.first_offset) == (second.base, second.base), "only whole segments below it go"
    needs.offset = third.base + 1
    await bench.tend(later)
    assert (log.log_start, log.first_offset) == (third.base, third.base)
    assert [batch.header.base_offset for batch in await bench.read_all()] == list(range(third.base, 12))
    again = await open_log(copy_disk(bench.disk), LogOptions(segment_bytes=1000), epoch=1)
    assert again.log.log_start == third.base
    assert (await again.read(third.base + 1))[0].header.base_offset == third.base + 1
    needs.offset = None
    above.offset = log.active.base
    await bench.tend(later)
    assert log.log_start == above.offset, "the least of what is needed counts, and this is all that is left"
    above.offset = None
    for _ in range(3):  # the last segment is rolled first
        await bench.tend(later)
    assert log.log_start == log.end_offset == 12


@virtual
async def test_what_is_held_back_is_what_would_go_otherwise() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_ms=HOUR_MS))
    log, later = bench.log, bench.clock.now_ms() + 2 * HOUR_MS
    sealed = [segment.size for segment in log.segments[:-1]]
    assert held_back_bytes(log, 0, bench.clock.now_ms()) == 0, "nothing has expired yet"
    assert held_back_bytes(log, 0, later) == sum(sealed), "the segment that is written stays anyway"
    third = log.segments[2]
    assert third.next_offset - third.base > 1, "the floor must lie inside a segment"
    assert held_back_bytes(log, third.base, later) == held_back_bytes(log, third.base + 1, later) == sum(sealed[2:])
    assert held_back_bytes(log, log.end_offset, later) == 0
    Needs(bench, third.base)
    await bench.tend(later)
    assert log.size_bytes == held_back_bytes(log, third.base, later) + log.active.size, "all that can go is gone"
    log.options = LogOptions(segment_bytes=1000, retention_bytes=log.size_bytes - 1)
    assert held_back_bytes(log, 0, later) == 0, "by size, only whole segments that are too much"
    log.options = LogOptions(segment_bytes=1000, retention_bytes=log.size_bytes - third.size)
    assert held_back_bytes(log, 0, later) == third.size


@virtual
async def test_what_somebody_needs_stays_when_there_is_too_much() -> None:
    bench = await written(LogOptions(segment_bytes=1000))
    needed = bench.log.segments[1].base + 1
    needs = Needs(bench, needed)
    bench.log.options = LogOptions(segment_bytes=1000, retention_bytes=0)
    await bench.tend()
    assert bench.log.log_start == bench.log.segments[0].base == needed - 1
    bench.disk.capacity_bytes = 0  # nor when there is no room to note what goes
    await bench.tend()
    assert bench.log.log_start == bench.log.segments[0].base == needed - 1
    bench.disk.capacity_bytes = None
    needs.offset = bench.log.segments[2].base
    await bench.tend()
    assert bench.log.log_start == needs.offset
    needs.offset = None
    await bench.tend()
    assert bench.log.log_start == bench.log.active.base


@virtual
async def test_an_operator_may_delete_what_somebody_needs() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_ms=HOUR_MS))
    Needs(bench, 3)
    await bench.upkeep.delete_records(bench.log, 5)
    assert bench.log.log_start == 5
    await bench.tend(bench.clock.now_ms() + 2 * HOUR_MS)
    assert bench.log.log_start == 5, "retention goes no further, nor back"


@virtual
async def test_a_log_that_somebody_needs_is_not_tended_for_nothing() -> None:
    bench = await open_log(FaultyDisk(3), LogOptions(retention_ms=HOUR_MS, segment_ms=1000 * HOUR_MS))
    await bench.write(b"x")
    later = bench.clock.now_ms() + 2 * HOUR_MS
    needs = Needs(bench, 0)
    assert bench.upkeep.is_due(bench.log, later), "there is a checkpoint to be made"
    await bench.tend(later)
    assert not bench.upkeep.is_due(bench.log, later)
    await bench.tend(later)
    assert (len(bench.log.segments), bench.stats.segments_rolled) == (1, 0), "a roll would let nothing go"
    needs.offset = 1
    assert bench.upkeep.is_due(bench.log, later)
    for _ in range(2):
        await bench.tend(later)
    assert (bench.log.log_start, bench.stats.segments_deleted) == (1, 1)


@virtual
async def test_nothing_is_removed_before_the_new_start_is_durable() -> None:
    bench = await written(LogOptions(segment_bytes=1000))
    starts = []
    unlink = bench.disk.unlink

    def watched(path: str) -> None:
        if path.endswith((".log", ".index")):
            starts.append(b'"log_start":5,' in bench.disk.read_durable(f"{DIRECTORY}/state"))
        unlink(path)

    bench.disk.unlink = watched  # type: ignore[method-assign]
    await bench.upkeep.delete_records(bench.log, 5)
    assert starts and all(starts)


@virtual
async def test_deleted_records_stay_deleted() -> None:
    bench = await written(LogOptions(segment_bytes=1000))
    await bench.upkeep.delete_records(bench.log, 5)
    assert bench.log.log_start == 5
    assert bench.log.segments[0].base <= 5 < bench.log.segments[0].next_offset
    await bench.upkeep.delete_records(bench.log, 3)  # never back
    assert bench.log.log_start == 5
    again = await open_log(bench.disk.after_power_cut(), LogOptions(segment_bytes=1000), epoch=1)
    assert again.log.log_start == 5
    assert [batch.header.base_offset for batch in await again.read_all()][-1] == 11
    await again.upkeep.delete_records(again.log, 12)
    last = await open_log(again.disk.after_power_cut(), LogOptions(segment_bytes=1000), epoch=2)
    assert last.log.log_start == last.log.end_offset == 12
    assert (await last.write(b"more")).base_offset == 12


@virtual
async def test_sealing_saves_the_card_and_cuts_what_a_failed_append_left() -> None:
    bench = await open_log(FaultyDisk(3), LogOptions(segment_bytes=1000))
    await bench.write(b"x" * 800)
    bench.disk.fail("write_at", errno.ENOSPC, path_contains=".log")
    with pytest.raises(Exception, match="no space"):
        bench.append([b"y" * 4000])
    await bench.write(b"z" * 200)  # rolls
    old = bench.log.segments[0]
    await bench.tend()
    assert old.sealed and not bench.log.unsealed
    assert bench.disk.open(old.path).size() == old.size
    assert bench.disk.read_durable(old.index_path)
    again = await open_log(copy_disk(bench.disk), LogOptions(segment_bytes=1000), epoch=1)
    assert again.recovered.notes == []


@virtual
async def test_an_idle_log_gets_a_checkpoint_once() -> None:
    bench = await open_log(FaultyDisk(3))
    await bench.write(b"x")
    await bench.tend()
    assert files(bench.disk, ".checkpoint") == []
    later = bench.clock.now_ms() + CHECKPOINT_MS
    assert bench.upkeep.is_due(bench.log, later)
    await bench.tend(later)
    assert files(bench.disk, ".checkpoint") == [0]
    assert not bench.upkeep.is_due(bench.log, later)
    again = await open_log(copy_disk(bench.disk), epoch=1)
    assert again.recovered.scanned_bytes == 0


@virtual
async def test_an_old_segment_is_closed() -> None:
    options = LogOptions(segment_ms=HOUR_MS, retention_ms=-1)
    bench = await open_log(FaultyDisk(3), options)
    await bench.write(b"x")
    await bench.tend(bench.clock.now_ms() + HOUR_MS - 1000)
    assert len(bench.log.segments) == 1
    await bench.tend(bench.clock.now_ms() + HOUR_MS + 1000)
    assert len(bench.log.segments) == 2


@virtual
async def test_a_full_disk_delays_upkeep_and_retention_makes_room() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_bytes=-1), 20)
    bench.log.options = LogOptions(segment_bytes=1000, retention_bytes=2000)
    bench.disk.capacity_bytes = 0  # nothing may grow
    for _ in range(3):
        await bench.tend()
    assert bench.log.size_bytes < 20 * 500 / 2, "a full disk must not keep retention from making room"
    assert bench.failures == []
    bench.disk.capacity_bytes = None
    await bench.write(b"goes on")
    again = await open_log(bench.disk.abandon(), LogOptions(segment_bytes=1000), epoch=1)
    assert again.log.end_offset == 21
    assert again.log.log_start == bench.log.log_start


@virtual
async def test_what_retention_removed_on_a_full_disk_is_not_taken_for_damage() -> None:
    bench = await written(LogOptions(segment_bytes=1000, retention_bytes=-1), 20)
    await bench.tend()
    bench.log.options = LogOptions(segment_bytes=1000, retention_bytes=2000)
    bench.disk.fail("write_at", errno.ENOSPC, path_contains="state")
    await bench.tend()
    assert bench.log.log_start > 0
    again = await open_log(bench.disk.abandon(), LogOptions(segment_bytes=1000), epoch=1)
    assert again.recovered.damage == ""
    assert again.log.log_start == bench.log.log_start


@virtual
async def test_another_failure_is_not_swallowed() -> None:
    bench = await open_log(FaultyDisk(3), LogOptions(segment_bytes=1000))
    await bench.write(b"x" * 1000)
    bench.disk.fail("sync_files", errno.EIO, path_contains=".index")
    with pytest.raises(OSError, match="index"):
        await bench.tend()


@virtual
async def test_segments_made_by_an_earlier_process_expire_too() -> None:
    options = LogOptions(segment_bytes=1000, retention_ms=HOUR_MS)
    bench = await written(options)
    clock = VirtualClock()
    again = await open_log(bench.disk.abandon(), options, epoch=1, clock=clock)
    await again.tend(clock.now_ms())
    assert again.log.log_start == 0
    await again.tend(clock.now_ms() + 2 * HOUR_MS)
    assert again.log.log_start > 0
