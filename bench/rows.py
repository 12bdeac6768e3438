"""A row of the report: its unit, which way is better, what Penstock has to reach, and why where it does not."""

from dataclasses import dataclass
from typing import Literal

Against = Literal["kafka", "floor", "nothing"]
_UNITS = {"kafka": " x Kafka", "floor": " x floor", "nothing": ""}


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit for the median: of the rounds' ratios to Kafka or to the C floor, or of Penstock's own figures."""

    against: Against
    at_least: float | None = None
    at_most: float | None = None

    def text(self) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {limit:g}{_UNITS[self.against]}"

    def holds(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        name: the key of its figures in a result file.
        theme: the table it stands in.
        more_is_better: rates; otherwise times, memory and CPU.
        judged: whether a worse figure than Kafka's is a loss; what a client needs is not.
        reason: why Kafka is ahead or a bar is missed, for the list of losses.
    """

    name: str
    theme: str
    title: str
    unit: str
    bars: tuple[Bar, ...] = ()
    more_is_better: bool = False
    reason: str = ""
    judged: bool = True


def at_least(limit: float, against: Against = "kafka") -> Bar:
    return Bar(against, at_least=limit)


def at_most(limit: float, against: Against = "kafka") -> Bar:
    return Bar(against, at_most=limit)
