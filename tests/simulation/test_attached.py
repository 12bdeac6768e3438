"""Many seeds of counters beside partitions: no acknowledged step is lost or done twice, no record goes that is needed.

The seeds that `test_simulation` plays from 250 on have some of these among them.
"""

from collections import Counter

import pytest

from tests.simulation.attached import AttachedWorkload, CounterHistory, Step
from tests.simulation.scenarios import Scenario
from tests.simulation.test_simulation import check
from tests.simulation.world import run

_COUNTERS = Scenario(workloads=(AttachedWorkload,))
SEEDS, CHUNK = 50, 25
FAILED_ONCE = (
    354,  # a replica moved away, and what was attached to it stayed when a crash came in between
    439,  # after a crash of all, one led by its data that had an old copy of what is attached
    521,
    627,
    1142,  # what is attached was missing, its parent directory, too, and there was nothing to be set aside
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_step_is_lost(first: int) -> None:
    reports = [run(seed, scenario=_COUNTERS) for seed in range(first, first + CHUNK)]
    check(reports)
    done: Counter[str] = sum((report.counters for report in reports), Counter())
    assert done["steps acknowledged"] > 40 * len(reports), done
    assert done["records removed"] > 2 * len(reports), done


def test_seeds_that_failed_once() -> None:
    check([run(seed, scenario=_COUNTERS) for seed in FAILED_ONCE])


def _history(*steps: Step) -> CounterHistory:
    return CounterHistory(("q", 0), {step.name: step for step in steps})


def test_what_the_checks_find() -> None:
    first, second = Step("a", 1, 0.0, 1.0), Step("b", 2, 1.5, 2.0)
    sound = _history(first, second)
    sound.found = {"a": 1, "b": 2, "c": 3}
    assert sound.check() == []
    (twice, late) = _history(first, second._replace(number=1)).check()
    assert "was given to a and to b" in twice and "before it was asked" in late
    sound.found = {"a": 1, "b": 3}
    assert [wrong.partition(": ")[2] for wrong in sound.check()] == [
        "b was acknowledged as 2, and is 3 in the end",
        "its numbers are [1, 3]",
    ]
    sound.found = None
    sound.most_needed, sound.starts = 4, [0, 4, 5]
    assert sound.check() == ["q-0 begins at 5; what lies at 4 was never let go"]
