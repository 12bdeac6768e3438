"""Repair: what still checks is served again, what is lost is named and kept aside, and a power cut changes neither."""

from collections.abc import Callable

import pytest
from tests.simulated_broker import Stored, batch_of, small_blocks, split, virtual
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log
from tests.unit.storage.offline.test_inspection import HOWS, OPTIONS, written

from penstock.errors import PenstockError
from penstock.storage.offline.log_inspection import inspect_partition
from penstock.storage.offline.log_repair import Step, lost_ranges, plan_partition
from penstock.storage.offline.void import VOID_TYPE
from penstock.testing.faulty_disk import FaultyDisk, PowerCut
from penstock.testing.virtual_clock import run_virtual

NOW_MS = 1_700_000_000_000


def plan(disk: FaultyDisk, end: int | None) -> list[Step]:
    return plan_partition(inspect_partition(disk, DIRECTORY, "t-0", expected_end=end), NOW_MS, end)


def repair(disk: FaultyDisk, end: int | None) -> list[Step]:
    steps = plan(disk, end)
    for step in steps:
        step.apply(disk)
    return steps


def lost_offsets(steps: list[Step]) -> set[int]:
    ranges = lost_ranges(steps).get("t-0", [])
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def damage(disk: FaultyDisk, end: int | None) -> list[object]:
    return [each for each in inspect_partition(disk, DIRECTORY, "t-0", expected_end=end).findings if each.is_damage]


async def served(disk: FaultyDisk, end: int | None) -> list[Stored]:
    """Every batch that a start then serves, and that there is no error on the way."""
    bench = await open_log(disk, OPTIONS, expected_end=end)
    assert bench.recovered.cut_bytes == 0 or end is None
    return await bench.read_all(200)


def check(steps: list[Step], before: list[Stored], after: list[Stored], where: str, cut: int = 0) -> None:
    """Every record but the lost ones is there, byte for byte; at the lost offsets there is nothing."""
    lost = lost_offsets(steps)
    originals = {batch.header.base_offset: batch.data for batch in before}
    got = {batch.header.base_offset: batch for batch in after}
    records = {offset for batch in after if not batch.header.is_control for offset, _ in batch.records}
    assert not records & lost, f"{where}: served though lost"
    for base, batch in got.items():
        assert batch.header.is_control or originals[base] == batch.data, f"{where}: other bytes at {base}"
    missing = {base for base in originals if base not in got or got[base].header.is_control} - lost
    assert missing <= set(range(len(before) - cut, len(before))), f"{where}: {missing} are gone without a word"


def check_kept(before: dict[str, bytes], after: dict[str, bytes], where: str) -> None:
    """Every file that changed is in a copy beside it, whole, or in copies of what was taken out of it."""
    for name, data in before.items():
        if after.get(name) == data or data in [after[each] for each in after if each.startswith(f"{name}.damaged-")]:
            continue
        assert name.endswith(".log"), f"{where}: {name} is gone"
        copies = {each: after[each] for each in after if each.startswith(f"{name[:20]}.") and ".damaged-" in each}
        pieces = {int(each.split(".")[1]): piece for each, piece in copies.items() if each.split(".")[1].isdigit()}
        assert pieces, f"{where}: nothing is kept of {name}"
        rest = data
        for position, piece in pieces.items():
            assert data[position : position + len(piece)] == piece, f"{where}: {name} was kept wrong"
            rest = rest.replace(piece, b"", 1)
        assert all(batch in after[name] for batch in whole_batches(rest)), f"{where}: a sound batch of {name} is gone"


def whole_batches(data: bytes) -> list[bytes]:
    return [batch.data for batch in split(data)]


@pytest.mark.parametrize("how", HOWS)
def test_after_any_flipped_byte_the_rest_is_served_again(how: str) -> None:
    async def main() -> None:
        bench = await written(how)
        end = bench.log.end_offset if how == "stopped cleanly" else None
        before = await bench.read_all()
        losses = []
        stride = 1 if how == "stopped cleanly" else 3
        for name, content in contents(bench.disk).items():
            for position in range(0, len(content), stride if name.endswith(".log") else 7):
                disk = copy_disk(bench.disk)
                disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << (position * 5 + len(name)) % 8)
                damaged = contents(disk)
                where = f"{name} byte {position}"
                steps = repair(disk, end)
                assert damage(disk, end) == [], where
                check_kept(damaged, contents(disk), where)
                torn = how != "stopped cleanly" and not steps
                check(steps, before, await served(disk, end), where, cut=len(before) if torn else 0)
                losses.append(len(lost_offsets(steps)))
        assert max(losses) == 1, "one flipped byte costs one batch at most"
        assert losses.count(1) > 50 and losses.count(0) > 50

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


# --- several things at once, and other damage than a flipped bit


async def damaged_and_repaired(
    harm: Callable[[FaultyDisk, Bench], None], *, clean: bool = True
) -> tuple[Bench, set[int]]:
    """A log after some harm and a repair, open; and the offsets that were lost."""
    bench = await written("stopped cleanly" if clean else "killed")
    before, end = await bench.read_all(), bench.log.end_offset if clean else None
    disk = bench.disk.abandon()
    harm(disk, bench)
    damaged = contents(disk)
    steps = repair(disk, end)
    assert damage(disk, end) == []
    check_kept(damaged, contents(disk), "")
    check(steps, before, await served(disk.abandon(), end), "")
    again = await open_log(disk.abandon(), OPTIONS, expected_end=end)
    return again, lost_offsets(steps)


def segment(bench: Bench, at: int) -> str:
    return bench.log.segments[at].path


def write(disk: FaultyDisk, path: str, data: bytes, position: int = 0) -> None:
    disk.open(path).write_at(data, position)


def small(test: Callable[[], None]) -> Callable[[], None]:
    def wrapped() -> None:
        with small_blocks(128, 1 << 30):
            test()

    wrapped.__name__ = test.__name__
    return wrapped


@small
@virtual
async def test_zeros_over_most_of_a_segment_cost_that_much() -> None:
    again, lost = await damaged_and_repaired(lambda disk, bench: write(disk, segment(bench, 1), bytes(150), 20))
    assert lost and lost < set(range(again.log.segments[1].base, again.log.segments[1].next_offset))
    void = next(batch for batch in await again.read_all() if batch.header.is_control)
    assert VOID_TYPE.to_bytes(2, "big") in void.data and b"were lost" in void.data
    assert set(range(void.header.base_offset, void.header.last_offset + 1)) == lost


@small
@virtual
async def test_a_missing_segment_becomes_one_without_records() -> None:
    again, lost = await damaged_and_repaired(lambda disk, bench: disk.unlink(segment(bench, 1)))
    assert lost == set(range(again.log.segments[1].base, again.log.segments[1].next_offset))
    assert await again.read(min(lost), 1), "a reader stands still at the hole"


@small
@virtual
async def test_a_missing_last_segment_does_not_give_its_offsets_away_again() -> None:
    again, lost = await damaged_and_repaired(lambda disk, bench: disk.unlink(bench.log.active.path))
    assert lost and max(lost) == again.log.end_offset - 1
    done = await again.write(b"after the repair")
    assert done.base_offset == max(lost) + 1


@small
@virtual
async def test_a_segment_cut_short() -> None:
    def shorten(disk: FaultyDisk, bench: Bench) -> None:
        for at in (0, 2):
            file = disk.open(segment(bench, at))
            file.truncate(file.size() - 30)
        disk.open(bench.log.active.path).truncate(10)

    _, lost = await damaged_and_repaired(shorten)
    assert len(lost) >= 3


@small
@virtual
async def test_a_batch_inside_a_record_is_not_taken_for_one() -> None:
    """The value of a damaged batch holds a whole batch with a plausible offset; only its surroundings give it away."""
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    await bench.write(b"first")
    fake = bytes(batch_of([b"fake"], bench.clock, base_offset=2, leader_epoch=0))
    await bench.write(b"x" * 30 + fake + b"y" * 30)
    for number in range(2, 6):
        await bench.write(b"%d" % number)
    await bench.checkpoint()
    before, end = await bench.read_all(), bench.log.end_offset
    disk = bench.disk.abandon()
    position = before[0].header.size
    for at in (8, 9, 10, 70):  # its length and its value
        disk.flip_byte(segment(bench, 0), position + at)
    steps = repair(disk, end)
    assert lost_offsets(steps) == {1}
    check(steps, before, await served(disk, end), "")


@small
@virtual
async def test_what_a_start_mends_is_left_to_it() -> None:
    bench = await written("killed")
    disk = bench.disk.abandon()
    torn = bytes(batch_of([b"torn"], bench.clock, base_offset=bench.log.end_offset))[:-3]
    write(disk, bench.log.active.path, torn, bench.log.active.size)
    before = contents(disk)
    assert repair(disk, None) == [] and contents(disk) == before


@small
@virtual
async def test_an_older_card_does_not_outlive_a_repair() -> None:
    """The active segment is gone with the state, so a sealed one is the last: its .checkpoint is looked at first."""
    bench = await written("killed")
    disk = bench.disk.abandon()
    for path in (bench.log.active.path, f"{DIRECTORY}/state"):
        disk.unlink(path)
    last = bench.log.segments[-2]
    card = disk.open(last.index_path).read_at(1 << 20, 0)
    disk.open(last.checkpoint_path, create=True).write_at(card, 0)
    disk.flip_byte(last.path, 66)
    steps = repair(disk, None)
    assert len(lost_offsets(steps)) == 1
    assert [batch.header.base_offset for batch in await served(disk, None)] == list(range(last.next_offset))


def test_a_segment_written_anew_does_not_end_on_a_block_boundary() -> None:
    """Or a start between its new card and its new bytes would not see that they differ."""

    async def size_after_repair() -> int:
        bench = await written()
        disk = bench.disk.abandon()
        disk.flip_byte(segment(bench, 1), 80)
        repair(disk, bench.log.end_offset)
        return disk.open(segment(bench, 1)).size()

    with small_blocks(128, 1 << 30):
        size = run_virtual(size_after_repair, 1)
    with small_blocks(size, 1 << 30):
        assert run_virtual(size_after_repair, 1) % size != 0


# --- power cuts


def copy(source: FaultyDisk, seed: int) -> FaultyDisk:
    disk = FaultyDisk(seed, max_delay_s=0.0)
    disk.make_dirs(DIRECTORY)
    for name, data in contents(source).items():
        file = disk.open(f"{DIRECTORY}/{name}", create=True)
        file.write_at(data, 0)
        disk.sync_files([file])
    disk.sync_dir(DIRECTORY)
    return disk


def rot_in_a_sealed_segment(disk: FaultyDisk, bench: Bench) -> None:
    disk.flip_byte(segment(bench, 1), 80)


def rot_in_the_last_segment(disk: FaultyDisk, bench: Bench) -> None:
    disk.flip_byte(bench.log.active.path, 80)


def rot_everywhere(disk: FaultyDisk, bench: Bench) -> None:
    for at in range(len(bench.log.segments)):
        disk.flip_byte(segment(bench, at), 75)
    disk.flip_byte(f"{DIRECTORY}/state", 30)


def two_segments_missing(disk: FaultyDisk, bench: Bench) -> None:
    disk.unlink(segment(bench, 1))
    disk.unlink(bench.log.active.path)


def a_rotten_card(disk: FaultyDisk, bench: Bench) -> None:
    disk.flip_byte(bench.log.segments[1].index_path, 60)
    disk.flip_byte(bench.log.active.checkpoint_path, 60)


HARMS = [rot_in_a_sealed_segment, rot_in_the_last_segment, rot_everywhere, two_segments_missing, a_rotten_card]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("start_between", [False, True], ids=["repaired again", "started, then repaired again"])
def test_a_power_cut_at_every_step_of_a_repair(harm: Callable[[FaultyDisk, Bench], None], start_between: bool) -> None:
    async def main() -> None:
        bench = await written()
        before, end = await bench.read_all(), bench.log.end_offset
        source = bench.disk.abandon()
        harm(source, bench)
        whole = copy(source, 0)
        expected = lost_offsets(repair(whole, end))
        assert damage(whole, end) == []
        wanted = [batch.data for batch in await served(whole, end)]
        cuts = 0
        while await cut_short(source, cuts, before, expected, wanted, end, start_between):
            cuts += 1
        assert cuts > 5, "the power was hardly ever cut"

    with small_blocks(128, 1 << 30):
        run_virtual(main, 1)


async def cut_short(
    source: FaultyDisk,
    operation: int,
    before: list[Stored],
    expected: set[int],
    wanted: list[bytes],
    end: int,
    start_between: bool,
) -> bool:
    """Whether the repair was still at work at this operation; nothing more may be lost than without the cut."""
    disk = copy(source, operation)
    disk.cut_power_after(operation + 1)
    try:
        repair(disk, end)
    except PowerCut:
        pass
    else:
        return False
    where = f"power cut at operation {operation}"
    disk = disk.after_power_cut()
    originals = {batch.header.base_offset: batch.data for batch in before}
    if start_between:
        left = contents(disk)
        try:
            bench = await open_log(disk, OPTIONS, expected_end=end)
        except PenstockError:
            for name, data in left.items():
                if name.endswith(".log") or "damaged" in name:
                    assert contents(disk).get(name) == data, f"{where}: a refused start changed {name}"
        else:
            assert bench.recovered.cut_bytes == 0, where
            assert bench.log.end_offset == end, where
        disk = disk.abandon()
    repair(disk, end)
    assert damage(disk, end) == [], where
    after = await served(disk, end)
    for batch in after:
        assert batch.header.is_control or originals[batch.header.base_offset] == batch.data, where
    got = {offset for batch in after if not batch.header.is_control for offset, _ in batch.records}
    assert got == set(range(end)) - expected, where
    assert [batch.data for batch in after] == wanted, where
    logs = {name: data for name, data in contents(source).items() if name.endswith(".log")}
    check_kept(logs, contents(disk), where)
    return True
