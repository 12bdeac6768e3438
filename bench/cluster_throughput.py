"""How fast a topic with three replicas is written and read back, acks=all, and the CPU of the whole cluster for it."""

import time
from pathlib import Path
from typing import NamedTuple

from tests.cluster.cluster_process import ClusterProcess

from bench import fetching, native
from bench.cells import MEGABYTE, TOPIC_CONFIG, Durability
from bench.cluster_subject import cpu_s, delete_topic, running
from bench.progress import say
from bench.rows import Row, at_least
from bench.scale import settle

RECORD_BYTES = 1024
PARTITIONS = 6
WARM_PASSES = 3
IDLE_S = 4.0
_WARM_SHARE = 0.5


class Cell(NamedTuple):
    name: str
    durability: Durability
    megabytes: int

    def records(self, share: float) -> int:
        return max(PARTITIONS, int(self.megabytes * share * MEGABYTE) // RECORD_BYTES)


CELLS = (Cell("cache", "page cache", 300), Cell("synced", "synced", 100))
_TITLE = f"1 KB, {PARTITIONS} partitions, acks=all, "
ROWS = [
    *(
        Row(f"{cell.name}-produce", "Produce", _TITLE + cell.durability, "MB/s", (at_least(1.0),), more_is_better=True)
        for cell in CELLS
    ),
    Row("default-produce", "Produce", _TITLE + "defaults", "MB/s", more_is_better=True),
    *(Row(f"{cell.name}-consume", "Consume", _TITLE + cell.durability, "MB/s", (), True) for cell in CELLS),
    Row("cache-fetch", "Consume", f"{_TITLE}page cache, without a client's work", "MB/s", more_is_better=True),
    *(Row(f"{cell.name}-cpu", "CPU", f"to write 1 GB, {cell.durability}", "CPU-s") for cell in CELLS),
    *(Row(f"{cell.name}-cpu-consume", "CPU", f"to read 1 GB, {cell.durability}", "CPU-s") for cell in CELLS),
    Row("cache-fetch-cpu", "CPU", "to read 1 GB, page cache, without a client's work", "CPU-s"),
    Row("idle-cpu", "CPU", "without any client", "cores"),
]


def measure(name: str, directory: Path, share: float) -> dict[str, float]:
    """One cluster, started for this and warmed up: a JVM needs some work until its hot paths are compiled."""
    with running(name, directory) as cluster:
        for number in range(WARM_PASSES):
            _measure_cell(cluster, CELLS[number % len(CELLS)], share * _WARM_SHARE, directory)
        say(f"{name}: warm")
        figures: dict[str, float] = {}
        for cell in CELLS:
            found = _measure_cell(cluster, cell, share, directory)
            say(f"{name}: {cell.durability}: {found['produce']:.0f} in, {found['consume']:.0f} MB/s out")
            figures |= {f"{cell.name}-{figure}": value for figure, value in found.items()}
        # Penstock syncs unless it is told not to, Kafka does not unless it is told to.
        figures["default-produce"] = figures["synced-produce" if name == "penstock" else "cache-produce"]
        before_s = cpu_s(cluster)
        time.sleep(IDLE_S)
        figures["idle-cpu"] = (cpu_s(cluster) - before_s) / IDLE_S
    return figures


def _measure_cell(cluster: ClusterProcess, cell: Cell, share: float, directory: Path) -> dict[str, float]:
    topic, records = f"cell-{cell.name}-{time.monotonic_ns()}", cell.records(share)
    cluster.create_topic(topic, PARTITIONS, TOPIC_CONFIG[cell.durability][cluster.name])
    megabytes = records * RECORD_BYTES / MEGABYTE
    settle(directory, int(megabytes * len(cluster.nodes)))
    written = fetching.Written(topic, PARTITIONS, records, RECORD_BYTES)
    place = (cluster.bootstrap, topic, PARTITIONS, records, RECORD_BYTES)
    before_s = cpu_s(cluster)
    produced = native.run("load", "produce", *place, "all")
    between_s = cpu_s(cluster)
    consumed = native.run("load", "consume", *place)
    after_s = cpu_s(cluster)
    leaders = _leaders(cluster, topic)
    before_fetch_s = cpu_s(cluster)
    fetched = fetching.read(written, fetching.connect(leaders))
    fetched_s = cpu_s(cluster) - before_fetch_s
    delete_topic(cluster, topic)
    gigabytes = megabytes / 1000
    return {
        "produce": megabytes / produced["seconds"],
        "consume": megabytes / consumed["seconds"],
        "fetch": megabytes * fetching.PASSES / fetched["seconds"],
        "cpu": (between_s - before_s) / gigabytes,
        "cpu-consume": (after_s - between_s) / gigabytes,
        "fetch-cpu": fetched_s / gigabytes / fetching.PASSES,
    }


def _leaders(cluster: ClusterProcess, topic: str) -> dict[str, list[int]]:
    """The address of each leader with its partitions."""
    found: dict[str, list[int]] = {}
    for number in range(PARTITIONS):
        found.setdefault(cluster.nodes[cluster.leader(topic, number)].bootstrap, []).append(number)
    return found
