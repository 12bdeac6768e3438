"""`python -m bench.sorting`: what lanes, tenants, keys and delays cost inside the ledger, and how that grows.

Messages of 100 bytes say all of it: batches of them are looked at as the broker looks at them, leased and acknowledged,
with a backlog of them all the time. Of a queue in which nothing says anything, the same beside it.
"""

import argparse
import gc
import json
import random
import sys
from typing import NamedTuple

from bench.ledger import BATCH, VALUE, Measured, Stopwatch, resident
from penstock.compiled import form
from penstock.engine.queues.answers import Want
from penstock.engine.queues.headers import DELAY_MS, PRIORITY, TENANT
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES, QueueRules
from penstock.engine.queues.sorting.indexer import look_through
from penstock.engine.queues.sorting.marks import Said
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.records.batch import patch_place
from penstock.records.build import build_batch

ACK = Verdict(VerdictKind.ACK)
BACKLOGS = (10**3, 10**5, 10**7)
KEYS, TENANTS = 100_000, 1_000
DELAYED = 10_000_000
HOUR_MS = 3_600_000
_KINDS = 64


class Kind(NamedTuple):
    """Which of it the messages say."""

    lanes: bool = False
    tenants: bool = False
    keys: bool = False
    delays: bool = False


ALL = Kind(lanes=True, tenants=True, keys=True, delays=True)


def batches(kind: Kind, chance: random.Random) -> list[bytes]:
    """Some batches, different from each other."""
    return [_batch(kind, chance) for _ in range(_KINDS)]


def _batch(kind: Kind, chance: random.Random) -> bytes:
    records = []
    for _ in range(BATCH):
        headers = []
        if kind.lanes:
            headers.append((PRIORITY, b"%d" % chance.randrange(10)))
        if kind.tenants:
            headers.append((TENANT, b"tenant-%d" % chance.randrange(TENANTS)))
        if kind.delays and chance.random() < 0.5:
            headers.append((DELAY_MS, b"%d" % chance.randrange(1, 60_000)))
        key = b"key-%d" % chance.randrange(KEYS) if kind.keys else None
        records.append((key, VALUE, tuple(headers), 0))
    return bytes(build_batch(records))


class Queue:
    """A ledger, and what goes through it. A message takes a millisecond of its time."""

    def __init__(self, kind: Kind, rules: QueueRules) -> None:
        ids = iter(range(1, 1 << 62))
        self.machine = LedgerMachine(lambda group: rules, tuple, lambda: next(ids), lambda: 0.5, made=lambda: ("q",))
        self.machine.open(0, 0, "q", 0)
        self.machine.look_from(0)
        self._batches = batches(kind, random.Random(1))
        self._by_key = rules.is_fifo
        self.end = 0

    def send(self) -> None:
        batch = bytearray(self._batches[self.end // BATCH % _KINDS])
        patch_place(memoryview(batch), self.end, 0)
        looked = look_through(bytes(batch), self.end, self._by_key)
        self.machine.looked(self.end, looked.last, looked.said, self.end)
        self.end += BATCH

    def receive(self) -> int:
        machine = self.machine
        machine.tick(self.end)
        leased, _ = machine.lease(self.end, Want("q", "c", BATCH), self.end)
        changes = [Change(part.first, part.last, ACK) for part in leased.ranges]
        if changes:
            machine.settle(self.end, 0, "q", Receipt(leased.lease_id), changes)
        return sum(part.last - part.first + 1 for part in leased.ranges)


def measure_one(kind: Kind, backlog: int, messages: int) -> Measured:
    rules = QUEUE_RULES._replace(max_unacked=1 << 30, max_unacked_consumer=1 << 30, is_fifo=kind.keys)
    queue = Queue(kind, rules)
    while queue.end < backlog:
        queue.send()
    for _ in range(20):
        queue.receive()
    gc.collect()
    watch, count = Stopwatch(), 0
    while count < messages:
        queue.send()
        count += queue.receive()
    return watch.of(count)


def memory_of(kind: Kind, messages: int) -> float:
    """MB of a backlog."""
    before = resident()
    queue = Queue(kind, QUEUE_RULES._replace(is_fifo=kind.keys))
    while queue.end < messages:
        queue.send()
    return (resident() - before) / 1e6


def memory_of_delayed(messages: int) -> float:
    """MB of so many messages that are due in the course of the day after the next hour."""
    before, chance = resident(), random.Random(1)
    machine = Queue(Kind(), QUEUE_RULES).machine
    for at in range(0, messages, BATCH):
        due = [HOUR_MS + chance.randrange(24 * HOUR_MS) for _ in range(BATCH)]
        machine.looked(0, at + BATCH - 1, [Said(at + number, due_ms=each) for number, each in enumerate(due)], 0)
    return (resident() - before) / 1e6


def measure(messages: int, backlogs: tuple[int, ...]) -> dict[str, float]:
    found: dict[str, float] = {"memory-mb": memory_of(ALL, 1_000_000), "delayed-mb": memory_of_delayed(DELAYED)}
    for name, kind in {
        "plain": Kind(),
        "lanes": Kind(lanes=True),
        "tenants": Kind(tenants=True),
        "keys": Kind(keys=True),
        "delays": Kind(delays=True),
    }.items():
        found[f"{name}-us"] = measure_one(kind, 10**4, messages).cpu_us
    for backlog in backlogs:
        found[f"all-{backlog}-us"] = measure_one(ALL, backlog, messages).cpu_us
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--backlogs", type=int, nargs="*", default=BACKLOGS)
    parser.add_argument("--json", action="store_true", help="the figures alone")
    asked = parser.parse_args()
    found = measure(asked.messages, tuple(asked.backlogs))
    if asked.json:
        print(json.dumps(found))
        return 0
    print(f"records: {form()}; CPU microseconds of a message, looked at, leased and acknowledged")
    for name, figure in found.items():
        print(f"{name:24} {figure:>12,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
