"""Exactly once through kills: copiers, their groups and the broker die, and each record is copied once, in order."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.history import Outcome
from tests.chaos.transactional_history import report
from tests.chaos.transactional_run import BROKER_SETTINGS, Run

FAULTS_PER_RUN = 10
RUNS = max(1, int(os.environ.get("KILLS", "0")) // FAULTS_PER_RUN)
RECORDS = int(os.environ.get("RECORDS", "100000"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Takes dead members for dead sooner than usual."""
    with BrokerProcess(tmp_path / "data", tmp_path, config=BROKER_SETTINGS) as process:
        yield process


@pytest.mark.slow
@pytest.mark.timeout(240 * RUNS)
def test_each_record_is_copied_exactly_once(broker: BrokerProcess, tmp_path: Path) -> None:
    """More runs go on with the same data directory; CHAOS_SEED replays the schedule of one that failed."""
    broker.start()
    for seed in range(SEED, SEED + RUNS):
        starts = broker.starts
        with Run(broker, tmp_path / f"run-{seed}", seed=seed, records=RECORDS, faults=FAULTS_PER_RUN) as run:
            run.play()
            violations = run.verdict()
        assert not violations, f"seed {seed}: {report(violations)}"
        # The run would prove little if it had not met what it is for.
        outcomes = Counter(attempt.outcome for attempt in run.history().attempts.values())
        assert outcomes[Outcome.OK] > RECORDS // 1000
        assert outcomes[Outcome.FAIL] > RECORDS // 10_000
        assert broker.starts - starts > FAULTS_PER_RUN // 2
        assert sum(run.incarnations.values()) - len(run.incarnations) >= FAULTS_PER_RUN // 2
