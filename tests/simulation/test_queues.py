"""Many seeds of a queue: what was sent safely is acknowledged or a dead letter in the end, never both, never neither.

The seeds that `test_simulation` plays from 250 on have some of these among them.
"""

from collections import Counter

import pytest

from tests.simulation.queues import Had, Job, QueueHistory, QueueWorkload
from tests.simulation.scenarios import Scenario
from tests.simulation.test_simulation import check
from tests.simulation.world import run

_QUEUES = Scenario(workloads=(QueueWorkload,))
SEEDS, CHUNK = 50, 25
FAILED_ONCE = (
    6,  # a lease was told, and its entry could not be appended
    32,  # a verdict by a stale receipt was taken for one on a message that was settled
    92,  # a broker that led no more gave out what was acknowledged to its successor
    158,  # a follower behind the log start had another history, and was told of no difference
    187,  # a lease by a clock that was ahead lasted as much longer
    668,  # a dead letter was written before it was safe that it would be, and by the next leader as another
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_is_lost_or_there_twice(first: int) -> None:
    reports = [run(seed, scenario=_QUEUES) for seed in range(first, first + CHUNK)]
    check(reports)
    done: Counter[str] = sum((report.counters for report in reports), Counter())
    assert done["messages acknowledged"] > 40 * len(reports), done
    assert done["dead letters"] > 4 * len(reports), done
    assert done["thinned"] > len(reports), done


def test_seeds_that_failed_once() -> None:
    check([run(seed, scenario=_QUEUES) for seed in FAILED_ONCE])


def _had(consumer: str, at: float, epoch: int = 0) -> Had:
    return Had(consumer, int(at * 1000), at, at, epoch, int(at * 1000), int(at * 1000) + 1000)


def test_what_the_checks_find() -> None:
    history = QueueHistory(("jobs", 0), 1000, safe={0, 1, 2, 3})
    history.had(0, _had("a", 1.0))
    history.had(0, _had("b", 1.5))
    history.had(0, _had("b", 1.6, epoch=1))
    history.job(0).acked_at = 3.0
    history.had(0, _had("a", 4.0))
    history.jobs[1] = Job(nacks=3, nacked_at=2.0)
    history.had(1, _had("a", 2.5))
    history.check_stale(0, history.jobs[0].had[0], epoch=0, sent_at=2.0)
    history.letters.update([0, 1, 2, 2])
    history.drained = {2}
    assert [each.removeprefix("jobs-0 at ") for each in history.check()] == [
        "0 was given to b while a had it",
        "0 was acknowledged at 3.000 and had by a after that",
        "1 had failed 3 times when a got it",
        "0: a receipt of a was stale",
        "3 was sent and is gone",
        "0 was acknowledged, and is there in the end",
        "2 is a dead letter 2 times",
        "2 is a dead letter and in the queue",
    ]
