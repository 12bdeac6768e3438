"""One log on a simulated disk, without an engine around it."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.observe.stats import Stats
from penstock.records.batch import decode_header
from penstock.storage.checked_file import save_all
from penstock.storage.log.commit import Committer
from penstock.storage.log.log import Appended, Log, Shelf
from penstock.storage.log.options import LogOptions
from penstock.storage.log.reading import read_slice, warm
from penstock.storage.log.recovery import Recovered, recover
from penstock.storage.log.segment import FilePool, NotReady
from penstock.storage.log.upkeep import Upkeep
from penstock.tasks import Tasks
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import VirtualClock
from tests.simulated_broker import HUGE, Stored, batch_of, split, wait_for

DIRECTORY = "log"


@dataclass(slots=True)
class Bench:
    """A log and what it stands on. Nothing rolls by itself into upkeep: a test calls `tend`."""

    log: Log
    recovered: Recovered
    disk: FaultyDisk
    clock: VirtualClock
    stats: Stats
    upkeep: Upkeep
    failures: list[BaseException]

    def append(self, values: Iterable[bytes], **fields: int) -> Appended:
        return self.append_batch(batch_of(list(values), self.clock, **fields))

    def append_batch(self, batch: bytearray, append_time: int = -1) -> Appended:
        view = memoryview(batch)
        return self.log.append(view, decode_header(view), self.log.state.epochs.latest, append_time)

    async def commit(self) -> None:
        await self.upkeep._shelf.committer.commit(self.log)

    async def write(self, *values: bytes, **fields: int) -> Appended:
        """Append one batch and wait until it is durable, and any roll it caused is over."""
        done = self.append(values, **fields)
        await self.commit()
        await wait_for(lambda: not self.log._rolling)
        return done

    async def tend(self, now_ms: int | None = None) -> None:
        await self.upkeep.tend(self.log, self.clock.now_ms() if now_ms is None else now_ms, self.log.visible_end)
        await wait_for(lambda: not self.log._rolling)

    async def read(self, offset: int, max_bytes: int = HUGE, limit: int | None = None) -> list[Stored]:
        """One read, warmed as often as it takes."""
        for _ in range(4):
            try:
                end = self.log.visible_end if limit is None else limit
                found = read_slice(self.log, offset, end, max_bytes, at_least_one=True)
            except NotReady:
                await warm(self.log, offset, min(max_bytes, 1 << 20))
                continue
            return [] if found is None else split(found.file.read_at(found.size, found.position))
        raise AssertionError(f"never ready to be read at {offset}")

    async def read_all(self, max_bytes: int = HUGE) -> list[Stored]:
        batches: list[Stored] = []
        offset = self.log.log_start
        while offset < self.log.visible_end:
            some = await self.read(offset, max_bytes)
            assert some, f"nothing at {offset} of {self.log.visible_end}"
            batches += some
            offset = some[-1].header.last_offset + 1
        return batches

    async def checkpoint(self) -> None:
        """What a clean stop saves."""
        save_all(self.disk, await self.upkeep.snapshot(self.log))


async def open_log(
    disk: FaultyDisk,
    options: LogOptions | None = None,
    *,
    directory: str = DIRECTORY,
    expected_end: int | None = None,
    epoch: int = 0,
    clock: VirtualClock | None = None,
) -> Bench:
    options = options or LogOptions()
    clock = clock or VirtualClock()
    stats, failures = Stats(), list[BaseException]()
    committer = Committer(disk, clock, stats, failures.append)
    tasks = Tasks(failures.append)
    shelf = Shelf(disk, clock, stats, FilePool(disk), committer, tasks, failures.append)
    disk.make_dirs(directory)
    recovered = recover(disk, directory, options, clock.now_ms(), expected_end)
    log = Log("t-0", directory, options, shelf, recovered.state, recovered.segments)

    def committed() -> None:  # as the partition of a broker on its own does
        log.committed_end = log.visible_end

    committed()
    log.on_visible = committed
    tasks.spawn(committer.run(), "group commit")
    upkeep = Upkeep(shelf)
    if epoch > log.state.epochs.latest:
        await upkeep.begin_epochs([(log, epoch)])
    return Bench(log, recovered, disk, clock, stats, upkeep, failures)


def copy_disk(disk: FaultyDisk, directory: str = DIRECTORY) -> FaultyDisk:
    """A new device with the same files in one directory, all durable."""
    copy = FaultyDisk(max_delay_s=0.0)
    copy.make_dirs(directory)
    for name, data in contents(disk, directory).items():
        file = copy.open(f"{directory}/{name}", create=True)
        file.write_at(data, 0)
        copy.sync_files([file])
    copy.sync_dir(directory)
    copy.bytes_read = 0
    return copy


def contents(disk: FaultyDisk, directory: str = DIRECTORY) -> dict[str, bytes]:
    found = {}
    for name in disk.list_dir(directory):
        file = disk.open(f"{directory}/{name}")
        found[name] = file.read_at(file.size(), 0)
    return found
