"""`python -m bench.readme`: the table of figures in README.md, from the newest results.

They are of one broker, of a cluster and of queues. Files of results are taken in place of the newest ones: those of one
broker first, combined as bench.report does, and those of a cluster, which have gaps.
"""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench import cluster_report, cluster_throughput, groups, queues_report, report
from bench.figures import Result, figures

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "| | Penstock | Kafka |\n|---|---|---|\n", "\n\n"


class Entry(NamedTuple):
    """A line: its words, each side's text, the rows whose medians stand in it, and why Kafka wins where it does."""

    words: str
    form: str
    rows: tuple[str, ...]
    reason: str = ""


ONE = (
    Entry(
        "produce, `acks=all`, each broker's defaults (Penstock syncs to disk, Kafka does not)",
        "{} MB/s",
        ("default-produce",),
    ),
    Entry("broker CPU for 1 GB in and 1 GB out, page cache", "{} s", ("base-cpu",)),
    Entry(
        "latency p50 / p99 at 2,000 records/s, `acks=all`, defaults",
        "{} / {} ms",
        ("slow-default-p50", "slow-default-p99"),
        ", because it does not wait for an fsync",
    ),
)
CLUSTER = (
    Entry(
        "three brokers, `acks=all`, three replicas: page cache / every replica synced",
        "{} / {} MB/s",
        ("cache-produce", "synced-produce"),
    ),
)
START = (Entry("start to ready; memory when idle", "{} s; {} MB", ("ready", "rss-idle")),)
ROWS = {row.name: row for row in (*groups.ROWS, *cluster_throughput.ROWS)}


def two_digits(value: float) -> str:
    """As many digits as a reader compares: 744, 42, 2.2, 0.73."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def middle(result: Result, broker: str, row: str) -> float:
    """The median of the rounds.

    Raises:
        ValueError: the result has no such figure.
    """
    found = figures(result, broker, row)
    if not found:
        raise ValueError(f"the result of {result['command']!r} has no {row} of {broker}: take one of a complete run")
    return statistics.median(found)


def line(result: Result, entry: Entry) -> str:
    sides = {broker: [middle(result, broker, row) for row in entry.rows] for broker in ("penstock", "kafka")}
    ahead = [
        theirs > ours if ROWS[row].more_is_better else theirs < ours
        for row, ours, theirs in zip(entry.rows, sides["penstock"], sides["kafka"], strict=True)
    ]
    lost = f": Kafka wins{entry.reason}" if any(ahead) else ""
    texts = [entry.form.format(*map(two_digits, values)) for values in sides.values()]
    return f"| {entry.words}{lost} | {' | '.join(texts)} |"


def queue_line(found: Mapping[str, Any]) -> str:
    """Share groups, of a result of bench.queues."""
    sides = []
    for broker in ("penstock", "kafka"):
        rate, cpu_us = (statistics.median(each[broker][key] for each in found["shares"]) for key in ("rate", "cpu_us"))
        sides.append(f"{rate / 1000:,.0f} k/s; {two_digits(cpu_us)} µs")
    return f"| share groups: messages of 100 B leased and acknowledged; broker CPU for each | {' | '.join(sides)} |"


def table(one: Result, cluster: Result, queues: Mapping[str, Any]) -> str:
    parts = ((one, ONE), (cluster, CLUSTER), (one, START))
    lines = [line(result, entry) for result, entries in parts for entry in entries]
    return BEGIN + "\n".join([*lines[:-1], queue_line(queues), lines[-1]])


def renewed(text: str, fresh: str) -> str:
    """The page with a fresh table in place of the one it has.

    Raises:
        ValueError: it has none.
    """
    before, found, rest = text.partition(BEGIN)
    if not found:
        raise ValueError(f"{README.name} has no table of figures; its head is {BEGIN.splitlines()[0]}")
    _old, _end, after = rest.partition(END)
    return f"{before}{fresh}{END}{after}"


def newest(directory: Path) -> Path:
    found = max(directory.glob("*.json"), default=None)
    if found is None:
        sys.exit(f"no results in {directory} yet: make bench, make bench-cluster, make bench-queues")
    return found


def main() -> None:
    chosen = [Path(word) for word in sys.argv[1:]] or [newest(report.RESULTS), newest(cluster_report.RESULTS)]
    results = [json.loads(path.read_text()) for path in chosen]
    ones, clusters = ([each for each in results if ("gaps" in each) is kind] for kind in (False, True))
    if not ones or len(clusters) != 1:
        sys.exit("give results of one broker, and one of a cluster")
    try:
        queues = json.loads(newest(queues_report.RESULTS).read_text())
        fresh = table(report.combine(ones), clusters[0], queues)
    except ValueError as failure:
        sys.exit(str(failure))
    README.write_text(renewed(README.read_text(), fresh))
    sys.stderr.write(f"{README} written from {', '.join(map(str, chosen))}\n")


if __name__ == "__main__":
    main()
