"""Which records durable groups need: those that one of them has not settled."""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from penstock.engine.queues.window import Run, Window
from penstock.storage.log.needs import Needed

MOST_RANGES: Final = 4_000
"""Of one answer: a few thousandths of a second."""


def needed_by(windows: Iterable[Window], first: int, last: int) -> Needed:
    """What of a range is not settled in one of them. Of very many ranges the answer has the first ones."""
    runs = list(islice(_joined(merge(*(window.unsettled_in(first, last) for window in windows))), MOST_RANGES + 1))
    if len(runs) <= MOST_RANGES:
        return Needed(runs, last)
    return Needed(runs[:-1], runs[-1].first - 1)


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs sorted by where they begin, as few as say the same."""
    open_: Run | None = None
    for run in runs:
        if open_ is not None and run.first <= open_.last + 1:
            open_ = Run(open_.first, max(open_.last, run.last))
            continue
        if open_ is not None:
            yield open_
        open_ = run
    if open_ is not None:
        yield open_
