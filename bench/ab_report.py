"""Results of bench.ab as the last section of docs/benchmarks.md: a table for each, with its commits and its command."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from scripts.sentences import mended

from bench.comparison import CHANCE, Comparison, compare
from bench.figures import short

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "ab"
"""A directory of its own: every file in it is shown, the newest first."""
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEADING = "## One commit beside another"
KAFKA = "Apache Kafka"

Result = dict[str, Any]

_ABOUT = f"""Broker CPU in seconds for 1 GB of values written and read back, or a p99 in milliseconds
(`python -m bench.ab --help`).
In every round OLD, NEW and OLD again run one after the other, each on a new broker; beside Apache Kafka NEW runs twice
in place of OLD. The figures are medians of the rounds, NEW/OLD the median of the rounds' own ratios. Noise is what the
two runs of the same sources differ by: the median, and the range. Chance is how often runs that are all the same would
differ as clearly in one direction; below {CHANCE:g} the verdict says so, otherwise the difference is within noise."""


def new_twice(result: Result) -> bool:
    return bool(result["sides"]["old"] == KAFKA)


def name_of(result: Result, stamp: str) -> str:
    """The file's name among the results."""
    return f"{stamp}-{result['revisions']['old']}-{result['revisions']['new']}.json"


def table(result: Result) -> str:
    head = ("", "OLD", "NEW", "NEW/OLD", "noise", "chance", "verdict")
    rows = [
        [case["title"], *cells(compare(case["rounds"], new_twice(result), case.get("figure", "cpu")))]
        for case in result["cases"].values()
    ]
    first, *lines = ("| " + " | ".join(row) + " |" for row in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *lines])


def cells(compared: Comparison) -> list[str]:
    old, new = map(statistics.median, compared.levels)
    noise = compared.noise
    spread = f"{statistics.median(noise):.3f} ({min(noise):.3f} to {max(noise):.3f})"
    verdict = compared.verdict if compared.chance >= CHANCE else f"**{compared.verdict}**"
    return [short(old), short(new), f"{compared.ratio:.3f}", spread, f"{compared.chance:.3f}", verdict]


def part(result: Result) -> str:
    machine, sides = result["machine"], result["sides"]
    return f"""### {" beside ".join(result["revisions"][side] for side in ("new", "old"))}

```
{result["command"]}
```

- OLD: {sides["old"]}
- NEW: {sides["new"]}
- {result["rounds"]} rounds, {machine["date"]}, on {machine["cores"]} cores ({machine["cpu"]}), of which other work took
  {machine["busy before"]} before.

{table(result)}"""


def section(directory: Path = RESULTS) -> str:
    """Empty without results."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"), reverse=True)]
    if not results:
        return ""
    return "\n\n".join([HEADING, _ABOUT, *map(part, results)]) + "\n"


def renewed(page: str, fresh: str) -> str:
    """The page with a fresh section at its end, in place of the one it has."""
    rest = page.partition(f"\n{HEADING}\n")[0].rstrip("\n") + "\n"
    return mended(f"{rest}\n{fresh}" if fresh else rest)


def save(page: Path = PAGE, directory: Path = RESULTS) -> None:
    """Renew the section of the page; the rest of it stays as it is."""
    page.write_text(renewed(page.read_text(), section(directory)))


def main() -> None:
    save()
    sys.stderr.write(f"{PAGE}: the section is written from {RESULTS}\n")


if __name__ == "__main__":
    main()
