"""How many transactions one producer commits, one after the other, with equal durability of all that is kept."""

import time
from pathlib import Path
from typing import Literal, NamedTuple

from bench import jvm, native
from bench.cells import Durability
from bench.progress import say
from bench.rows import Row, at_least
from bench.scale import Scale, settle
from bench.subject import Subject, start

PARTITIONS = 6
RECORD_BYTES = 1024
WARM_MS, TIMED_MS = 800, 1_600
QUICK_MS = 500
_MARKERS_S, _LOOK_S = 10.0, 0.05
WARM_UP_MS = 8_000  # for each client: a JVM that has just started commits far fewer
# A commit is as durable as the coordinator's record of it. Penstock always syncs that, so Kafka is told to.
STATE_TOPIC = "__transaction_state"
DURABILITY: Durability = "synced"
SETTINGS = {"penstock": {}, "kafka": {"transaction.state.log.num.partitions": "50"}}

THEME = "Transactions"


class Load(NamedTuple):
    client: Literal["java", "librdkafka"]
    records: int

    @property
    def name(self) -> str:
        return f"txn-{self.client}-{self.records}-{DURABILITY}"

    def row(self) -> Row:
        client = "Java" if self.client == "java" else "librdkafka"
        title = f"transactions of {self.records:,} x 1 KB, {PARTITIONS} partitions, {DURABILITY}, {client}"
        unit = "records/s" if self.records > LITTLE else "transactions/s"
        return Row(self.name, THEME, title, unit, (at_least(1.0),), more_is_better=True)


MUCH, LITTLE = 1_000, 10
LOADS = [Load(client, records) for records in (MUCH, LITTLE) for client in ("java", "librdkafka")]
ROWS = [load.row() for load in LOADS]


def measure(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    quick = scale.share < 1
    settle(directory)
    subject = start(name, directory / name, settings=SETTINGS[name])
    try:
        warm_ms, timed_ms = (QUICK_MS, QUICK_MS) if quick else (WARM_MS, TIMED_MS)
        for load in LOADS[-2:]:  # both clients, both versions of the protocol
            _run(subject, load, f"warm-{load.client}", QUICK_MS if quick else WARM_UP_MS, 1)
        if name == "kafka":
            subject.alter_topic(STATE_TOPIC, "flush.messages", "1")
        return {load.name: _run(subject, load, load.name, warm_ms, timed_ms) for load in LOADS}
    finally:
        subject.stop()


def _run(subject: Subject, load: Load, topic: str, warm_ms: int, timed_ms: int) -> float:
    subject.create_topic(topic, PARTITIONS, DURABILITY)
    settle(subject.directory)
    place = (subject.bootstrap, topic, PARTITIONS, load.records, RECORD_BYTES, warm_ms, timed_ms)
    before_s = subject.cpu_s()
    found = jvm.transact(*place) if load.client == "java" else native.run("transact", *place)
    used_s = subject.cpu_s() - before_s
    _count(subject, topic, found["all"], found["all"] * offsets_of_one(load.records))
    rate = found["transactions"] / found["seconds"]
    subject.delete_topic(topic)
    say(f"{subject.name}: {load.row().title}: {rate:.0f} a second, {used_s / found['all'] * 1000:.2f} CPU-ms each")
    return rate * load.records if load.records > LITTLE else rate


def _count(subject: Subject, topic: str, transactions: int, expected: int) -> None:
    """Whether everything is in the log; the last markers may come a little after the answer to the commit."""
    deadline_s = time.monotonic() + _MARKERS_S
    while (written := sum(subject.end_offsets(topic, PARTITIONS))) < expected and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    if written != expected:
        raise native.NativeError(f"{subject.name}: {transactions} transactions took {written} offsets, not {expected}")


def offsets_of_one(records: int) -> int:
    """Its records, and a marker in each partition they went to."""
    return records + min(records, PARTITIONS)
