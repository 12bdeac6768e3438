"""From a directory to a log: whole after a crash, the tail alone is read, and nothing durable goes without a word."""

import errno

import pytest
from tests.simulated_broker import HUGE, batch_of, small_blocks, virtual, wait_for
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.errors import Code, PenstockError
from penstock.storage.log.options import LogOptions
from penstock.testing.faulty_disk import FaultyDisk

SMALL = LogOptions(segment_bytes=1000, index_interval_bytes=300)


async def written(count: int = 12, *, options: LogOptions = SMALL, tend: bool = True) -> Bench:
    bench = await open_log(FaultyDisk(3), options)
    for number in range(count):
        fields = {"producer_id": 4 + number % 2, "producer_epoch": 0, "base_sequence": number // 2}
        await bench.write(b"%d" % number + b"." * 200, **fields)
        if tend:
            await bench.tend()
    return bench


async def values(bench: Bench) -> list[bytes]:
    return [value.split(b".")[0] for batch in await bench.read_all() for _, value in batch.records]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def producers_of(bench: Bench) -> dict[object, object]:
    return {row[0]: (row[1], row[3]) for row in bench.log.state.producers.dump()}


# --- the tail


@virtual
async def test_a_torn_tail_is_cut_kept_aside_and_written_over() -> None:
    bench = await written(3, options=LogOptions())
    disk = bench.disk.abandon()
    path, size = bench.log.active.path, bench.log.active.size
    file = disk.open(path)
    torn = batch_of([b"never finished" * 20], bench.clock, base_offset=3)[:-5]
    file.write_at(torn, size)
    again = await open_log(disk, epoch=1)
    assert again.recovered.cut_bytes == len(torn)
    assert any("cut off" in note and path in note for note in again.recovered.notes)
    assert disk.open(path).size() == size, "the tail is still there"
    assert disk.read_durable(f"{DIRECTORY}/{0:020d}.{size}.cut") == torn
    assert disk.read_durable(path) == bench.disk.abandon().read_durable(path)[:size]
    await again.write(b"3")
    assert await values(again) == numbers(4)


@virtual
async def test_zeros_behind_the_end_are_cut_without_a_copy() -> None:
    bench = await written(3, options=LogOptions())
    disk = bench.disk.abandon()
    size = bench.log.active.size
    disk.open(bench.log.active.path).truncate(size + 5000)
    again = await open_log(disk, epoch=1)
    assert again.recovered.cut_bytes == 5000
    assert disk.open(bench.log.active.path).size() == size
    assert not [name for name in contents(disk) if name.endswith(".cut")]
    assert await values(again) == numbers(3)


@virtual
async def test_a_batch_of_another_epoch_behind_the_end_is_not_taken_in() -> None:
    """A valid batch with the right offset, left behind by a life whose tail had been cut: only its epoch tells."""
    bench = await written(2, options=LogOptions())
    disk = bench.disk.abandon()
    again = await open_log(disk, epoch=3)
    await again.write(b"2")
    disk = again.disk.abandon()
    stale = batch_of([b"stale"], bench.clock, base_offset=3, leader_epoch=0)
    disk.open(again.log.active.path).write_at(stale, again.log.active.size)
    last = await open_log(disk, epoch=4)
    assert last.recovered.cut_bytes == len(stale)
    assert await values(last) == numbers(3)


@virtual
async def test_epochs_forgotten_below_the_log_start_cost_no_records() -> None:
    """Epochs stay as long as their segment does, for followers that are behind; earlier releases dropped them."""
    bench = await written(3, options=LogOptions())
    for epoch in (1, 2):
        bench = await open_log(bench.disk.abandon(), epoch=epoch)
        await bench.write(b"%d" % (2 + epoch))
    await bench.upkeep.delete_records(bench.log, 4)
    assert bench.log.state.epochs.entries == [(0, 0), (1, 3), (2, 4)]
    bench.log.state.epochs.drop_before(4)
    await bench.upkeep.save_state(bench.log)
    again = await open_log(bench.disk.abandon(), epoch=3)
    assert again.recovered.cut_bytes == 0 and again.recovered.notes == []
    assert (again.log.log_start, again.log.end_offset) == (4, 5)
    assert [value for batch in await again.read_all() for _, value in batch.records] == [b"4"]


# --- only the tail is read


@virtual
async def test_a_checkpointed_log_is_not_read_again() -> None:
    options = LogOptions()
    bench = await written(600, options=options, tend=False)
    size = bench.log.active.size
    assert size > 150_000
    whole = copy_disk(bench.disk)
    everything = await open_log(whole, options, epoch=1)
    assert everything.recovered.scanned_bytes == size
    assert whole.bytes_read > size
    await bench.checkpoint()
    closed = copy_disk(bench.disk)
    clean = await open_log(closed, options, expected_end=600)
    assert clean.recovered.scanned_bytes == 0
    # The last partial block, the card, the state.
    assert closed.bytes_read < 64 * 1024 + 20_000
    await bench.write(b"600")
    behind = copy_disk(bench.disk)
    tail = await open_log(behind, options, epoch=1)
    assert 0 < tail.recovered.scanned_bytes < 200
    assert behind.bytes_read < 64 * 1024 + 20_000
    assert await values(tail) == numbers(601)


@virtual
async def test_a_thousand_sealed_segments_are_not_scanned() -> None:
    options = LogOptions(segment_bytes=61)  # one batch each
    bench = await open_log(FaultyDisk(3, max_delay_s=0.0), options)
    for number in range(1001):
        await bench.write(b"%d" % number + b"." * 1000)
        await bench.tend()
    assert len(bench.log.segments) >= 1001
    disk = copy_disk(bench.disk)
    again = await open_log(disk, options, epoch=1)
    assert again.recovered.scanned_bytes <= 2000
    assert disk.bytes_read < 1001 * 80 + 10_000, "more than the head of each card was read"
    assert again.log.end_offset == 1001
    assert (await again.read(500, 1))[0].header.base_offset == 500


# --- rolling


@virtual
async def test_a_new_segment_without_its_name_is_adopted() -> None:
    bench = await open_log(FaultyDisk(3), SMALL)
    bench.append([b"0" + b"." * 1200])
    for number in range(1, 6):  # the round that names the file never comes
        bench.append([b"%d" % number])
        if len(bench.log.segments) == 1:
            while len(bench.log.segments) == 1:
                await bench.disk.run(lambda: None)
            assert not bench.log.active.named
    disk = bench.disk.abandon()
    assert "next.log" in disk.list_dir(DIRECTORY)
    assert disk.open(f"{DIRECTORY}/next.log").size() > 0
    again = await open_log(disk, SMALL, epoch=1)
    assert "next.log" not in disk.list_dir(DIRECTORY)
    assert await values(again) == numbers(6)
    assert again.recovered.cut_bytes == 0
    await again.tend()
    assert again.log.segments[0].sealed


@virtual
async def test_an_empty_unnamed_segment_goes_and_one_that_does_not_follow_is_set_aside() -> None:
    bench = await written(2, options=LogOptions())
    for content, kept in ((b"", False), (bytes(batch_of([b"from elsewhere"], bench.clock, base_offset=50)), True)):
        disk = copy_disk(bench.disk)
        disk.open(f"{DIRECTORY}/next.log", create=True).write_at(content, 0)
        again = await open_log(disk, epoch=1)
        assert await values(again) == numbers(2)
        assert again.log.end_offset == 2
        assert "next.log" not in disk.list_dir(DIRECTORY)
        assert any(name.endswith(".cut") for name in contents(disk)) == kept
        assert any("set aside" in note for note in again.recovered.notes) == kept


@virtual
async def test_a_rolled_segment_without_its_card_gets_one() -> None:
    bench = await written(9, tend=False)
    assert bench.log.unsealed
    disk = bench.disk.abandon()
    assert not [name for name in contents(disk) if name.endswith(".index")]
    again = await open_log(disk, SMALL, epoch=1)
    assert [segment.sealed for segment in again.log.segments[:-1]] == [True] * (len(again.log.segments) - 1)
    assert await values(again) == numbers(9)
    third = await open_log(again.disk.abandon(), SMALL, epoch=2)
    assert third.recovered.scanned_bytes < 1300


@virtual
async def test_a_torn_rolled_segment_ends_the_log_and_what_follows_is_set_aside() -> None:
    """Only possible when nothing of it was durable: the state knows of no end beyond."""
    bench = await open_log(FaultyDisk(3), SMALL)
    for number in range(9):
        await bench.write(b"%d" % number + b"." * 200)
    disk = bench.disk.abandon()
    victim = bench.log.segments[1]
    disk.flip_byte(victim.path, victim.size - 3)
    again = await open_log(disk, SMALL, epoch=1)
    end = again.log.end_offset
    assert victim.base <= end < victim.next_offset
    assert await values(again) == numbers(end)
    names = [name for name in contents(disk) if name.endswith(".cut")]
    assert len(names) == len(bench.log.segments) - 1
    await again.write(b"%d" % end)
    assert await values(await open_log(again.disk.abandon(), SMALL, epoch=2)) == numbers(end + 1)


# --- what was durable


@virtual
async def test_a_log_shorter_than_it_was_is_refused_for_good_and_left_alone() -> None:
    bench = await written(9)
    await bench.checkpoint()
    for victim in (bench.log.active, bench.log.segments[-2]):
        disk = copy_disk(bench.disk)
        file = disk.open(victim.path)
        file.truncate(victim.size - 10)
        before = contents(disk)
        for expected_end in (9, None, None):  # the clean mark is gone after the first start; the damage is not
            with pytest.raises(PenstockError) as refused:
                await open_log(disk, SMALL, expected_end=expected_end, epoch=1)
            assert refused.value.code is Code.CORRUPT_LOG
            assert refused.value.help
            assert contents(disk) == before
    lost = copy_disk(bench.disk)
    lost.unlink(bench.log.active.path)
    lost.unlink(bench.log.active.checkpoint_path)
    for expected_end in (9, None):
        with pytest.raises(PenstockError, match="9 were durable"):
            await open_log(lost, SMALL, expected_end=expected_end, epoch=1)


@virtual
async def test_damage_below_the_checkpoint_is_refused_not_cut() -> None:
    with small_blocks(256):
        options = LogOptions(index_interval_bytes=0)
        bench = await written(5, options=options)
        await bench.checkpoint()
        disk = bench.disk.abandon()
        disk.flip_byte(bench.log.active.path, 100)
        again = await open_log(disk, options, epoch=1)
        with pytest.raises(PenstockError) as refused:
            await again.read(0)
        assert refused.value.code is Code.CORRUPT_LOG
        assert again.log.end_offset == 5
        assert disk.open(bench.log.active.path).size() == bench.log.active.size
        # It can still be written, and what is good can be read.
        await again.write(b"5")
        assert [batch.records[0][1][:1] for batch in await again.read(4)] == [b"4", b"5"]


# --- the state


@virtual
async def test_a_lost_state_is_rebuilt_equal() -> None:
    bench = await written(11)
    bench = await open_log(bench.disk.abandon(), SMALL, epoch=2)
    await bench.write(b"11", producer_id=4, producer_epoch=1, base_sequence=0)
    saved = copy_disk(bench.disk)
    lost = copy_disk(bench.disk)
    lost.unlink(f"{DIRECTORY}/state")
    damaged = copy_disk(bench.disk)
    damaged.flip_byte(f"{DIRECTORY}/state", 30)
    for disk in (saved, lost, damaged):
        again = await open_log(disk, SMALL, epoch=3)
        assert producers_of(again) == producers_of(bench)
        assert again.log.state.epochs.entries == [(0, 0), (2, 11), (3, 12)]
        assert await values(again) == numbers(12)
        assert bool(again.recovered.notes) == (disk is not saved)


@virtual
async def test_a_retry_after_a_restart_gets_its_old_offset() -> None:
    bench = await open_log(FaultyDisk(3), SMALL)
    offsets = []
    for number in range(8):
        fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 2 * number}
        offsets.append((await bench.write(b"a" * 150, b"b" * 150, **fields)).base_offset)
        if number == 4:
            await bench.checkpoint()  # some from the saved state, the rest from the batches
    again = await open_log(bench.disk.abandon(), SMALL, epoch=1)
    for number in range(3, 8):
        done = again.append([b"a" * 150, b"b" * 150], producer_id=9, producer_epoch=0, base_sequence=2 * number)
        assert done.base_offset == offsets[number]
    assert again.log.end_offset == 16
    with pytest.raises(PenstockError) as refused:
        again.append([b"c"], producer_id=9, producer_epoch=0, base_sequence=17)
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE
    assert again.append([b"c"], producer_id=9, producer_epoch=0, base_sequence=16).base_offset == 16


@virtual
async def test_deletions_that_were_decided_are_finished() -> None:
    bench = await written(12)
    await bench.upkeep.delete_records(bench.log, 5)
    start_only = copy_disk(bench.disk)
    # As if the power had gone right after the new start was saved: the old segments are still there.
    for name, data in contents((await written(12)).disk).items():
        if name.endswith((".log", ".index")) and not start_only.exists(f"{DIRECTORY}/{name}"):
            start_only.open(f"{DIRECTORY}/{name}", create=True).write_at(data, 0)
    again = await open_log(start_only, SMALL, epoch=1)
    assert again.log.log_start == 5
    assert again.log.segments[0].base <= 5 < again.log.segments[0].next_offset
    kept = [name for name in contents(start_only) if name.endswith((".log", ".index"))]
    assert min(int(name[:20]) for name in kept) == again.log.segments[0].base
    assert (await again.read(5, HUGE))[0].header.last_offset >= 5


@virtual
async def test_leftovers_of_interrupted_saves_go() -> None:
    bench = await written(2)
    disk = bench.disk.abandon()
    disk.open(f"{DIRECTORY}/state.tmp", create=True).write_at(b"half", 0)
    again = await open_log(disk, SMALL, epoch=1)
    assert "state.tmp" not in disk.list_dir(DIRECTORY)
    assert await values(again) == numbers(2)


# --- after a sync has failed


@virtual
async def test_what_a_failed_sync_left_in_memory_is_cut_off_and_not_trusted() -> None:
    """The kernel goes on showing pages that it could not write; a broker that stopped over it must not believe it."""
    bench = await written(3, options=LogOptions())
    bench.disk.fail("sync_files", errno.EIO)
    bench.append([b"3" + b"." * 200])
    await wait_for(lambda: bench.failures)
    assert bench.log.visible_end == 3
    disk = bench.disk.abandon()  # the process ends, the machine does not
    path = bench.log.active.path
    assert disk.open(path).size() > bench.log.active.checkpointed
    again = await open_log(disk, epoch=1)
    assert again.log.end_offset == 3
    assert again.recovered.cut_bytes > 0
    assert await values(again) == numbers(3)
    await again.write(b"3")
    after = await open_log(again.disk.after_power_cut(), epoch=2)
    assert await values(after) == numbers(4), "what was acknowledged after the start is gone with the power"


@virtual
async def test_dirty_pages_of_a_killed_process_are_still_read() -> None:
    """Nothing failed: what the kernel has it will write, and recovery syncs it."""
    bench = await written(3, options=LogOptions())
    bench.append([b"3" + b"." * 200])
    again = await open_log(bench.disk.abandon(), epoch=1)
    assert again.log.end_offset == 4
    after = await open_log(again.disk.after_power_cut(), epoch=2)
    assert await values(after) == numbers(4)


# --- damage


@virtual
async def test_what_no_crash_leaves_is_told_apart_from_what_one_does() -> None:
    bench = await written(12)
    crashed = await open_log(bench.disk.after_power_cut(), SMALL, epoch=1)
    assert crashed.recovered.damage == ""
    disk = copy_disk(crashed.disk.abandon())
    sealed = next(segment for segment in crashed.log.segments if segment.sealed)
    disk.flip_byte(sealed.index_path, 20)
    disk.flip_byte(sealed.path, sealed.size // 2)
    damaged = await open_log(disk, SMALL, epoch=2)
    assert sealed.path in damaged.recovered.damage
    assert damaged.recovered.damage in damaged.recovered.notes


@virtual
async def test_a_first_segment_that_is_gone_is_damage_and_not_retention() -> None:
    bench = await written(12)
    disk = copy_disk(bench.disk.abandon())
    first, second = bench.log.segments[:2]
    for path in (first.path, first.index_path):
        if disk.exists(path):
            disk.unlink(path)
    damaged = await open_log(disk, SMALL, epoch=1)
    assert damaged.log.log_start == second.base
    assert f"begins at offset {second.base}" in damaged.recovered.damage
