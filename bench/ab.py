"""`python -m bench.ab OLD NEW`: whether a change costs the broker CPU, told apart from noise.

OLD and NEW are commits (any name git knows) or directories of checkouts; a commit is unpacked under .cache and removed
afterwards, and compiled when it has a hatch_build.py. Every round starts OLD, NEW and OLD again, one after the other,
each on an empty directory, warms it and measures its CPU seconds (all threads, user and system) for a GB of values
written and read back; compressed values count as they were before. The cases p99 and p99-all measure the p99 of single
records at a steady rate in milliseconds instead. The load generator is the one beside this file.

A round's ratio is NEW over the mean of its two OLDs, between which it ran, so that a drift falls out; the table has the
median of the rounds. `noise` is the second OLD over the first, the same sources against themselves. NEW is outside of
noise when it took more than both OLDs of its round (or less than both) so often that `chance`, the share of accidents
that look as clear, is below 0.02: in six of seven rounds. More rounds tell smaller differences apart; fewer than five
never tell any, and say so where they hint at one.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.peers.broker import BrokerError

from bench import ab_report, machine
from bench.cells import MEGABYTE, Cell, Pace
from bench.comparison import FORM, HEADS, ROUNDS_TO_JUDGE, Figures, compare
from bench.latency import measure_pace
from bench.native import CACHE, NativeError
from bench.progress import say
from bench.run import BUSY_PERCENT, EXIT_TERMINATED
from bench.scale import settle
from bench.subject import Subject, start
from bench.throughput import measure_cell
from bench.trees import Tree, TreeError, open_tree

# The megabytes take about two seconds on two cores of 2.5 GHz.
CASES = {
    "1kb": Cell("1kb", "librdkafka", 1024, 6, "1", "page cache", 400),
    "100b": Cell("100b", "librdkafka", 100, 6, "1", "page cache", 100),
    "all": Cell("all", "librdkafka", 1024, 6, "all", "defaults", 400),
    "gzip": Cell("gzip", "librdkafka", 1024, 6, "1", "page cache", 150, codec="gzip"),
    "snappy": Cell("snappy", "librdkafka", 1024, 6, "1", "page cache", 300, codec="snappy"),
    "lz4": Cell("lz4", "librdkafka", 1024, 6, "1", "page cache", 300, codec="lz4"),
    "zstd": Cell("zstd", "librdkafka", 1024, 6, "1", "page cache", 200, codec="zstd"),
}
PACES = {
    "p99": Pace("p99", "produce", 2_000, "1", "page cache"),
    "p99-all": Pace("p99-all", "produce", 2_000, "all", "defaults"),
}
PACE_S = 6
CODECS = [name for name, cell in CASES.items() if cell.codec]
# Unmeasured passes after a start, each of half the bytes. A JVM compiles its hot paths first.
WARM_PASSES = {"penstock": 1, "kafka": 10}
WARM_SHARE = 0.5


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.ab",
        usage="%(prog)s OLD NEW [options]\n       %(prog)s --kafka NEW [options]",
        description=summary,
        epilog=more
        + "\ncases:\n"
        + "".join(f"  {name:<8}{cell.title()}\n" for name, cell in CASES.items())
        + "".join(f"  {name:<8}{pace.title('p99')}\n" for name, pace in PACES.items())
        + "\nexamples:\n"
        "  python -m bench.ab main HEAD                 every case\n"
        "  python -m bench.ab main . --case 1kb 100b    with what is not committed yet\n"
        "  python -m bench.ab --kafka HEAD --case gzip  beside Apache Kafka\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trees", nargs="*", metavar="OLD NEW", help="commits or directories of checkouts")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka is OLD; noise is then NEW against itself")
    which = "behind OLD and NEW; all without it, with --kafka the codecs"
    parser.add_argument("--case", dest="cases", nargs="+", action="extend", metavar="NAME", help=which)
    parser.add_argument("--rounds", type=int, default=7, help="of three runs each (default %(default)s)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gb", type=float, help="of values in each run (default: so that a run takes about 2 s)")
    size.add_argument("--records", type=int, help="in each run, in place of --gb")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every figure of every round goes")
    parser.add_argument("--save", action="store_true", help="keep it among bench/results and in docs/benchmarks.md")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for the data (default %(default)s)")
    options = parser.parse_args(arguments)
    known = (*CASES, *PACES)
    options.cases = list(dict.fromkeys(options.cases or (CODECS if options.kafka else known)))
    if unknown := [name for name in options.cases if name not in known]:
        parser.error(f"no such case: {', '.join(unknown)}; known: {', '.join(known)} (commits go before --case)")
    wanted = 1 if options.kafka else 2
    if len(options.trees) != wanted:
        parser.error(f"{len(options.trees)} trees given, but has to be {'NEW' if options.kafka else 'OLD and NEW'}")
    for name in ("rounds", "gb", "records"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name} is {value}, but has to be positive")
    if options.save and (options.rounds < ROUNDS_TO_JUDGE or options.gb or options.records):
        parser.error(f"--save keeps only runs of full size, of {ROUNDS_TO_JUDGE} rounds at least")
    return options


def share_of(cell: Cell | Pace, gb: float | None, records: int | None) -> float:
    """Of the cell's own bytes, or the pace's own seconds, what was asked for."""
    if isinstance(cell, Pace):
        return 1.0 if records is None else records / (cell.rate * PACE_S)
    if records is not None:
        return (records + 0.5) * cell.record_bytes / (cell.megabytes * MEGABYTE)  # the half: rounding must not lose one
    return 1.0 if gb is None else gb * 1000 / cell.megabytes


def measure_side(tree: Tree | None, cell: Cell | Pace, share: float, directory: Path) -> Figures:
    """One run of a tree's broker, or of Kafka for none: started on an empty directory, warmed, measured, removed."""
    name = "kafka" if tree is None else "penstock"
    settle(directory)
    subject = start(name, directory / name, launcher=tree.launcher if tree else None)
    try:
        for _ in range(WARM_PASSES[name]):
            _measure(subject, cell, share * WARM_SHARE)
        return _measure(subject, cell, share)
    finally:
        subject.stop()


def _measure(subject: Subject, cell: Cell | Pace, share: float) -> Figures:
    if isinstance(cell, Pace):
        return measure_pace(subject, cell, max(1, int(cell.rate * PACE_S * share)))
    return measure_cell(subject, cell, share)


def measure_rounds(
    sides: Mapping[str, Tree | None], cell: Cell | Pace, share: float, rounds: int, directory: Path
) -> list[dict[str, Figures]]:
    """Every round the side that runs twice, the other, and the first again."""
    twice, other = ("new", "old") if sides["old"] is None else ("old", "new")
    found = []
    for number in range(rounds):
        order = {twice: sides[twice], other: sides[other], "again": sides[twice]}
        figures = {name: measure_side(tree, cell, share, directory) for name, tree in order.items()}
        say(
            f"{cell.name}: round {number + 1} of {rounds}: "
            + ", ".join(f"{name} {each[figure_of(cell)]:.3f}" for name, each in figures.items())
        )
        found.append(figures)
    return found


def figure_of(cell: Cell | Pace) -> str:
    """What is compared."""
    return "p99" if isinstance(cell, Pace) else "cpu"


def _gb(cell: Cell, share: float) -> float:
    return cell.records(share) * cell.record_bytes / (1000 * MEGABYTE)


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="ab-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every case, printing its line when it is done, and return all figures."""
    result: dict[str, Any] = {"rounds": options.rounds, "sides": {}, "revisions": {}, "cases": {}}
    with scratch(CACHE.parent) as checkouts, scratch(options.directory) as data:
        sides: dict[str, Tree | None] = {"old": None}
        for side, name in zip(("new",) if options.kafka else ("old", "new"), options.trees, strict=True):
            say(f"{side}: making {name} ready")
            sides[side] = made = open_tree(name, checkouts / side)
            if options.save and not made.is_commit:
                raise TreeError(f"{made.text()} is no commit, nobody could measure it again; commit it or drop --save")
        for side, tree in sides.items():
            result["sides"][side] = tree.text() if tree else ab_report.KAFKA
            result["revisions"][side] = tree.revision if tree else "kafka"
            sys.stdout.write(f"{side.upper()}: {result['sides'][side]}\n")
        sys.stdout.write("Broker CPU seconds for 1 GB of values in and out, or ms, medians\n" + FORM.format(*HEADS))
        for name in options.cases:
            cell: Cell | Pace = CASES[name] if name in CASES else PACES[name]
            share = share_of(cell, options.gb, options.records)
            found = measure_rounds(sides, cell, share, options.rounds, data)
            compared = compare(found, options.kafka, figure_of(cell))
            sys.stdout.write(compared.line(name))
            sys.stdout.flush()
            result["cases"][name] = {
                "title": f"{cell.title('p99')}, ms" if isinstance(cell, Pace) else cell.title(),
                "figure": figure_of(cell),
                **({} if isinstance(cell, Pace) else {"gb": _gb(cell, share)}),
                **{key: getattr(compared, key) for key in ("ratio", "ratios", "noise", "chance", "verdict")},
                "rounds": found,
            }
    return result


def main() -> int:
    options = parse()
    if options.rounds < ROUNDS_TO_JUDGE:
        sys.stderr.write(f"fewer than {ROUNDS_TO_JUDGE} rounds: shows that it works, judges nothing\n")
    if (busy_percent := machine.busy_percent()) > BUSY_PERCENT:
        sys.stderr.write(f"other work takes {busy_percent:.0f} % of this machine: small differences will not show\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that brokers and data are cleaned up
    try:
        result = run(options)
    except (TreeError, NativeError, BrokerError) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    facts = {
        "command": " ".join(["python -m bench.ab", *sys.argv[1:]]),
        "machine": machine.facts(options.directory) | {"busy before": f"{busy_percent:.0f} %"},
    }
    keep(facts | result, options)
    return 0


def keep(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Write it where it was asked for; with `--save` the page gets its table, too."""
    text = json.dumps(result, indent=1) + "\n"
    if options.json:
        options.json.write_text(text)
    if options.save:
        target = ab_report.RESULTS / ab_report.name_of(result, time.strftime("%Y-%m-%d-%H%M", time.gmtime()))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        ab_report.save()
        sys.stderr.write(f"{target}\n")


if __name__ == "__main__":
    sys.exit(main())
