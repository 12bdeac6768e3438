"""How fast a topic is written and read back whole, and the broker's CPU for it; the C floor beside it."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import fetching, jvm, native
from bench.cells import BASE, CELLS, MEGABYTE, Cell, fetch_name, throughput_rows
from bench.progress import say
from bench.rows import Row, at_most
from bench.scale import Scale, settle
from bench.subject import Subject

# Long enough for a broker to end its start-up work, short enough for the run.
IDLE_S = 2.0
_KEYED_WARM_MB = 25
_TOUCHES = 2

START_ROWS = [
    Row("ready", "Start and memory", "start to ready, no topics", "s", (at_most(0.5, "nothing"),)),
    Row("rss-idle", "Start and memory", "memory, idle", "MB", (at_most(60.0, "nothing"),)),
]
ROWS = [*throughput_rows(), Row("rss-loaded", "Start and memory", "memory, after the throughput cells", "MB")]


def measure_start(subject: Subject, scale: Scale) -> dict[str, float]:
    time.sleep(IDLE_S)
    return {"ready": subject.broker.ready_s, "rss-idle": subject.rss_mb()}


def measure(subject: Subject, scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for cell in filter(scale.includes, CELLS):
        found = measure_cell(subject, narrow(cell, scale), scale.share)
        say(f"{subject.name}: {cell.title()}: {found['produce']:.0f} in, {found['consume']:.0f} MB/s out")
        figures |= {f"{cell.name}-{name}": value for name, value in found.items()}
    return figures | {"rss-loaded": subject.rss_mb()}


def narrow(cell: Cell, scale: Scale) -> Cell:
    return replace(cell, partitions=scale.partitions(cell.partitions))


def measure_cell(subject: Subject, cell: Cell, share: float) -> dict[str, float]:
    topic, records = f"cell-{cell.name}", cell.records(share)
    subject.create_topic(topic, cell.partitions, cell.durability)
    megabytes = records * cell.record_bytes / MEGABYTE
    touch(subject, cell, topic)
    settle(subject.directory, int(megabytes))
    before_s = subject.cpu_s()
    produced = produce(subject, cell, topic, records)
    between_s = subject.cpu_s()
    consumed = consume(subject, cell, topic, records)
    after_s = subject.cpu_s()
    fetched = fetch(subject, cell, topic, records)
    subject.delete_topic(topic)
    return {
        "produce": produced["bytes"] / MEGABYTE / produced["seconds"],
        "consume": consumed["bytes"] / MEGABYTE / consumed["seconds"],
        "cpu": (after_s - before_s) / (megabytes / 1000),
        "cpu-produce": (between_s - before_s) / (megabytes / 1000),
        "cpu-consume": (after_s - between_s) / (megabytes / 1000),
        **fetched,
    }


def produce(subject: Subject, cell: Cell, topic: str, records: int) -> dict[str, Any]:
    if cell.client == "java":
        return jvm.produce(subject.bootstrap, topic, records, cell.record_bytes, cell.acks)
    options = [*(["keyed"] if cell.keyed else []), *([f"codec={cell.codec}", "text"] if cell.codec else [])]
    place = (subject.bootstrap, topic, cell.partitions, records, cell.record_bytes)
    return native.run("load", "produce", *place, cell.acks, *options)


def touch(subject: Subject, cell: Cell, topic: str) -> None:
    """Write to every partition of a wide topic before it is measured.

    The first touch of a partition's files costs far more than any later one, above all of Kafka's mapped indexes,
    which get their first entry with the second batch. It is a price of creating the topic, not of writing to it.
    """
    records = cell.partitions * cell.prefilled // _TOUCHES
    for _ in range(_TOUCHES if records else 0):
        place = (subject.bootstrap, topic, cell.partitions, records, cell.record_bytes)
        native.run("load", "produce", *place, cell.acks)


def consume(subject: Subject, cell: Cell, topic: str, records: int) -> dict[str, Any]:
    if cell.client == "java":
        return jvm.consume(subject.bootstrap, topic, cell.partitions, records, cell.record_bytes, skip=cell.prefilled)
    options = [*(["keyed"] if cell.keyed else []), *([f"skip={cell.prefilled}"] if cell.prefilled else [])]
    place = (subject.bootstrap, topic, cell.partitions, records, cell.record_bytes)
    return native.run("load", "consume", *place, *options)


def fetch(subject: Subject, cell: Cell, topic: str, records: int) -> dict[str, float]:
    """The same topic through a client that does next to nothing, on as many connections as the cell asks for."""
    figures: dict[str, float] = {}
    for connections in cell.fetch:
        written = fetching.Written(topic, cell.partitions, records, cell.record_bytes, cell.keyed, cell.prefilled)
        places = fetching.connect({subject.bootstrap: range(cell.partitions)}, connections)
        gigabytes = written.megabytes * fetching.PASSES / 1000
        before_s = subject.cpu_s()
        found = fetching.read(written, places)
        took_s = subject.cpu_s() - before_s
        name = fetch_name(cell, connections).removeprefix(f"{cell.name}-")
        figures |= {
            name: gigabytes * 1000 / found["seconds"],
            f"{name}-cpu": took_s / gigabytes,
            f"{name}-reader": found["cpu_s"] / gigabytes,
            f"{name}-bytes": found["bytes"],
            f"{name}-batches": found["batches"],
        }
    return figures


def warm_up(subject: Subject, scale: Scale) -> None:
    """The same work, not measured: a JVM needs some gigabytes until its hot paths are compiled."""
    by_name = {cell.name: cell for cell in CELLS}
    for number in range(scale.warm_passes):
        cell = by_name[("base", "default")[number % 2]]
        measure_cell(subject, cell, scale.share / 2)
    wide = narrow(by_name["keyed-cached"], scale)
    measure_cell(subject, wide, scale.share * _KEYED_WARM_MB / wide.megabytes)
    say(f"{subject.name}: warm")


def measure_floor(directory: Path, scale: Scale) -> dict[str, float]:
    """The C program that only receives, writes and sends back, with the bytes of the base cell."""
    megabytes = scale.megabytes(BASE.megabytes)
    settle(directory, megabytes)
    found = native.run("floor", str(directory / "floor.dat"), megabytes * MEGABYTE)
    return {
        f"{BASE.name}-produce": megabytes / found["in_s"],
        f"{BASE.name}-consume": megabytes / found["out_s"],
        f"{BASE.name}-cpu": found["cpu_s"] / (megabytes / 1000),
    }
