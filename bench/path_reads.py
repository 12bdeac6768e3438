"""`python -m bench.path_reads`: what a row costs a task of Spark's, from the broker and from its files, without Spark.

CPU time of this process alone: getting the bytes with all their checks, and then making Arrow arrays of them, which is
the same for both. The rest of what `make bench-spark` counts for a row is Spark's own.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from bench import native
from bench.progress import say
from bench.subject import Subject, start
from penstock.client.cluster import Cluster
from penstock.client.settings import Settings
from penstock.spark.read.ranges import Range
from penstock.spark.read.reading import Chunk, Reading
from penstock.spark.segments import segments

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
SIZES = {100: 2_000_000, 1024: 400_000}
ROUNDS = 7
FETCH_BYTES = 8 << 20
_TOPIC = "rows"
_SEGMENT_BYTES = 32 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.path_reads", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    print(f"CPU-µs a row, medians of {rounds} rounds in turn\n")
    print("| record | from the broker: bytes | and Arrow | from files: bytes | and Arrow |\n|---|--:|--:|--:|--:|")
    for size, records in SIZES.items():
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            subject = start("penstock", Path(directory) / "penstock")
            try:
                cells = [f"{each:.3f}" for each in measure(subject, size, records, rounds)]
            finally:
                subject.stop()
        print(f"| {size} B | {' | '.join(cells)} |", flush=True)


def measure(subject: Subject, size: int, records: int, rounds: int) -> list[float]:
    """From the broker and from files, bytes alone and bytes with their arrays."""
    subject.create_topic(_TOPIC, 1, "page cache", {"segment.bytes": str(_SEGMENT_BYTES)})
    native.run("load", "produce", subject.bootstrap, _TOPIC, 1, records, size, "1")
    settings = Settings(subject.bootstrap)
    with Cluster(settings) as cluster:
        topic = cluster.topics([_TOPIC])[_TOPIC]
    path = str(subject.directory / "data")
    (piece, *_), _ = segments.plan(path, _TOPIC, topic.id, 0, 0, records)
    wanted = Range(_TOPIC, topic.id, 0, piece.first, piece.end)
    reading = Reading(settings, COLUMNS, None, pa.schema([]), True, True, 30.0, FETCH_BYTES)

    def from_files() -> Iterator[Chunk]:
        return (Chunk(data, places, piece.first) for data, places in segments.read(path, piece, read_committed=True))

    ways: list[Callable[[], int]] = [
        lambda: sum(_records(chunk) for chunk in reading.fetch(wanted)),
        lambda: sum(rows.num_rows for rows in reading.read(wanted)),
        lambda: sum(_records(chunk) for chunk in from_files()),
        lambda: sum(rows.num_rows for rows in reading.read(wanted, from_files())),
    ]
    took: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, figures in zip(ways, took, strict=True):
            began = time.process_time()
            rows = way()
            spent_s = time.process_time() - began
            assert rows >= piece.end - piece.first, "records are missing"
            if number:  # the first round warms up
                figures.append(spent_s / rows * 1e6)
    say(f"{size} B: {piece.end - piece.first:,} records in sealed segments")
    return [statistics.median(figures) for figures in took]


def _records(chunk: Chunk) -> int:
    return sum(place.header.record_count for place in chunk.places)


if __name__ == "__main__":
    main()
