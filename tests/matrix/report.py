"""docs/reliability-matrix.md, made from the figures that runs have kept.

A cell that failed once is not made good by a later run: its verdict counts all of them.
"""

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.sentences import mended

from .cells import CELLS, GROUPS
from .run import Result

RESULTS = Path(__file__).parent / "results"
SOAKS = RESULTS / "soak"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability-matrix.md"
_HEAD = """\
# The fault matrix

The matrix runs clusters of three machines, which are network namespaces with an etcd member and a broker on each, and
clients on a fourth. A cell is one fault with one kind of load. Every cell starts such a cluster, and writes to it and
reads from it all the time. A cell injects its fault at a moment that a seed chooses, heals it, waits until every
replica is in sync, reads everything and checks:

- No acknowledged record is lost, doubled, moved or out of order; no record that a reader got has vanished.
- The broker that acknowledged a record led in the epoch that wrote it, and no epoch had two leaders. (The load writes
  to every broker directly all the time, also to one that leads no more.)
- In the end all replicas hold the same bytes, read from their files.
- Only those brokers ended that the fault ends; and if it should end one (a sync that fails), it did.
- Writes went on during the fault wherever that is promised. *goes on* says for which partitions, and the *longest
  gap* is the longest time one of them was without an acknowledgement, detection of the fault included. If nothing is
  promised, it is that of any partition until all were written to again. The *gap after* counts from the healing.
- If too few replicas were left, nothing was acknowledged.

The load is an idempotent `acks=all` producer of librdkafka for each partition. `-java` cells also run Kafka's own
VerifiableProducer, and `-transactions` cells exactly-once copying by groups of both protocols. Producers wait 5 s for
an answer of a silent broker, or 2 s in cells that show how long a cluster takes to go on without such a broker
(`stop-cont-leader`, `-20s`, `-controller`, `leader-machine-lost`). `-defaults` cells also have clients with default
settings except for idempotence, and those may see no error. `queue-` cells also have consumers of a durable queue,
which lease what the producers send, and acknowledge it, give it back with or without a failed attempt, reject it, or
let the lease end. Each message must end acknowledged or as one dead letter. None may come again after its
acknowledgement was confirmed, before its time, or while another consumer has it, and none may lose an attempt that
was counted. In `-sorted` cells messages say when they are due, and have keys, priorities and tenants: none may come
before it is due, of a key only one may be out at a time, and those of a key, priority and tenant come in their order.
In `-shares` cells they are Kafka's share consumers of librdkafka. *Acked* has their acknowledgements, too,
and the gaps are also those of these. In cells about certificates and rules, brokers know each other by certificates,
and rules decide what clients may do.

`make chaos` runs the matrix, and `python -m tests.matrix --cells NAME --seed N` runs one cell again. This page is made
from the figures of such runs (`python -m tests.matrix --report`). The machine had two cores for three brokers, three
etcd members, all clients and other work, so the gaps are upper bounds rather than a measurement of fail-over
([benchmarks-cluster.md](benchmarks-cluster.md) has that). All brokers share one disk and one kernel, so the matrix
cannot show that faults of different machines are independent. It never cuts the power of etcd's own disks.
"""
_GOES_ON = {"all": "everything", "others": "what others lead", "none": "not promised", "refused": "nothing may"}


def new_file() -> Path:
    return RESULTS / f"{time.strftime('%Y-%m-%d-%H%M')}.json"


def keep(results: Sequence[Result], seconds: float, path: Path) -> None:
    """Write the figures of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    run = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
        "seconds": seconds,
        "results": [_kept(result) for result in results],
    }
    path.write_text(json.dumps(run, indent=1) + "\n")


def keep_soak(result: Result, growth: dict[str, Any]) -> Path:
    """Write the figures of a long run."""
    path = SOAKS / f"{time.strftime('%Y-%m-%d-%H%M')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run = {"date": time.strftime("%Y-%m-%d %H:%M"), "commit": _commit(), **_kept(result), **growth}
    path.write_text(json.dumps(run, indent=1) + "\n")
    return path


def _kept(result: Result) -> dict[str, Any]:
    """Without what means something on this machine only: where the logs are, and directories named in messages."""
    fields = result.as_json()
    del fields["logs"]
    firsts = (text.splitlines()[0] for text in result.texts)
    return {**fields, "texts": [re.sub(r"/\S*penstock-matrix-[^/\s]*/", "", text) for text in firsts]}


def write() -> Path:
    runs, soaks = ([json.loads(path.read_text()) for path in sorted(each.glob("*.json"))] for each in (RESULTS, SOAKS))
    PAGE.write_text(mended(page(runs) + "".join(soak_section(run) for run in soaks[-1:])))
    return PAGE


def page(runs: Iterable[dict[str, Any]]) -> str:
    """All but the soak."""
    every: dict[str, list[dict[str, Any]]] = {}
    ordered = sorted(runs, key=lambda run: str(run["date"]))
    for run in ordered:
        for result in run["results"]:
            if result["cell"] in CELLS:
                every.setdefault(result["cell"], []).append(result)
    parts = [_HEAD, _summary(every, ordered)]
    for title, cells in GROUPS.items():
        rows = [_row(every[cell.name]) for cell in cells if cell.name in every]
        if rows:
            heads = (
                "cell",
                "what happened",
                "goes on",
                "acked",
                "lost",
                "twice",
                "longest gap",
                "gap after",
                "in sync after",
            )
            head = f"| {' | '.join(heads)} | verdict |\n|---|---|---|--:|--:|--:|--:|--:|--:|---|\n"
            parts.append(f"\n## {title}\n{head}" + "\n".join(rows) + "\n")
    failed = [result for results in every.values() for result in results if result["verdict"] != "ok"]
    if failed:
        parts.append("\n## What failed\n" + "\n".join(_failure(result) for result in failed) + "\n")
    return "".join(parts)


def _summary(every: dict[str, list[dict[str, Any]]], runs: Sequence[dict[str, Any]]) -> str:
    if not every:
        return "\nNo run was kept yet.\n"
    results = [result for each in every.values() for result in each]
    acked, lost, twice = (sum(result[name] for result in results) for name in ("acked", "lost", "duplicated"))
    always = sum(all(result["verdict"] == "ok" for result in each) for each in every.values())
    dates = ", ".join(sorted({run["date"][:10] for run in runs}))
    return (
        f"\n**{len(every)} of {len(CELLS)} cells run, some more than once ({len(results)} runs); {always} ok in every "
        f"run, {len(every) - always} not. {acked:,} records acknowledged, {lost:,} lost, {twice:,} twice.** "
        f"Runs of {dates}; {runs[-1]['machine']}. A row has the figures of a cell's last run, and a verdict on all.\n"
    )


def _row(results: Sequence[dict[str, Any]]) -> str:
    result = results[-1]
    gap, after, in_sync = (_seconds(result[name]) for name in ("gap_s", "after_s", "in_sync_s"))
    rates = [result[name] for name in ("rate_before", "rate_during", "rate_after")]
    told = result["injected"]
    if result["rate_after"]:
        told += "; acks a second before, meanwhile, after: " + ", ".join(f"{rate:,.0f}" for rate in rates)
    fine = sum(each["verdict"] == "ok" for each in results)
    verdict = f"{fine} of {len(results)} ok" if len(results) > 1 else result["verdict"]
    return (
        f"| `{result['cell']}` | {told} | {_GOES_ON[result['promise']]} | {result['acked']:,} "
        f"| {result['lost']} | {result['duplicated']} | {gap} | {after} | {in_sync} | {verdict} |"
    )


def soak_section(run: dict[str, Any]) -> str:
    heads = "| | memory | files | sockets |\n|---|--:|--:|--:|\n"
    rows = "\n".join(
        f"| quarter {number} | {each['rss_mib']:.1f} MiB | {each['files']:.1f} | {each['sockets']:.1f} |"
        for number, each in enumerate(run["quarters"], start=1)
    )
    return (
        f"\n## {run['took_s'] / 60:.0f} minutes with a fault a minute\n"
        f"`make soak`, {run['date'][:10]}: {run['injected']}, checked as one history: {run['acked']:,} records "
        f"acknowledged, {run['lost']} lost, {run['duplicated']} twice; longest gap {_seconds(run['gap_s'])}. Verdict: "
        f"{run['verdict']}. One broker, the witness, is paused and cut off like the others, but never ended. Its "
        f"memory changed by {run['memory_per_hour']:+.1%} an hour and its open files by {run['files_per_hour']:+.1%}, "
        f"by a straight line after the first quarter; at most 5 % are allowed. Its averages were\n\n{heads}{rows}\n"
        + ("\nWhat was found:\n" + "\n".join(f"- {text}" for text in run["texts"]) + "\n" if run["texts"] else "")
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _failure(result: dict[str, Any]) -> str:
    first = result["texts"][0].splitlines()[0] if result["texts"] else ""
    kinds = ", ".join(f"{kind} {number}" for kind, number in result["findings"].items())
    return f"- `{result['cell']}` (seed {result['seed']}): {kinds}. {first[:300]}"


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
