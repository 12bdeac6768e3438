"""Pipelines die, and every sink has each record once.

With KILLS each sink alone, struck so often; else all of them in one pipeline, each struck once. CHAOS_SEED replays the
strikes of a run that failed.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from .run import SINKS, Run
from .strikes import round_of, series
from .table import format_lines

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(1200 + 120 * KILLS)
@pytest.mark.parametrize(
    "sinks", [SINKS] if KILLS == 1 else [[name] for name in (*SINKS, "postgres_upsert")], ids="-".join
)
def test_every_sink_has_each_record_once(sinks: Sequence[str], tmp_path: Path) -> None:
    with Run(tmp_path, sinks, seed=SEED) as run:
        strikes = round_of(SEED, run.phases) if KILLS == 1 else list(series(SEED, sinks[0], run.phases, KILLS))
        started = time.monotonic()
        run.play(strikes)
        lines = run.lines()
        print(f"seed {SEED}, {time.monotonic() - started:.0f} s, {len(run.home.restarts())} queries begun again")
        print(format_lines(lines), flush=True)
        wrong = [str(each.verdict) for each in lines if not each.verdict.is_fine]
        wrong += run.miscounted() + run.complaints
        assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong)
        assert sum(each.total() for each in run.kills.values()) == len(strikes)
        # One who looks for something that never comes would strike at any moment, and find less.
        assert all(run.met[each.sink] for each in strikes), f"met {dict(run.met)} of {run.kills}"
