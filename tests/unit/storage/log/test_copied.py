"""Batches copied from a leader: the same log, whatever the pieces; damage is refused, a crash breaks no promise."""

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence

import pytest
from crc32c import crc32c
from tests.simulated_broker import batch_of, small_blocks, virtual, wait_for
from tests.simulated_log import Bench, contents, open_log
from tests.unit.storage.log.test_compacting import compact, put, seal
from tests.unit.storage.log.test_transactions import read_committed

from penstock.errors import Code, PenstockError
from penstock.records.batch import decode_header, patch_append_time
from penstock.records.control import Marker, build_marker
from penstock.storage.log.copied import append_copied
from penstock.storage.log.log import Appended
from penstock.storage.log.options import LogOptions
from penstock.storage.log.producers import SentBatch
from penstock.storage.log.transactions import AbortedTransaction
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

LARGE = LogOptions(index_interval_bytes=300)
SMALL = LogOptions(segment_bytes=700, index_interval_bytes=300)
COMPACT = LogOptions(segment_bytes=60, compact=True, min_dirty_ratio=0.0)
COMPACT_IN_ONE = LogOptions(compact=True, min_dirty_ratio=0.0)


async def settled(bench: Bench) -> None:
    """Return when everything is durable, and any roll it caused is over."""
    await bench.commit()
    await wait_for(lambda: not bench.log._rolling)


def mark(bench: Bench, producer_id: int, marker: Marker, *, epoch: int = 0, coordinator_epoch: int = 0) -> None:
    batch = bytearray(build_marker(producer_id, epoch, marker, coordinator_epoch, bench.clock.now_ms()))
    bench.log.append_marker(memoryview(batch), bench.log.state.epochs.latest, coordinator_epoch)


async def leader_log(options: LogOptions = LARGE) -> Bench:
    """Three epochs, producers with and without a later epoch, transactions that were committed, aborted, left open."""
    bench = await open_log(FaultyDisk(5, max_delay_s=0.0), options)
    for number in range(14):
        await bench.write(b"%d" % number, b"." * 90, producer_id=4, producer_epoch=0, base_sequence=number * 2)
        await asyncio.sleep(0.003)  # so that times differ
        if number % 3 == 0:
            fields = {"producer_id": 9, "producer_epoch": number // 9, "base_sequence": number // 3 * (number < 9)}
            await bench.write(b"in a transaction", transactional=True, **fields)
        if number == 4:
            mark(bench, 9, Marker.ABORT, coordinator_epoch=3)
            await settled(bench)
            await bench.upkeep.begin_epochs([(bench.log, 2)])
        if number == 7:
            mark(bench, 9, Marker.COMMIT, epoch=1, coordinator_epoch=5)
            await settled(bench)
            await bench.upkeep.begin_epochs([(bench.log, 5)])
            await bench.write(b"of nobody")
    append_at(bench, bench.clock.now_ms() + 70)
    await settled(bench)
    mark(bench, 11, Marker.COMMIT, coordinator_epoch=6)  # of a producer that wrote nothing here
    await settled(bench)
    bench.log.settle_transactions(bench.log.visible_end)
    assert bench.log.first_unstable >= 0 and aborted_of(bench)
    return bench


def append_at(bench: Bench, append_time: int) -> Appended:
    """A batch that carries the broker's time."""
    batch = memoryview(batch_of([b"stamped"], bench.clock, producer_id=7, producer_epoch=1, base_sequence=0))
    header = patch_append_time(batch, decode_header(batch), append_time)
    return bench.log.append(batch, header, bench.log.state.epochs.latest, append_time)


async def follower_log(options: LogOptions = LARGE, disk: FaultyDisk | None = None) -> Bench:
    bench = await open_log(disk or FaultyDisk(6, max_delay_s=0.0), options, epoch=-1)
    bench.log.follows = True
    return bench


def copied(bench: Bench, batches: Sequence[bytes]) -> None:
    append_copied(bench.log, memoryview(bytearray(b"".join(batches))))


def pieces(batches: list[bytes], size: int) -> Iterator[list[bytes]]:
    for at in range(0, len(batches), size):
        yield batches[at : at + size]


async def batches_of(bench: Bench) -> list[bytes]:
    """All there are; behind the last one offsets may be missing."""
    found: list[bytes] = []
    offset = bench.log.log_start
    while offset < bench.log.visible_end and (some := await bench.read(offset)):
        found += [batch.data for batch in some]
        offset = some[-1].header.last_offset + 1
    return found


async def catch_up(bench: Bench, batches: list[bytes], size: int = 1) -> None:
    for piece in pieces(batches, size):
        copied(bench, piece)
        if bench.log.must_save:
            await bench.upkeep.save_state(bench.log)
        await settled(bench)
        await bench.tend()
    bench.log.settle_transactions(bench.log.visible_end)


def aborted_of(bench: Bench) -> list[AbortedTransaction]:
    cards = [segment.card or segment.load_card(bench.disk) for segment in bench.log.segments]
    return [aborted for card in cards for aborted in card.transactions.aborted()]


def producers_of(bench: Bench) -> dict[int, tuple[int, list[SentBatch], int]]:
    return {
        producer_id: (producer.epoch, list(producer.batches), producer.coordinator_epoch)
        for producer_id, producer in bench.log.state.producers.items()
    }


def knowledge(bench: Bench) -> dict[str, object]:
    """What a log knows besides its bytes."""
    log = bench.log
    return {
        "end": log.end_offset,
        "epochs": log.state.epochs.entries,
        "producers": producers_of(bench),
        "open": dict(log.active_transactions.open),
        "aborted": aborted_of(bench),
        "first unstable": log.first_unstable,
    }


# --- the same log


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_copy_is_the_leaders_log_in_whole_and_in_pieces(size: int) -> None:
    async def check() -> None:
        leader, follower = await leader_log(), await follower_log()
        await catch_up(follower, await batches_of(leader), size)
        assert knowledge(follower) == knowledge(leader)
        times = {pid: producer.last_timestamp for pid, producer in leader.log.state.producers.items()}
        assert {pid: producer.last_timestamp for pid, producer in follower.log.state.producers.items()} == times
        name = f"{leader.log.active.name}.log"
        assert contents(follower.disk)[name] == contents(leader.disk)[name]
        assert leader.log.active.card is not None and follower.log.active.card is not None
        assert follower.log.active.card.encode() == leader.log.active.card.encode()
        assert await read_committed(follower) == await read_committed(leader)
        again = await open_log(follower.disk.abandon(), LARGE)
        assert again.recovered.notes == [] and again.recovered.cut_bytes == 0
        assert knowledge(again) == knowledge(leader)

    run_virtual(check, 7)


@virtual
async def test_segments_of_a_copy_are_the_leaders() -> None:
    """Batch by batch both roll at the same places: files and cards are equal, transactions reach over borders."""
    leader = await leader_log(SMALL)
    await leader.tend()
    assert len(leader.log.segments) > 4
    follower = await follower_log(SMALL)
    await catch_up(follower, await batches_of(leader))
    suffixes = (".log", ".index")
    files = {name: data for name, data in contents(leader.disk).items() if name.endswith(suffixes)}
    assert {name: data for name, data in contents(follower.disk).items() if name.endswith(suffixes)} == files
    assert knowledge(follower) == knowledge(leader)
    assert await read_committed(follower) == await read_committed(leader)


@virtual
async def test_a_copy_that_leads_recognises_what_is_sent_again() -> None:
    leader, follower = await leader_log(), await follower_log()
    await catch_up(follower, await batches_of(leader), 4)
    await follower.upkeep.begin_epochs([(follower.log, 8)])
    end, seen = follower.log.end_offset, 0
    for producer_id, (epoch, batches, _) in producers_of(leader).items():
        for sent in batches:
            values = [b"again"] * (sent.last_sequence - sent.first_sequence + 1)
            fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sent.first_sequence}
            assert follower.append(values, **fields) == (sent.base_offset, sent.last_offset, sent.timestamp)
            seen += sent.timestamp >= 0
    assert follower.log.end_offset == end
    assert seen == 1, "no batch has the broker's time"
    refused: list[tuple[Code, Callable[[], object]]] = [
        (
            Code.OUT_OF_ORDER_SEQUENCE,
            lambda: follower.append([b"a gap"], producer_id=4, producer_epoch=0, base_sequence=50),
        ),
        (
            Code.INVALID_PRODUCER_EPOCH,
            lambda: follower.append([b"fenced"], producer_id=9, producer_epoch=0, base_sequence=9),
        ),
        (Code.COORDINATOR_FENCED, lambda: mark(follower, 9, Marker.ABORT, epoch=1, coordinator_epoch=4)),
        (Code.COORDINATOR_FENCED, lambda: mark(follower, 11, Marker.ABORT, coordinator_epoch=5)),
    ]
    for code, attempt in refused:
        with pytest.raises(PenstockError) as told:
            attempt()
        assert told.value.code is code
    assert follower.log.end_offset == end
    assert follower.append([b"next"], producer_id=4, producer_epoch=0, base_sequence=28).base_offset == end


@virtual
async def test_a_copy_that_leads_ends_the_transactions_it_was_left_with() -> None:
    leader, follower = await leader_log(), await follower_log()
    await catch_up(follower, await batches_of(leader), 5)
    await follower.upkeep.begin_epochs([(follower.log, 8)])
    for bench in (leader, follower):
        mark(bench, 9, Marker.ABORT, epoch=1, coordinator_epoch=7)
        assert bench.log.first_unstable >= 0, "decided before it can be seen"
        await bench.commit()
        bench.log.settle_transactions(bench.log.visible_end)
        assert bench.log.first_unstable == -1
    assert aborted_of(follower) == aborted_of(leader)
    assert await read_committed(follower) == await read_committed(leader)


@virtual
async def test_what_the_copied_marker_decides_waits_until_it_can_be_seen() -> None:
    leader, follower = await leader_log(), await follower_log()
    batches = await batches_of(leader)
    log, marker = follower.log, next(at for at, data in enumerate(batches) if decode_header(data).is_control)
    copied(follower, batches[:marker])
    first = log.first_unstable
    assert first == log.active_transactions.first_open >= 0
    copied(follower, batches[marker : marker + 1])
    assert not log.active_transactions.open
    log.settle_transactions(log.end_offset - 1)
    assert log.first_unstable == first
    log.settle_transactions(log.end_offset)
    assert log.first_unstable == -1


@virtual
async def test_batches_that_are_there_are_passed_over() -> None:
    leader, follower = await leader_log(), await follower_log()
    batches = await batches_of(leader)
    copied(follower, batches[:9])
    await follower.upkeep.save_state(follower.log)
    known = knowledge(follower)
    for again in (batches[:9], batches[3:9], batches[8:9], batches[:1], []):
        copied(follower, again)
        assert knowledge(follower) == known
        assert not follower.log.must_save
    copied(follower, batches[5:])
    follower.log.settle_transactions(follower.log.end_offset)
    await follower.commit()
    assert knowledge(follower) == knowledge(leader)
    assert await batches_of(follower) == batches


# --- when the state must be saved


@virtual
async def test_only_news_of_epochs_and_gaps_must_be_saved() -> None:
    follower = await follower_log()

    def batch(base_offset: int, leader_epoch: int) -> bytes:
        return bytes(batch_of([b"a", b"b"], follower.clock, base_offset=base_offset, leader_epoch=leader_epoch))

    async def changes(*batches: bytes) -> bool:
        copied(follower, batches)
        must_save = log.must_save
        await follower.upkeep.save_state(log)
        assert not log.must_save
        return must_save

    log = follower.log
    assert await changes(batch(0, 3)), "the first epoch"
    assert not await changes(batch(2, 3), batch(4, 3))
    assert log.state.gaps_to == 0
    assert await changes(batch(6, 3), batch(8, 4), batch(10, 4)), "a later epoch"
    assert log.state.epochs.entries == [(3, 0), (4, 8)]
    assert not await changes(batch(12, 4))
    assert await changes(batch(14, 4), batch(20, 4), batch(22, 4)), "a gap"
    assert log.state.gaps_to == 22, "below it batches may be missing"
    assert not await changes(batch(24, 4))
    assert await changes(emptied(batch(26, 4))), "a batch that has lost its records"
    assert log.state.gaps_to == log.end_offset == 28


@virtual
async def test_what_must_be_saved_is_not_forgotten_when_the_rest_is_refused() -> None:
    """Nor when more comes while the state is on its way to the disk."""
    follower = await follower_log(disk=FaultyDisk(6))
    log = follower.log
    good, later, last = (
        bytes(batch_of([b"a"], follower.clock, base_offset=base, leader_epoch=epoch))
        for base, epoch in ((0, 1), (1, 1), (2, 2))
    )
    with pytest.raises(PenstockError):
        copied(follower, [good, flipped(later, -1)])
    assert log.must_save
    saving = asyncio.ensure_future(follower.upkeep.save_state(log))
    copied(follower, [later])
    assert log.must_save
    await saving
    assert not log.must_save
    saving = asyncio.ensure_future(follower.upkeep.save_state(log))
    for _ in range(10):  # what is known now is on its way
        await asyncio.sleep(0)
    copied(follower, [last])
    await saving
    assert log.must_save, "the epoch began behind what was saved"
    follower.disk.fail("write_at", errno.ENOSPC, path_contains="state")
    with pytest.raises(OSError, match="No space"):
        await follower.upkeep.save_state(log)
    assert log.must_save
    await follower.upkeep.save_state(log)
    assert not log.must_save


def emptied(batch: bytes) -> bytes:
    """As compaction leaves a batch whose records are gone: offsets and sequences stay."""
    data = bytearray(batch[:61])
    data[8:12] = (61 - 12).to_bytes(4, "big")
    data[57:61] = bytes(4)
    return sealed(data)


def sealed(data: bytearray) -> bytes:
    data[17:21] = crc32c(data[21:]).to_bytes(4, "big")
    return bytes(data)


@virtual
async def test_a_compacted_leader_is_copied_with_its_gaps() -> None:
    leader = await open_log(FaultyDisk(5, max_delay_s=0.0), COMPACT)
    for number in range(16):
        fields = {"producer_id": 4 + number % 2, "producer_epoch": 0, "base_sequence": number // 2}
        put(leader, b"k%d" % (number % 3 if number < 13 else number), b"v%d" % number, **fields)
        await seal(leader)
        if number == 5:
            await leader.upkeep.begin_epochs([(leader.log, 1)])
    await compact(leader)
    batches = await batches_of(leader)
    bases = [decode_header(data).base_offset for data in batches]
    assert bases[0] > 0 and len(bases) < 16, "nothing was compacted"
    for options in (COMPACT, COMPACT_IN_ONE):
        for size in (1, 2, 1000):
            follower = await follower_log(options)
            await catch_up(follower, batches, size)
            last_gap = [at for at, base in enumerate(bases) if at == 0 or base != bases[at - 1] + 1][-1]
            assert follower.log.state.gaps_to == bases[last_gap] + 1
            assert (follower.log.log_start, follower.log.end_offset) == (0, 16)
            for disk in (follower.disk.after_power_cut(), follower.disk.abandon()):
                again = await open_log(disk, options, epoch=-1)
                assert again.recovered.notes == [] and again.recovered.cut_bytes == 0
                assert await batches_of(again) == batches
                assert again.log.state.gaps_to == follower.log.state.gaps_to
                assert producers_of(again) == producers_of(follower)
                assert again.log.state.epochs.entries == follower.log.state.epochs.entries


# --- damage


def flipped(batch: bytes, at: int, mask: int = 0x01) -> bytes:
    data = bytearray(batch)
    data[at] ^= mask
    return bytes(data)


def at_offset(batch: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big", signed=True) + batch[8:]


def of_epoch(batch: bytes, epoch: int) -> bytes:
    return batch[:12] + epoch.to_bytes(4, "big") + batch[16:]


def with_length(batch: bytes, length: int) -> bytes:
    return batch[:8] + length.to_bytes(4, "big", signed=True) + batch[12:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "one bit of a record": lambda batch: flipped(batch, len(batch) - 1),
    "one bit of the attributes": lambda batch: flipped(batch, 22, 0x10),
    "one bit of the checksum": lambda batch: flipped(batch, 17),
    "cut in its records": lambda batch: batch[:-1],
    "cut behind its header": lambda batch: batch[:61],
    "cut in its header": lambda batch: batch[:60],
    "cut in its first bytes": lambda batch: batch[:5],
    "a length of nothing": lambda batch: with_length(batch, 0),
    "a negative length": lambda batch: with_length(batch, -1),
    "longer than all there is": lambda batch: with_length(batch, 1 << 20),
    "begins in the batch before": lambda batch: at_offset(batch, 3),
    "an epoch that is over": lambda batch: of_epoch(batch, 4),
    "offsets that run backwards": lambda batch: sealed(bytearray(batch[:23] + b"\xff\xff\xff\xfe" + batch[27:])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_what_came_before_stays(damage: str) -> None:
    async def check() -> None:
        follower, model = await follower_log(), await follower_log()
        good = [
            bytes(batch_of([b"a", b"b"], follower.clock, base_offset=base, leader_epoch=5, producer_id=3,
                           producer_epoch=0, base_sequence=base))
            for base in (0, 2, 4)
        ]  # fmt: skip
        bad = DAMAGE[damage](good[2])
        behind = [] if "cut" in damage or "longer" in damage else [b"".join(good)]
        with pytest.raises(PenstockError) as told:
            copied(follower, [*good[:2], bad, *behind])
        assert told.value.code is Code.CORRUPT_BATCH
        assert "t-0" in str(told.value)
        copied(model, good[:2])
        await follower.commit()
        assert knowledge(follower) == knowledge(model)
        assert await batches_of(follower) == good[:2]
        copied(follower, good[2:])  # the leader is asked again, and nothing is in the way
        await follower.commit()
        assert await batches_of(follower) == good

    run_virtual(check, 7)


@virtual
async def test_a_batch_over_the_end_is_refused() -> None:
    """Part of it is here already: this history is another one."""
    follower = await follower_log()
    copied(follower, [bytes(batch_of([b"a", b"b"], follower.clock))])
    for base_offset in (0, 1):
        batch = bytes(batch_of([b"a", b"b", b"c"], follower.clock, base_offset=base_offset))
        with pytest.raises(PenstockError, match="this replica ends at 2"):
            copied(follower, [batch])
    assert follower.log.end_offset == 2


@virtual
async def test_what_no_checksum_covers_is_checked_by_what_it_says() -> None:
    """Format version and base offset lie before the CRC: a batch nobody could read again is not written."""
    clock_bench = await follower_log()
    first, second, third = (
        bytes(batch_of([b"a", b"b"], clock_bench.clock, base_offset=base, leader_epoch=5)) for base in (0, 2, 4)
    )
    for bad in (flipped(second, 16), at_offset(second, 0), at_offset(second, -2), at_offset(second, -(1 << 62))):
        follower = await follower_log()
        with pytest.raises(PenstockError) as told:
            copied(follower, [first, bad, third])
        assert told.value.code is Code.CORRUPT_BATCH
        assert follower.log.end_offset == 2
    follower = await follower_log()
    with pytest.raises(PenstockError):  # or the second would be taken for one behind a gap
        copied(follower, [at_offset(first, -2), second])
    assert follower.log.end_offset == 0


@virtual
async def test_every_flipped_bit_behind_the_checksum_is_found() -> None:
    follower = await follower_log()
    batch = bytes(batch_of([b"value"], follower.clock, producer_id=3, producer_epoch=0, base_sequence=0))
    for at in [*range(8, 12), *range(17, len(batch))]:
        for bit in range(8):
            with pytest.raises(PenstockError):
                copied(follower, [flipped(batch, at, 1 << bit)])
    assert follower.log.end_offset == 0
    assert follower.log.active.size == 0


@virtual
async def test_without_room_the_rest_comes_later() -> None:
    leader, follower = await leader_log(), await follower_log()
    batches = await batches_of(leader)
    follower.disk.fail("write_at", errno.ENOSPC, when=6, path_contains=".log")
    with pytest.raises(PenstockError) as told:
        copied(follower, batches)
    assert told.value.code is Code.STORAGE_FULL
    assert follower.failures == []
    await follower.commit()
    assert await batches_of(follower) == batches[:5]
    await catch_up(follower, batches[5:], 1000)
    assert await batches_of(follower) == batches
    assert knowledge(follower) == knowledge(leader)


@virtual
async def test_a_closed_log_takes_nothing() -> None:
    follower = await follower_log()
    follower.log.closed = True
    with pytest.raises(PenstockError) as told:
        copied(follower, [bytes(batch_of([b"a"], follower.clock))])
    assert told.value.code is Code.NOT_AVAILABLE
    assert follower.log.end_offset == 0


# --- power cuts


class Copying:
    """A follower whose power may fail; `safe` is what it would have told its leader."""

    def __init__(self, bench: Bench, batches: list[bytes]) -> None:
        self.bench = bench
        self.batches = batches
        self.safe = 0

    async def run(self, size: int) -> None:
        bench = self.bench
        for number, piece in enumerate(pieces(self.batches, size)):
            copied(bench, piece)
            if number % 2:
                await bench.tend()  # nobody knows when
            if bench.log.must_save:
                await bench.upkeep.save_state(bench.log)
            else:
                await bench.commit()
            self.safe = bench.log.end_offset
            await wait_for(lambda: not bench.log._rolling)


async def cut_anywhere(batches: list[bytes], options: LogOptions, size: int, seeds: int) -> set[int]:
    """Cut the power at every operation of a copy; how far the logs went that were found afterwards."""
    rehearsal = Copying(await follower_log(options), batches)
    before = rehearsal.bench.disk.operations
    await rehearsal.run(size)
    ends = set()
    for moment in range(1, rehearsal.bench.disk.operations - before + 1):
        for seed in range(seeds):
            copying = Copying(await follower_log(options, FaultyDisk(seed, max_delay_s=0.0)), batches)
            disk = copying.bench.disk
            disk.cut_power_after(moment)
            task = asyncio.get_running_loop().create_task(copying.run(size))
            await wait_for(lambda task=task, disk=disk: task.done() or disk.dead)
            again = await open_log(disk.after_power_cut(), options, epoch=-1)  # never refuses to
            end = again.log.end_offset
            assert end >= copying.safe, f"moment {moment}, seed {seed}"
            kept = await batches_of(again)
            assert kept == batches[: len(kept)], f"moment {moment}, seed {seed}"
            ends.add(end)
            again.log.state.epochs.cut_to(end)  # as whoever follows from now on does
            more = Copying(again, batches[len(kept) : len(kept) + 1])
            await more.run(size)  # what is told now must not depend on what nobody has saved
            last = await open_log(again.disk.after_power_cut(), options, epoch=-1)
            assert last.log.end_offset >= more.safe, f"moment {moment}, seed {seed}"
            await catch_up(last, batches[len(await batches_of(last)) :], 1000)
            assert await batches_of(last) == batches
            assert producers_of(last) == producers_of(rehearsal.bench)
            assert last.log.state.epochs.entries == rehearsal.bench.log.state.epochs.entries
    return ends


@virtual
async def test_a_power_cut_takes_nothing_that_was_told_to_the_leader() -> None:
    batches = (await batches_of(await leader_log()))[3:]
    first = decode_header(batches[0]).base_offset
    batches = [at_offset(data, decode_header(data).base_offset - first) for data in batches]
    with small_blocks(checkpoint_bytes=300):
        ends = await cut_anywhere(batches, SMALL, 2, 2)
    assert len(ends) > len(batches) / 3


@virtual
async def test_a_power_cut_over_gaps_takes_nothing_that_was_told_to_the_leader() -> None:
    bench = await follower_log()
    batches = []
    for number, base in enumerate((3, 4, 9, 10, 12, 20, 21)):
        data = batch_of([b"." * 150], bench.clock, base_offset=base, leader_epoch=number // 4)
        batches.append(bytes(data))
    with small_blocks(checkpoint_bytes=300):
        ends = await cut_anywhere(batches, LogOptions(segment_bytes=500, compact=True), 1, 2)
    assert len(ends) > 4
