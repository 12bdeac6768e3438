"""One flipped bit, at every byte of every file of a partition: found, or harmless. Never wrong bytes, never silence."""

from uuid import UUID

import pytest
from tests.simulated_broker import Broker, Stored, running, small_blocks
from tests.simulated_log import DIRECTORY, Bench, contents, copy_disk, open_log

from penstock.errors import Code, PenstockError, StartupError
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.options import LogOptions
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

OPTIONS = LogOptions(segment_bytes=500, index_interval_bytes=200)


async def write_some(bench: Bench) -> None:
    """Three sealed segments and an active one, from two producers."""
    for number in range(22):
        fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number // 2} if number % 2 else {}
        await bench.write(b"%d:" % number + b"." * (10 + 7 * number % 40), **fields)
        await bench.tend()
    assert len(bench.log.segments) >= 4 and not bench.log.unsealed and bench.log.active.size > 200


class DataSet:
    def __init__(self, disk: FaultyDisk, batches: list[Stored], bench: Bench, clean: bool) -> None:
        self.disk = disk
        self.batches = batches
        self.files = contents(disk)
        self.clean = clean
        self.expected_end = bench.log.end_offset if clean else None
        self.producers = producers_of(bench)
        self.epochs = bench.log.state.epochs.entries


def producers_of(bench: Bench) -> list[object]:
    return [[pid, epoch, batches] for pid, epoch, _, batches, _ in bench.log.state.producers.dump()]


async def make(how: str) -> DataSet:
    bench = await open_log(FaultyDisk(max_delay_s=0.0), OPTIONS)
    await write_some(bench)
    if how == "stopped cleanly":
        await bench.checkpoint()
    elif how == "killed after a checkpoint":
        await bench.checkpoint()
        await bench.write(b"behind the checkpoint")
    batches = await bench.read_all()
    return DataSet(bench.disk.abandon(), batches, bench, how == "stopped cleanly")


class Outcome:
    """What a reader finds in a damaged log: good batches, and whether anything was reported."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.batches: list[Stored] = []
        self.errors: list[PenstockError] = []


async def look(disk: FaultyDisk, data: DataSet) -> Outcome:
    outcome = Outcome()
    try:
        bench = outcome.bench = await open_log(disk, OPTIONS, expected_end=data.expected_end, epoch=0)
    except PenstockError as error:
        outcome.errors.append(error)
        return outcome
    offset = bench.log.log_start
    while offset < bench.log.visible_end:
        try:
            some = await bench.read(offset, 300)
        except PenstockError as error:
            outcome.errors.append(error)
            offset += 1  # beyond the damage there may be good batches, but no bad ones
        else:
            outcome.batches += some
            offset = some[-1].header.last_offset + 1
    return outcome


def judge(outcome: Outcome, data: DataSet, where: str) -> str:
    originals = {batch.header.base_offset: batch.data for batch in data.batches}
    for batch in outcome.batches:
        assert originals.get(batch.header.base_offset) == batch.data, f"{where}: other bytes than written"
    for error in outcome.errors:
        assert error.code is Code.CORRUPT_LOG and "log/" in str(error), f"{where}: {error!r}"
    if outcome.errors:
        return "refused"
    assert outcome.bench is not None
    recovered = outcome.bench.recovered
    if len(outcome.batches) == len(data.batches):
        assert producers_of(outcome.bench) == data.producers, f"{where}: producers differ"
        assert outcome.bench.log.state.epochs.entries == data.epochs, f"{where}: epochs differ"
        return "mended" if recovered.notes or outcome.bench.stats.corrupt_blocks else "whole"
    assert not data.clean, f"{where}: fewer records after a clean stop, and no error"
    assert recovered.notes and recovered.cut_bytes, f"{where}: cut without a word"
    kept = [name for name in contents(outcome.bench.disk) if name.endswith(".cut")]
    assert kept, f"{where}: the bytes cut off are gone"
    return "cut"


def check_kept(damaged: dict[str, bytes], disk: FaultyDisk, where: str) -> None:
    """What was cut off a segment is still there, beside it."""
    after = contents(disk)
    for name, data in damaged.items():
        if name.endswith(".log") and after.get(name) != data:
            base = name.removesuffix(".log")
            rest = b"".join(after[cut] for cut in sorted(after) if cut.startswith(base) and cut.endswith(".cut"))
            assert after.get(name, b"") + rest == data, f"{where}: {name} lost bytes"


@pytest.mark.parametrize("how", ["stopped cleanly", "killed", "killed after a checkpoint"])
def test_every_flipped_bit_is_found_or_harmless(how: str) -> None:
    async def main() -> dict[tuple[str, str], int]:
        data = await make(how)
        counts: dict[tuple[str, str], int] = {}
        for name, content in data.files.items():
            for position in range(len(content)):
                disk = copy_disk(data.disk)
                disk.flip_byte(f"{DIRECTORY}/{name}", position, 1 << (position * 5 + len(name)) % 8)
                damaged = contents(disk)
                where = f"{name} byte {position}"
                verdict = judge(await look(disk, data), data, where)
                check_kept(damaged, disk, where)
                key = (name.rpartition(".")[2], verdict)
                counts[key] = counts.get(key, 0) + 1
        return counts

    with small_blocks(256, 1 << 30):
        counts = run_virtual(main, 1)
    kinds = {kind for kind, _ in counts}
    assert {"log", "index", "state"} <= kinds
    assert ("checkpoint" in kinds) == (how != "killed")
    # Damage to what can be rebuilt costs nothing.
    assert {verdict for kind, verdict in counts if kind in ("index", "state", "checkpoint")} == {"mended"}, counts
    # Damage to records is never mended, only found.
    verdicts = {verdict for kind, verdict in counts if kind == "log"}
    assert verdicts == ({"refused"} if how == "stopped cleanly" else {"refused", "cut"}), counts


def test_a_flipped_bit_in_the_owner_file_stops_the_start() -> None:
    async def main() -> None:
        disk = FaultyDisk(max_delay_s=0.0)
        directory = DataDirectory(disk, "data")
        directory.open()
        [path] = directory.create_partitions("t", UUID(int=7), [0])
        size = disk.open(f"{path}/partition.meta").size()
        for position in range(size):
            disk.flip_byte(f"{path}/partition.meta", position, 1 << position % 8)
            with pytest.raises(StartupError, match=r"partition\.meta"):
                directory.partitions()
            disk.flip_byte(f"{path}/partition.meta", position, 1 << position % 8)
        assert [found.topic for found in directory.partitions()] == ["t"]

    run_virtual(main, 1)


def test_a_flipped_bit_in_the_format_file_or_the_clean_mark() -> None:
    async def main() -> None:
        disk, store, clock = FaultyDisk(max_delay_s=0.0), MemoryStore(), VirtualClock()
        async with running(Broker(disk, store, clock)) as broker:
            await broker.engine.create_topic("t", 1)
        disk = disk.abandon()
        directory = DataDirectory(disk, "data")
        for position in range(disk.open("data/format").size()):
            disk.flip_byte("data/format", position, 1 << position % 8)
            with pytest.raises(StartupError, match="format"):
                directory.open()
            directory.release()
            disk.flip_byte("data/format", position, 1 << position % 8)
        size = disk.open("data/clean-shutdown").size()
        mark = disk.open("data/clean-shutdown").read_at(size, 0)
        for position in range(size):
            file = disk.open("data/clean-shutdown", create=True)
            file.write_at(mark, 0)
            disk.flip_byte("data/clean-shutdown", position, 1 << position % 8)
            assert directory.take_clean_mark() is None, "a damaged mark counts as none"

    run_virtual(main, 1)
