"""What a run consists of: groups that share a round's warm broker, and groups that start brokers of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench import compaction, consumer_groups, latency, metering, neighbours, opening, throughput, transactions
from bench.rows import Row
from bench.scale import Scale
from bench.subject import Subject

ONCE = 1_000_000


class Shared(NamedTuple):
    """Measured on the round's broker; `warm` ones after its warming up."""

    measure: Callable[[Subject, Scale], dict[str, float]]
    rows: list[Row]
    warm: bool = True


class Own(NamedTuple):
    """Starts its own brokers under a directory, in every `every`-th round, the first included.

    A brief run leaves it out where it `repeats` what another group shows; it measures `once_when_brief` ones in the
    first round alone.
    """

    measure: Callable[[str, Path, Scale], dict[str, float]]
    rows: list[Row]
    every: int
    once_when_brief: bool = False
    repeats: str = ""

    def is_due(self, round_number: int, brief: bool = False) -> bool:
        return round_number % (ONCE if brief and self.once_when_brief else self.every) == 0


# In this order: memory is read before the load, latency after it.
SHARED: dict[str, Shared] = {
    "start": Shared(throughput.measure_start, throughput.START_ROWS, warm=False),
    "throughput": Shared(throughput.measure, throughput.ROWS),
    "latency": Shared(latency.measure, latency.ROWS),
    "neighbours": Shared(neighbours.measure, neighbours.ROWS),
}
OWN: dict[str, Own] = {
    "metrics": Own(metering.measure, metering.ROWS, every=1),
    "groups": Own(consumer_groups.measure, consumer_groups.ROWS, every=3),
    "transactions": Own(transactions.measure, transactions.ROWS, every=3),
    "compaction": Own(compaction.measure, compaction.ROWS, every=3),
    "opening": Own(opening.measure, opening.ROWS, every=2, once_when_brief=True),
    "widest": Own(
        opening.measure_widest,
        opening.WIDEST_ROWS,
        every=ONCE,
        repeats=f"no bar hangs on it, {opening.PARTITIONS:,} partitions are opened all the same",
    ),
}
NAMES = (*SHARED, *OWN)
BRIEF_NAMES = tuple(name for name in NAMES if name not in OWN or not OWN[name].repeats)
ROWS = [row for group in SHARED.values() for row in group.rows] + [row for group in OWN.values() for row in group.rows]
