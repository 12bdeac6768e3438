"""`python -m bench.ab OLD NEW`: whether a change costs the broker CPU, told apart from noise.

OLD and NEW are commits (any name git knows) or directories of checkouts; a commit is unpacked under .cache and removed
afterwards, and compiled when it has a hatch_build.py. Every round starts OLD, NEW and OLD again, one after the other,
each on an empty directory, warms it and measures its CPU seconds (all threads, user and system) for a GB of values
written and read back; compressed values count as they were before. The load generator is the one beside this file.

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
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.broker import BrokerError

from bench import machine
from bench.cells import MEGABYTE, Cell
from bench.native import CACHE, NativeError
from bench.progress import say
from bench.run import BUSY_PERCENT, EXIT_TERMINATED
from bench.scale import settle
from bench.subject import start
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
CODECS = [name for name, cell in CASES.items() if cell.codec]
# Unmeasured passes after a start, each of half the bytes. A JVM compiles its hot paths first.
WARM_PASSES = {"penstock": 1, "kafka": 10}
WARM_SHARE = 0.5
# About one verdict in fifty is an accident; four rounds cannot get there.
CHANCE = 0.02
ROUNDS_TO_JUDGE = 5
_HEADS = ("case", "OLD", "NEW", "NEW/OLD", "noise (range)", "chance", "verdict")
_FORM = "{:<8}{:>8}{:>8}{:>9}  {:<24}{:>6}  {}\n"

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """CPU seconds per GB of every round. `again` is the second run of OLD, or of NEW with `new_twice`."""

    old: Sequence[float]
    new: Sequence[float]
    again: Sequence[float]
    new_twice: bool = False

    @property
    def levels(self) -> tuple[list[float], list[float]]:
        """OLD and NEW of each round, the one that ran twice as its mean."""
        once = [each[0] for each in self._runs()]
        twice = [statistics.mean(each[1:]) for each in self._runs()]
        return (once, twice) if self.new_twice else (twice, once)

    @property
    def ratios(self) -> list[float]:
        return [new / old for old, new in zip(*self.levels, strict=True)]

    @property
    def noise(self) -> list[float]:
        return [second / first for _once, first, second in self._runs()]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def chance(self) -> float:
        """How often rounds would differ in one direction as clearly if all three runs were the same.

        Then the run between is the greatest, the middle or the least of its round with a third each, whatever the
        noise is like; one wild run counts no more than any other.
        """
        runs = self._runs()
        score = sum((once > max(pair)) - (once < min(pair)) for once, *pair in runs)
        ways = Counter({0: 1})
        for _ in runs:
            ways = Counter({at: sum(ways[at + step] for step in (-1, 0, 1)) for at in range(-len(runs), len(runs) + 1)})
        return sum(count for at, count in ways.items() if abs(at) >= abs(score)) / 3 ** len(runs)

    @property
    def verdict(self) -> str:
        rounds = len(self.old)
        if rounds < ROUNDS_TO_JUDGE and self.chance <= 2 / 3**rounds:
            return "too few rounds"  # each of them says the same, which no more than hints at a difference
        if self.chance >= CHANCE:
            return "within noise"
        return "slower than noise" if self.ratio > 1 else "faster than noise"

    def _runs(self) -> list[tuple[float, ...]]:
        """Of each round: the side that ran once, the other, and the other again."""
        once, twice = (self.old, self.new) if self.new_twice else (self.new, self.old)
        return list(zip(once, twice, self.again, strict=True))

    def line(self, name: str) -> str:
        noise, (old, new) = self.noise, map(statistics.median, self.levels)
        return _FORM.format(
            name,
            f"{old:.3f}",
            f"{new:.3f}",
            f"{self.ratio:.3f}",
            f"{statistics.median(noise):.3f} ({min(noise):.3f} to {max(noise):.3f})",
            f"{self.chance:.3f}",
            self.verdict,
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m bench.ab",
        usage="%(prog)s OLD NEW [options]\n       %(prog)s --kafka NEW [options]",
        description=summary,
        epilog=more
        + "\ncases:\n"
        + "".join(f"  {name:<8}{cell.title()}\n" for name, cell in CASES.items())
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
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for the data (default %(default)s)")
    options = parser.parse_args(arguments)
    options.cases = list(dict.fromkeys(options.cases or (CODECS if options.kafka else CASES)))
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; known: {', '.join(CASES)} (commits go before --case)")
    wanted = 1 if options.kafka else 2
    if len(options.trees) != wanted:
        parser.error(f"{len(options.trees)} trees given, but has to be {'NEW' if options.kafka else 'OLD and NEW'}")
    for name in ("rounds", "gb", "records"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name} is {value}, but has to be positive")
    return options


def share_of(cell: Cell, gb: float | None, records: int | None) -> float:
    """Of the cell's own bytes, what was asked for."""
    if records is not None:
        return (records + 0.5) * cell.record_bytes / (cell.megabytes * MEGABYTE)  # the half: rounding must not lose one
    return 1.0 if gb is None else gb * 1000 / cell.megabytes


def measure_side(tree: Tree | None, cell: Cell, share: float, directory: Path) -> Figures:
    """One run of a tree's broker, or of Kafka for none: started on an empty directory, warmed, measured, removed."""
    name = "kafka" if tree is None else "penstock"
    settle(directory)
    subject = start(name, directory / name, launcher=tree.launcher if tree else None)
    try:
        for _ in range(WARM_PASSES[name]):
            measure_cell(subject, cell, share * WARM_SHARE)
        return measure_cell(subject, cell, share)
    finally:
        subject.stop()


def measure_rounds(
    sides: Mapping[str, Tree | None], cell: Cell, share: float, rounds: int, directory: Path
) -> list[dict[str, Figures]]:
    """Every round the side that runs twice, the other, and the first again."""
    twice, other = ("new", "old") if sides["old"] is None else ("old", "new")
    found = []
    for number in range(rounds):
        order = {twice: sides[twice], other: sides[other], "again": sides[twice]}
        figures = {name: measure_side(tree, cell, share, directory) for name, tree in order.items()}
        say(
            f"{cell.name}: round {number + 1} of {rounds}: "
            + ", ".join(f"{name} {each['cpu']:.3f}" for name, each in figures.items())
        )
        found.append(figures)
    return found


def compare(found: Sequence[Mapping[str, Figures]], new_twice: bool, figure: str = "cpu") -> Comparison:
    old, new, again = ([each[name][figure] for each in found] for name in ("old", "new", "again"))
    return Comparison(old, new, again, new_twice)


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
    result: dict[str, Any] = {"rounds": options.rounds, "sides": {}, "cases": {}}
    with scratch(CACHE.parent) as checkouts, scratch(options.directory) as data:
        sides: dict[str, Tree | None] = {"old": None}
        for side, name in zip(("new",) if options.kafka else ("old", "new"), options.trees, strict=True):
            say(f"{side}: making {name} ready")
            sides[side] = open_tree(name, checkouts / side)
        for side, tree in sides.items():
            result["sides"][side] = tree.text() if tree else "Apache Kafka"
            sys.stdout.write(f"{side.upper()}: {result['sides'][side]}\n")
        sys.stdout.write("Broker CPU seconds for 1 GB of values in and out, medians\n" + _FORM.format(*_HEADS))
        for name in options.cases:
            share = share_of(CASES[name], options.gb, options.records)
            found = measure_rounds(sides, CASES[name], share, options.rounds, data)
            compared = compare(found, options.kafka)
            sys.stdout.write(compared.line(name))
            sys.stdout.flush()
            result["cases"][name] = {
                "title": CASES[name].title(),
                "gb": CASES[name].records(share) * CASES[name].record_bytes / (1000 * MEGABYTE),
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
    if options.json:
        facts = {
            "command": " ".join(["python -m bench.ab", *sys.argv[1:]]),
            "machine": machine.facts(options.directory),
        }
        options.json.write_text(json.dumps(facts | result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
