"""Totals of a pipeline that are right after a crash too: saved with the number of the last micro-batch in them.

A micro-batch that Spark repeats is counted again only if its number is not in the file yet.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.pipelines.home import sealed

FILE: Final = "counters.json"


@dataclass(slots=True)
class Counters:
    """
    Attributes:
        query, batch: the last micro-batch that is in here; batches of another query (before a reset) have been.
        sinks: rows in each sink.
        failed: for each node how many rows broke each expectation; under `""` those that could not be decoded.
        rejected: rows a sink refused.
    """

    query: str = ""
    batch: int = -1
    batches: int = 0
    dead_letters: int = 0
    sinks: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    failed: dict[str, Counter[str]] = field(default_factory=dict)

    def includes(self, query: str, batch: int) -> bool:
        return query == self.query and batch <= self.batch

    def fail(self, node: str, expectation: str, count: int) -> None:
        self.failed.setdefault(node, Counter())[expectation] += count


def load(directory: Path) -> Counters:
    """Those of a pipeline's directory; new ones where there are none."""
    body = sealed.load(directory / FILE, "Remove it to count from nothing; rows are not touched by it")
    if body is None:
        return Counters()
    return Counters(
        body["query"],
        body["batch"],
        body["batches"],
        body["dead_letters"],
        Counter(body["sinks"]),
        Counter(body["rejected"]),
        {node: Counter(counts) for node, counts in body["failed"].items()},
    )


def save(directory: Path, counters: Counters) -> None:
    sealed.save(
        directory / FILE,
        {
            "query": counters.query,
            "batch": counters.batch,
            "batches": counters.batches,
            "dead_letters": counters.dead_letters,
            "sinks": dict(counters.sinks),
            "rejected": dict(counters.rejected),
            "failed": {node: dict(counts) for node, counts in counters.failed.items()},
        },
    )
