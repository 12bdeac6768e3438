"""Each planted bug is found by the seed that is on record for it, and the same seed passes without the bug.

Any change of the product or the simulation makes another run of a seed. So when its seed finds a bug no more, the ones
that follow are tried before that counts as a failure; `make planted` finds new seeds for the record.
"""

from pathlib import Path

import pytest

from tests.simulation.world import BUGS, run, workloads_of

SEEDS = Path(__file__).with_name("planted_seeds.txt")
MORE_SEEDS = 200


def stored() -> dict[str, int]:
    lines = [line.partition("#")[0].split() for line in SEEDS.read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if words}


def test_there_is_a_seed_for_every_bug() -> None:
    assert sorted(stored()) == sorted(BUGS)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_it_is_found(name: str) -> None:
    first = stored()[name]
    found = next((seed for seed in range(first, first + MORE_SEEDS) if run(seed, name).violations), None)
    assert found is not None, f"{BUGS[name].description}: not found by {MORE_SEEDS} seeds; run make planted"
    assert run(found, None, workloads_of(found, name)).violations == []
