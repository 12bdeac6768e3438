"""The matrix finds what is lost: a cluster that cannot keep its promise is told from one that does."""

import pytest

from tests.matrix import disk_faults, run
from tests.matrix.cells import Cell
from tests.matrix.namespaces import why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.mark.timeout(300)
def test_a_cluster_whose_disks_all_lie_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it as long as elsewhere: no broker can keep what no disk has kept, so no client settles."""
    monkeypatch.setattr(run, "_SETTLE_S", 6.0)
    monkeypatch.setattr(run, "_RECOVER_S", 10.0)
    cell = Cell("all-disks-lie", disk_faults.lost_syncs("all"), promise="none", disk="power", partitions=1)
    result = run.run_cell(cell, seed=1, seconds=6.0)
    assert result.verdict == "failed"
    assert result.lost > 0, result.line()
