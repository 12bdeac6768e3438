"""`penstock` without its metrics, to measure what they cost: histograms take nothing, the stall monitor rests.

The one file here that imports `penstock`, because it runs as the broker's own process. Counters stay: they are plain
additions in the code that does the work.
"""

import sys

from penstock.observe.stall import StallMonitor
from penstock.observe.stats import Histogram


def _ignore(*_: object) -> None:
    return None


Histogram.observe = _ignore  # type: ignore[assignment]
StallMonitor.start = _ignore  # type: ignore[assignment]

from penstock.cli.main import main  # noqa: E402 - the broker must bind the replaced methods

sys.exit(main())
