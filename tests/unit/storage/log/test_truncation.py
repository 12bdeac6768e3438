"""The end of a log taken back, or all of it: as if it had never been written, and a crash on the way does no harm."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from tests.simulated_broker import virtual, wait_for
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log
from tests.unit.storage.log.test_compacting import compact, put, seal
from tests.unit.storage.log.test_copied import (
    aborted_of,
    batches_of,
    catch_up,
    copied,
    follower_log,
    leader_log,
    producers_of,
)
from tests.unit.storage.log.test_transactions import read_committed

from penstock.records.batch import decode_header
from penstock.storage.log.log import Log
from penstock.storage.log.options import LogOptions
from penstock.storage.log.recovery import Recovered
from penstock.storage.log.state import load_state
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

SMALL = LogOptions(segment_bytes=700, index_interval_bytes=300)
COMPACT = LogOptions(segment_bytes=60, retention_ms=-1, compact=True, min_dirty_ratio=0.0)
SNAPSHOT = "snapshot"


async def long_log() -> Bench:
    """Of three epochs, with transactions over segment borders; the last segment but one is not sealed."""
    bench = await leader_log(SMALL)
    await bench.tend()
    while not bench.log.unsealed:
        number = producers_of(bench)[4][1][-1].last_sequence + 1
        await bench.write(b"." * 90, producer_id=4, producer_epoch=0, base_sequence=number)
    assert len(bench.log.segments) > 4
    bench.log.follows = True
    file = bench.disk.open(f"{DIRECTORY}/{SNAPSHOT}", create=True)
    file.write_at(b"made from the records", 0)
    return bench


def of(bench: Bench, recovered: Recovered) -> Bench:
    """The log that goes on in place of `bench.log`."""
    old = bench.log
    log = Log(old.name, old.directory, old.options, old.shelf, recovered.state, recovered.segments)
    log.follows = True
    log.settle_transactions(log.visible_end)
    return Bench(log, recovered, bench.disk, bench.clock, bench.stats, bench.upkeep, bench.failures)


async def take_back(bench: Bench, offset: int, *, has_room: bool = True) -> Bench:
    recovered, is_done = await bench.upkeep.take_back(bench.log, offset, bench.clock.now_ms(), (SNAPSHOT,))
    assert is_done is has_room
    return of(bench, recovered)


async def begin_anew(bench: Bench, offset: int, *, has_room: bool = True) -> Bench:
    recovered, is_done = await bench.upkeep.begin_anew(bench.log, offset, bench.clock.now_ms(), (SNAPSHOT,))
    assert is_done is has_room
    return of(bench, recovered)


async def opened(disk: FaultyDisk, options: LogOptions = SMALL) -> Bench:
    bench = await open_log(disk, options, epoch=-1)
    bench.log.follows = True
    return bench


def below(batches: list[bytes], offset: int) -> list[bytes]:
    return [data for data in batches if decode_header(data).last_offset < offset]


async def model(batches: list[bytes]) -> Bench:
    """A log to which nothing else was ever written."""
    bench = await follower_log(SMALL)
    copied(bench, batches)
    await bench.commit()
    bench.log.settle_transactions(bench.log.visible_end)
    return bench


def knowledge(bench: Bench) -> dict[str, object]:
    log = bench.log
    return {
        "end": log.end_offset,
        "durable": log.durable_end,
        "producers": producers_of(bench),
        "open": dict(log.active_transactions.open),
        "aborted": aborted_of(bench),
        "first unstable": log.first_unstable,
    }


async def assert_ends(bench: Bench, batches: list[bytes], offset: int, epochs: list[tuple[int, int]]) -> None:
    """It is as if nothing had been written from `offset` on."""
    kept = below(batches, offset)
    expected = await model(kept)
    assert knowledge(bench) == knowledge(expected)
    assert bench.log.state.epochs.entries == [entry for entry in epochs if entry[1] < offset]
    assert await batches_of(bench) == kept
    assert await read_committed(bench) == await read_committed(expected)
    assert not bench.disk.exists(f"{DIRECTORY}/{SNAPSHOT}")


# --- where it is cut


@virtual
async def test_a_log_cut_anywhere_ends_there() -> None:
    """At every offset: inside a segment and at its base, inside a batch, which goes whole, at both ends, and beyond."""
    bench = await long_log()
    batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
    bases = [segment.base for segment in bench.log.segments]
    assert any(decode_header(data).last_offset_delta for data in batches)
    for offset in range(bench.log.end_offset + 2):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        await assert_ends(cut, batches, offset, epochs)
        assert [segment.base for segment in cut.log.segments] == ([base for base in bases if base < offset] or [0])
        assert [segment.sealed for segment in cut.log.segments] == [True] * (len(cut.log.segments) - 1) + [False]
        again = await opened(cut.disk.after_power_cut())
        again.log.settle_transactions(again.log.visible_end)
        await assert_ends(again, batches, offset, epochs)


@virtual
async def test_a_log_in_use_is_cut_as_well_as_one_just_opened() -> None:
    """With a segment that is not sealed, a roll under way, and records nobody has synced."""
    for back in (1, 3, 6, 9, 20):
        bench = await long_log()
        batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
        bench.disk.max_delay_s = 0.05
        bench.append([b"not synced" + b"." * 800])
        bench.log.want_roll()
        offset = bench.log.end_offset - back
        cut = await take_back(bench, offset)
        await assert_ends(cut, batches, offset, epochs)
        await asyncio.sleep(1)  # whatever was under way is over
        assert bench.failures == []
        assert "next.log" not in contents(cut.disk)
        again = await opened(cut.disk.abandon())
        again.log.settle_transactions(again.log.visible_end)
        await assert_ends(again, batches, offset, epochs)


@virtual
async def test_what_follows_a_cut_is_kept_like_anything_else() -> None:
    bench = await long_log()
    batches = await batches_of(bench)
    for offset in (bench.log.segments[2].base, bench.log.segments[2].base + 2, 0):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        kept = await batches_of(cut)
        await cut.upkeep.begin_epochs([(cut.log, 9)])
        for number in range(8):
            await cut.write(b"%d" % number + b"." * 150, producer_id=30, producer_epoch=0, base_sequence=number)
            await cut.tend()
        assert cut.log.state.epochs.entries[-1] == (9, offset if kept else 0)
        again = await opened(cut.disk.after_power_cut())
        assert again.recovered.notes == []
        found = await batches_of(again)
        assert found[: len(kept)] == kept == below(batches, offset)
        assert [decode_header(data).leader_epoch for data in found[len(kept) :]] == [9] * 8
        assert producers_of(again) == producers_of(cut)


@virtual
async def test_a_sealed_segment_is_written_again() -> None:
    bench = await long_log()
    first, second = bench.log.segments[0], bench.log.segments[1]
    assert first.sealed and second.sealed
    for offset in (second.base, second.base - 1):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        names = set(contents(cut.disk))
        assert cut.log.active.base == first.base and not cut.log.active.sealed
        assert f"{first.name}.index" not in names, "a card that will not fit for long"
        assert not [name for name in names if name.startswith(second.name)]
        await cut.upkeep.begin_epochs([(cut.log, 9)])
        await cut.write(b"behind the cut" + b"." * 1000)
        await cut.write(b"in the next one")
        await cut.tend()
        assert [segment.sealed for segment in cut.log.segments] == [True, False]
        assert cut.log.segments[1].base == cut.log.end_offset - 1


@virtual
async def test_producers_are_taken_from_the_saved_state_if_that_is_old_enough() -> None:
    """Else from the batches: never from what is known now, which counts what goes."""
    bench = await long_log()
    batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
    saved = load_state(bench.disk, DIRECTORY)
    assert saved is not None and 10 < saved.producers_at < bench.log.end_offset
    for offset in (saved.producers_at - 3, saved.producers_at, saved.producers_at + 2):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        await assert_ends(cut, batches, offset, epochs)
        state = load_state(cut.disk, DIRECTORY)
        assert state is not None
        assert state.producers_at == (saved.producers_at if offset >= saved.producers_at else 0)
        assert state.epochs.entries == [entry for entry in epochs if entry[1] < offset]
    damaged = await opened(copy_disk(bench.disk))
    damaged.disk.flip_byte(f"{DIRECTORY}/state", 30)
    await assert_ends(await take_back(damaged, 12), batches, 12, epochs)


@virtual
async def test_the_start_of_a_log_stays_unless_it_is_cut_below() -> None:
    bench = await long_log()
    batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
    first = next(data for data in batches if decode_header(data).base_offset > bench.log.segments[2].base)
    start = decode_header(first).base_offset  # inside a segment
    await bench.upkeep.delete_records(bench.log, start)
    left = [data for data in batches if decode_header(data).base_offset >= start]
    for offset in range(start, bench.log.end_offset, 3):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        kept = below(left, offset)
        assert cut.log.log_start == start
        assert cut.log.end_offset == (decode_header(kept[-1]).last_offset + 1 if kept else start)
        assert await batches_of(cut) == kept
        cut.log.state.epochs.drop_before(start)
        assert [epoch for epoch, begin in cut.log.state.epochs.entries] == [
            epoch for epoch, begin in bench.log.state.epochs.entries if begin < offset
        ]
    for offset in (start - 1, 5, 0):
        cut = await take_back(await opened(copy_disk(bench.disk)), offset)
        assert_empty(cut, offset)
    assert epochs[0] == (0, 0)


def assert_empty(bench: Bench, offset: int) -> None:
    log = bench.log
    assert (log.log_start, log.end_offset, log.durable_end, log.size_bytes) == (offset, offset, offset, 0)
    assert log.state.epochs.entries == [] and not producers_of(bench)
    assert not log.active_transactions.open and log.first_unstable == -1
    assert {name for name in contents(bench.disk) if name != "state"} == {f"{offset:020d}.log"}
    state = load_state(bench.disk, DIRECTORY)
    assert state is not None
    assert (state.log_start, state.producers_at, state.gaps_to, state.compacted_to) == (offset, offset, 0, 0)


@virtual
async def test_a_log_begins_anew_wherever_its_leader_does() -> None:
    bench = await long_log()
    for offset in (0, 7, bench.log.end_offset, bench.log.end_offset + 100):
        anew = await begin_anew(await opened(copy_disk(bench.disk)), offset)
        assert_empty(anew, offset)
        await anew.upkeep.begin_epochs([(anew.log, 9)])
        done = await anew.write(b"the first", producer_id=4, producer_epoch=0, base_sequence=17)
        assert done.base_offset == offset
        again = await opened(anew.disk.after_power_cut())
        assert (again.log.log_start, again.log.end_offset) == (offset, offset + 1)
        assert again.log.state.epochs.entries == [(9, offset)]
        assert list(producers_of(again)) == [4]


@virtual
async def test_a_compacted_log_is_cut_between_its_gaps() -> None:
    bench = await open_log(FaultyDisk(5, max_delay_s=0.0), COMPACT)
    for number in range(18):
        put(bench, b"k%d" % (number % 4), b"v%d" % number, producer_id=4, producer_epoch=0, base_sequence=number)
        await seal(bench)
        if number == 11:
            await compact(bench)
    batches = await batches_of(bench)
    gaps_to = bench.log.state.gaps_to
    assert len(batches) < 18 and 0 < gaps_to < 18
    for offset in range(bench.log.end_offset + 1):
        cut = await take_back(await opened(copy_disk(bench.disk), COMPACT), offset)
        assert await batches_of(cut) == below(batches, offset)
        assert cut.log.end_offset <= offset
        assert cut.log.state.gaps_to == min(gaps_to, offset)
        again = await opened(cut.disk.after_power_cut(), COMPACT)
        assert again.recovered.notes == []
        assert await batches_of(again) == below(batches, offset)
        await catch_up(again, [data for data in batches if decode_header(data).last_offset >= offset])
        assert await batches_of(again) == batches
        assert producers_of(again) == producers_of(bench)


# --- power cuts


async def cut_power(work: Callable[[Bench], Awaitable[Bench]], bench: Bench, moment: int) -> FaultyDisk:
    """The device after the power failed at the n-th operation of `work`."""
    bench.disk.cut_power_after(moment)
    task = asyncio.ensure_future(work(bench))
    await wait_for(lambda: task.done() or bench.disk.dead)
    return bench.disk.after_power_cut()


async def operations(work: Callable[[Bench], Awaitable[Bench]], bench: Bench) -> int:
    before = bench.disk.operations
    await work(bench)
    return bench.disk.operations - before


@pytest.mark.parametrize("where", ["at a base", "in a segment", "in the last one", "at the start"])
def test_a_power_cut_at_any_moment_leaves_what_lies_below_the_cut(where: str) -> None:
    async def check() -> None:
        origin = await long_log()
        batches, epochs = await batches_of(origin), origin.log.state.epochs.entries
        segments = origin.log.segments
        offset = {
            "at a base": segments[2].base,
            "in a segment": segments[1].base + 2,
            "in the last one": origin.log.end_offset - 1,
            "at the start": 0,
        }[where]
        work = partial(take_back, offset=offset)
        ends = set()
        for moment in range(1, await operations(work, await opened(copy_disk(origin.disk))) + 1):
            for seed in range(2):
                disk = copy_disk(origin.disk)
                disk._random.seed(seed)
                again = await opened(await cut_power(work, await opened(disk), moment))
                found = await batches_of(again)
                assert found == batches[: len(found)], f"moment {moment}, seed {seed}"
                assert len(found) >= len(below(batches, offset)), f"moment {moment}, seed {seed}"
                ends.add(again.log.end_offset)
                cut = await take_back(again, offset)
                await assert_ends(cut, batches, offset, epochs)
        assert len(ends) > 1

    run_virtual(check, 7)


@virtual
async def test_a_power_cut_while_a_log_in_use_is_cut_does_no_harm() -> None:
    rehearsal = await long_log()
    offset = rehearsal.log.segments[-2].base + 1
    work = partial(take_back, offset=offset)
    for moment in range(1, await operations(work, rehearsal) + 1):
        bench = await long_log()
        batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
        again = await opened(await cut_power(work, bench, moment))
        found = await batches_of(again)
        assert found == batches[: len(found)], f"moment {moment}"
        await assert_ends(await take_back(again, offset), batches, offset, epochs)


@virtual
async def test_a_power_cut_while_a_log_begins_anew_leaves_a_beginning_of_it_or_nothing() -> None:
    origin = await long_log()
    await origin.upkeep.delete_records(origin.log, origin.log.segments[1].base)
    batches = await batches_of(origin)
    offset = origin.log.end_offset + 10
    work = partial(begin_anew, offset=offset)
    starts = set()
    for moment in range(1, await operations(work, await opened(copy_disk(origin.disk))) + 1):
        for seed in range(2):
            disk = copy_disk(origin.disk)
            disk._random.seed(seed)
            again = await opened(await cut_power(work, await opened(disk), moment))
            found = await batches_of(again)
            assert found == batches[: len(found)], f"moment {moment}, seed {seed}"
            starts.add(again.log.log_start)
            assert_empty(await begin_anew(again, offset), offset)
    assert starts == {origin.log.log_start, offset}


@virtual
async def test_without_room_a_log_stays_as_it_was_until_there_is_some() -> None:
    bench = await long_log()
    batches, epochs = await batches_of(bench), bench.log.state.epochs.entries
    for work in (take_back, begin_anew):
        full = await opened(copy_disk(bench.disk))
        full.disk.fail("write_at", errno.ENOSPC, path_contains="state")
        kept = await work(full, 5, has_room=False)
        assert await batches_of(kept) == batches
        again = await work(kept, 5)
        assert again.log.end_offset == 5
        if work is take_back:
            await assert_ends(again, batches, 5, epochs)
