"""What came of the parts: tests counted, the slowest of them, the skipped ones, each part against its budget."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .jobs import HUNG, Ended

SLOWEST = 10


@dataclass(slots=True)
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why tests were skipped."""
    seconds: list[tuple[float, str]] = field(default_factory=list)
    """What each test took with all it set up."""

    def add(self, report: Path) -> None:
        """The tests of one part, as pytest tells of them; of a part that died there is nothing to add."""
        if not report.exists():
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it
            self.seconds.append((float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}"))
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            elif skipped is not None:
                self.skipped += 1
                self.reasons[skipped.get("message", "")] += 1
            else:
                self.passed += 1

    def lines(self) -> Iterator[str]:
        if self.reasons:
            yield "\n== skipped"
            for reason, number in self.reasons.most_common():
                yield f"{number:6}  {reason}"
        if self.seconds:
            yield "\n== the slowest tests"
            for seconds, name in sorted(self.seconds, reverse=True)[:SLOWEST]:
                yield f"{seconds:6.1f} s  {name}"

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count(ended: Iterable[Ended]) -> Tally:
    tally = Tally()
    for each in ended:
        tally.add(each.log.with_suffix(".xml"))
    return tally


def line(each: Ended) -> str:
    """Of a part that has just ended."""
    word = "hung" if each.hung else "FAILED" if each.failed else "ok"
    return f"{word:6} {each.wall_s:5.0f} s {each.cpu_s:5.0f} CPU s  {each.part.name}"


def table(ended: Sequence[Ended]) -> Iterator[str]:
    """The dearest first."""
    yield f"{'clock':>7} {'CPU':>7} {'budget':>7}"
    for each in sorted(ended, key=lambda each: -each.cpu_s):
        yield f"{each.wall_s:5.0f} s {each.cpu_s:5.0f} s {each.part.budget_s:5} s  {each.part.name}"
    yield f"{'':7} {sum(each.cpu_s for each in ended):5.0f} s {sum(each.part.budget_s for each in ended):5} s  all"


def complaints(ended: Iterable[Ended]) -> Iterator[str]:
    """Of every part that failed, cost more than its budget, or took longer by the clock."""
    for each in ended:
        name, budget = each.part.name, each.part.budget_s
        if each.hung:
            yield f"FAILED: {name}: ended after {each.wall_s:.0f} s, {HUNG:g} times its budget; {each.log}"
        elif each.failed:
            yield f"FAILED: {name}: ended with {each.code}; {each.log}"
        if each.too_dear:
            yield (
                f"FAILED: {name}: took {each.cpu_s:.0f} s of CPU time, and its budget is {budget} s: "
                "make it cheaper, or give a reason for more in tests/runner/parts.py"
            )
        elif each.wall_s > budget:
            yield f"OVER BUDGET: {name}: took {each.wall_s:.0f} s by the clock, not of CPU time, of {budget} s"
