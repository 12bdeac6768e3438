"""A look at a partition's directory: nothing wrong escapes it, nothing right is blamed, nothing is changed."""

import pytest
from crc32c import crc32c
from tests.simulated_broker import batch_of, small_blocks
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.errors import PenstockError
from penstock.storage.log.options import LogOptions
from penstock.storage.log.state import LogState, load_state
from penstock.storage.offline.findings import Finding, Kind, Start
from penstock.storage.offline.log_inspection import inspect_partition
from penstock.storage.offline.partition_report import PartitionReport
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual

OPTIONS = LogOptions(segment_bytes=310, index_interval_bytes=100)
HOWS = ["stopped cleanly", "killed", "killed after a checkpoint"]


async def written(how: str = "stopped cleanly") -> Bench:
    """Some sealed segments and an active one, from two producers and two leader epochs."""
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    for number in range(15):
        if number == 6:
            bench = await open_log(bench.disk, OPTIONS, epoch=1, clock=bench.clock)
        fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number // 2} if number % 2 else {}
        await bench.write(b"%d:" % number + b"." * (3 * number % 20), **fields)
        await bench.tend()
    if how != "killed":
        await bench.checkpoint()
    if how == "killed after a checkpoint":
        await bench.write(b"behind the checkpoint")
    assert len(bench.log.segments) >= 4 and bench.log.active.size > 150
    return bench


def look(disk: FaultyDisk, bench: Bench, how: str = "stopped cleanly", *, deep: bool = False) -> PartitionReport:
    end = bench.log.end_offset if how == "stopped cleanly" else None
    before = contents(disk)
    report = inspect_partition(disk, DIRECTORY, "t-0", expected_end=end, deep=deep)
    assert contents(disk) == before, "a look changed something"
    return report


@pytest.mark.parametrize("how", HOWS)
def test_a_sound_log_has_no_damage(how: str) -> None:
    async def main() -> None:
        bench = await written(how)
        report = look(bench.disk, bench, how, deep=True)
        assert report.findings == []
        assert (report.log_start, report.end_offset) == (0, bench.log.end_offset)
        assert sum(segment.records for segment in report.segments) == bench.log.end_offset
        assert (report.largest_producer_id, report.largest_epoch) == (5, 1)

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


async def outcome(disk: FaultyDisk, end: int | None) -> tuple[Start | None, int]:
    """What a start really makes of a directory, and how many batches it then serves."""
    try:
        bench = await open_log(disk, OPTIONS, expected_end=end)
    except PenstockError:
        return Start.OFFLINE, 0
    offset, served, refused = bench.log.log_start, 0, False
    while offset < bench.log.visible_end:
        try:
            some = await bench.read(offset, 200)
        except PenstockError:
            refused = True
            offset += 1
        else:
            served += len(some)
            offset = some[-1].header.last_offset + 1
    if refused:
        return Start.ERRORS, served
    if bench.recovered.cut_bytes:
        return Start.CUTS, served
    mended = bench.recovered.notes or bench.stats.corrupt_blocks
    return (Start.MENDS if mended else None), served


@pytest.mark.parametrize("how", HOWS)
def test_every_flipped_byte_is_found_and_its_consequence_foretold(how: str) -> None:
    async def main() -> None:
        bench = await written(how)
        end = bench.log.end_offset if how == "stopped cleanly" else None
        foretold: dict[Start, int] = {}
        for name, content in contents(bench.disk).items():
            for position in range(len(content)):
                disk = copy_disk(bench.disk)
                disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << (position * 5 + len(name)) % 8)
                where = f"{name} byte {position}"
                found = look(disk, bench, how).findings
                assert found, f"{where}: not found"
                tail = all(finding.kind is Kind.TAIL for finding in found)
                assert tail or any(finding.is_damage for finding in found), f"{where}: {found}"
                starts = {finding.start for finding in found}
                happened, _ = await outcome(disk, end)
                assert happened in starts, f"{where}: {happened}, not {found}"
                for start in starts:
                    foretold[start] = foretold.get(start, 0) + 1
        assert {Start.ERRORS, Start.MENDS} <= set(foretold)
        assert (Start.CUTS in foretold) == (how != "stopped cleanly")

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


def only(report: PartitionReport) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


@pytest.mark.parametrize("column", ["offsets", "positions", "times"])
def test_a_card_that_says_something_else_than_its_segment(column: str) -> None:
    """With a checksum that fits: made by a bug, not by rot."""

    async def main() -> None:
        bench = await written()
        path = bench.log.segments[1].index_path
        card = bench.log.segments[1].load_card(bench.disk)
        getattr(card, column)[-1] += 1
        bench.disk.open(path).write_at(card.encode(), 0)
        finding = only(look(bench.disk, bench))
        assert finding.kind is Kind.CARD and finding.path == path and finding.is_damage

    run_virtual(main, 1)


def test_deep_opens_every_batch() -> None:
    async def main() -> None:
        bench = await written()
        batch = batch_of([b"whole"], bench.clock)
        batch[61] ^= 0x40  # the length of its record; the client then made a checksum of that
        batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
        bench.append_batch(batch)
        await bench.checkpoint()
        assert look(bench.disk, bench).findings == []
        finding = only(look(bench.disk, bench, deep=True))
        assert finding.kind is Kind.RECORDS and finding.first_offset == bench.log.end_offset - 1

    run_virtual(main, 1)


def test_a_topic_deleted_meanwhile_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = await written()

        def load_and_delete(disk: FaultyDisk, directory: str) -> LogState | None:
            state = load_state(disk, directory)
            if disk.exists(directory):
                disk.remove_tree(directory)
            return state

        monkeypatch.setattr("penstock.storage.offline.log_inspection.load_state", load_and_delete)
        assert inspect_partition(bench.disk, DIRECTORY, "t-0").findings == []

    run_virtual(main, 1)
