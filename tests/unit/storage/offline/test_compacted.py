"""Compacted logs with transactions at rest: gaps are not blamed, and after a repair aborted records stay aborted."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from tests.simulated_broker import Stored, small_blocks, split
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.errors import PenstockError
from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.storage import checked_file
from penstock.storage.compaction.process import InlineCompaction
from penstock.storage.compaction.swap import finish_swap, prepare_swap
from penstock.storage.log.compacting import Compaction
from penstock.storage.log.options import LogOptions
from penstock.storage.log.rewriting import Rewriting, _aborted
from penstock.storage.log.state import LogState, load_state
from penstock.storage.log.transactions import Transactions
from penstock.storage.offline.findings import RESTORE, Kind, Start
from penstock.storage.offline.log_inspection import inspect_partition
from penstock.storage.offline.log_repair import Step, lost_ranges, plan_partition
from penstock.storage.offline.partition_report import PartitionReport
from penstock.testing.faulty_disk import FaultyDisk, PowerCut
from penstock.testing.virtual_clock import run_virtual

OPTIONS = LogOptions(segment_bytes=500, index_interval_bytes=100, compact=True, min_dirty_ratio=0.0)
NOW_MS = 1_700_000_000_000


class Writer:
    """Keyed and transactional batches into a log, some of which a pass will take out."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sequences: dict[int, int] = {}

    async def put(self, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
        fields: dict[str, Any] = {}
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + 1
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        batch = build_batch([(key, value, (), self.bench.clock.now_ms())], transactional=producer_id >= 0, **fields)
        self.bench.append_batch(bytearray(batch))
        await self._settle()

    async def end(self, producer_id: int, marker: Marker) -> None:
        batch = bytearray(build_marker(producer_id, 0, marker, 0, self.bench.clock.now_ms()))
        self.bench.log.append_marker(memoryview(batch), self.bench.log.state.epochs.latest, 0)
        await self._settle()

    async def roll(self) -> None:
        self.bench.log.want_roll()
        await self._settle()
        await self.bench.tend()

    async def _settle(self) -> None:
        await self.bench.commit()
        await self.bench.tend()
        self.bench.log.settle_transactions(self.bench.log.visible_end)


async def written(*, pass_: bool = True) -> Bench:
    """A compacted part with gaps, an emptied batch, a horizon and markers; behind it a part as it was written."""
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    writer = Writer(bench)
    await writer.put(b"a", b"1")
    await writer.put(b"a", b"2")
    await writer.put(b"t", b"aborted", 7)
    await writer.put(b"b", b"1")
    await writer.put(b"t", b"committed", 8)
    await writer.end(8, Marker.COMMIT)
    await writer.end(7, Marker.ABORT)
    for number in range(3):
        await writer.put(b"a", b"%d" % (3 + number))
    await writer.put(b"gone", None)
    await writer.roll()
    if pass_:
        await compact(bench)
        assert any(batch.header.record_count == 0 for batch in await bench.read_all())
    await writer.put(b"c", b"aborted", 9)
    await writer.put(b"c", b"kept")
    await writer.put(b"a", b"kept, too")
    await writer.roll()
    await writer.end(9, Marker.ABORT)
    await writer.put(b"d", b"1")
    await bench.checkpoint()
    assert len(bench.log.segments) >= 3
    return bench


async def compact(bench: Bench) -> None:
    compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
    job = compaction.next_job(bench.log, bench.clock.now_ms())
    assert job is not None
    assert await compaction.run(bench.log, job, bench.clock.now_ms())
    assert bench.log.state.gaps_to > 0 and bench.log.state.compacted_to > 0


def look(disk: FaultyDisk, *, compacted: bool = False) -> PartitionReport:
    before = contents(disk)
    report = inspect_partition(disk, DIRECTORY, "t-0", deep=True, compacted=compacted)
    assert contents(disk) == before, "a look changed something"
    return report


def plan(disk: FaultyDisk, *, compacted: bool = False) -> list[Step]:
    return plan_partition(inspect_partition(disk, DIRECTORY, "t-0", compacted=compacted), NOW_MS)


def repair(disk: FaultyDisk, *, compacted: bool = False) -> list[Step]:
    steps = plan(disk, compacted=compacted)
    for step in steps:
        step.apply(disk)
    return steps


def damage(disk: FaultyDisk) -> list[object]:
    return [finding for finding in look(disk, compacted=True).findings if finding.is_damage]


async def committed(disk: FaultyDisk) -> dict[int, bytes]:
    """What a start then serves to a reader of committed records."""
    bench = await open_log(disk, OPTIONS)
    assert bench.recovered.cut_bytes == 0
    log = bench.log
    assert log.segments[-1].open_transactions == {}, "readers of committed records would wait for ever"
    rows = []
    for segment in log.segments:
        card = segment.card or segment.load_card(disk)
        rows += card.transactions.aborted()

    def is_aborted(batch: Stored) -> bool:
        header = batch.header
        return header.is_transactional and any(
            row.producer_id == header.producer_id and row.first_offset <= header.base_offset <= row.last_offset
            for row in rows
        )

    found: dict[int, bytes] = {}
    for segment in log.segments:
        data = disk.open(segment.path).read_at(segment.size, 0)
        for batch in split(data):
            if not batch.header.is_control and not is_aborted(batch):
                found.update(batch.records)
    return found


def lost_offsets(steps: list[Step]) -> set[int]:
    ranges = lost_ranges(steps).get("t-0", [])
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def small(block_bytes: int = 128) -> AbstractContextManager[None]:
    return small_blocks(block_bytes, 1 << 30)


@pytest.mark.parametrize("state_is_lost", [False, True])
def test_a_sound_compacted_log_has_no_damage(state_is_lost: bool) -> None:
    async def main() -> None:
        bench = await written()
        if state_is_lost:
            bench.disk.unlink(f"{DIRECTORY}/state")
        kinds = [finding.kind for finding in look(bench.disk).findings]
        assert kinds == ([Kind.STATE] if state_is_lost else [])
        assert look(bench.disk).segments[0].has_gaps

    with small():
        run_virtual(main, 1)


def test_every_flipped_byte_is_found_and_repaired_without_showing_aborted_records() -> None:
    async def main() -> None:
        bench = await written()
        before = await committed(copy_disk(bench.disk))
        state = load_state(bench.disk, DIRECTORY)
        assert state is not None and set(before.values()) >= {b"5", b"kept", b"committed"}
        assert b"aborted" not in before.values()
        lossless = 0
        for name, content in contents(bench.disk).items():
            for position in range(0, len(content), 1 if name.endswith(".log") else 5):
                disk = copy_disk(bench.disk)
                disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << (position * 5 + len(name)) % 8)
                where = f"{name} byte {position}"
                assert damage(disk), f"{where}: not found"
                steps = repair(disk, compacted=True)
                assert damage(disk) == [], where
                after, lost = await committed(disk), lost_offsets(steps)
                assert {at: value for at, value in before.items() if at not in lost} == after, where
                lossless += not lost & set(before)
                saved = load_state(disk, DIRECTORY)
                assert saved is not None and saved.gaps_to >= state.gaps_to, where
                if name != "state":
                    assert saved.compacted_to == state.compacted_to, where
        assert lossless > 100

    with small():
        run_virtual(main, 1)


@pytest.mark.parametrize("bit", [0, 2, 40, 63])
def test_an_offset_that_only_the_card_knows_is_put_right(bit: int) -> None:
    """Between gaps many offsets would fit; the block's checksum tells which one it was."""

    async def main() -> None:
        bench = await written()
        before = await committed(copy_disk(bench.disk))
        first = bench.log.segments[0]
        size = split(contents(bench.disk)[f"{first.name}.log"])[0].header.size
        disk = copy_disk(bench.disk)
        disk.flip_byte(first.path, size + 7 - bit // 8, 1 << bit % 8)
        [finding] = look(disk).findings
        assert finding.kind is Kind.BATCHES and "checksums" in finding.what
        assert lost_offsets(repair(disk)) == set()
        assert await committed(disk) == before

    with small():
        run_virtual(main, 1)


def test_an_offset_nobody_knows_is_not_made_right_by_a_new_card() -> None:
    async def main() -> None:
        bench = await written()
        first = bench.log.segments[0]
        assert split(contents(bench.disk)[f"{first.name}.log"])[0].header.base_offset == 2
        bench.disk.open(first.path).write_at((1).to_bytes(8, "big"), 0)  # two bits, and it still fits
        [finding] = look(bench.disk).findings
        assert (finding.kind, finding.start, finding.way_out) == (Kind.BLOCK, Start.ERRORS, RESTORE)
        assert plan(bench.disk) == []

    with small():
        run_virtual(main, 1)


def test_a_card_that_has_lost_an_aborted_transaction() -> None:
    """With checksums that fit: made by a bug, not by rot."""

    async def main() -> None:
        bench = await written()
        before = await committed(copy_disk(bench.disk))
        segment = next(each for each in bench.log.segments if each.aborted_count)
        path = segment.checkpoint_path if segment is bench.log.active else segment.index_path
        card = segment.card or segment.load_card(bench.disk)
        card = card.copy()
        card.transactions = Transactions.kept(card.transactions.open, [])
        checked_file.save_all(bench.disk, {path: card.encode()})
        [finding] = look(bench.disk).findings
        assert finding.kind is Kind.CARD and "aborted" in finding.what
        [step] = repair(bench.disk)
        assert "card" in step.what and look(bench.disk).findings != [finding]
        assert await committed(bench.disk) == before

    with small():
        run_virtual(main, 1)


def test_an_aborted_transaction_that_began_a_segment_earlier_outlives_both_cards() -> None:
    async def main() -> None:
        bench = await written()
        before = await committed(copy_disk(bench.disk))
        disk = copy_disk(bench.disk)
        for name in contents(disk):
            if name.endswith((".index", ".checkpoint")):
                disk.flip_byte(f"{DIRECTORY}/{name}", 30)
        repair(disk)
        assert damage(disk) == []
        assert await committed(disk) == before

    with small():
        run_virtual(main, 1)


def test_a_lost_state_names_what_is_assumed() -> None:
    async def main() -> None:
        bench = await written()
        bench.disk.unlink(f"{DIRECTORY}/state")
        [finding] = look(bench.disk, compacted=True).findings
        assert "compacted" in finding.what
        [step] = repair(bench.disk, compacted=True)
        assert f"below {bench.log.active.base} are taken" in step.what
        saved = load_state(bench.disk, DIRECTORY)
        assert saved is not None and (saved.gaps_to, saved.compacted_to) == (bench.log.active.base, 0)

    with small():
        run_virtual(main, 1)


def test_a_state_that_is_wrong_in_part_keeps_how_far_the_log_is_compacted() -> None:
    async def main() -> None:
        bench = await written()
        state = load_state(bench.disk, DIRECTORY)
        assert state is not None
        wrong = LogState(**{name: getattr(state, name) for name in LogState.__slots__})
        wrong.epochs.entries[:] = [(3, 0), (2, 1)]
        checked_file.save_all(bench.disk, {f"{DIRECTORY}/state": wrong.encode()})
        repair(bench.disk)
        saved = load_state(bench.disk, DIRECTORY)
        assert saved is not None
        assert (saved.gaps_to, saved.compacted_to) == (state.gaps_to, state.compacted_to)

    with small():
        run_virtual(main, 1)


# --- files of a compaction that was cut short


async def decided() -> tuple[Bench, FaultyDisk]:
    """A log whose pass has decided on new segments and stopped there."""
    bench = await written(pass_=False)
    await Writer(bench).roll()
    compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
    job = compaction.next_job(bench.log, bench.clock.now_ms())
    assert job is not None
    job = replace(job, segment_bytes=1 << 20, aborted=_aborted(bench.log, job.until))
    result = await InlineCompaction(bench.disk).run(job)
    state = bench.log.state
    state.gaps_to = result.changed[-1].next_offset
    checked_file.save_all(bench.disk, {f"{DIRECTORY}/state": state.encode()})
    assert prepare_swap(bench.disk, DIRECTORY, result)
    return bench, copy_disk(bench.disk)


def test_a_swap_cut_short_anywhere_is_harmless_and_looked_at_as_it_will_be() -> None:
    async def main() -> None:
        _, source = await decided()
        finished = copy_disk(source)
        finish_swap(finished, DIRECTORY)
        expected = [(each.base, each.next_offset, each.batches) for each in look(finished).segments]
        wanted = await committed(finished)
        for operation in range(1, 100):
            disk = copy_disk(source)
            disk.cut_power_after(operation)
            try:
                finish_swap(disk, DIRECTORY)
                break
            except PowerCut:
                disk = disk.after_power_cut()
            report = look(disk)
            assert [finding for finding in report.findings if finding.is_damage] == [], operation
            assert [(each.base, each.next_offset, each.batches) for each in report.segments] == expected, operation
            assert plan(disk) == [] and await committed(disk) == wanted
        assert operation > 5

    with small():
        run_virtual(main, 1)


def test_damage_beside_a_swap_is_repaired_in_the_new_segments() -> None:
    async def main() -> None:
        _, source = await decided()
        finished = copy_disk(source)
        finish_swap(finished, DIRECTORY)
        wanted = await committed(finished)
        [cleaned] = [name for name in contents(source) if name.endswith(".cleaned")]
        source.flip_byte(f"{DIRECTORY}/{cleaned}", 130)
        operation = 0
        while True:
            operation += 1
            disk = copy_disk(source)
            disk.cut_power_after(operation)
            try:
                repair(disk)
                break
            except PowerCut:
                disk = disk.after_power_cut()
            repair(disk)
            assert damage(disk) == [], operation
        assert operation > 10
        steps = plan(source)
        lost = lost_offsets(steps)
        assert "swap" in steps[0].path and lost
        repair(source)
        assert damage(source) == []
        assert await committed(source) == {at: value for at, value in wanted.items() if at not in lost}

    with small():
        run_virtual(main, 1)


def test_a_damaged_swap_is_left_to_a_person() -> None:
    async def main() -> None:
        _, disk = await decided()
        disk.flip_byte(f"{DIRECTORY}/swap", 20)
        findings = [finding for finding in look(disk).findings if finding.kind is Kind.SWAP]
        assert [(each.start, each.way_out) for each in findings] == [(Start.OFFLINE, RESTORE)]
        assert plan(disk) == []
        with pytest.raises(PenstockError, match="swap"):
            await open_log(disk, OPTIONS)

    with small():
        run_virtual(main, 1)


def test_what_a_pass_without_a_decision_wrote_is_a_leftover() -> None:
    async def main() -> None:
        _, disk = await decided()
        disk.unlink(f"{DIRECTORY}/swap")
        findings = look(disk).findings
        assert [(each.kind, each.start) for each in findings] == [(Kind.LEFTOVER, Start.MENDS)] * 2
        assert plan(disk) == []

    with small():
        run_virtual(main, 1)


def test_a_coordinators_snapshot_is_known_and_its_frame_checked() -> None:
    async def main() -> None:
        bench = await written()
        path = f"{DIRECTORY}/snapshot"
        checked_file.save(bench.disk, path, b"snap", 1, b"whatever the coordinator keeps")
        assert look(bench.disk).findings == []
        bench.disk.flip_byte(path, 20)
        [finding] = look(bench.disk).findings
        assert (finding.kind, finding.is_damage, finding.start) == (Kind.SNAPSHOT, True, Start.MENDS)
        repair(bench.disk)
        assert damage(bench.disk) == [] and not bench.disk.exists(path)

    run_virtual(main, 1)
