"""`python -m tests.simulation SEED` replays one seed; `--seeds N --first K` runs many, to the first failure.

`--planted NAME` plants a bug and narrows the runs to what it is looked for in, unless `--whole` is said;
`--planted-all` looks for every one of them. `--verbose` prints the trace.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.scenarios import WHOLE, Scenario
from tests.simulation.world import BUGS, Report, run, scenario_of

_SEEDS = 500
_SEEDS_FOR_A_BUG = 400
_ENOUGH = 5
"""Of seeds that find a bug, to know how many do."""
_AT_ONCE = 4


def main() -> int:
    options = _parse()
    scenario = scenario_of(options.planted) if options.planted and not options.whole else WHOLE
    if options.seed is not None:
        report = run(options.seed, options.planted if not options.sound else None, scenario)
        _print(report, verbose=options.verbose)
        return bool(report.violations)
    if options.planted_all:
        return _find_all(options.first, options.seeds or _SEEDS_FOR_A_BUG)
    seeds = options.seeds or _SEEDS
    return _run_many(options.first, seeds, options.planted, scenario, keep_going=options.keep_going)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this one")
    parser.add_argument("--seeds", type=int, help=f"how many to run ({_SEEDS}; {_SEEDS_FOR_A_BUG} with --planted-all)")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--planted", choices=sorted(BUGS), help="with this bug")
    parser.add_argument("--whole", action="store_true", help="with faults of all kinds, whatever bug is planted")
    parser.add_argument("--sound", action="store_true", help="what --planted is looked for in, without the bug")
    parser.add_argument("--planted-all", action="store_true", help="find each of the planted bugs")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--verbose", action="store_true", help="print the trace")
    return parser.parse_args()


def _print(report: Report, *, verbose: bool = False) -> None:
    if verbose:
        print("\n".join(report.trace))
    for violation in report.violations[:20]:
        print(f"seed {report.seed}: {violation}")
    faults = ", ".join(report.faults)
    print(
        f"seed {report.seed}: {report.steps} steps, {report.virtual_s:.1f} s, digest {report.digest}; faults: {faults}"
    )
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(report.counters.items())))


def _play(job: tuple[int, str | None, Scenario]) -> Report:
    seed, planted, scenario = job
    report = run(seed, planted, scenario)
    if planted and report.violations and run(seed, None, scenario).violations:
        report.violations = []  # that was not the planted bug
    report.trace = []
    return report


def _reports(first: int, seeds: int, planted: str | None, scenario: Scenario) -> Iterator[Report]:
    with multiprocessing.get_context("fork").Pool() as pool:
        jobs = [(seed, planted, scenario) for seed in range(first, first + seeds)]
        yield from pool.imap_unordered(_play, jobs, _AT_ONCE)


def _run_many(first: int, seeds: int, planted: str | None, scenario: Scenario, *, keep_going: bool) -> int:
    started, failed = time.monotonic(), 0
    total: Counter[str] = Counter()
    for done, report in enumerate(_reports(first, seeds, planted, scenario), 1):
        total.update(report.counters)
        total["cpu ms"] += int(report.cpu_s * 1000)
        total["virtual s"] += int(report.virtual_s)
        if report.violations:
            failed += 1
            _print(report)
            print(f"replay: {report.replay}", flush=True)
            if not keep_going:
                return 1
        if done % 25 == 0 or done == seeds:
            took = time.monotonic() - started
            print(f"\r{done} of {seeds} seeds, {failed} failed, {took:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"{seeds} seeds from {first}, {failed} failed; on average:")
    print("  " + ", ".join(f"{name} {count / seeds:.1f}" for name, count in sorted(total.items())))
    return bool(failed)


def _find_all(first: int, seeds: int) -> int:
    """The first seed that finds each planted bug, in the form of `planted_seeds.txt`, and how many do."""
    lost = 0
    for name in sorted(BUGS):
        tried, cpu_s = 0, 0.0
        found: list[Report] = []
        for report in _reports(first, seeds, name, scenario_of(name)):
            tried, cpu_s = tried + 1, cpu_s + report.cpu_s
            found += [report] if report.violations else []
            if len(found) == _ENOUGH:
                break
        if found:
            earliest = min(found, key=lambda report: report.seed)
            share = f"{len(found)} of {tried} seeds, {cpu_s / tried:.2f} CPU-s each"
            print(f"{name} {earliest.seed}  # {share}; {earliest.violations[0][:110]}", flush=True)
        else:
            lost += 1
            print(f"# {name}: NOT FOUND by {seeds} seeds, {cpu_s:.0f} CPU-s", flush=True)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
