"""`python -m bench.spark`: measures Penstock's Spark source beside Spark's Kafka connector, on one Penstock broker."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.broker import BrokerError
from tests.peers.kafka import java

from bench import machine, spark_report
from bench.native import CACHE, NativeError
from bench.progress import say
from bench.run import BUSY_PERCENT, EXIT_TERMINATED, MIN_ROUNDS
from bench.scale import settle
from bench.spark_queries import GROUPS, PARTITIONS, Load, Workbench, WrongRows
from bench.subject import Subject, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "6g"
MASTER = "local[2]"
# A path is read from segments that are sealed, and the default of 1 GiB would leave everything in one that is not.
_SEGMENTS = 6
_LEAST_SEGMENT_BYTES = 1 << 16
_FILL_LIMIT_S = 600.0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every query (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows (default %(default)s)")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    parser.add_argument("--output", type=Path, help="result file; a complete run has a place of its own")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(GROUPS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    for name in ("rounds", "scale"):
        if (value := getattr(options, name)) <= 0:
            parser.error(f"--{name} is {value}, but has to be positive")
    return options


def complete(options: argparse.Namespace) -> bool:
    """Whether the run may stand among the results: everything, at full size, often enough for a median."""
    whole = set(options.only) == set(GROUPS) and options.scale == 1.0
    return whole and options.output is None and options.rounds >= MIN_ROUNDS


def connector_jars() -> list[Path]:
    """Spark's own Kafka connector and what it needs beside pyspark."""
    done = subprocess.run([machine.ROOT / "scripts" / "jars", "spark-connector"], capture_output=True, text=True)
    if done.returncode != 0:
        raise NativeError(f"scripts/jars failed:\n{done.stderr}")
    return sorted(Path(done.stdout.strip().splitlines()[-1]).glob("*.jar"))


def open_session(directory: Path, jars: list[Path]) -> "SparkSession":
    """As a user of Penstock opens one; both sides are measured in it."""
    from penstock.spark import session

    made = session(
        "penstock-bench",
        MASTER,
        **{
            "spark.driver.memory": HEAP,
            "spark.jars": ",".join(map(str, jars)),
            "spark.local.dir": str(directory / "spark"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        },
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def fill(subject: Subject, load: Load) -> None:
    """Write a topic with Kafka's producer performance tool as it comes: letters, no keys, batches of 16 KB."""
    topic = f"sp{load.name}"
    segment_bytes = max(_LEAST_SEGMENT_BYTES, load.records * load.record_bytes // PARTITIONS // _SEGMENTS)
    subject.create_topic(topic, PARTITIONS, "defaults", {"segment.bytes": str(segment_bytes)})
    command = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", subject.bootstrap, "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(load.records), "--record-size", str(load.record_bytes)),
        *("--command-property", "acks=all"),
        options=("-Xmx512m",),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=_FILL_LIMIT_S, check=False)
    if done.returncode != 0:
        raise NativeError(f"{topic} was not written: {done.stderr.strip()[-2000:]}")
    say(f"{topic}: {load.records:,} records of {load.title} written")


def sealed_percent(data: Path, topic: str) -> float:
    """How much of a topic's bytes is in segments that are sealed: those that have an index beside them."""
    sizes = [(path.stat().st_size, path.with_suffix(".index").exists()) for path in data.glob(f"logs/{topic}/*/*.log")]
    total = sum(size for size, _ in sizes)
    return 100.0 * sum(size for size, sealed in sizes if sealed) / total if total else 0.0


def run_rounds(bench: Workbench, only: list[str], rounds: int) -> list[dict[str, Any]]:
    """Every query once without counting, which also compiles the JVM's hot paths, then the rounds."""
    chosen = {name: group for name, group in GROUPS.items() if name in only}
    for name, group in chosen.items():
        say(f"warming up: {name}")
        if group.prepare is not None:
            group.prepare(bench)
        group.measure(bench, 0)
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        figures: dict[str, Any] = {}
        for group in chosen.values():
            if group.is_due(number):
                for subject, rows in group.measure(bench, number).items():
                    figures.setdefault(subject, {}).update(rows)
        found.append(figures)
    return found


def facts(directory: Path, jars: list[Path]) -> dict[str, Any]:
    found = machine.facts(directory)
    del found["librdkafka"], found["kafka"]
    (connector,) = (jar.stem for jar in jars if jar.name.startswith("spark-sql-kafka"))
    (clients,) = (jar.stem for jar in jars if jar.name.startswith("kafka-clients"))
    versions = {name: metadata.version(name) for name in ("pyspark", "pyarrow", "numpy")}
    return found | versions | {"spark": f"{MASTER}, driver heap {HEAP}", "connector": f"{connector}, {clients}"}


def measure(options: argparse.Namespace, directory: Path, jars: list[Path]) -> dict[str, Any]:
    """Start the broker and the session, write the data, run the rounds."""
    settle(directory)
    subject = start("penstock", directory / "penstock")
    try:
        (directory / "spark").mkdir()
        spark = open_session(directory, jars)
        try:
            bench = Workbench(spark, subject, directory, options.scale)
            for load in bench.loads():
                fill(subject, load)
            data = subject.directory / "data"
            sealed = {load.title: sealed_percent(data, f"sp{load.name}") for load in bench.loads()}
            return {"sealed_percent": sealed, "rounds": run_rounds(bench, options.only, options.rounds)}
        finally:
            spark.stop()
    finally:
        subject.stop()


def save(result: dict[str, Any], options: argparse.Namespace) -> Path:
    """A complete run goes among the results and renews the page; any other one stays out of both."""
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    name = f"{stamp}-{result['machine']['revision'].rstrip('+')}.json"
    target: Path = options.output or (spark_report.RESULTS if complete(options) else CACHE / "spark") / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    if complete(options):
        spark_report.save(result)
    return target


def main() -> int:
    options = parse()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as where Spark is used: what was imported once is compiled
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that broker and data are cleaned up
    busy_percent = machine.busy_percent()
    if busy_percent > BUSY_PERCENT:
        sys.stderr.write(f"other work takes {busy_percent:.0f} % of this machine: the figures will be off\n")
    if not complete(options):
        sys.stderr.write("a partial run: shows that it works, judges nothing, leaves docs/benchmarks-spark.md alone\n")
    directory = Path(tempfile.mkdtemp(prefix="bench-spark-", dir=options.directory))
    try:
        jars = connector_jars()
        result: dict[str, Any] = {
            "command": " ".join([".venv/bin/python -m bench.spark", *sys.argv[1:]]),
            "machine": facts(directory, jars) | {"busy before": f"{busy_percent:.0f} %"},
            "scale": options.scale,
        }
        result |= measure(options, directory, jars)
        say("end")
    except (NativeError, BrokerError, WrongRows) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    target = save(result, options)
    sys.stdout.write(spark_report.tables(result, notes=False) + "\n")
    sys.stderr.write(f"{target}\n")
    return 1 if options.check and spark_report.missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
