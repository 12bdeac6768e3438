"""Results of bench.cluster as a page of docs: throughput, gaps, the bars, the losses, the machine."""

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.sentences import mended

from bench.cluster_acks import EVERY_S
from bench.cluster_gaps import CLIENT_REST_S, PARTITIONS, PAUSE_S, STEADY_S, Kind
from bench.cluster_throughput import IDLE_S, ROWS, WARM_PASSES
from bench.fetching import PASSES
from bench.figures import Result, figures, is_lost, ratios, short, verdicts
from bench.report import DOCS, SUBJECTS, table, took
from bench.report import RESULTS as ALL_RESULTS
from bench.rows import Bar, at_most

RESULTS = ALL_RESULTS / "cluster"
"""A directory of its own, as the other pages take the newest file of theirs."""
PAGE = "benchmarks-cluster.md"
NAMES = {name: SUBJECTS[name] for name in ("penstock", "kafka")}
# The point of a distribution: its title and the share of the gaps that are not longer.
POINTS = {"p50": ("half of them", 0.5), "p99": ("99 %", 0.99), "max": ("the longest", 1.0)}


class Gap(NamedTuple):
    title: str
    note: str
    bars: Mapping[str, Bar]


_KILLED = {"p50": at_most(3.0, "nothing"), "p99": at_most(5.0, "nothing")}
GAPS: dict[Kind, Gap] = {
    "planned": Gap(
        "Gap of a planned hand-over",
        "The leader gets SIGTERM. The gap is the longest time between two acks, from the signal until its process has "
        "ended and writing is steady.",
        {"max": at_most(1.0, "nothing")},
    ),
    "killed": Gap(
        "Gap after a kill of the leader",
        "The leader gets SIGKILL. Kafka runs with its own session time-out: a broker that is silent for nine seconds "
        "counts as dead.",
        _KILLED,
    ),
    "follower": Gap(
        "Gap after a kill of a follower",
        "One of the partition's followers gets SIGKILL: until it has left the in-sync set, no record is acknowledged.",
        _KILLED,
    ),
}


def point(values: Sequence[float], share: float) -> float:
    """The least value that so many are not above (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Verdict(NamedTuple):
    title: str
    value_s: float
    bar: Bar
    holds: bool


def gap_verdicts(result: Result) -> list[Verdict]:
    """One for each bar of a gap that Penstock has figures for."""
    found = []
    for kind, gap in GAPS.items():
        values = result["gaps"].get(kind, {}).get("penstock", [])
        for name, bar in gap.bars.items() if values else ():
            title, share = POINTS[name]
            value_s = point(values, share)
            found.append(Verdict(f"{gap.title}, {title}", value_s, bar, bar.holds(value_s)))
    return found


def missed(result: Result) -> list[str]:
    """The titles of all bars that are missed."""
    found = [row.title for row in ROWS if any(not verdict.holds for verdict in verdicts(result, row))]
    return [*found, *(verdict.title for verdict in gap_verdicts(result) if not verdict.holds)]


def gap_table(result: Result, kind: Kind) -> str:
    """Empty without figures."""
    measured: Mapping[str, Sequence[float]] = result["gaps"].get(kind, {})
    if not any(measured.values()):
        return ""
    names = [name for name in NAMES if measured.get(name)]
    head = ["", "unit", *(f"{NAMES[name]} ({len(measured[name])} times)" for name in names), "ratio", "bar"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for key, (title, share) in POINTS.items():
        found = {name: point(measured[name], share) for name in names}
        ratio = short(found["penstock"] / found["kafka"]) if len(found) == len(NAMES) else ""
        bar = GAPS[kind].bars.get(key)
        judged = ""
        if bar is not None and "penstock" in found:
            judged = f"{bar.text()} s: {'pass' if bar.holds(found['penstock']) else '**miss**'}"
        cells = [title, "s", *(short(value) for value in found.values()), ratio, judged]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(result: Result, *, notes: bool = True) -> str:
    themes = dict.fromkeys(row.theme for row in ROWS)
    bodies = [(theme, "", table(result, [row for row in ROWS if row.theme == theme])) for theme in themes]
    bodies += [(gap.title, gap.note, gap_table(result, kind)) for kind, gap in GAPS.items()]
    parts = [[f"## {title}", *([note] if notes and note else []), body] for title, note, body in bodies if body]
    return "\n\n".join(line for part in parts for line in part)


def losses(result: Result) -> str:
    """Every row where Kafka is ahead, and every bar that is missed."""
    lines = []
    for row in ROWS:
        if is_lost(result, row):
            found = ratios(result, row.name)
            how = (
                f"{short(statistics.median(found))} x Kafka"
                if found
                else short(statistics.median(figures(result, "penstock", row.name)))
            )
            miss = ", **bar missed**" if any(not verdict.holds for verdict in verdicts(result, row)) else ""
            lines.append(f"- {row.theme.lower()}, {row.title}: {how}{miss}. {row.reason or 'No reason is known yet.'}")
    lines += [
        f"- {verdict.title}: {short(verdict.value_s)} s, **bar missed** ({verdict.bar.text()} s)."
        for verdict in gap_verdicts(result)
        if not verdict.holds
    ]
    return "\n".join(lines) or "None in this run."


def page(result: Result) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in result["machine"].items())
    return f"""# Benchmarks of a cluster

This page compares three brokers of Penstock, with three etcd, with three brokers of Apache Kafka, each of which is a
controller, too. All brokers run on one machine, one cluster at a time, and the clients share its cores. Topics have
three replicas, of which two must have a record before it is acknowledged. [benchmarks.md](benchmarks.md) has a single
broker.

```
{result["command"]}
```
{took(result)}
- Throughput is measured in {len(result["rounds"])} rounds of both in turn, each with new clusters that first get
  {WARM_PASSES} unmeasured passes. Figures are medians over the rounds with their range; a ratio is the median of the
  rounds' own ratios, Penstock over Kafka. MB and GB are powers of ten and count values only, once, not for each
  replica.
- **Page cache**: no replica syncs (Penstock with the topic setting `flush=os`). **Synced**: every replica syncs before
  the record is acknowledged (Kafka with `flush.messages=1`). **Defaults**: Penstock syncs, Kafka does not.
- The client is librdkafka (`bench/load.c`) in a process of its own. Everything is read back and checked: a record that
  is lost, doubled or out of order ends the run. Its consumer has `fetch.queue.backoff.ms=1`: with librdkafka's own
  second it stands still for so long whenever its queue is full.
- Without a client's work: `bench/fetch.c` reads the same topic {PASSES} times with plain Fetch requests, on one
  connection to each leader, and its kernel drops the records. It checks the heads of the batches: the offsets have no
  gap, and end in each partition where the producer's did.
- CPU is user and system time of all brokers, and of etcd; without any client it is measured over {IDLE_S:g} s. Kafka
  runs with the JVM options of its own start script, etcd with its own settings.
- To measure gaps, a producer with librdkafka's own settings and acks=all writes to one of {PARTITIONS} partitions: each
  record when the last one was acknowledged, and at most one in {EVERY_S * 1000:g} ms. Writing is steady after
  {STEADY_S:g} s without a pause of {PAUSE_S:g} s. Before the next broker is stopped, the last one is started again, all
  replicas are in sync, and {CLIENT_REST_S:g} s have passed: librdkafka puts off each connection that follows a failed
  one, up to ten seconds, and would else be measured when brokers go in quick succession. Both have their default
  durability.
- All brokers share one disk, so the effect of independent disks is not measured.

{tables(result)}

## Where Penstock loses

{losses(result)}

## Machine

| | |
|---|---|
{machine}
"""


def save(result: Result, docs: Path = DOCS) -> None:
    """Write the page."""
    docs.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text(mended(page(result)))


def main() -> None:
    """Write the page again from a complete run's file (the newest without one)."""
    chosen = Path(sys.argv[1]) if sys.argv[1:] else max(RESULTS.glob("*.json"), default=None)
    if chosen is None:
        sys.exit("no results yet: make bench-cluster")
    save(json.loads(chosen.read_text()))
    sys.stderr.write(f"{DOCS / PAGE} written from {chosen}\n")


if __name__ == "__main__":
    main()
