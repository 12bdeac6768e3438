"""The log: what is appended is read back whole, from any offset, in any size, across segments, cold or warm."""

import asyncio
import errno
from functools import partial

import pytest
from tests.simulated_broker import HUGE, batch_of, small_blocks, split, virtual, wait_for
from tests.simulated_log import DIRECTORY, Bench, copy_disk, open_log

from penstock.errors import Code, PenstockError
from penstock.records.batch import LOG_APPEND_TIME, decode_header, patch_append_time
from penstock.storage.log.options import Flush, LogOptions
from penstock.storage.log.reading import READY_BYTES, read_slice, warm
from penstock.storage.log.segment import NotReady
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

SMALL = LogOptions(segment_bytes=1000, index_interval_bytes=300)


async def filled(options: LogOptions = SMALL, count: int = 30) -> Bench:
    """Batches of one to three records; about three to a segment."""
    bench = await open_log(FaultyDisk(3), options)
    for number in range(count):
        await bench.write(*(b"%d.%d" % (number, record) + b"x" * 150 for record in range(1 + number % 3)))
        await bench.tend()
    assert len(bench.log.segments) > 5
    return bench


@virtual
async def test_every_offset_in_every_size() -> None:
    bench = await filled()
    everything = await bench.read_all()
    end = bench.log.end_offset
    for offset in range(end):
        whole = next(batch for batch in everything if batch.header.last_offset >= offset)
        for max_bytes in (0, 1, len(whole.data), len(whole.data) + 1, 700, HUGE):
            got = await bench.read(offset, max_bytes)
            assert got[0].data == whole.data, "a read begins with the batch that holds the offset"
            at = everything.index(whole)
            assert got == everything[at : at + len(got)]
            size = sum(len(batch.data) for batch in got)
            assert size <= max_bytes or len(got) == 1
            found = read_slice(bench.log, offset, end, max_bytes, at_least_one=False)
            assert (found is None) == (len(whole.data) > max_bytes)


@virtual
async def test_a_read_stops_at_the_limit() -> None:
    bench = await filled()
    everything = await bench.read_all()
    for batch in everything:
        limit = batch.header.base_offset
        if limit == 0:
            continue
        start = max(0, limit - 4)
        got = await bench.read(start, HUGE, limit)
        assert got[0].header.base_offset <= start
        assert all(one.header.last_offset < limit for one in got)
        assert read_slice(bench.log, limit, limit, HUGE, at_least_one=True) is None


@virtual
async def test_what_is_not_synced_is_not_visible() -> None:
    bench = await open_log(FaultyDisk(1))
    await bench.write(b"a")
    bench.append([b"b"])
    assert (bench.log.visible_end, bench.log.end_offset) == (1, 2)
    assert [batch.records for batch in await bench.read(0)] == [[(0, b"a")]]
    assert read_slice(bench.log, 1, bench.log.visible_end, HUGE, at_least_one=True) is None
    await bench.commit()
    assert [batch.records for batch in await bench.read(1)] == [[(1, b"b")]]


@virtual
async def test_without_commit_everything_is_visible_at_once() -> None:
    for flush in (Flush.OS, Flush.INTERVAL):
        bench = await open_log(FaultyDisk(1), LogOptions(flush=flush, flush_ms=30))
        seen: list[int] = []
        bench.log.on_visible = partial(lambda log, ends: ends.append(log.visible_end), bench.log, seen)
        bench.append([b"a"])
        assert seen == [1]
        rounds = bench.disk.counts["sync_files"]
        await asyncio.sleep(0.1)
        assert bench.disk.counts["sync_files"] == rounds + (flush is Flush.INTERVAL)
        assert (bench.log.durable_end == 1) == (flush is Flush.INTERVAL)


@virtual
async def test_offsets_outside_are_refused() -> None:
    bench = await filled()
    await bench.upkeep.delete_records(bench.log, 10)
    for offset in (-1, 9, bench.log.end_offset + 1):
        with pytest.raises(PenstockError) as refused:
            read_slice(bench.log, offset, bench.log.visible_end, HUGE, at_least_one=True)
        assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
    assert (await bench.read(10))[0].header.last_offset >= 10
    assert await bench.read(bench.log.end_offset) == []


@virtual
async def test_a_lost_segment_is_named_not_skipped() -> None:
    bench = await filled()
    disk = bench.disk.abandon()
    disk.unlink(bench.log.segments[2].path)
    disk.unlink(bench.log.segments[2].index_path)
    again = await open_log(disk, SMALL, epoch=1)
    hole = bench.log.segments[2].base
    assert any("next begins at" in note for note in again.recovered.notes)
    assert [batch.header.base_offset for batch in await again.read(0, 1)] == [0]
    with pytest.raises(PenstockError, match=f"offset {hole} is missing") as refused:
        await again.read(hole)
    assert refused.value.code is Code.CORRUPT_LOG
    assert (await again.read(bench.log.segments[3].base))[0].header.base_offset == bench.log.segments[3].base


@virtual
async def test_rolling_needs_no_wait_and_loses_no_order() -> None:
    bench = await open_log(FaultyDisk(5), SMALL)
    for number in range(60):  # faster than any new file can be made
        bench.append([b"%d" % number + b"." * 100])
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    await bench.commit()
    records = [record for batch in await bench.read_all(500) for record in batch.records]
    assert [value.split(b".")[0] for _, value in records] == [b"%d" % number for number in range(60)]
    await wait_for(lambda: not bench.log._rolling)
    assert len(bench.log.segments) > 2
    for segment, following in zip(bench.log.segments, bench.log.segments[1:], strict=False):
        assert segment.next_offset == following.base
    assert bench.failures == []


@virtual
async def test_what_an_earlier_process_wrote_is_checked_before_it_is_sent() -> None:
    bench = await filled(count=40)
    disk = bench.disk.abandon()
    again = await open_log(disk, SMALL, epoch=1)
    with pytest.raises(NotReady):
        read_slice(again.log, 0, again.log.visible_end, HUGE, at_least_one=True)
    assert again.stats.cold_reads == 0
    assert (await again.read(0))[0].header.base_offset == 0
    assert again.stats.cold_reads == 1
    found = read_slice(again.log, 0, again.log.visible_end, HUGE, at_least_one=True)
    assert found is not None
    # A block that is bad is refused, and only that segment.
    disk.flip_byte(again.log.segments[1].path, 40)
    with pytest.raises(PenstockError, match=again.log.segments[1].path) as refused:
        await again.read(again.log.segments[1].base)
    assert refused.value.code is Code.CORRUPT_LOG
    assert again.stats.corrupt_blocks == 1
    assert (await again.read(again.log.segments[2].base))[0].header.base_offset == again.log.segments[2].base


@virtual
async def test_a_cold_read_is_not_done_on_the_loop() -> None:
    bench = await filled()
    await bench.write(b"in the active segment")
    sealed = bench.log.segments[0]
    assert sealed.file is None, "a sealed file is the pool's"
    bench.disk.is_resident = False
    with pytest.raises(NotReady):
        read_slice(bench.log, 0, bench.log.visible_end, HUGE, at_least_one=True)
    # The active segment was written a moment ago: it is taken to be in memory.
    assert read_slice(bench.log, bench.log.active.base, bench.log.visible_end, HUGE, at_least_one=True) is not None
    before = bench.disk.bytes_read
    await warm(bench.log, 0, HUGE)
    assert bench.disk.bytes_read - before >= sealed.size
    bench.disk.is_resident = True
    assert read_slice(bench.log, 0, bench.log.visible_end, HUGE, at_least_one=True) is not None


@virtual
async def test_what_this_process_wrote_is_checked_when_it_comes_from_the_disk() -> None:
    """It has left memory since: what the device has of it may be something else."""
    bench = await filled()
    sealed = bench.log.segments[0]
    assert sealed.sealed and not sealed.is_unchecked(0, sealed.size)
    bench.disk.is_resident = False
    await warm(bench.log, 0, HUGE)
    bench.disk.flip_byte(sealed.path, sealed.size - 1)
    with pytest.raises(PenstockError, match=sealed.path) as refused:
        await warm(bench.log, 0, HUGE)
    assert refused.value.code is Code.CORRUPT_LOG
    assert bench.log.damage is refused.value


def test_what_came_back_by_reading_ahead_is_checked() -> None:
    """One part of a segment was gone: the kernel brings others back that were, and nobody can tell them apart."""

    async def main() -> None:
        bench = await filled()
        sealed = bench.log.segments[0]
        assert sealed.sealed and not sealed.is_unchecked(0, sealed.size) and sealed.size > 2 * 256
        end, last = bench.log.visible_end, sealed.next_offset - 1

        def read(offset: int) -> object:
            return read_slice(bench.log, offset, end, 1, at_least_one=True)

        assert read(0) and read(last)  # written by this process, and in memory since
        bench.disk.is_resident = False
        with pytest.raises(NotReady):
            read(0)
        bench.disk.is_resident = True
        bench.disk.flip_byte(sealed.path, sealed.size - 1)
        with pytest.raises(NotReady):
            read(last)
        await warm(bench.log, 0, 1)
        assert read(0)
        with pytest.raises(PenstockError, match=sealed.path) as refused:
            await warm(bench.log, last, 1)
        assert refused.value.code is Code.CORRUPT_LOG
        with pytest.raises(NotReady):
            read(last)
        bench.disk.flip_byte(sealed.path, sealed.size - 1)
        await warm(bench.log, last, 1)
        before = bench.disk.bytes_read
        read_slice(bench.log, last, end, 1, at_least_one=True, warmed=True)
        assert bench.disk.bytes_read - before < 2 * 8192, "what was checked is checked once more"

    with small_blocks(256, 1 << 30):
        run_virtual(main, 1)


def test_what_was_checked_and_then_left_memory_is_checked_again() -> None:
    """Also when it was a cold read of another part that brought it back."""

    async def main() -> None:
        bench = await filled()
        sealed = bench.log.segments[0]
        end, last = bench.log.visible_end, sealed.next_offset - 1
        bench.disk.is_resident = False
        for offset in (0, last):
            await warm(bench.log, offset, 1)
        assert read_slice(bench.log, last, end, 1, at_least_one=True, warmed=True)
        bench.disk.is_resident = True
        assert read_slice(bench.log, 0, end, 1, at_least_one=True), "nothing is read ahead of where it is"
        bench.disk.is_resident = False
        await warm(bench.log, 0, 1)
        bench.disk.is_resident = True
        assert read_slice(bench.log, 0, end, 1, at_least_one=True)
        with pytest.raises(NotReady):
            read_slice(bench.log, last, end, 1, at_least_one=True)

    with small_blocks(256, 1 << 30):
        run_virtual(main, 1)


@virtual
async def test_a_warmed_read_waits_no_second_time_for_pages() -> None:
    bench = await filled()
    bench.disk.is_resident = False  # a file system that never says yes, or a machine short of memory
    end = bench.log.visible_end
    for offset in range(bench.log.active.base):
        with pytest.raises(NotReady):
            read_slice(bench.log, offset, end, 1, at_least_one=True)
        await warm(bench.log, offset, 1)
        found = read_slice(bench.log, offset, end, 1, at_least_one=True, warmed=True)
        assert found is not None
    # Being warmed is no excuse for a block nobody has checked.
    again = await open_log(bench.disk.abandon(), SMALL, epoch=1)
    again.log.segments[0].card = again.log.segments[0].load_card(again.disk)
    again.upkeep._shelf.files.put(again.log.segments[0].path, again.disk.open(again.log.segments[0].path))
    with pytest.raises(NotReady):
        read_slice(again.log, 0, end, 1, at_least_one=True, warmed=True)


def test_a_large_cold_read_becomes_ready_in_one_step() -> None:
    """A fetch may ask for more than `warm` makes ready at once; it gets the beginning, not an endless loop."""

    async def main() -> None:
        bench = await open_log(FaultyDisk(), LogOptions(segment_bytes=4 << 20))
        for _ in range(6):
            await bench.write(b"x" * 700_000)
            await bench.tend()
        again = await open_log(bench.disk.abandon(), epoch=1)
        got = await again.read(0, 50 << 20)
        assert 1 <= len(got) <= 2 * READY_BYTES // 700_000
        assert len(await again.read_all(50 << 20)) == 6
        # One batch larger than all of that goes out whole.
        big = await open_log(FaultyDisk())
        await big.write(b"y" * (3 << 20))
        await big.checkpoint()
        cold = await open_log(big.disk.abandon(), epoch=1)
        assert [len(batch.data) > 3 << 20 for batch in await cold.read(0, 1000)] == [True]

    run_virtual(main, 1)


@virtual
async def test_a_segment_that_retention_takes_during_a_cold_read_is_out_of_range() -> None:
    bench = await filled()
    again = await open_log(bench.disk.abandon(), SMALL, epoch=1)
    work = asyncio.create_task(warm(again.log, 0, HUGE))
    await asyncio.sleep(0)
    segment = again.log.segments.pop(0)
    again.log.state.log_start = segment.next_offset
    again.disk.unlink(segment.path)
    again.disk.unlink(segment.index_path)
    with pytest.raises(PenstockError) as refused:
        await work
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE


@virtual
async def test_a_full_disk_refuses_the_batch_and_goes_on_when_there_is_room() -> None:
    bench = await open_log(FaultyDisk(2), SMALL)
    await bench.write(b"before")
    bench.disk.fail("write_at", errno.ENOSPC, path_contains=".log", times=3)
    for _ in range(3):
        with pytest.raises(PenstockError) as refused:
            bench.append([b"z" * 500], producer_id=3, producer_epoch=0, base_sequence=0)
        assert refused.value.code is Code.STORAGE_FULL
        assert refused.value.retriable
    assert bench.log.end_offset == 1
    assert len(bench.log.state.producers) == 0
    await bench.write(b"after", producer_id=3, producer_epoch=0, base_sequence=0)
    assert bench.failures == []
    for reopened in (bench, await open_log(copy_disk(bench.disk), SMALL, epoch=1)):
        assert [value for batch in await reopened.read_all() for _, value in batch.records] == [b"before", b"after"]


@virtual
async def test_a_write_that_fails_otherwise_stops_the_broker() -> None:
    bench = await open_log(FaultyDisk(2))
    bench.disk.fail("write_at", errno.EIO, path_contains=".log")
    with pytest.raises(PenstockError) as refused:
        bench.append([b"a"])
    assert refused.value.code is Code.STORAGE_FAILED
    assert [error.errno for error in bench.failures if isinstance(error, OSError)] == [errno.EIO]


@virtual
async def test_a_roll_that_finds_no_room_is_tried_again() -> None:
    bench = await open_log(FaultyDisk(2), SMALL)
    bench.disk.fail("open", errno.ENOSPC, path_contains="next.log")
    await bench.write(b"a" * 1000)
    assert len(bench.log.segments) == 1
    await bench.write(b"b")
    await wait_for(lambda: len(bench.log.segments) == 2)
    await bench.write(b"c")
    assert bench.failures == []
    assert len(await bench.read_all()) == 3


@virtual
async def test_batches_that_claim_billions_of_offsets_do_not_break_the_index() -> None:
    bench = await open_log(FaultyDisk(2), LogOptions(index_interval_bytes=0))
    for _ in range(12):
        batch = batch_of([b"a"], bench.clock)
        batch[23:27] = (0x7FFFFFFE).to_bytes(4)  # last offset delta
        header = decode_header(batch)._replace(record_count=0x7FFFFFFF)
        if bench.log.end_offset - bench.log.active.base >= 1 << 32:
            with pytest.raises(PenstockError, match="new segment"):
                bench.log.append(memoryview(batch), header, 0)
            await wait_for(lambda: bench.log.active.base == bench.log.end_offset)
        bench.log.append(memoryview(batch), header, 0)
    assert bench.log.end_offset == 12 * 0x7FFFFFFF
    assert bench.failures == []
    assert len(bench.log.segments) > 2


@virtual
async def test_log_append_time_is_in_the_batch_and_in_the_answer_to_a_retry() -> None:
    bench = await open_log(FaultyDisk(2))
    batch = batch_of([b"a"], bench.clock, producer_id=1, producer_epoch=0, base_sequence=0)
    retry = bytearray(batch)
    header = patch_append_time(memoryview(batch), decode_header(batch), 12345)
    done = bench.log.append(memoryview(batch), header, 0, 12345)
    assert done.timestamp == 12345
    await bench.commit()
    stored = (await bench.read(0))[0]
    assert stored.header.max_timestamp == 12345
    assert stored.header.attributes & LOG_APPEND_TIME
    for reopened in (bench, await open_log(copy_disk(bench.disk), epoch=1)):
        again = bytearray(retry)
        header = patch_append_time(memoryview(again), decode_header(again), 99999)
        answer = reopened.log.append(memoryview(again), header, reopened.log.state.epochs.latest, 99999)
        assert answer == (0, 0, 12345)
        assert reopened.log.end_offset == 1


@virtual
async def test_a_closed_log_takes_nothing() -> None:
    bench = await open_log(FaultyDisk(2))
    bench.log.closed = True
    with pytest.raises(PenstockError) as refused:
        bench.append([b"a"])
    assert refused.value.code is Code.NOT_AVAILABLE
    with pytest.raises(PenstockError):
        await bench.upkeep.delete_records(bench.log, 0)


@virtual
async def test_small_blocks_and_small_reads_agree() -> None:
    """Every read after a restart goes through the block checks, whatever the index step was when it was written."""
    with small_blocks(256):
        bench = await filled(count=25)
        everything = [batch.data for batch in await bench.read_all()]
        for interval in (0, 300, 100_000):
            options = LogOptions(segment_bytes=1000, index_interval_bytes=interval)
            again = await open_log(copy_disk(bench.disk), options, epoch=1)
            for max_bytes in (1, 400):
                assert [batch.data for batch in await again.read_all(max_bytes)] == everything
            offset = again.log.end_offset // 2
            cold = await open_log(copy_disk(bench.disk), options, epoch=1)
            batch = (await cold.read(offset, 1))[0]
            assert batch.header.base_offset <= offset <= batch.header.last_offset


def test_split_sees_damage() -> None:
    """The tests' own reader is not blind."""

    async def main() -> None:
        bench = await open_log(FaultyDisk(2))
        await bench.write(b"abc")
        data = (await bench.read(0))[0].data
        assert DIRECTORY
        with pytest.raises(AssertionError):
            split(data[:-1] + b"!")
        with pytest.raises(AssertionError):
            split(data[:-1])

    run_virtual(main, 1)
