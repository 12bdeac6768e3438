"""Results as a page of docs: a table for each theme, the losses with their reasons, the plots, the machine."""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.sentences import mended

from bench import ab_report, plots
from bench.cells import CELLS, PACE_PARTITIONS
from bench.compaction import COPIES
from bench.crowd import PARTITIONS as CROWD_PARTITIONS
from bench.fetching import PASSES
from bench.figures import Result, figures, is_lost, ratios, short, spread, verdicts
from bench.groups import OWN, ROWS
from bench.neighbours import RATE
from bench.opening import WIDEST_LIMIT_S
from bench.rebalancing import MEMBERS, PARTITIONS
from bench.rebalancing import RATE as MEMBER_RATE
from bench.rows import Row

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
PAGE = "benchmarks.md"

SUBJECTS = {"penstock": "Penstock", "kafka": "Apache Kafka", "floor": "C floor"}
NOTES = {
    "Produce": "![Throughput](pictures/benchmarks-throughput.svg)",
    "Consume": "Below each rate stands what it cost the broker: CPU seconds for a GB of values, with the consumer's "
    "connecting and looking up of offsets, which is most of it where there are 1,000 partitions and few bytes. A rate "
    "that both brokers reach alike is the client's own.",
    "Consume without a client's work": f"`bench/fetch.c` reads the same topics {PASSES} times with plain Fetch "
    "requests of version 4, up to 1 MiB of a partition and 50 MiB in an answer, one request at a time on each "
    "connection. Its kernel drops the records, so that it costs next to nothing and the broker is the limit. What it "
    "checks are the heads of the batches: the offsets have no gap, and end in each partition where the producer's did, "
    "on both brokers alike. The consumer before it has checked the same records one by one.",
    "Broker CPU for 1 GB in and out": "![Broker CPU](pictures/benchmarks-cpu.svg)",
    "Latency": "![Latency](pictures/benchmarks-latency.svg)",
    "Start and memory": "Ready means Penstock's `ready` line, and Kafka's first answer to a metadata request.",
    "Many partitions": "Topics have 1,000 partitions with ten records of 100 B in each, all read back in the end. A "
    f"broker without figures took more than {WIDEST_LIMIT_S:.0f} s for all of it, or failed. After a kill, Kafka first "
    "waits for the session of its former process to end (9 s by default).",
    "Neighbours": f"A producer sends {RATE:,} records a second, acks=1, page cache. A figure over p99 alone is the p99 "
    "of the records sent during the disturbance, divided by the p99 of the four seconds before. The reader runs at "
    "nice 19, because its own work would otherwise take the cores from the broker and the producer. Both brokers check "
    "retention every 5 s (Kafka's own default is five minutes).",
    "Consumer groups": "Members of one group are Java consumers in one JVM; if a partition ever has two owners, the "
    "run "
    f"ends. A new member joins {MEMBERS} others, which read a topic of {PARTITIONS} partitions that gets "
    f"{MEMBER_RATE:,} records a second. In the rows with many groups, members are connections that join, heartbeat and "
    f"commit {CROWD_PARTITIONS} offsets, and fetch nothing. Kafka does not sync what it keeps about groups; Penstock "
    "does.",
    "Transactions": "One producer, acks=all, one transaction after the other. Page cache and synced apply to the topic "
    "and to the coordinator's own topic. Java commits with the second version of Kafka's transaction protocol, "
    "librdkafka with the first. In the end the records and markers in the logs are counted: every record, and a marker "
    "for each partition of each transaction, must be there.",
    "Compaction": f"A producer sends {RATE:,} records a second, acks=1, page cache; alone means the four seconds "
    "before. "
    f"Another topic has {COPIES} records of each key, and its policy becomes `compact` at the beginning. "
    "Both brokers look for work every half second. Penstock reads and writes at most 32 MiB a second for compaction, "
    "together; Kafka has no limit.",
    "Metrics": "Two Penstocks take turns with the same load; in one of them `bench/unmetered.py` has removed the "
    "histograms and the stall monitor.",
}


def table(result: Result, rows: list[Row]) -> str:
    """Empty when no broker has a figure; the floor has a column only where it has figures."""
    rows = [row for row in rows if any(figures(result, subject, row.name) for subject in ("penstock", "kafka"))]
    if not rows:
        return ""
    subjects = dict(SUBJECTS)
    if not any(figures(result, "floor", row.name) for row in rows):
        del subjects["floor"]
    head = ["", "unit", *subjects.values(), "ratio", "bar"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        found = [spread(figures(result, subject, row.name)) for subject in subjects]
        cells = [row.title, row.unit, *found, spread(ratios(result, row.name)), bars(result, row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bars(result: Result, row: Row) -> str:
    return "; ".join(f"{each.bar.text()}: {'pass' if each.holds else '**miss**'}" for each in verdicts(result, row))


def missed(result: Result) -> list[Row]:
    return [row for row in ROWS if any(not verdict.holds for verdict in verdicts(result, row))]


def tables(result: Result, *, notes: bool = True) -> str:
    parts = []
    for theme in dict.fromkeys(row.theme for row in ROWS):
        body = table(result, [row for row in ROWS if row.theme == theme])
        if body:
            note = NOTES.get(theme, "") if notes else ""
            parts.append("\n\n".join(part for part in (f"## {theme}", note, body) if part))
    return "\n\n".join(parts)


def losses(result: Result) -> str:
    """Every row where Kafka is ahead or a bar is missed."""
    lines = []
    for row in ROWS:
        if not is_lost(result, row):
            continue
        found = ratios(result, row.name)
        how = f"{short(statistics.median(found))} x Kafka" if found else spread(figures(result, "penstock", row.name))
        miss = ", **bar missed**" if any(not verdict.holds for verdict in verdicts(result, row)) else ""
        reason = row.reason or "No reason is known yet."
        lines.append(f"- {row.theme.lower()}, {row.title}: {how}{miss}. {reason}")
    return "\n".join(lines) or "None in this run."


def took(result: Result) -> str:
    """How long it took, where the result knows."""
    return f"\nThis took {result['took_s'] / 60:.0f} minutes.\n" if "took_s" in result else ""


def left_out(result: Result) -> str:
    """What a brief run does not measure, and why; nothing of any other."""
    if not result["scale"].get("brief"):
        return ""
    reasons: dict[str, list[str]] = {}
    for cell in CELLS:
        reasons.setdefault(cell.repeats, []).append(cell.title())
    for name, group in OWN.items():
        reasons.setdefault(group.repeats, []).append(f"the group `{name}`")
    reasons.pop("", None)
    said = "; ".join(f"{' / '.join(titles)}: {reason}" for reason, titles in reasons.items())
    return f"- The run was a brief one, without what other rows show already. {said}.\n"


def page(result: Result) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in result["machine"].items())
    return f"""# Benchmarks

This page compares Penstock with Apache Kafka on one machine, one broker at a time, in {len(result["rounds"])} rounds of
both in turn. The clients share the cores with the broker. Figures are medians over the rounds with their range; a
ratio is the median of the rounds' own ratios, Penstock over Kafka. MB and GB are powers of ten and count values only.
A bar is a limit that we have set ourselves. Rows without a bar are measured in every third round.

```
{result["command"]}
```
{took(result)}
{left_out(result)}- **Page cache**: neither syncs (Penstock with the topic setting `flush=os`). **Synced**:
  both sync before they acknowledge (Kafka with `flush.messages=1`). **Defaults**: both as they are; Penstock syncs,
  Kafka does not.
- If a row names no client, it is librdkafka (`bench/load.c`). Java is Kafka's own producer performance tool for
  writing, and `bench/Consume.java`, a consumer with assigned partitions, for reading. Kafka's consumer performance
  tool, which has a row among the consumer groups, does not check what it reads.
- librdkafka's consumers have `fetch.queue.backoff.ms=1`. With its own second they stand still for so long whenever
  their queue is full, beside both brokers.
- Every consumer except that tool, and the reader that drops the records, checks that each partition comes back whole
  and in order; a lost or doubled record ends the run, and there is no figure.
- A fresh broker first gets {result["scale"]["warm_passes"]} unmeasured passes of half a gigabyte and one over 1,000
  partitions, so that the JVM's compiler has done its work. Kafka runs with the JVM options of its own start script.
- Each partition of a topic of 1,000 gets 16 records before the topic is measured: the first use of a partition's files
  belongs to the cost of making the topic, and is expensive for Kafka's mapped index files.
- CPU is user and system time of the broker's process. The C floor (`bench/floor.c`) receives the same bytes on one
  connection, writes them to a file and sends the file back: no protocol, no batches, no offsets.
- Latency is measured with 1 KB records over {PACE_PARTITIONS} partitions without linger: from the call of produce to
  the delivery report, or to the consumer's poll (end to end), in an open loop. Without linger nearly every record is a
  request of its own: 20,000 of them a second seem to be more than Kafka answers on these cores, so that its
  latency is that of a queue. No row with a linger was measured.

{tables(result)}

## Where Penstock loses

{losses(result)}

## Machine

| | |
|---|---|
{machine}
"""


def combine(results: Sequence[Result]) -> Result:
    """The first result with the rows of later, partial runs in place of its own, and their commands beside its own."""
    main, *partial = results
    # The floor is measured in every run; it belongs to the complete one.
    own = [[{name: one[name] for name in one if name != "floor"} for one in each["rounds"]] for each in partial]
    replaced = {name for rounds in own for one in rounds for found in one.values() for name in found}
    rounds = [
        {
            broker: {name: value for name, value in found.items() if name not in replaced}
            for broker, found in one.items()
        }
        for one in main["rounds"]
    ]
    for each in own:
        for one, more in zip(rounds, each, strict=False):
            for broker, found in more.items():
                one.setdefault(broker, {}).update(found)
    commands = [f"{each['command']}  # at {each['machine']['revision']}" for each in results]
    combined = main | {"rounds": rounds, "command": "\n".join(commands)}
    combined.pop("took_s", None)
    if all("took_s" in each for each in results):
        combined["took_s"] = sum(each["took_s"] for each in results)
    return combined


def save(result: Result, docs: Path = DOCS) -> None:
    """Write the page and its plots."""
    docs.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text(ab_report.renewed(mended(page(result)), ab_report.section()))
    plots.save_all(result, docs / "pictures")


def main() -> None:
    """Write page and plots again from a complete run's file and those of partial ones (the newest without any)."""
    newest = max(RESULTS.glob("*.json"), default=None)
    chosen = [Path(word) for word in sys.argv[1:]] or ([newest] if newest else [])
    if not chosen:
        sys.exit("no results yet: make bench")
    save(combine([json.loads(each.read_text()) for each in chosen]))
    sys.stderr.write(f"{DOCS / PAGE} written from {', '.join(map(str, chosen))}\n")


if __name__ == "__main__":
    main()
