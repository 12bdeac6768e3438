"""Many seeds of the simulated cluster: nothing acknowledged is lost, nothing seen changes, and it recovers.

SEEDS says how many (250; `make nightly` plays thousands that follow), SEED replays one. A seed that failed once goes
into `seeds.txt` and is played every time; with a planted bug's name if it failed, without the bug, in what that is
looked for in (`python -m tests.simulation --planted NAME --sound SEED`).
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.faults import KINDS
from tests.simulation.scenarios import WHOLE, Scenario
from tests.simulation.world import Report, run, scenario_of

SEEDS = int(os.environ.get("SEEDS", "250"))
ONE = os.environ.get("SEED")
CHUNK = 25
STORED = Path(__file__).with_name("seeds.txt")
ROOT = Path(__file__).parents[2]


def stored_seeds() -> list[tuple[int, Scenario]]:
    lines = [line.partition("#")[0].split() for line in STORED.read_text().splitlines()]
    return [(int(words[0]), scenario_of(words[1]) if words[1:] else WHOLE) for words in lines if words]


def check(reports: list[Report]) -> None:
    failed = [report for report in reports if report.violations]
    assert not failed, "\n".join(
        f"seed {report.seed}: {report.violations[0]} (of {len(report.violations)}); {report.replay}"
        for report in failed
    )


@pytest.mark.skipif(ONE is None, reason="SEED=n replays one seed")
def test_one_seed() -> None:
    check([run(int(ONE or 0))])


@pytest.mark.skipif(ONE is not None, reason="SEED replays one seed only")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_promise_is_broken(first: int) -> None:
    reports = [run(seed) for seed in range(first, min(first + CHUNK, SEEDS))]
    check(reports)
    done: Counter[str] = sum((report.counters for report in reports), Counter())
    assert done["batches during faults"] > 50 * len(reports), done
    assert done["polls during faults"] > 20 * len(reports), done
    assert done["epochs"] > len(reports), done
    assert done["transactions committed"] > 0 and done["offsets committed"] > 0, done
    assert all(len(report.faults) >= 5 for report in reports)
    if len(reports) == CHUNK:
        assert len({kind for report in reports for kind in report.faults}) > 0.8 * len(KINDS)


def test_seeds_that_failed_once() -> None:
    check([run(seed, None, scenario) for seed, scenario in stored_seeds()])


def test_equal_seeds_give_equal_runs() -> None:
    """In another process too, where strings hash to other numbers and objects lie elsewhere."""
    seeds = range(1000, 1008)
    here = [run(seed).digest for seed in seeds]
    script = (
        "from tests.simulation.world import run\n"
        f"print(*[run(seed).digest for seed in range({seeds.start}, {seeds.stop})])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", script]
    there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=600)
    assert there.stdout.split() == here
    assert len(set(here)) == len(here)
