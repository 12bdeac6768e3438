"""The plan of strikes: a seed says all of it, and nothing is left out."""

from collections import Counter

import pytest

from tests.chaos_spark.kills import DRIVER, GHOSTS, JVM, WORKER, WORKERS

from .strikes import BROKER, RUN, STOP, round_of, series

PHASES = {"topic": ("claim", "mark"), "delta": ("file", "log"), "iceberg": ("file", "catalog"), RUN: ("counted",)}


@pytest.mark.parametrize("seed", range(20))
def test_a_round_strikes_each_sink_once_in_order(seed: int) -> None:
    found = round_of(seed, {**PHASES, "sqlite": ("spool", "written")})
    assert [each.sink for each in found] == ["topic", "delta", "iceberg", "sqlite"]
    assert Counter(each.kind for each in found) == {BROKER: 1, DRIVER: 1, GHOSTS: 1, WORKERS: 1}


def test_a_series_is_of_one_sink_and_of_the_run_around_it() -> None:
    found = list(series(3, "delta", PHASES, 300))
    assert {each.sink for each in found} == {"delta", RUN}
    assert {each.kind for each in found} == {WORKERS, WORKER, DRIVER, JVM, GHOSTS, BROKER, STOP}
    assert all(each.phase in PHASES[each.sink] for each in found)


def test_a_seed_replays_and_another_differs() -> None:
    assert list(series(3, "delta", PHASES, 30)) == list(series(3, "delta", PHASES, 30))
    assert list(series(3, "delta", PHASES, 30)) != list(series(4, "delta", PHASES, 30))
    assert round_of(3, PHASES) == round_of(3, PHASES)
