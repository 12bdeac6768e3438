"""Many seeds of schedules: each planned time is published once, and what is told to have fired is there.

The seeds that `test_simulation` plays from 250 on have some of these among them.
"""

from collections import Counter

from tests.simulation.scenarios import Scenario
from tests.simulation.schedules import ScheduleWorkload
from tests.simulation.test_simulation import check
from tests.simulation.world import run

_SCHEDULES = Scenario(workloads=(ScheduleWorkload,))
SEEDS = 25


def test_each_planned_time_is_there_once() -> None:
    reports = [run(seed, scenario=_SCHEDULES) for seed in range(SEEDS)]
    check(reports)
    done: Counter[str] = sum((report.counters for report in reports), Counter())
    assert done["fires"] > 30 * SEEDS, done
    assert done["fires told"] > 20 * SEEDS, done
    assert done["schedules changed"] > 20 * SEEDS, done


def test_what_the_checks_find() -> None:
    workload = ScheduleWorkload.__new__(ScheduleWorkload)
    workload._names = ["a", "b"]
    workload._fires = [[("a", 1), ("a", 3), ("a", 2)], [("a", 3)]]
    workload._told = {("a", 1), ("a", 4)}
    assert sorted(workload.check()) == [
        "a fired 2 times for 3",
        "a fired for 2 after 3 in partition 0",
        "a is told to have fired for 4, and has not",
        "b never fired",
    ]
