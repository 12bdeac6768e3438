"""`python -m bench.ledger`: what a queue costs inside the broker, without any door.

Sends messages of 100 bytes, leases and acknowledges them in batches, each acknowledgement synced, in one process on a
local disk. Then how the cost of a message grows with the backlog and with acknowledgements out of order, and what
unsettled messages take in memory.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from typing import NamedTuple

import uvloop

from penstock.compiled import form
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL
from penstock.engine.queues.answers import Want
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.settings import Ports
from penstock.observe.stats import Stats
from penstock.records.build import build_batch
from penstock.server.system_clock import SystemClock
from penstock.storage.data_directory import DataDirectory
from penstock.storage.local_disk import LocalDisk
from penstock.testing.memory_metadata import MemoryStore

BATCH = 100
VALUE = b"." * 100
ACK = Verdict(VerdictKind.ACK)
IN_FLIGHT = 32


class Measured(NamedTuple):
    messages: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.messages / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6


class Stopwatch:
    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def of(self, messages: int) -> Measured:
        return Measured(messages, time.perf_counter() - self._wall, time.process_time() - self._cpu)


async def through_the_engine(directory: str, messages: int) -> Measured:
    """Publish, receive and acknowledge, `IN_FLIGHT` batches at a time."""
    disk, failed = LocalDisk(), list[BaseException]()
    data = DataDirectory(disk, directory)
    await disk.run(data.open)
    engine = Engine(Ports(disk, SystemClock(), random.SystemRandom(), MemoryStore()), data, Stats(), failed.append)
    await engine.start()
    topic = await engine.create_topic("q", 1)
    await engine.alter_queues(topic, lambda queues: {"q": {}})
    partition = topic.partitions[0]
    await _round(engine, partition, messages // 10)
    watch = Stopwatch()
    await _round(engine, partition, messages)
    measured = watch.of(messages)
    assert not failed, failed
    await engine.stop()
    disk.close()
    return measured


async def _round(engine: Engine, partition: Partition, messages: int) -> None:
    left = messages // BATCH

    async def work(consumer: str) -> None:
        nonlocal left
        want = Want("q", consumer, BATCH)
        while left > 0:
            left -= 1
            batch = build_batch([(None, VALUE, (), 0)] * BATCH)
            await engine.forwarding.publish(partition, batch, ALL, 30)
            deliveries = await engine.receiving.receive(partition, want, 1 << 20, 5)
            by_lease: dict[int, list[int]] = {}
            for each in deliveries:
                by_lease.setdefault(each.lease_id, []).append(each.message.offset)
            for lease_id, offsets in by_lease.items():
                change = Change(offsets[0], offsets[-1], ACK)
                await engine.queues.settle(partition, "q", Receipt(lease_id), [change])

    await asyncio.gather(*(work(f"c{number}") for number in range(IN_FLIGHT)))


def _machine() -> LedgerMachine:
    ids = iter(range(1, 1 << 62))
    rules = QUEUE_RULES._replace(max_unacked=1 << 30, max_unacked_consumer=1 << 30)
    machine = LedgerMachine(lambda group: rules, tuple, lambda: next(ids), lambda: 0.5)
    machine.open(0, 0, "q", 0)
    return machine


def with_backlog(backlog: int, messages: int) -> Measured:
    """Lease and acknowledge in front of a backlog: the ledger alone."""
    machine, want = _machine(), Want("q", "c", BATCH)
    gc.collect()
    watch = Stopwatch()
    for at in range(0, messages, BATCH):
        leased, _ = machine.lease(at, want, backlog + messages)
        (part,) = leased.ranges
        machine.settle(at, 0, "q", Receipt(leased.lease_id), [Change(part.first, part.last, ACK)])
    return watch.of(messages)


def out_of_order(unsettled: int, messages: int) -> Measured:
    """The same one by one, in random order, with so many that are leased and not settled at any time."""
    machine, want, chance = _machine(), Want("q", "c", BATCH), random.Random(1)
    held: list[tuple[int, int]] = []

    def lease() -> None:
        leased, _ = machine.lease(0, want, 1 << 60)
        held.extend((leased.lease_id, offset) for part in leased.ranges for offset in range(part.first, part.last + 1))

    while len(held) < unsettled:
        lease()
    gc.collect()
    watch = Stopwatch()
    for _ in range(messages):
        if len(held) <= unsettled - BATCH:
            lease()
        at = chance.randrange(len(held))
        held[at], held[-1] = held[-1], held[at]
        lease_id, offset = held.pop()
        machine.settle(0, 0, "q", Receipt(lease_id), [Change(offset, offset, ACK)])
    return watch.of(messages)


def memory_of_unsettled(messages: int) -> float:
    """MB of a ledger in which so many are leased."""
    before = resident()
    machine, want = _machine(), Want("q", "c", BATCH)
    for _ in range(messages // BATCH):
        machine.lease(0, want, 1 << 60)
    return (resident() - before) / 1e6


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


BACKLOGS = (10**3, 10**5, 10**7)
UNSETTLED = (10**2, 10**5)


def measure(messages: int) -> dict[str, float]:
    """All figures: CPU microseconds of a message, messages a second, MB."""
    found = {"unsettled-mb": memory_of_unsettled(1_000_000)}
    for backlog in BACKLOGS:
        found[f"backlog-{backlog}-us"] = with_backlog(backlog, messages).cpu_us
    for unsettled in UNSETTLED:
        found[f"disorder-{unsettled}-us"] = out_of_order(unsettled, messages // 10).cpu_us
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engine = runner.run(through_the_engine(directory, messages))
    return {**found, "engine-rate": engine.rate, "engine-us": engine.cpu_us}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="the figures alone")
    asked = parser.parse_args()
    found = measure(asked.messages)
    if asked.json:
        print(json.dumps(found))
        return 0
    print(f"records: {form()}")
    for name, figure in found.items():
        print(f"{name:24} {figure:>12,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
