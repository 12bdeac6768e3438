"""`python -m bench.cluster`: three brokers of Penstock beside three of Apache Kafka, written to and taken down."""

import argparse
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.etcd import EtcdError, programs
from tests.peers.broker import BrokerError

from bench import cluster_gaps, cluster_report, cluster_throughput, machine
from bench.cluster_subject import running
from bench.native import CACHE, NativeError
from bench.progress import say
from bench.run import _NOT_DISKS, BUSY_PERCENT, EXIT_TERMINATED, MIN_ROUNDS
from bench.subject import BROKERS

GROUPS = ("throughput", "planned", "killed", "follower")
QUICK = ["--rounds", "1", "--share", "0.1", "--stops", "2", "--kills", "3"]
FULL_STOPS, FULL_KILLS = 10, 30
FEWER = 3
"""A third of the kills are enough for followers, and for Kafka: each costs it its session time-out of nine seconds."""
BRIEF_KAFKA = 6
"""A sixth will do for Kafka in a brief run: its gap is that time-out, and no bar hangs on it."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of throughput (default %(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the bytes (default %(default)s)")
    parser.add_argument("--stops", type=int, default=FULL_STOPS, help="leaders asked to stop (default %(default)s)")
    more = "leaders killed; a third of it followers, and of Kafka (default %(default)s)"
    parser.add_argument("--kills", type=int, default=FULL_KILLS, help=more)
    parser.add_argument("--brief", action="store_true", help="a sixth of the kills for Kafka, leaders and followers")
    parser.add_argument("--quick", action="store_true", help=f"a look: {' '.join(QUICK)}")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--brokers", default=",".join(BROKERS), help=f"of {','.join(BROKERS)}")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    parser.add_argument("--output", type=Path, help="result file; a complete run has a place of its own")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    if options.quick:
        options = parser.parse_args(QUICK, options)
    options.only, options.brokers = options.only.split(","), options.brokers.split(",")
    for given, known in ((options.only, GROUPS), (options.brokers, BROKERS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    for name in ("rounds", "share", "stops", "kills"):
        if (value := getattr(options, name)) <= 0:
            parser.error(f"--{name} is {value}, but has to be positive")
    return options


def complete(options: argparse.Namespace) -> bool:
    """Whether the run may stand among the results: everything, at full size, often enough for its percentiles."""
    whole = set(options.only) == set(GROUPS) and set(options.brokers) == set(BROKERS) and options.share >= 1.0
    enough = options.rounds >= MIN_ROUNDS and options.stops >= FULL_STOPS and options.kills >= FULL_KILLS
    return whole and enough and options.output is None


def measure_throughput(options: argparse.Namespace, directory: Path) -> list[dict[str, dict[str, float]]]:
    """One cluster at a time; the order turns with the rounds, so that none is always first."""
    rounds = []
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        order = options.brokers if number % 2 == 0 else options.brokers[::-1]
        rounds.append({name: cluster_throughput.measure(name, directory, options.share) for name in order})
    return rounds


def gaps_of(name: str, options: argparse.Namespace) -> dict[cluster_gaps.Kind, int]:
    """How many of each kind a broker has to go through."""
    part = BRIEF_KAFKA if options.brief and name == "kafka" else FEWER
    fewer = math.ceil(options.kills / part)
    return {"planned": options.stops, "killed": fewer if name == "kafka" else options.kills, "follower": fewer}


def measure_gaps(options: argparse.Namespace, directory: Path) -> dict[str, dict[str, list[float]]]:
    """By kind and broker, in seconds."""
    kinds = [kind for kind in cluster_report.GAPS if kind in options.only]
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for name in options.brokers if kinds else ():
        wanted = gaps_of(name, options)
        with running(name, directory) as cluster:
            cluster.create_topic(cluster_gaps.TOPIC, cluster_gaps.PARTITIONS)
            for kind in kinds:
                found[kind][name] = cluster_gaps.measure(cluster, kind, wanted[kind], directory)
    return found


def save(result: dict[str, Any], options: argparse.Namespace) -> Path:
    """A complete run goes among the results and renews the page; any other one stays out of both."""
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    name = f"{stamp}-{result['machine']['revision'].rstrip('+')}.json"
    place = cluster_report.RESULTS if complete(options) else CACHE / "cluster"
    target: Path = options.output or place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    if complete(options):
        cluster_report.save(result)
    return target


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that all processes and data are cleaned up
    if machine.filesystem(options.directory) in _NOT_DISKS:
        sys.stderr.write(f"{options.directory} is no disk; choose another with --directory\n")
        return 2
    busy_percent = machine.busy_percent()
    if busy_percent > BUSY_PERCENT:
        sys.stderr.write(f"other work takes {busy_percent:.0f} % of this machine: the figures will be off\n")
    if not complete(options):
        sys.stderr.write(
            f"a partial run: shows that it works, judges nothing, leaves docs/{cluster_report.PAGE} alone\n"
        )
    directory = Path(tempfile.mkdtemp(prefix="bench-cluster-", dir=options.directory))
    began_s = time.monotonic()
    try:
        facts = machine.facts(directory) | {"etcd": programs().name.removeprefix("etcd-")}
        result: dict[str, Any] = {
            "command": " ".join([".venv/bin/python -m bench.cluster", *sys.argv[1:]]),
            "machine": facts | {"busy before": f"{busy_percent:.0f} %"},
            "rounds": measure_throughput(options, directory) if "throughput" in options.only else [],
            "gaps": measure_gaps(options, directory),
        }
        result["took_s"] = round(time.monotonic() - began_s)
        say("end")
    except (NativeError, BrokerError, EtcdError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    target = save(result, options)
    sys.stdout.write(cluster_report.tables(result, notes=False) + "\n")
    sys.stderr.write(f"{target}\n")
    return 1 if options.check and cluster_report.missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
