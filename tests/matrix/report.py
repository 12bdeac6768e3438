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

from .cells import CELLS, GROUPS
from .run import Result

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability-matrix.md"
_HEAD = """\
# The fault matrix

Three machines made of network namespaces, an etcd member and a broker on each, clients on a fourth. Every cell starts
such a cluster, writes to it (an idempotent `acks=all` producer of librdkafka for each partition; in `-java` cells also
Kafka's own VerifiableProducer; in `-transactions` cells also exactly-once copying by groups of both protocols), reads
all the while, does something to it at a moment a seed chooses, heals it, waits until every replica is in sync, reads
everything and judges:

- nothing acknowledged is lost, twice, moved, or out of order; nothing a reader was given has vanished;
- whoever acknowledged a record led in the epoch that wrote it (every broker is written to directly all the time, also
  one that leads no more), and no epoch had two leaders;
- all replicas hold the same bytes in the end, read from their files;
- where writes are promised to go on during the fault, they did: *goes on* says for which partitions, and the *longest
  gap* is the longest time one of them was without an acknowledgement, detection of the fault included.

`make chaos` runs it, `python -m tests.matrix --cells NAME --seed N` one cell of it again. This page is made from the
figures of such runs (`python -m tests.matrix --report`). The machine had two cores for three brokers, three etcd
members, all clients and other work beside it, so gaps are upper bounds rather than a measurement of fail-over
([benchmarks-cluster.md](benchmarks-cluster.md) has those). All brokers share one disk and one kernel: that faults of
different machines are independent is what it cannot show. etcd's own disks are never cut.
"""
_GOES_ON = {"all": "everything", "others": "what others lead", "none": "not promised"}


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


def _kept(result: Result) -> dict[str, Any]:
    """Without what means something on this machine only: where the logs are, and directories named in messages."""
    fields = result.as_json()
    del fields["logs"]
    firsts = (text.splitlines()[0] for text in result.texts)
    return {**fields, "texts": [re.sub(r"/\S*penstock-matrix-[^/\s]*/", "", text) for text in firsts]}


def write() -> Path:
    PAGE.write_text(page([json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]))
    return PAGE


def page(runs: Iterable[dict[str, Any]]) -> str:
    """The whole page."""
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
            head = "| cell | what happened | goes on | acked | lost | twice | longest gap | in sync after | verdict |\n"
            parts.append(f"\n## {title}\n{head}|---|---|---|--:|--:|--:|--:|--:|---|\n" + "\n".join(rows) + "\n")
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
        f"Runs of {dates}; {runs[-1]['machine']}. A row has the figures of a cell's last run; its verdict counts all.\n"
    )


def _row(results: Sequence[dict[str, Any]]) -> str:
    result = results[-1]
    gap, in_sync = (_seconds(result[name]) for name in ("gap_s", "in_sync_s"))
    fine = sum(each["verdict"] == "ok" for each in results)
    verdict = f"{fine} of {len(results)} ok" if len(results) > 1 else result["verdict"]
    return (
        f"| `{result['cell']}` | {result['injected']} | {_GOES_ON[result['promise']]} | {result['acked']:,} "
        f"| {result['lost']} | {result['duplicated']} | {gap} | {in_sync} | {verdict} |"
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
