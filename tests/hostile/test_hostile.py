"""Three of the hostile workloads in every run; the rest in `make soak`. Times are judged there, on a quiet machine."""

from pathlib import Path

import pytest

from tests.hostile.attacks import ATTACKS
from tests.hostile.budgets import BY_ATTACK, IN_EVERY_RUN
from tests.hostile.trial import attack


def test_every_attack_has_a_budget() -> None:
    assert set(ATTACKS) == set(BY_ATTACK)


@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_an_attack_costs_no_more_memory_than_it_may_and_stops_nobody(name: str, tmp_path: Path) -> None:
    cost, budget = attack(name, tmp_path, seconds=4), BY_ATTACK[name]
    assert cost.peak_mib <= budget.peak_mib, cost
    assert cost.left_mib <= budget.left_mib, cost
    assert cost.written and cost.probes, cost
    assert cost.exit_code == 0, cost
