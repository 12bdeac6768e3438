"""Runs cells of the matrix: one line each, figures as JSON, and a page made from them."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import report
from .cells import CELLS, SMOKE, Cell
from .namespaces import why_not
from .run import SECONDS, Result, run_cell

SAMPLES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the cells, and what is promised in each")
    parser.add_argument(
        "--cells", default="smoke", help="names separated by commas, smoke, sample, or all (default: smoke)"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long a fault is held (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=1, help="moments and victims come from it (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures there; a full run is kept in any case")
    parser.add_argument("--report", action="store_true", help="make docs/reliability-matrix.md from the last full run")
    arguments = parser.parse_args()
    if arguments.list:
        for cell in CELLS.values():
            print(f"{cell.name:40} goes on: {cell.promise:7} {cell.workload}{'  smoke' if cell.name in SMOKE else ''}")
        print(f"{len(CELLS)} cells")
        return 0
    if arguments.report:
        print(report.write())
        return 0
    reason = why_not()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    chosen = _chosen(arguments.cells, arguments.seed)
    kept = arguments.json or (report.new_file() if arguments.cells == "all" else None)
    results = run_all(chosen, arguments.seed, arguments.seconds, kept)
    failed = [result.cell for result in results if result.verdict != "ok"]
    print(
        f"{len(results) - len(failed)} of {len(results)} cells ok"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


def run_all(cells: Sequence[Cell], seed: int, seconds: float, kept: Path | None = None) -> list[Result]:
    """Prints a line for each, and writes the figures after each: a long run may be ended at any time."""
    results: list[Result] = []
    for cell in cells:
        result = run_cell(cell, seed, seconds)
        print(f"{time.strftime('%H:%M:%S')} {result.line()}", flush=True)
        if result.verdict != "ok":
            for text in result.texts:
                print(f"    {text}")
            print(f"    logs: {result.logs}")
            again = f"--cells {cell.name} --seed {seed} --seconds {seconds:g}"
            print(f"    again: python -m tests.matrix {again}", flush=True)
        results.append(result)
        if kept is not None:
            report.keep(results, seconds, kept)
    return results


def _chosen(names: str, seed: int) -> list[Cell]:
    if names == "all":
        return list(CELLS.values())
    if names == "sample":  # one in five, and all of them with five seeds that follow each other
        return list(CELLS.values())[seed % SAMPLES :: SAMPLES]
    wanted = SMOKE if names == "smoke" else names.split(",")
    unknown = [name for name in wanted if name not in CELLS]
    if unknown:
        raise SystemExit(f"there is no cell {', '.join(unknown)}: python -m tests.matrix --list names them all")
    return [CELLS[name] for name in wanted]


if __name__ == "__main__":
    sys.exit(main())
