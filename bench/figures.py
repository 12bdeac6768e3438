"""The arithmetic of a result: figures by round, ratios within a round, medians, and which rows are lost."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.rows import Bar, Row

Result = dict[str, Any]


def figures(result: Result, subject: str, row: str) -> list[float]:
    """The row's figures of a broker or the floor, one per round that has it."""
    return [each[subject][row] for each in result["rounds"] if row in each.get(subject, {})]


def ratios(result: Result, row: str, against: str = "kafka") -> list[float]:
    """Penstock's figure over the other's of the same round: what disturbs a round disturbs both."""
    pairs = [(each.get("penstock", {}), each.get(against, {})) for each in result["rounds"]]
    return [ours[row] / theirs[row] for ours, theirs in pairs if row in ours and row in theirs]


class Verdict(NamedTuple):
    bar: Bar
    value: float
    holds: bool


def verdicts(result: Result, row: Row) -> list[Verdict]:
    """One for each bar that has figures."""
    found = []
    for bar in row.bars:
        nothing = bar.against == "nothing"
        values = figures(result, "penstock", row.name) if nothing else ratios(result, row.name, bar.against)
        if values:
            value = statistics.median(values)
            found.append(Verdict(bar, value, bar.holds(value)))
    return found


def is_lost(result: Result, row: Row) -> bool:
    """Whether a bar is missed, or Kafka has the better figure."""
    if any(not verdict.holds for verdict in verdicts(result, row)):
        return True
    found = ratios(result, row.name)
    if not found or not row.judged:
        return False
    ratio = statistics.median(found)
    return ratio < 1.0 if row.more_is_better else ratio > 1.0


def spread(values: Sequence[float]) -> str:
    """The median, and the range when there is one."""
    if not values:
        return ""
    middle = short(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({short(min(values))} to {short(max(values))})"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
