"""Who dies at which moment of a pipeline's work, as a seed says.

A moment is named by what a sink, or the run around it, has just left where others see it: a staged file, an entry of a
log, a mark, a counter. So a slow machine meets the same ones. From there some milliseconds lead into, or past, what
comes next.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.chaos_spark.kills import DRIVER, GHOSTS, JVM, WORKER, WORKERS

BROKER, STOP = "broker", "stop"
"""The broker is killed and started again; the pipeline is asked to end, and started again."""
NEW_DRIVER = frozenset({DRIVER, GHOSTS, JVM, STOP})
RUN = "run"
"""In place of a sink's name: the run around the sinks."""


class Strike(NamedTuple):
    kind: str
    sink: str
    phase: str
    delay_s: float
    rest: int
    """Micro-batches that are committed before the next strike."""

    def __str__(self) -> str:
        return f"{self.kind} {self.delay_s * 1000:.0f} ms after {self.sink}/{self.phase}"


Phases = Mapping[str, Sequence[str]]
"""Of each sink."""


def round_of(seed: int, phases: Phases) -> list[Strike]:
    """One strike at each sink, in their order: two drivers, one broker, else workers.

    What takes the longest is done once: sinks are struck one behind the other, in the same micro-batch where the driver
    lives on.
    """
    coin = random.Random(seed)
    sinks = [sink for sink in phases if sink != RUN]
    kinds = [*[WORKERS] * (len(sinks) - 3), DRIVER, GHOSTS]
    coin.shuffle(kinds)
    kinds.insert(0, BROKER)
    # The first and the last moment of a sink's work cannot be missed: what they are told by is not gone again at once.
    return [
        Strike(kind, sink, coin.choice([phases[sink][0], phases[sink][-1]]), coin.choice([0, coin.uniform(0, 0.1)]), 0)
        for kind, sink in zip(kinds, sinks, strict=True)
    ]


def series(seed: int, sink: str, phases: Phases, count: int) -> Iterator[Strike]:
    """Strikes at one sink, and at the run around it."""
    coin = random.Random(f"{seed} {sink}")
    kinds = [*[WORKERS] * 4, WORKER, *[DRIVER] * 2, JVM, GHOSTS, BROKER, STOP]
    for _ in range(count):
        where = coin.choice([sink, sink, sink, RUN])
        delays = [0.0, coin.uniform(0, 0.02), coin.uniform(0, 0.2), coin.uniform(0, 1.0)]
        yield Strike(coin.choice(kinds), where, coin.choice(phases[where]), coin.choice(delays), coin.randint(1, 2))
