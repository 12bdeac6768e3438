"""Results of bench.spark as a page of docs: a table for each theme, the bars, the losses, the machine."""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from scripts.sentences import mended

from bench.figures import Result, figures, ratios, short, spread
from bench.report import DOCS
from bench.report import RESULTS as ALL_RESULTS
from bench.spark_queries import JSON_LOAD, LOADS, PARTITIONS, TRIGGER_OFFSETS

RESULTS = ALL_RESULTS / "spark"
"""A directory of its own: `bench.report` takes the newest file beside it for one of its own."""
PAGE = "benchmarks-spark.md"
AGAINST = {"connector": "connector", "tuned": "tuned connector"}


class Bar(NamedTuple):
    """A limit for the median of the rounds' ratios, Penstock over the connector."""

    limit: float
    against: str = "connector"

    def text(self) -> str:
        return f"≥ {self.limit:g} x {AGAINST[self.against]}"


class Row(NamedTuple):
    """A query at one size; `name` is the key of its figures."""

    name: str
    title: str
    bars: tuple[Bar, ...] = ()
    reason: str = ""


class Theme(NamedTuple):
    """A table; its subjects are its columns, in this order."""

    title: str
    subjects: Mapping[str, str]
    rows: tuple[Row, ...]
    note: str


_FROM_THE_JVM = "Rows go from the JVM to Python as Arrow; the connector's stay where they are."
_PLANNER = "Spark starts a Python process for every query that reads from a Python source, about a second of CPU."

_BOTH = {"penstock": "Penstock", "connector": "connector"}
_TUNED = {**_BOTH, "tuned": "connector, tuned"}
THEMES = (
    Theme(
        "Batch read",
        {**_TUNED, "direct": "Penstock, `path`", "value": "Penstock, `columns=value`"},
        (Row("read-100", "100 B", (Bar(3.0), Bar(1.8, "tuned"))), Row("read-1k", "1 KB", (Bar(1.5),))),
        "Spark reads a whole topic, all columns, into its `noop` sink. Tuned means `max.partition.fetch.bytes` 8 MB, "
        "`fetch.max.bytes` 100 MB, `max.poll.records` 5000 and `receive.buffer.bytes` 1 MB. With `path` Spark reads "
        "sealed segments from the broker's files; they held {sealed} of the bytes. `columns=value` reads that column "
        "alone.",
    ),
    Theme(
        "Batch write",
        {**_TUNED, "exactly-once": "Penstock, exactly once"},
        (Row("write-100", "100 B", (Bar(1.0),), _FROM_THE_JVM), Row("write-1k", "1 KB", (Bar(1.0),), _FROM_THE_JVM)),
        "Spark writes rows with keys, which are in its memory before the clock starts, into a new topic. Penstock's "
        "first column and both of the connector's are at least once; exactly once is all rows or none, in one "
        "transaction. Tuned means `batch.size` 1 MB and `linger.ms` 20.",
    ),
    Theme(
        "Stream from a topic to Parquet",
        _BOTH,
        (Row("parquet-100", "100 B", (Bar(1.0),), _PLANNER), Row("parquet-1k", "1 KB", (Bar(1.0),), _PLANNER)),
        f"`availableNow`, {TRIGGER_OFFSETS:,} offsets a trigger, from the start of the query to its end.",
    ),
    Theme(
        "Stream from a topic to a topic",
        {"penstock": "Penstock, exactly once", "connector": "connector, at least once"},
        (Row("copy", "100 B"),),
        "The same, into a new topic. The two do not make the same promise; the figures are for information.",
    ),
    Theme(
        "Decoding JSON",
        {"penstock": "Penstock, `value.format=json`", "connector": "connector and `from_json`"},
        (Row("json", "about 100 B, five fields"),),
        f"{JSON_LOAD.records:,} records into `noop`: fields, partition and offset. The figures are for information.",
    ),
)
ROWS = [row for theme in THEMES for row in theme.rows]
_LINES = (("", "k rows/s"), ("-cpu", "Spark CPU-µs a row"), ("-broker", "broker CPU-µs a row"))


class Verdict(NamedTuple):
    bar: Bar
    value: float
    holds: bool


def verdicts(result: Result, row: Row) -> list[Verdict]:
    """One for each bar that has figures."""
    found = []
    for bar in row.bars:
        if values := ratios(result, row.name, bar.against):
            value = statistics.median(values)
            found.append(Verdict(bar, value, value >= bar.limit))
    return found


def missed(result: Result) -> list[Row]:
    return [row for row in ROWS if any(not verdict.holds for verdict in verdicts(result, row))]


def table(result: Result, theme: Theme) -> str:
    """Empty without figures of Penstock. Ratios are Penstock's first column over the connector's."""
    against = [name for name in AGAINST if name in theme.subjects]
    head = ["", "unit", *theme.subjects.values(), *(f"x {AGAINST[name]}" for name in against), "bar"]
    lines = []
    for row in theme.rows:
        if not figures(result, "penstock", row.name):
            continue
        for ending, unit in _LINES:
            name = f"{row.name}{ending}"
            cells = [row.title, unit, *(spread(figures(result, subject, name)) for subject in theme.subjects)]
            cells += [spread(ratios(result, name, other)) for other in against]
            lines.append("| " + " | ".join([*cells, "" if ending else bars(result, row)]) + " |")
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])


def bars(result: Result, row: Row) -> str:
    return "; ".join(f"{each.bar.text()}: {'pass' if each.holds else '**miss**'}" for each in verdicts(result, row))


def tables(result: Result, *, notes: bool = True) -> str:
    sealed = ", ".join(f"{value:.0f} % ({title})" for title, value in result["sealed_percent"].items())
    parts = []
    for theme in THEMES:
        if body := table(result, theme):
            note = [theme.note.replace("{sealed}", sealed)] if notes else []
            parts.append("\n\n".join([f"## {theme.title}", *note, body]))
    return "\n\n".join(parts)


def losses(result: Result) -> str:
    """Every row where the connector, tuned or not, is faster or a bar is missed."""
    lines = []
    for theme in THEMES:
        for row in theme.rows:
            broken = {each.bar.against for each in verdicts(result, row) if not each.holds}
            for other in AGAINST:
                found = ratios(result, row.name, other)
                if not found or (statistics.median(found) >= 1.0 and other not in broken):
                    continue
                miss = ", **bar missed**" if other in broken else ""
                how = f"{short(statistics.median(found))} x {AGAINST[other]}{miss}"
                reason = row.reason or "No reason is known yet."
                lines.append(f"- {theme.title.lower()}, {row.title}: {how}. {reason}")
    return "\n".join(lines) or "None in this run."


def page(result: Result) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in result["machine"].items())
    sizes = " and ".join(f"{load.records:,} records of {load.record_bytes:,} bytes ({load.title})" for load in LOADS)
    return f"""# Benchmarks of the Spark source

This page compares `format("penstock")` with Spark's own Kafka connector, in one Spark session, on one Penstock broker
with its default settings (it syncs before it acknowledges), in {len(result["rounds"])} rounds of both in turn. Broker
and Spark share the machine. Figures are medians over the rounds with their range; a ratio is the median of the rounds'
own ratios, Penstock over the connector. [spark.md](spark.md) is the guide.

```
{result["command"]}
```

- The topics have {PARTITIONS} partitions and hold {sizes}:
  letters, no keys, not compressed, written once by Kafka's producer performance tool with its default batches. A
  thousand rows of 1 KB are a megabyte.
- Every query is timed as a whole, planning and commit included, after one run of each that does not count. The order
  changes from round to round. A bar is a limit that we have set ourselves; rows without a bar are measured in every
  third round.
- Outside of the timing, the rows of every reader are compared: their number, their bytes, their positions (partition
  and offset) and the sum of their values' CRC-32 must be equal. The connector reads back what was written, which is
  compared in the same way. A row that is lost, doubled or changed ends the run.
- CPU is user and system time: for Spark of the driver, the JVM and Python's workers (read five times a second, because
  Spark does not keep the time of workers that end); for the broker of its process.
- Penstock reads committed records only; the connector reads all, which is its default.

{tables(result)}

## Where Penstock loses

{losses(result)}

## Machine

| | |
|---|---|
{machine}
"""


def save(result: Result, docs: Path = DOCS) -> None:
    """Write the page."""
    docs.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text(mended(page(result)))


def main() -> None:
    """Write the page again from a complete run's file (the newest without one)."""
    chosen = Path(sys.argv[1]) if sys.argv[1:] else max(RESULTS.glob("*.json"), default=None)
    if chosen is None:
        sys.exit("no results yet: make bench-spark")
    save(json.loads(chosen.read_text()))
    sys.stderr.write(f"{DOCS / PAGE} written from {chosen}\n")


if __name__ == "__main__":
    main()
