"""Compaction of a log in use: what readers, retention, recovery and later passes make of it."""

import errno
from contextlib import suppress
from typing import Any

import pytest
from tests.simulated_broker import split, virtual
from tests.simulated_log import DIRECTORY, Bench, open_log
from tests.unit.storage.log.test_transactions import read_committed

from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.records.record import iterate_batch
from penstock.storage.compaction.process import InlineCompaction
from penstock.storage.log.compacting import Compaction
from penstock.storage.log.options import LogOptions
from penstock.storage.log.reading import aborted_in, read_slice
from penstock.storage.log.rewriting import Rewriting
from penstock.testing.faulty_disk import FaultyDisk, PowerCut

COMPACT = LogOptions(segment_bytes=1 << 20, compact=True, min_dirty_ratio=0.0)
TINY = LogOptions(segment_bytes=60, compact=True, min_dirty_ratio=0.0)
LIMIT = 1 << 20


def put(bench: Bench, key: bytes | None, value: bytes | None, **fields: Any) -> None:
    bench.append_batch(bytearray(build_batch([(key, value, (), bench.clock.now_ms())], **fields)))


def mark(bench: Bench, producer_id: int, marker: Marker) -> None:
    batch = bytearray(build_marker(producer_id, 0, marker, 0, bench.clock.now_ms()))
    bench.log.append_marker(memoryview(batch), bench.log.state.epochs.latest, 0)


async def seal(bench: Bench) -> None:
    bench.log.want_roll()
    await bench.commit()
    await bench.tend()
    await bench.tend()


async def compact(bench: Bench) -> None:
    compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
    job = compaction.next_job(bench.log, bench.clock.now_ms())
    assert job is not None
    assert await compaction.run(bench.log, job, bench.clock.now_ms()) is not None


async def shown(bench: Bench) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all records, read from the log start on."""
    found, offset = [], bench.log.log_start
    while offset < bench.log.visible_end:
        batches = await bench.read(offset)
        if not batches:
            break
        for batch in batches:
            found += [(at, record.key, record.value) for at, _, record in iterate_batch(batch.data, LIMIT)]
        offset = batches[-1].header.last_offset + 1
    return found


@virtual
async def test_a_reader_in_the_middle_goes_on_over_what_is_gone() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), TINY)
    for number in range(12):
        put(bench, b"k%d" % (number % 2), b"v%d" % number)
        await seal(bench)
    await compact(bench)
    left = await shown(bench)
    assert left == [(10, b"k0", b"v10"), (11, b"k1", b"v11")]
    for offset in range(12):
        batches = await bench.read(offset)
        assert batches, f"nothing at {offset}"
        assert batches[0].header.last_offset >= offset
        assert batches[0].header.base_offset == max(offset, 10)


@virtual
async def test_what_somebody_still_needs_stays() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), TINY)
    for number in range(12):
        put(bench, b"k", b"v%d" % number)
        await seal(bench)
    floor: int | None = 7
    bench.log.floors.append(lambda: floor)
    await compact(bench)
    assert [offset for offset, _, _ in await shown(bench)] == [6, 7, 8, 9, 10, 11]
    floor = None
    await compact(bench)
    assert [offset for offset, _, _ in await shown(bench)] == [11]


@virtual
async def test_after_a_restart_the_log_is_the_same_with_and_without_its_small_files() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), TINY)
    for number in range(12):
        put(bench, b"k%d" % (number % 3), b"v%d" % number, producer_id=4, producer_epoch=0, base_sequence=number)
        await seal(bench)
    await compact(bench)
    await bench.checkpoint()
    expected = await shown(bench)
    disk = bench.disk.after_power_cut()
    for lost in ((), (".index",), (".checkpoint",), ("state",), (".index", ".checkpoint", "state")):
        for name in disk.list_dir(DIRECTORY):
            if lost and name.endswith(lost):
                disk.unlink(f"{DIRECTORY}/{name}")
        again = await open_log(disk, TINY)
        assert await shown(again) == expected, lost
        assert again.log.end_offset == 12
        producer = again.log.state.producers.get(4)
        assert producer is not None and producer.batches[-1].last_sequence == 11


@virtual
async def test_aborted_records_behind_a_gap_are_not_shown() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), COMPACT)
    put(bench, b"keep", b"x")
    put(bench, None, b"from before the topic was compacted")
    await seal(bench)
    await compact(bench)
    put(bench, b"z", b"aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    mark(bench, 7, Marker.ABORT)
    await bench.commit()
    bench.log.settle_transactions(bench.log.visible_end)
    await bench.read(1)
    data = read_slice(bench.log, 1, bench.log.settled_end, LIMIT, at_least_one=True)
    assert data is not None
    assert split(data.file.read_at(data.size, data.position))[0].header.base_offset == 2
    assert [row.producer_id for row in aborted_in(bench.log, 1, data, bench.log.settled_end)] == [7]
    assert await read_committed(bench) == [0]


@virtual
async def test_nothing_above_an_open_transaction_is_compacted() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), TINY)
    for number in range(3):
        put(bench, b"k", b"%d" % number)
        await seal(bench)
    put(bench, b"t", b"open", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    await seal(bench)
    for number in range(3):
        put(bench, b"k", b"later %d" % number)
        await seal(bench)
    await compact(bench)
    assert [value for _, _, value in await shown(bench)] == [b"2", b"open", b"later 0", b"later 1", b"later 2"]
    mark(bench, 7, Marker.ABORT)
    await seal(bench)
    bench.log.settle_transactions(bench.log.visible_end)
    await compact(bench)
    assert [value for _, key, value in await shown(bench) if key in (b"k", b"t")] == [b"later 2"]


@virtual
async def test_retention_goes_past_a_segment_that_compaction_has_emptied() -> None:
    options = LogOptions(segment_bytes=60, compact=True, min_dirty_ratio=0.0, retention_ms=3_600_000)
    bench = await open_log(FaultyDisk(max_delay_s=0.0), options)
    for value in (b"1", b"2", b"3"):
        put(bench, b"k", value)
        await seal(bench)
    await compact(bench)
    for _ in range(3):
        await bench.tend(bench.clock.now_ms() + 365 * 86_400_000)
    assert bench.log.log_start == 3


@virtual
async def test_a_log_with_a_hole_is_compacted_up_to_it() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), COMPACT)
    for number in range(4):
        put(bench, b"k%d" % number, b"v")
        await seal(bench)
    for name in bench.disk.list_dir(DIRECTORY):
        if name.startswith(f"{1:020d}"):
            bench.disk.unlink(f"{DIRECTORY}/{name}")
    again = await open_log(bench.disk, COMPACT)
    compaction = Compaction(Rewriting(again.upkeep._shelf, InlineCompaction(again.disk), 0))
    job = compaction.next_job(again.log, again.clock.now_ms())
    assert job is not None and job.until == 1


@virtual
async def test_a_damaged_segment_costs_its_own_compaction_and_no_more() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), COMPACT)
    put(bench, b"z", b"aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    mark(bench, 7, Marker.ABORT)
    await seal(bench)
    put(bench, b"y", b"1")
    await bench.checkpoint()
    bench.disk.flip_byte(f"{DIRECTORY}/{0:020d}.index", 100)
    bench.disk.flip_byte(f"{DIRECTORY}/{0:020d}.log", 70)
    again = await open_log(bench.disk, COMPACT)
    compaction = Compaction(Rewriting(again.upkeep._shelf, InlineCompaction(again.disk), 0))
    job = compaction.next_job(again.log, again.clock.now_ms())
    assert job is not None
    assert await compaction.run(again.log, job, again.clock.now_ms()) is None
    assert again.stats.compaction_failures == 1
    assert compaction.next_job(again.log, again.clock.now_ms()) is None, "not again at once"
    assert compaction.next_job(again.log, again.clock.now_ms() + 3_600_000) is not None


@pytest.mark.parametrize("cut_after", range(0, 60, 3))
def test_a_power_cut_amid_a_compaction_loses_nothing(cut_after: int) -> None:
    @virtual
    async def body() -> None:
        bench = await open_log(FaultyDisk(cut_after, max_delay_s=0.0), TINY)
        for number in range(10):
            put(bench, b"k%d" % (number % 3), b"v%d" % number)
            await seal(bench)
        before = await shown(bench)
        bench.disk.cut_power_after(cut_after)
        compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
        job = compaction.next_job(bench.log, bench.clock.now_ms())
        assert job is not None
        with suppress(PowerCut):
            await compaction.run(bench.log, job, bench.clock.now_ms())
        again = await open_log(bench.disk.after_power_cut(), TINY)
        left = await shown(again)
        assert left in (before, before[-3:]), left
        assert again.log.end_offset == 10
        names = again.disk.list_dir(DIRECTORY)
        assert not [name for name in names if "cleaned" in name or name == "swap"]

    body()


@virtual
async def test_a_disk_that_cannot_be_read_costs_the_pass_and_not_the_broker() -> None:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), TINY)
    for number in range(4):
        put(bench, b"k", b"%d" % number)
        await seal(bench)
    bench.disk.fail("read_at", errno.EIO, path_contains=f"{1:020d}.log", times=2)
    compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
    job = compaction.next_job(bench.log, bench.clock.now_ms())
    assert job is not None
    assert await compaction.run(bench.log, job, bench.clock.now_ms()) is None
    bench.disk.clear_faults()
    assert len(await shown(bench)) == 4
    assert bench.failures == []
