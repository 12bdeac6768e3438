"""`python -m bench.pipelines`: measures pipelines beside programs without them, on one Penstock broker."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers import postgres
from tests.peers.broker import BrokerError

from bench import machine, pipelines_driver, pipelines_queries, pipelines_report
from bench import spark as spark_bench
from bench.native import CACHE, NativeError
from bench.pipelines_queries import MASTER, Bench, fill
from bench.progress import say
from bench.run import BUSY_PERCENT, EXIT_TERMINATED, MIN_ROUNDS
from bench.scale import settle
from bench.spark_queries import Group, WrongRows
from bench.subject import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS: dict[str, Group] = {**pipelines_queries.GROUPS, **pipelines_driver.GROUPS}
QUICK = ["--scale", "0.02", "--rounds", "1"]
# The server of the tests gives durability up for speed; here it keeps it, as the broker does.
_POSTGRES = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipelines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of rows and seconds (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"a look: {' '.join(QUICK)}")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    parser.add_argument("--output", type=Path, help="result file; a complete run has a place of its own")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    if options.quick:
        options = parser.parse_args(QUICK, options)
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


def open_session(directory: Path, jars: list[Path]) -> "SparkSession":
    """As the driver of pipelines opens one; the programs without pipelines are measured in it, too."""
    from penstock.pipelines.run.sessions import open_session as open_for_pipelines

    conf = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    made = open_for_pipelines(MASTER, conf)
    made.sparkContext.setLogLevel("ERROR")
    return made


@contextlib.contextmanager
def database(needed: bool) -> Iterator[postgres.Postgres | None]:
    """A PostgreSQL server, where one is needed."""
    if not needed:
        yield None
        return
    server = postgres.start(settings=_POSTGRES)
    try:
        yield server
    finally:
        server.stop()


def run_rounds(bench: Bench, only: list[str], rounds: int) -> list[dict[str, Any]]:
    """What warms up, which does not count, then the rounds."""
    chosen = {name: group for name, group in GROUPS.items() if name in only}
    for group in chosen.values():
        if group.prepare is not None:
            group.prepare(bench)
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
    from penstock.spark.setup.installation import find_java, find_pyspark
    from penstock.spark.setup.sessions import settings
    from penstock.spark.setup.warm import find_warmth

    warm = find_warmth(find_pyspark(), find_java()) is not None
    done = subprocess.run([postgres.binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return spark_bench.facts(directory, jars) | {
        "spark": f"{MASTER}, driver heap {settings(MASTER, {})['spark.driver.memory']}",
        "penstock spark warm": "was run" if warm else "was not run",
        "postgres": f"{done.stdout.strip()}, fsync on, on {machine.filesystem(Path(tempfile.gettempdir()))}",
        "sqlite": sqlite3_version(),
        "deltalake": metadata.version("deltalake"),
    }


def sqlite3_version() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def measure(options: argparse.Namespace, directory: Path, jars: list[Path]) -> dict[str, Any]:
    """Start broker, database and session, write the data, run the rounds."""
    settle(directory)
    subject = start("penstock", directory / "penstock")
    try:
        (directory / "spark").mkdir()
        with database("sinks" in options.only) as server:
            begun = time.perf_counter()
            spark = open_session(directory, jars)
            session_s = time.perf_counter() - begun
            try:
                bench = Bench(spark, subject, directory, options.scale, postgres=server)
                fill(bench)
                return {"session_s": session_s, "rounds": run_rounds(bench, options.only, options.rounds)}
            finally:
                spark.stop()
    finally:
        subject.stop()


def save(result: dict[str, Any], options: argparse.Namespace) -> Path:
    """A complete run goes among the results and renews the page; any other one stays out of both."""
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    name = f"{stamp}-{result['machine']['revision'].rstrip('+')}.json"
    place = pipelines_report.RESULTS if complete(options) else CACHE / "pipelines"
    target: Path = options.output or place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    if complete(options):
        pipelines_report.save(result)
    return target


def main() -> int:
    options = parse()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as where pipelines are used: what was imported once is compiled
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that all processes and data are cleaned up
    busy_percent = machine.busy_percent()
    if busy_percent > BUSY_PERCENT:
        sys.stderr.write(f"other work takes {busy_percent:.0f} % of this machine: the figures will be off\n")
    if not complete(options):
        sys.stderr.write(
            f"a partial run: shows that it works, judges nothing, leaves docs/{pipelines_report.PAGE} alone\n"
        )
    directory = Path(tempfile.mkdtemp(prefix="bench-pipelines-", dir=options.directory))
    try:
        jars = spark_bench.connector_jars()
        result: dict[str, Any] = {
            "command": " ".join([".venv/bin/python -m bench.pipelines", *sys.argv[1:]]),
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
    sys.stdout.write(pipelines_report.tables(result, notes=False) + "\n")
    sys.stderr.write(f"{target}\n")
    return 1 if options.check and pipelines_report.missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
