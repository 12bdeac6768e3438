"""A segment copied whole: the same log as if it had been appended; a crash or a flipped bit anywhere does no harm."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.simulated_broker import small_blocks, virtual, wait_for
from tests.simulated_log import DIRECTORY, Bench, contents, open_log
from tests.unit.storage.log.test_compacting import compact, mark, put, seal
from tests.unit.storage.log.test_transactions import read_committed

from penstock.errors import Code, PenstockError
from penstock.records.batch import decode_header
from penstock.records.control import Marker
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.adoption import IncomingSegment
from penstock.storage.log.copied import append_copied
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.log import Log
from penstock.storage.log.options import LogOptions
from penstock.storage.log.producers import Producers
from penstock.storage.log.segment import Segment
from penstock.storage.log.segment_range import find_segment, read_range
from penstock.testing.faulty_disk import FaultyDisk

SMALL = LogOptions(segment_bytes=1500, index_interval_bytes=300)
COMPACT = LogOptions(segment_bytes=60, compact=True, min_dirty_ratio=0.0)
RANGE = 1024


@contextmanager
def tiny_blocks() -> Iterator[None]:
    """Half a kilobyte each, so that a segment of a test has several, and its last one is not full."""
    with (
        small_blocks(512),
        patch("penstock.storage.log.adoption.BLOCK_BYTES", 512),
        patch("penstock.storage.log.segment_range.BLOCK_BYTES", 512),
        patch("penstock.storage.log.adoption._SYNC_BYTES", 1000),
    ):
        yield


async def leader_log(segments: int = 3) -> Bench:
    """Several sealed segments in two epochs: plain batches, two producers, transactions over segment borders."""
    bench = await open_log(FaultyDisk(5, max_delay_s=0.0), SMALL)
    number = 0
    while len(bench.log.segments) <= segments:
        fields = {"producer_id": 4 + number % 2, "producer_epoch": 0, "base_sequence": number // 2}
        await bench.write(b"%d" % number + b"." * 150, **fields)
        if number % 5 == 1:
            sequence = {"base_sequence": number // 5, "producer_epoch": 0}
            await bench.write(b"in a transaction", producer_id=9, transactional=True, **sequence)
        if number % 12 == 7:
            mark(bench, 9, Marker.ABORT if number % 24 == 7 else Marker.COMMIT)
            await bench.commit()
        if number == 9:
            await bench.upkeep.begin_epochs([(bench.log, 3)])
        await bench.tend()
        number += 1
    await bench.write(b"in the segment that is written")
    bench.log.settle_transactions(bench.log.visible_end)
    sealed = bench.log.segments[:-1]
    assert all(segment.sealed for segment in sealed)
    assert any(segment.first_open >= 0 for segment in sealed), "no transaction reaches over a border"
    assert any(segment.aborted_count for segment in sealed)
    return bench


async def follower_log(disk: FaultyDisk | None = None, options: LogOptions = SMALL) -> Bench:
    bench = await open_log(disk or FaultyDisk(6, max_delay_s=0.0), options, epoch=-1)
    bench.log.follows = True
    return bench


def incoming(leader: Bench, follower: Bench, number: int = 1) -> IncomingSegment:
    """All bytes of the leader's segment that begins where the follower ends."""
    segment = next_segment(leader, follower)
    assert segment is not None
    first = read_range(leader.log, segment, 0, RANGE)
    copy = IncomingSegment(follower.disk, DIRECTORY, number, segment.base, first.card)
    position = 0
    while position < copy.size:
        file, at, size, _ = read_range(leader.log, segment, position, RANGE).data
        position = copy.add(file.read_at(size, at), position)
    return copy


def next_segment(leader: Bench, follower: Bench) -> Segment | None:
    segment = find_segment(leader.log, follower.log.end_offset, leader.log.committed_end, 0)
    return segment if segment is not None and segment.base == follower.log.end_offset else None


def complete(follower: Bench, copy: IncomingSegment) -> None:
    state = follower.log.state
    now_ms = follower.clock.now_ms()
    copy.complete(LeaderEpochs(state.epochs.entries), Producers.restore(state.producers.dump()), now_ms)


async def adopt(follower: Bench, copy: IncomingSegment) -> bool:
    log = follower.log
    recovered, adopted = await follower.upkeep.adopt(log, copy, follower.clock.now_ms())
    follower.log = Log(log.name, log.directory, log.options, log.shelf, recovered.state, recovered.segments)
    follower.log.follows = True
    follower.log.committed_end = follower.log.end_offset
    return adopted


async def copy_next(leader: Bench, follower: Bench) -> bool:
    """Whether the leader has a segment to copy; it is copied then."""
    if next_segment(leader, follower) is None:
        return False
    copy = incoming(leader, follower)
    complete(follower, copy)
    assert await adopt(follower, copy)
    return True


async def catch_up(leader: Bench, follower: Bench) -> None:
    """By copies, and then by fetches."""
    while await copy_next(leader, follower):
        pass
    await fetch(leader, follower, leader.log.end_offset)


async def fetch(leader: Bench, follower: Bench, end: int) -> None:
    while follower.log.end_offset < end:
        batches = await leader.read(follower.log.end_offset, limit=end)
        if not batches:
            break
        for batch in batches:
            append_copied(follower.log, memoryview(bytearray(batch.data)))
            if follower.log.must_save:
                await follower.upkeep.save_state(follower.log)
        await follower.commit()
    follower.log.settle_transactions(follower.log.visible_end)
    follower.log.committed_end = follower.log.visible_end


def knowledge(bench: Bench) -> dict[str, object]:
    """What a log knows besides its bytes."""
    log = bench.log
    rows = {row[0]: (row[1], row[3], row[4]) for row in log.state.producers.dump()}
    return {
        "end": log.end_offset,
        "epochs": log.state.epochs.entries,
        "producers": rows,
        "open": dict(log.active_transactions.open),
        "first unstable": log.first_unstable,
    }


def segment_files(bench: Bench) -> dict[str, bytes]:
    files = contents(bench.disk)
    return {name: data for name, data in files.items() if name.endswith((".log", ".index"))}


async def assert_same(leader: Bench, follower: Bench) -> None:
    assert knowledge(follower) == knowledge(leader)
    assert segment_files(follower) == segment_files(leader)
    assert await read_committed(follower) == await read_committed(leader)


@virtual
async def test_a_copied_log_is_the_leaders_in_every_respect() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        copies = 0
        while await copy_next(leader, follower):
            copies += 1
            assert all(segment.sealed for segment in follower.log.segments[:-1])
            assert follower.log.active.size == 0, "the copy goes on being written"
        assert copies == 3
        await catch_up(leader, follower)
        await assert_same(leader, follower)
        again = await open_log(follower.disk.abandon(), SMALL)
        assert again.recovered.notes == []
        await assert_same(leader, again)


@virtual
async def test_a_copy_recognises_what_a_producer_sends_again() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        while await copy_next(leader, follower):
            pass
        end = follower.log.end_offset
        await follower.upkeep.begin_epochs([(follower.log, 8)])
        for batch in split_log(leader, end)[-4:]:
            header = decode_header(batch)
            if header.base_sequence < 0:
                continue
            fields = {"producer_id": header.producer_id, "producer_epoch": 0, "base_sequence": header.base_sequence}
            assert follower.append([b"again"], **fields).base_offset == header.base_offset
        assert follower.log.end_offset == end
        with pytest.raises(PenstockError) as told:
            follower.append([b"a gap"], producer_id=4, producer_epoch=0, base_sequence=500)
        assert told.value.code is Code.OUT_OF_ORDER_SEQUENCE


def split_log(bench: Bench, end: int) -> list[bytes]:
    batches = []
    for segment in bench.log.segments:
        data = contents(bench.disk)[f"{segment.name}.log"]
        at = 0
        while at < segment.size and decode_header(data, at).last_offset < end:
            size = decode_header(data, at).size
            batches.append(data[at : at + size])
            at += size
    return batches


@virtual
async def test_a_copy_goes_on_behind_what_was_fetched() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(4), await follower_log(options=LogOptions(segment_bytes=1 << 20))
        border = leader.log.segments[2].base
        await fetch(leader, follower, border)
        assert follower.log.active.size > 0
        await catch_up(leader, follower)
        assert knowledge(follower) == knowledge(leader)
        assert [segment.base for segment in follower.log.segments] == [
            0,
            *(segment.base for segment in leader.log.segments[2:]),
        ]
        assert all(segment.sealed for segment in follower.log.segments[:-1])
        assert [batch.data for batch in await follower.read_all()] == [batch.data for batch in await leader.read_all()]


@virtual
async def test_compacted_segments_keep_their_gaps() -> None:
    with tiny_blocks():
        leader = await open_log(FaultyDisk(5, max_delay_s=0.0), COMPACT)
        for number in range(14):
            put(leader, b"k%d" % (number % 3), b"v%d" % number, producer_id=4, producer_epoch=0, base_sequence=number)
            await seal(leader)
        await compact(leader)
        follower = await follower_log(options=COMPACT)
        await catch_up(leader, follower)
        fetched = await follower_log(options=COMPACT)
        await fetch(leader, fetched, leader.log.end_offset)
        assert follower.log.state.gaps_to >= leader.log.segments[0].next_offset
        assert knowledge(follower) == knowledge(fetched)
        assert segment_files(follower) == segment_files(leader)
        disk = follower.disk.abandon()
        disk.flip_byte(follower.log.segments[0].index_path, 40)
        again = await open_log(disk, COMPACT)
        assert [batch.data for batch in await again.read_all()] == [batch.data for batch in await leader.read_all()]


@virtual
async def test_a_flipped_bit_on_the_way_is_found() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        segment = next_segment(leader, follower)
        assert segment is not None
        first = read_range(leader.log, segment, 0, RANGE)
        for at in range(len(first.card)):
            flipped = bytearray(first.card)
            flipped[at] ^= 1 << at % 8
            with pytest.raises(DamagedFile):
                IncomingSegment(follower.disk, DIRECTORY, at, segment.base, bytes(flipped))
        with pytest.raises(DamagedFile, match="not of 1"):
            IncomingSegment(follower.disk, DIRECTORY, 0, segment.base + 1, first.card)
        assert not [name for name in contents(follower.disk) if ".cop" in name]
        copy = IncomingSegment(follower.disk, DIRECTORY, 1, segment.base, first.card)
        file, _, size, _ = first.data
        data = file.read_at(size, 0)
        for at in range(0, size, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            with pytest.raises(DamagedFile):
                copy.add(bytes(flipped), 0)
        for short in (b"", data[:-1], data[:1000], data + b"\0"):
            with pytest.raises(DamagedFile):
                copy.add(short, 0)
        assert follower.disk.open(copy.path).size() == 0, "bytes that do not match were written"
        assert copy.add(data, 0) == RANGE


@virtual
async def test_what_matches_its_card_and_is_no_log_is_refused() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        copy = incoming(leader, follower)
        with pytest.raises(DamagedFile, match="continues"):
            copy.complete(LeaderEpochs([(7, 0)]), Producers(), 0)  # this log has a later epoch than the copy
        file = follower.disk.open(copy.path)
        file.write_at(b"\xff", 16)  # as if the leader had summed up what is no batch
        with pytest.raises(DamagedFile, match="no batch at byte 0"):
            complete(follower, copy)
        copy.drop()
        assert not follower.disk.exists(copy.path)


@virtual
async def test_a_power_cut_at_any_moment_is_harmless() -> None:
    with tiny_blocks():
        leader = await leader_log()

        async def begin(seed: int) -> Bench:
            bench = await follower_log(FaultyDisk(seed, max_delay_s=0.0))
            await fetch(leader, bench, leader.log.segments[1].base)
            return bench

        rehearsal = await begin(0)
        before = rehearsal.disk.operations
        await copy_next(leader, rehearsal)
        operations = rehearsal.disk.operations - before
        assert operations > 20
        outcomes = set()
        for moment in range(1, operations + 1):
            for seed in range(4):
                bench = await begin(seed)
                start = bench.log.end_offset
                bench.disk.cut_power_after(moment)
                copying = asyncio.get_running_loop().create_task(copy_next(leader, bench))
                await wait_for(lambda done=copying.done, disk=bench.disk: done() or disk.dead)
                again = await open_log(bench.disk.after_power_cut(), SMALL, epoch=-1)
                assert again.recovered.notes == [], f"moment {moment}, seed {seed}"
                assert again.recovered.cut_bytes == 0
                end = again.log.end_offset
                assert end in (start, leader.log.segments[2].base)
                outcomes.add(end)
                again.log.state.epochs.cut_to(end)  # as whoever follows from now on does
                assert not [name for name in contents(again.disk) if ".cop" in name]
                await fetch(leader, again, end + 3)  # acknowledged, and it must not depend on what nobody has saved
                last = await open_log(again.disk.after_power_cut(), SMALL, epoch=-1)
                assert last.log.end_offset >= end + 3, f"moment {moment}, seed {seed}"
                await catch_up(leader, last)
                assert knowledge(last) == knowledge(leader)
                copied = [batch.data for batch in await last.read_all()]
                assert copied == [batch.data for batch in await leader.read_all()]
        assert len(outcomes) == 2


@virtual
async def test_with_a_full_disk_the_log_stays_as_it_was() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        copy = incoming(leader, follower)
        complete(follower, copy)
        follower.disk.fail("write_at", errno.ENOSPC, path_contains="copied.index")
        assert not await adopt(follower, copy)
        assert follower.log.end_offset == 0
        assert not [name for name in contents(follower.disk) if ".cop" in name]
        await catch_up(leader, follower)
        await assert_same(leader, follower)


@virtual
async def test_what_an_abandoned_attempt_still_writes_does_not_matter() -> None:
    with tiny_blocks():
        leader, follower = await leader_log(), await follower_log()
        abandoned, copy = incoming(leader, follower, 1), incoming(leader, follower, 2)
        complete(follower, copy)
        file = follower.disk.open(abandoned.path)
        file.write_at(b"late", 0)
        abandoned.drop()
        assert await adopt(follower, copy)
        await catch_up(leader, follower)
        await assert_same(leader, follower)


@virtual
async def test_only_whole_segments_below_the_limit_are_lent() -> None:
    with tiny_blocks():
        leader = await leader_log()
        segments = leader.log.segments
        end = leader.log.end_offset
        assert find_segment(leader.log, 0, end, 0) is segments[0]
        assert find_segment(leader.log, 1, end, 0) is segments[1], "not where the next one begins"
        assert find_segment(leader.log, 0, segments[1].base - 1, 0) is None
        assert find_segment(leader.log, segments[-1].base, end, 0) is None, "the segment that is written"
        assert find_segment(leader.log, 0, end, leader.log.size_bytes) is segments[0]
        assert find_segment(leader.log, 0, end, leader.log.size_bytes + 1) is None
        leader.disk.open(segments[0].path).truncate(segments[0].size - 1)
        with pytest.raises(PenstockError, match="too short"):
            read_range(leader.log, segments[0], 1024, RANGE)
