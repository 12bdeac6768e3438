"""Results of bench.pipelines as a page of docs: a table for each theme, the bars, the losses, the machine."""

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from scripts.sentences import mended

from bench.figures import Result, figures, ratios, short, spread
from bench.pipelines_driver import PACE_S, RATE
from bench.pipelines_queries import (
    EXPECTATION,
    FULL,
    LIMIT,
    MIDDLE,
    RECORD_BYTES,
    SELECT,
    SMALL,
    SMALL_BATCHES,
    SMALL_ROWS,
)
from bench.report import DOCS
from bench.report import RESULTS as ALL_RESULTS
from bench.spark_queries import PARTITIONS

RESULTS = ALL_RESULTS / "pipelines"
"""A directory of its own, as the other pages take the newest file of theirs."""
PAGE = "benchmarks-pipelines.md"
AGAINST = {"plain": "plain program", "connector": "connector"}
START_BAR_S = 3.0


class Line(NamedTuple):
    """A figure of a row: what is added to the row's name to have its key, and its unit."""

    ending: str
    unit: str


class Row(NamedTuple):
    """`name` is the key of its first figure; that one is judged.

    Attributes:
        limit: the most that the median may be; 0 for rows without a bar.
        reason: why it is lost, when it is.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    limit: float = 0.0
    reason: str = ""


class Theme(NamedTuple):
    """A table; its subjects are its columns, in this order. Ratios are the pipeline's figure over the others'."""

    title: str
    subjects: Mapping[str, str]
    rows: tuple[Row, ...]
    note: str


_RATES = (
    Line("", "k rows/s"),
    Line("-cpu", "Spark CPU-s a million rows"),
    Line("-broker", "broker CPU-s a million rows"),
)
_SECONDS = (Line("", "s"),)
_MILLISECONDS = (Line("", "ms"),)
_CORES = (Line("", "cores"),)
_BATCHES = (
    Line("", "micro-batches/s"),
    Line("-ms", "ms a micro-batch"),
    Line("-cpu", "Spark CPU-ms a micro-batch"),
    Line("-broker", "broker CPU-ms a micro-batch"),
)
_PIPELINE = {"penstock": "pipeline"}
_WAYS = {
    "penstock": "pipeline, exactly once",
    "plain": '`format("penstock")`, exactly once',
    "connector": "connector, at least once",
}
# What the code does beside; which part of it costs how much was not measured, and the page says so.
_TWICE = (
    "The parts of this were not measured. Beyond the plain program, a pipeline counts rows that break an expectation "
    "before it writes: it keeps the rows of a micro-batch in memory and goes through them twice."
)
_FIXED = (
    "The parts of this were not measured. Beyond the plain program, a pipeline's micro-batch has a second job, which "
    "counts for expectations; it also calls Python, reads the sink's mark before and after, and saves totals to disk."
)
_FIRST_BATCH = "After `running` comes the first micro-batch, whose parts were not measured."
THEMES = (
    Theme(
        "Backlog from topic to topic",
        _WAYS,
        (
            Row("copy", "in a session that runs already", _RATES, reason=_TWICE),
            Row("cold", "with the start of the session", _RATES[:1], reason=_TWICE),
        ),
        f"{FULL.records:,} records, read once, {LIMIT:,} a micro-batch, from the start of the query (of the pipeline: "
        "from the check of its file) to its end. The connector promises less: it writes a repeated micro-batch twice. "
        "The row with the start of the session times a whole process (`penstock pipeline run --once` for the "
        "pipeline), and is measured in every third round.",
    ),
    Theme(
        "Latency",
        _PIPELINE,
        (
            Row("latency-p50", "half of all copies", _MILLISECONDS),
            Row("latency-p95", "95 %", _MILLISECONDS),
            Row("latency-p99", "99 %", _MILLISECONDS),
            Row("latency-cpu", "CPU of driver, JVM and workers", _CORES),
            Row("latency-broker", "CPU of the broker", _CORES),
        ),
        f"{RATE:,} records a second for {PACE_S:g} s, after five seconds that do not count, through a pipeline with "
        "`every: 0` in the background driver. Latency is from the record's timestamp until a consumer that reads "
        "committed records has its copy.",
    ),
    Theme(
        "Backlog to other sinks",
        _PIPELINE,
        (
            Row("parquet", f"parquet, {FULL.records:,} records", _RATES),
            Row("delta", f"delta, {FULL.records:,} records", _RATES),
            Row("sqlite", f"jdbc, SQLite, {SMALL.records:,} records", _RATES),
            Row("postgres", f"jdbc, PostgreSQL, {MIDDLE.records:,} records", _RATES),
        ),
        "The same pipeline with another sink, `mode: insert` for databases; from the check of its file to its end. "
        "In the last row Spark's CPU includes that of PostgreSQL.",
    ),
    Theme(
        "Start",
        _PIPELINE,
        (
            Row("cold-driver", "first pipeline: the command, a driver and Spark", _SECONDS),
            Row("cold-run", "first pipeline: from there to its first row in the sink", _SECONDS),
            Row("cold-written", "first pipeline: from the command to its first row", _SECONDS),
            Row("warm-running", "second pipeline: from `wanted.json` to `running`", _SECONDS, START_BAR_S),
            Row(
                "warm-written",
                "second pipeline: from `wanted.json` to its first row",
                _SECONDS,
                START_BAR_S,
                _FIRST_BATCH,
            ),
            Row("command-returned", "third pipeline: `penstock pipeline start` returns", _SECONDS, START_BAR_S),
            Row(
                "command-written",
                "third pipeline: from the command to its first row",
                _SECONDS,
                START_BAR_S,
                _FIRST_BATCH,
            ),
        ),
        "Some hundred rows from topic to topic, `every: 1s`, a new background driver in each round. The file "
        "`wanted.json` is all that the command writes for a driver that runs already; the command also starts Python "
        "and reads the pipeline's file. The first row counts when a consumer that reads committed records has it.",
    ),
    Theme(
        "Small micro-batches",
        _WAYS,
        (Row("small", f"{SMALL_ROWS} rows each", _BATCHES, reason=_FIXED),),
        f"{SMALL_BATCHES} micro-batches of {SMALL_ROWS} rows, each as soon as the last one is done (`every: 0`): "
        "this is what a micro-batch costs even if it has little to do. The times are those of Spark's own log of "
        "commits.",
    ),
)


class Verdict(NamedTuple):
    row: Row
    value: float
    holds: bool


def verdict(result: Result, row: Row) -> Verdict | None:
    """None without a bar or figures."""
    values = figures(result, "penstock", row.name)
    if not row.limit or not values:
        return None
    value = statistics.median(values)
    return Verdict(row, value, value <= row.limit)


def missed(result: Result) -> list[Row]:
    found = (verdict(result, row) for theme in THEMES for row in theme.rows)
    return [each.row for each in found if each is not None and not each.holds]


def table(result: Result, theme: Theme) -> str:
    """Empty without figures of the pipeline."""
    against = [name for name in AGAINST if name in theme.subjects]
    barred = any(row.limit for row in theme.rows)
    head = ["", "unit", *theme.subjects.values(), *(f"x {AGAINST[name]}" for name in against)]
    head += ["bar"] if barred else []
    lines = []
    for row in theme.rows:
        if not figures(result, "penstock", row.name):
            continue
        for line in row.lines:
            name = f"{row.name}{line.ending}"
            cells = [row.title, line.unit, *(spread(figures(result, subject, name)) for subject in theme.subjects)]
            cells += [spread(ratios(result, name, other)) for other in against]
            cells += [bar(result, row)] if barred else []
            lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])


def bar(result: Result, row: Row) -> str:
    found = verdict(result, row)
    return "" if found is None else f"≤ {row.limit:g} s: {'passed' if found.holds else '**missed**'}"


def tables(result: Result, *, notes: bool = True) -> str:
    bodies = [(theme, table(result, theme)) for theme in THEMES]
    parts = [[f"## {theme.title}", *([theme.note] if notes else []), body] for theme, body in bodies if body]
    return "\n\n".join(line for part in parts for line in part)


def losses(result: Result) -> str:
    """Every row where a program without a pipeline is faster, and every bar that is missed."""
    lines = []
    for theme in THEMES:
        for row in theme.rows:
            reason = row.reason or "No reason is known yet."
            for other, title in AGAINST.items():
                found = ratios(result, row.name, other)
                if found and statistics.median(found) < 1.0:
                    lines.append(f"- {theme.title}, {row.title}: {short(statistics.median(found))} x {title}. {reason}")
            judged = verdict(result, row)
            if judged is not None and not judged.holds:
                lines.append(f"- {theme.title}, {row.title}: {short(judged.value)} s, **bar missed**. {reason}")
    return "\n".join(lines) or "None in this run."


def page(result: Result) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in result["machine"].items())
    rounds, session_s = len(result["rounds"]), result["session_s"]
    return f"""# Benchmarks of pipelines

This page compares pipelines with the plainest programs that do the same without one: Structured Streaming with
`format("penstock")`, and with Spark's own Kafka connector and `from_json`. There is one Penstock broker with its
default settings (it syncs before it acknowledges), and {rounds} rounds of all in turn. Broker, Spark and database share
one machine. Figures are medians over the rounds with their range; a ratio is the median of the rounds' own ratios, the
pipeline over the other. [pipelines.md](pipelines.md) is the guide; [benchmarks-spark.md](benchmarks-spark.md) has the
Spark source alone.

```
{result["command"]}
```

- Records are JSON of {RECORD_BYTES} bytes with five fields, no keys, not compressed, in topics of {PARTITIONS}
  partitions. Every pipeline is `{SELECT}`
  with the expectation `{EXPECTATION}` (`otherwise: drop`; the programs have it as a filter). Nine rows in ten are paid,
  one in a thousand breaks the expectation. Rates count the records read.
- The order changes from round to round. Each backlog first runs in the same session with fewer rows, which does
  not count; of small micro-batches the first five do not count. That session took {session_s:.1f} s to start.
- Outside of the timing, the connector reads the topics: rows, bytes and the sum of the values' CRC-32 must be what the
  query gives in a batch. In other sinks rows and different ids are counted, but the other columns are not compared. At
  a steady rate, each record must have one copy. Anything else ends the run.
- CPU is user and system time: for Spark of the driver, the JVM and Python's workers (read five times a second, because
  Spark does not keep the time of workers that end); for the broker of its process.

{tables(result)}

## Where pipelines lose

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
        sys.exit("no results yet: make bench-pipelines")
    save(json.loads(chosen.read_text()))
    sys.stderr.write(f"{DOCS / PAGE} written from {chosen}\n")


if __name__ == "__main__":
    main()
