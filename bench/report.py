"""Results as a page of docs: medians, ratios, bars, and the command that made them."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rows import LATENCY_RATE, PARTITIONS, RECORD_BYTES, ROWS, Row

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
NOTHING = ""


def figures(result: dict[str, Any], broker: str, row: str) -> list[float]:
    """The row's figures of a broker, one per round that has it."""
    return [each[broker][row] for each in result["rounds"] if row in each.get(broker, {})]


def ratios(result: dict[str, Any], row: str) -> list[float]:
    """Penstock's figure over Kafka's of the same round: what disturbs a round disturbs both."""
    pairs = [(each.get("penstock", {}), each.get("kafka", {})) for each in result["rounds"]]
    return [ours[row] / theirs[row] for ours, theirs in pairs if row in ours and row in theirs]


def verdict(result: dict[str, Any], row: Row) -> str:
    """`pass`, `miss`, or nothing where there is no bar or no figure."""
    if row.bar is None:
        return NOTHING
    found = ratios(result, row.name) if row.bar.kind == "ratio" else figures(result, "penstock", row.name)
    if not found:
        return NOTHING
    return "pass" if row.bar.holds(statistics.median(found)) else "**miss**"


def spread(values: Sequence[float]) -> str:
    """The median, and the range when there is one."""
    if not values:
        return NOTHING
    middle = short(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({short(min(values))} to {short(max(values))})"


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(result: dict[str, Any]) -> str:
    lines = [
        "| what | unit | Penstock | Apache Kafka | C floor | ratio | bar | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        brokers = [figures(result, broker, row.name) for broker in ("penstock", "kafka", "floor")]
        if not any(brokers):
            continue
        cells = [row.title, row.unit, *map(spread, brokers), spread(ratios(result, row.name))]
        cells += [row.bar.text() if row.bar else NOTHING, verdict(result, row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(result: dict[str, Any]) -> str:
    machine = result["machine"]
    facts = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
    return f"""# Benchmarks

Penstock beside Apache Kafka on one machine, one broker at a time, {len(result["rounds"])} rounds of both
in turn. Records of {RECORD_BYTES} bytes over {PARTITIONS} partitions, loaded by librdkafka (`bench/load.c`),
which shares the cores with the broker. Figures are medians over the rounds with their range; a ratio is the
median of the rounds' own ratios, Penstock over Kafka. MB and GB are powers of ten and count values only.

Made by:

```
{result["command"]}
```

{table(result)}

- Every consume checks that each partition comes back whole and in order; a lost or doubled record ends the
  run instead of giving a figure.
- Before its figures count, a fresh broker takes {result["scale"]["warm_passes"]} passes of half the bytes, so that
  the JVM's compiler has done its work.
- CPU is user and system time of the broker process with its threads and children.
- The C floor (`bench/floor.c`) receives the same bytes on one connection, writes them to a file and sends the
  file back: no protocol, no batches, no offsets.
- Kafka runs with its own start script's JVM options and its default settings, which never fsync; Penstock's
  default fsyncs before it acknowledges acks=all, and `flush=os` turns that off for a topic.
- Consume waits for the client most of the time: librdkafka asks again only when it has parsed the last answer, so
  neither broker is busy throughout (the broker's CPU-s for 1 GB out are in the results, seconds for 1 GB follow
  from the rate). What the broker adds is the time to its first byte and how well sending overlaps with receiving.
- Start to ready: from exec to Penstock's `ready` line, and to Kafka's first answer to a metadata request.
- Latency: from `rd_kafka_produce` to the delivery report, {LATENCY_RATE} records a second, no linger.

## Machine

| | |
|---|---|
{facts}
"""


def main() -> None:
    """Write the page again from a result file (the newest without an argument)."""
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else max(RESULTS.glob("*.json"), default=None)
    if chosen is None:
        sys.exit("no results yet: make bench")
    PAGE.write_text(page(json.loads(chosen.read_text())))
    sys.stderr.write(f"{PAGE} written from {chosen}\n")


if __name__ == "__main__":
    main()
