"""Rot in sealed segments is found by reading them again, slowly, and nothing else is taken for rot."""

import asyncio
import errno

from tests.simulated_broker import virtual, wait_for
from tests.simulated_log import Bench, open_log

from penstock.engine.scrubber import Scrubber
from penstock.storage.log.options import LogOptions
from penstock.testing.faulty_disk import FaultyDisk

SMALL = LogOptions(segment_bytes=1000, index_interval_bytes=300)
FAST = 1 << 30


async def sealed_log(count: int = 12) -> Bench:
    bench = await open_log(FaultyDisk(3), SMALL)
    for number in range(count):
        await bench.write(b"%d" % number + b"." * 200)
        await bench.tend()
    assert sum(segment.sealed for segment in bench.log.segments) >= 2
    return bench


def scrubber_of(bench: Bench, *, every_s: float = 24.0, bytes_per_second: int = FAST) -> Scrubber:
    logs = lambda: [(bench.log, bench.log.visible_end)]  # noqa: E731
    return Scrubber(bench.disk, bench.clock, bench.stats, logs, every_s, bytes_per_second)


def sealed_bytes(bench: Bench) -> int:
    return sum(segment.size for segment in bench.log.segments if segment.sealed)


@virtual
async def test_every_sealed_byte_is_read_once_in_a_round_and_sound_ones_are_no_rot() -> None:
    bench = await sealed_log()
    running = asyncio.ensure_future(scrubber_of(bench).run())
    await asyncio.sleep(0.9)
    assert bench.stats.scrubbed_bytes == 0, "the first round comes after a while"
    await asyncio.sleep(10)
    assert bench.stats.scrubbed_bytes == sealed_bytes(bench)
    await asyncio.sleep(24)
    assert bench.stats.scrubbed_bytes == 2 * sealed_bytes(bench)
    assert bench.log.damage is None
    assert bench.stats.corrupt_blocks == 0
    running.cancel()


@virtual
async def test_a_flipped_bit_in_any_sealed_segment_is_found_and_named() -> None:
    sealed = [segment.path for segment in (await sealed_log()).log.segments if segment.sealed]
    for path in sealed:
        bench = await sealed_log()
        bench.disk.flip_byte(path, bench.disk.size_of(path) // 2, 4)
        running = asyncio.ensure_future(scrubber_of(bench).run())
        await wait_for(lambda bench=bench: bench.log.damage is not None, 30)
        assert path in str(bench.log.damage)
        assert bench.stats.corrupt_blocks == 1
        await asyncio.sleep(60)
        assert bench.stats.corrupt_blocks == 1, "what is known to be damaged is read again"
        running.cancel()


@virtual
async def test_a_missing_segment_a_bad_card_and_a_bad_sector_are_damage() -> None:
    for spoil in ("missing", "card", "sector"):
        bench = await sealed_log()
        segment = bench.log.segments[1]
        segment.file = segment.card = None
        if spoil == "missing":
            bench.disk.unlink(segment.path)
        elif spoil == "card":
            bench.disk.flip_byte(segment.index_path, 20)
        else:
            bench.disk.fail("read_at", errno.EIO, path_contains=segment.path)
        running = asyncio.ensure_future(scrubber_of(bench).run())
        await wait_for(lambda bench=bench: bench.log.damage is not None, 30)
        assert segment.path in str(bench.log.damage), spoil
        running.cancel()


@virtual
async def test_it_reads_no_faster_than_it_may() -> None:
    bench = await sealed_log(40)
    total = sealed_bytes(bench)
    running = asyncio.ensure_future(scrubber_of(bench, bytes_per_second=total // 10).run())
    await wait_for(lambda: bench.stats.scrubbed_bytes > 0, 30)
    began = bench.clock.monotonic()
    await asyncio.sleep(5)
    assert bench.stats.scrubbed_bytes <= total // 10 * (bench.clock.monotonic() - began + 1)
    await wait_for(lambda: bench.stats.scrubbed_bytes == total, 60)
    assert bench.clock.monotonic() - began >= 8
    running.cancel()


@virtual
async def test_a_log_that_is_closed_or_a_segment_that_goes_meanwhile_is_no_damage() -> None:
    bench = await sealed_log()
    segment = bench.log.segments[0]
    segment.file = segment.card = None
    bench.disk.unlink(segment.path)
    bench.log.segments.remove(segment)  # as retention does it
    running = asyncio.ensure_future(scrubber_of(bench).run())
    await asyncio.sleep(10)
    bench.log.closed = True
    bench.disk.flip_byte(bench.log.segments[0].path, 30)
    await asyncio.sleep(60)
    assert bench.log.damage is None
    running.cancel()
