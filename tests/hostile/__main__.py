"""Every hostile workload, or those named, against its budget: `python -m tests.hostile [NAME ...] [--seconds N]`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.hostile.budgets import BUDGETS, BY_ATTACK, Budget
from tests.hostile.trial import Cost, attack

_COLUMNS = ("peak_mib", "left_mib", "stall_ms", "p99_ms")


def findings(cost: Cost, budget: Budget) -> list[str]:
    """What was dearer than it may be."""
    found = [
        f"{column} {getattr(cost, column)} of {getattr(budget, column)}"
        for column in _COLUMNS
        if getattr(cost, column) > getattr(budget, column)
    ]
    if cost.exit_code:
        found.append(f"the broker ended with {cost.exit_code}")
    if not cost.probes:
        found.append("no probe was answered")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BY_ATTACK))
    parser.add_argument("--seconds", type=float, default=10, help="how long each lasts (default: 10)")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BY_ATTACK)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(BY_ATTACK)}")
    failed = 0
    print(f"{'attack':24}{'peak MiB':>14}{'left MiB':>14}{'stall ms':>14}{'p99 ms':>14}{'written':>9}")
    for budget in BUDGETS:
        if asked.names and budget.attack not in asked.names:
            continue
        with tempfile.TemporaryDirectory() as directory:
            cost = attack(budget.attack, Path(directory), asked.seconds)
        cells = "".join(f"{f'{getattr(cost, name)} of {getattr(budget, name)}':>14}" for name in _COLUMNS)
        found = findings(cost, budget)
        failed += bool(found)
        print(f"{cost.attack:24}{cells}{cost.written:>9}  {'; '.join(found)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
