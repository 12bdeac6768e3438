"""`python -m bench.coordinator_steps`: steps a second that one coordinator takes, and the batches it appends for them.

Prints one line: 100,000 small steps, 1,000 in flight, each answered when its record is durable; first of a machine that
does nothing, then offset commits of one partition by 1,000 groups. On a local disk, in a temporary directory.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from unittest.mock import patch

import uvloop

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC
from penstock.engine.coordination.outcome import NOTHING, Outcome, Reply, Token
from penstock.engine.coordination.schemas import Entry, Kind, OffsetValue
from penstock.engine.coordination.shard import Shard, Surroundings
from penstock.engine.engine import Engine
from penstock.engine.groups.offsets import CommitRequest, NewOffset
from penstock.engine.partition import Partition
from penstock.engine.settings import Ports
from penstock.engine.steady_clock import SteadyClock
from penstock.observe.stats import Stats
from penstock.server.system_clock import SystemClock
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.tasks import Tasks
from penstock.testing.memory_metadata import MemoryStore
from penstock.turns import Turns

STEPS, IN_FLIGHT = 100_000, 1_000
ENTRY = Entry(Kind.OFFSET, ("g", "t", 0), OffsetValue(1, -1, "", 0))


class Trivial:
    """A machine without any state, and the codec of its one record."""

    def take(self, now: int, token: Token) -> Outcome:
        return Outcome((ENTRY,), (Reply(token, None),))

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None: ...

    def marker(self, producer_id: int, *, committed: bool) -> None: ...

    def dump(self) -> Iterable[tuple[Entry, int | None]]:
        return ()

    def next_deadline(self) -> int | None:
        return None

    def tick(self, now: int) -> Outcome:
        return NOTHING

    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        return b"a key of twenty four b.", b"and a value of twenty four b."

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        return ENTRY


class Measured(NamedTuple):
    steps_a_second: float
    cpu_us_a_step: float
    batches: int

    def __str__(self) -> str:
        return f"{self.steps_a_second:,.0f} steps/s, {self.cpu_us_a_step:.1f} CPU-us each, {self.batches:,} batches"


async def measure(ask: Callable[[int], Awaitable[object]], steps: int, in_flight: int) -> Measured:
    batches, append_own = 0, Partition.append_own

    def counted(self: Partition, batch: bytearray) -> Any:
        nonlocal batches
        batches += 1
        return append_own(self, batch)

    async def work(number: int) -> None:
        for _ in range(steps // in_flight):
            await ask(number)

    with patch.object(Partition, "append_own", counted):
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(number) for number in range(in_flight)))
        took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return Measured(steps / took_s, cpu_s / steps * 1e6, batches)


async def run(directory: str, steps: int = STEPS, in_flight: int = IN_FLIGHT) -> tuple[Measured, Measured]:
    """Of the machine that does nothing, and of commits; `steps` is a multiple of `in_flight`."""
    disk, clock, stats, failed = LocalDisk(), SystemClock(), Stats(), list[BaseException]()
    data = DataDirectory(disk, directory)
    await disk.run(data.open)
    engine = Engine(Ports(disk, clock, random.SystemRandom(), MemoryStore()), data, stats, failed.append)
    await engine.start()
    topic = await engine.internal_topic(OFFSETS_TOPIC)
    tasks = Tasks(failed.append)
    around = Surroundings(disk, SteadyClock(clock), engine.committer, tasks, Turns())
    nothing = Trivial()
    trivial = Shard(topic.partitions[0], around, lambda now: nothing, nothing)
    await trivial.load()
    of_nothing = await measure(
        lambda _: trivial.ask(lambda machine, now, token: machine.take(now, token)), steps, in_flight
    )
    shard = await engine.groups.shards.of("one")
    requests = [CommitRequest(f"group-{at}", "", -1, None, {("t", 0): NewOffset(at)}) for at in range(in_flight)]
    await shard.load()
    of_commits = await measure(
        lambda at: shard.ask(lambda m, now, token: m.commit(now, token, requests[at])), steps, in_flight
    )
    assert not failed, failed
    await tasks.cancel_all()
    await engine.stop()
    disk.close()
    return of_nothing, of_commits


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        of_nothing, of_commits = runner.run(run(directory))
    print(f"trivial machine: {of_nothing}; offset commits: {of_commits}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
