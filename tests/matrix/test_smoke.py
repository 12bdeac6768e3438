"""A cell of each sort on real processes: kill, pause, one-way cut, etcd, rules, failed sync, rot, power cut; queues."""

import pytest

from tests.matrix.cells import CELLS, SMOKE
from tests.matrix.namespaces import why_not
from tests.matrix.run import run_cell

SEED = 1
SECONDS = 6.0

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SMOKE)
def test_a_cell_of_the_matrix(name: str) -> None:
    result = run_cell(CELLS[name], SEED, SECONDS)
    assert result.verdict == "ok", "\n".join([result.line(), *result.texts, f"logs: {result.logs}"])
    assert result.acked > 100
