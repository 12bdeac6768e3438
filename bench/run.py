"""`python -m bench.run`: measures the brokers in interleaved rounds and writes the results and their page."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.peers.broker import BrokerError

from bench import machine, report
from bench.groups import BRIEF_NAMES, NAMES, OWN, SHARED
from bench.native import CACHE, NativeError
from bench.progress import say
from bench.scale import Scale, settle
from bench.subject import BROKERS, start
from bench.throughput import measure_floor, warm_up

# tmpfs would measure memory where the brokers promise a disk.
_NOT_DISKS = {"tmpfs", "ramfs"}
# Below these a median means little, and Kafka is measured before its JVM has compiled its hot paths.
MIN_ROUNDS = 3
MIN_PASSES = 4
BUSY_PERCENT = 10.0
QUICK_SHARE = 0.05
FULL_EVERY = 3
EXIT_TERMINATED = 143


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every broker (default %(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of every cell's bytes (default %(default)s)")
    parser.add_argument("--latency-seconds", type=int, default=6, help="per latency row (default %(default)s)")
    parser.add_argument("--warm-passes", type=int, default=6, help="unmeasured passes (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that all of it works")
    parser.add_argument("--brief", action="store_true", help="leave out what other rows show already")
    parser.add_argument("--only", help=f"of {','.join(NAMES)}")
    parser.add_argument("--brokers", default=",".join(BROKERS), help=f"of {','.join(BROKERS)}")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    parser.add_argument("--output", type=Path, help="result file; a complete run has a place of its own")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else list(whole(options.brief))
    options.brokers = options.brokers.split(",")
    for given, known in ((options.only, NAMES), (options.brokers, BROKERS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if options.quick:
        options.rounds, options.share = 1, min(options.share, QUICK_SHARE)
        options.warm_passes, options.latency_seconds = 2, 2
    for name in ("rounds", "share", "latency_seconds"):
        if (value := getattr(options, name)) <= 0:
            parser.error(f"--{name.replace('_', '-')} is {value}, but has to be positive")
    return options


def whole(brief: bool) -> tuple[str, ...]:
    """The groups of a complete run."""
    return BRIEF_NAMES if brief else NAMES


def run_round(options: argparse.Namespace, scale: Scale, directory: Path, number: int) -> dict[str, Any]:
    """Every broker once; the order turns with the rounds, so that none is always first.

    Cells without a bar are measured in every third round, which keeps the run short.
    """
    scale = replace(scale, bars_only=number % FULL_EVERY != 0)
    found: dict[str, Any] = {"floor": measure_floor(directory, scale)}
    order = options.brokers if number % 2 == 0 else options.brokers[::-1]
    for name in order:
        figures = measure_shared(name, options.only, scale, directory)
        for group, own in OWN.items():
            if group in options.only and own.is_due(number, scale.brief):
                figures |= own.measure(name, directory, scale)
        found[name] = figures
    return found


def measure_shared(name: str, only: list[str], scale: Scale, directory: Path) -> dict[str, float]:
    """The groups that take turns on one broker, started for this round and warmed up when one needs it."""
    chosen = {group: shared for group, shared in SHARED.items() if group in only}
    if not chosen:
        return {}
    settle(directory)
    subject = start(name, directory / name)
    try:
        figures: dict[str, float] = {}
        warm = False
        for shared in chosen.values():
            if shared.warm and not warm:
                warm_up(subject, scale)
                warm = True
            figures |= shared.measure(subject, scale)
        return figures
    finally:
        subject.stop()


def complete(options: argparse.Namespace) -> bool:
    """Whether the run may stand among the results: everything, at full size, often enough for a median, warm."""
    everything = set(options.only) == set(whole(options.brief)) and set(options.brokers) == set(BROKERS)
    everything = everything and options.share >= 1.0
    return everything and options.output is None and options.rounds >= MIN_ROUNDS and options.warm_passes >= MIN_PASSES


def save(result: dict[str, Any], options: argparse.Namespace) -> Path:
    """A complete run goes among the results and renews the page; any other one stays out of both."""
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    name = f"{stamp}-{result['machine']['revision'].rstrip('+')}.json"
    target: Path = options.output or (report.RESULTS if complete(options) else CACHE) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    if complete(options):
        report.save(result)
    return target


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that brokers and data are cleaned up
    if machine.filesystem(options.directory) in _NOT_DISKS:
        sys.stderr.write(f"{options.directory} is no disk; choose another with --directory\n")
        return 2
    scale = Scale(options.share, options.warm_passes, options.latency_seconds, brief=options.brief)
    busy_percent = machine.busy_percent()
    if busy_percent > BUSY_PERCENT:
        sys.stderr.write(f"other work takes {busy_percent:.0f} % of this machine: the figures will be off\n")
    if not complete(options):
        sys.stderr.write("a partial run: shows that it works, judges nothing, leaves docs/benchmarks.md alone\n")
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    began_s = time.monotonic()
    result: dict[str, Any] = {
        "command": " ".join([".venv/bin/python -m bench.run", *sys.argv[1:]]),
        "machine": machine.facts(directory) | {"busy before": f"{busy_percent:.0f} %"},
        "scale": {"rounds": options.rounds, **asdict(scale)},
        "rounds": [],
    }
    try:
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            result["rounds"].append(run_round(options, scale, directory, number))
        result["took_s"] = round(time.monotonic() - began_s)
        say("end")
    except (NativeError, BrokerError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    target = save(result, options)
    sys.stdout.write(report.tables(result, notes=False) + "\n")
    sys.stderr.write(f"{target}\n")
    return 1 if options.check and report.missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
