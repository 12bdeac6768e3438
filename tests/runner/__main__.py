"""Runs the parts of a suite, shows what failed, and what everything took."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import tally
from .jobs import Ended, run
from .parts import SUITES, Part, Suite

ROOT = Path(__file__).parents[2]
LOGS = ROOT / ".cache" / "runs"
_FEWEST_CORES = 2
_SPARE_CORES = 0.5
"""That parts leave idle while they wait for time to pass: two of them keep 1.4 cores busy."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runner", description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--list", action="store_true", help="name the parts, their budgets and their commands")
    parser.add_argument("--only", action="append", metavar="PART", help="this part alone; may be repeated")
    arguments = parser.parse_args()
    suite = SUITES[arguments.suite]
    parts = _chosen(suite, arguments.only)
    if arguments.list:
        for part in parts:
            print(f"{part.budget_s:6} s  {part.name}: {' '.join(part.command)}")
        return 0
    os.chdir(ROOT)
    logs = LOGS / arguments.suite
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    cores = max(_FEWEST_CORES, len(os.sched_getaffinity(0))) + _SPARE_CORES
    try:
        ended = run(parts, logs, cores, _tell, go_on=suite.goes_on)
    except KeyboardInterrupt:
        print("ended from outside", file=sys.stderr)
        return 130
    return _conclude(suite, parts, ended, time.monotonic() - began)


def _chosen(suite: Suite, names: Sequence[str] | None) -> Sequence[Part]:
    if names is None:
        return suite.parts
    known = {part.name: part for part in suite.parts}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no part {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names]


def _tell(each: Ended) -> None:
    print(tally.line(each), flush=True)
    if each.failed:
        print(f"\n== {each.part.name}\n{each.log.read_text(errors='replace')}", flush=True)


def _conclude(suite: Suite, parts: Sequence[Part], ended: Sequence[Ended], wall_s: float) -> int:
    """Says what everything took, and returns the code to end with."""
    found = tally.count(ended)
    print(*found.lines(), sep="\n")
    print("\n== what each part took", *tally.table(ended), f"{wall_s:5.0f} s  by the clock, all", sep="\n")
    print("", *tally.complaints(ended), sep="\n")
    if suite.page is not None and parts == suite.parts:
        suite.page.write_text(make_page(suite.page.read_text(), ended, str(found), wall_s))
        print(f"\n{suite.page.relative_to(ROOT)} is written")
    print(found)
    return 1 if any(each.failed or each.too_dear for each in ended) else 0


def make_page(page: str, ended: Sequence[Ended], found: str, wall_s: float) -> str:
    """What the page says above its first table, and the table of this run."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    head = page.partition("\n## ")[0].rstrip()
    day = time.strftime("%Y-%m-%d", time.gmtime())
    rows = [
        f"| {each.part.name} | {'failed' if each.failed else 'ok'} | {each.wall_s:.0f} s | {each.cpu_s:.0f} s |"
        for each in ended
    ]
    return "\n".join(
        [
            f"{head}\n\n## The last run\n",
            f"{day}, commit {commit.stdout.strip()}, {os.cpu_count()} cores, {wall_s / 60:.0f} minutes: {found}.\n",
            "| part | verdict | by the clock | CPU time |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
