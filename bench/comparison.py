"""One side against another, round by round: ratios, the noise between runs of the same sources, and a verdict."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# About one verdict in fifty is an accident; four rounds cannot get there.
CHANCE = 0.02
ROUNDS_TO_JUDGE = 5
HEADS = ("case", "OLD", "NEW", "NEW/OLD", "noise (range)", "chance", "verdict")
FORM = "{:<8}{:>8}{:>8}{:>9}  {:<24}{:>6}  {}\n"

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """CPU seconds per GB of every round. `again` is the second run of OLD, or of NEW with `new_twice`."""

    old: Sequence[float]
    new: Sequence[float]
    again: Sequence[float]
    new_twice: bool = False

    @property
    def levels(self) -> tuple[list[float], list[float]]:
        """OLD and NEW of each round, the one that ran twice as its mean."""
        once = [each[0] for each in self._runs()]
        twice = [statistics.mean(each[1:]) for each in self._runs()]
        return (once, twice) if self.new_twice else (twice, once)

    @property
    def ratios(self) -> list[float]:
        return [new / old for old, new in zip(*self.levels, strict=True)]

    @property
    def noise(self) -> list[float]:
        return [second / first for _once, first, second in self._runs()]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def chance(self) -> float:
        """How often rounds would differ in one direction as clearly if all three runs were the same.

        Then the run between is the greatest, the middle or the least of its round with a third each, whatever the
        noise is like; one wild run counts no more than any other.
        """
        runs = self._runs()
        score = sum((once > max(pair)) - (once < min(pair)) for once, *pair in runs)
        ways = Counter({0: 1})
        for _ in runs:
            ways = Counter({at: sum(ways[at + step] for step in (-1, 0, 1)) for at in range(-len(runs), len(runs) + 1)})
        return sum(count for at, count in ways.items() if abs(at) >= abs(score)) / 3 ** len(runs)

    @property
    def verdict(self) -> str:
        rounds = len(self.old)
        if rounds < ROUNDS_TO_JUDGE and self.chance <= 2 / 3**rounds:
            return "too few rounds"  # each of them says the same, which no more than hints at a difference
        if self.chance >= CHANCE:
            return "within noise"
        return "slower than noise" if self.ratio > 1 else "faster than noise"

    def _runs(self) -> list[tuple[float, ...]]:
        """Of each round: the side that ran once, the other, and the other again."""
        once, twice = (self.old, self.new) if self.new_twice else (self.new, self.old)
        return list(zip(once, twice, self.again, strict=True))

    def line(self, name: str) -> str:
        noise, (old, new) = self.noise, map(statistics.median, self.levels)
        return FORM.format(
            name,
            f"{old:.3f}",
            f"{new:.3f}",
            f"{self.ratio:.3f}",
            f"{statistics.median(noise):.3f} ({min(noise):.3f} to {max(noise):.3f})",
            f"{self.chance:.3f}",
            self.verdict,
        )


def compare(found: Sequence[Mapping[str, Figures]], new_twice: bool, figure: str = "cpu") -> Comparison:
    old, new, again = ([each[name][figure] for each in found] for name in ("old", "new", "again"))
    return Comparison(old, new, again, new_twice)
