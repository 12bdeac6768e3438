"""Each planted bug is found by some seed of what it is looked for in, and the same seed passes without the bug.

Any change of the product or the simulation makes another run of a seed. So where a seed that is on record finds its bug
no more, those that follow are tried: of the runs in `scenarios.py` most bugs are found by one of the next few, the
rarest by one of fifty or so. `make planted` says how many, and finds new ones for the record.
"""

from pathlib import Path

import pytest

from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import BUGS, run, scenario_of

SEEDS = Path(__file__).with_name("planted_seeds.txt")
MORE_SEEDS = 400


def stored() -> dict[str, int]:
    lines = [line.partition("#")[0].split() for line in SEEDS.read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if words}


def test_what_is_on_record_is_of_bugs_that_there_are() -> None:
    assert set(stored()) <= set(BUGS)
    assert set(SCENARIOS) <= set(BUGS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(BUGS))
def test_it_is_found(name: str) -> None:
    first, scenario = stored().get(name, 0), scenario_of(name)
    found = next((seed for seed in range(first, first + MORE_SEEDS) if run(seed, name, scenario).violations), None)
    assert found is not None, f"{BUGS[name].description}: not found by {MORE_SEEDS} seeds; run make planted"
    assert run(found, None, scenario).violations == []
