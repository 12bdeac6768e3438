"""Spark jobs die, and each record is copied once, in the order of its key."""

import os
from pathlib import Path

import pytest

from tests.peers import penstock

from .run import Run
from .verdict import report

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(240 + 90 * KILLS)
def test_each_record_is_copied_exactly_once(tmp_path: Path) -> None:
    """CHAOS_SEED replays the schedule of a run that failed."""
    broker = penstock.start(tmp_path / "broker")
    try:
        with Run(broker.bootstrap, tmp_path, seed=SEED, kills=KILLS) as run:
            run.play()
            found = run.verdict()
        print(
            f"seed {SEED}: {run.written.total()} records in {len(set(run.marked))} batches, "
            f"{len(run.marked) - len(set(run.marked))} written anew, {run.repeats} passed over as repeats; "
            f"kills {dict(run.kills)}, {run.starts} starts, ends of queries {dict(run.failures())}"
        )
        assert not found, f"seed {SEED}: {report(found)}"
        assert run.kills.total() == KILLS
    finally:
        broker.stop()
