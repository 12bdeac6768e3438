"""`penstock bench`: how many records a broker takes and gives per second, and how long one of them is under way."""

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.bench.figures import MARK, MIN_RECORD_BYTES, Check, format_count, summarise_ms, summarise_work
from penstock.cli.bench.processes import run_processes
from penstock.cli.bench.topic import (
    Stretch,
    Target,
    find_ends,
    find_stretches,
    found_topic,
    passing_topic,
    settled_ends,
)
from penstock.cli.connection import Server, TopicName, read_properties, server_options
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import output_option, print_table, show

if TYPE_CHECKING:
    from penstock.cli.bench.load import Produced

PHASES = ("all", "produce", "consume", "latency")
DEFAULT_SECONDS = 5.0
DEFAULT_PARTITIONS = 6
# Five seconds of a fast broker fill a disk; a run that was told neither records nor seconds stops here.
DEFAULT_MOST_BYTES = 1_000_000_000
LINGER_MS = 5.0
_PROCESSES = click.IntRange(1, 1000)

_HELP = """\
Measure a broker's throughput and latency, over the network, as its clients see them.

\b
all      produce, consume and latency, one after the other (the default)
produce  write as fast as the broker takes it
consume  read it back, or what --topic holds, and check every record
latency  write --rate records a second and read them at once, in one process

Without --topic a topic of its own is made and deleted afterwards, whatever happens. A record that is lost, doubled or
out of order is an error: exit code 1.
"""
_EPILOG = f"""\
\b
What limits the figures: the clients are Python around librdkafka, about 1 µs of CPU
a record; --producers and --consumers add processes. On one machine they share the CPU
with the broker, and what was just written is read from memory, not from the disk.
Latency counts from the moment a record was due, so a stall counts for every record
it held up. Throughput runs take the latency of about one record in 500.

\b
Without --records and --seconds: {DEFAULT_SECONDS:g} s, at most {DEFAULT_MOST_BYTES // 1_000_000_000} GB.
With --records alone, the latency part of 'all' still ends after {DEFAULT_SECONDS:g} s.
Before the clock starts every producer writes one record for each partition.
MB is 1,000,000 bytes of values. p99.9 means something from 1,000 samples on.

\b
Examples:
  penstock bench
  penstock bench produce --size 100 --seconds 10 --producers 2
  penstock bench latency --rate 5000 --acks 1 -o json
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the options say."""

    server: Server
    records: int | None
    seconds: float | None
    size: int
    acks: str
    compression: str
    keys: int
    producers: int
    consumers: int
    rate: float
    batch_bytes: int
    linger_ms: float | None

    @property
    def most_records(self) -> int | None:
        unlimited = self.records is None and self.seconds is None
        return max(1, DEFAULT_MOST_BYTES // self.size) if unlimited else self.records

    @property
    def most_seconds(self) -> float | None:
        return DEFAULT_SECONDS if self.records is None and self.seconds is None else self.seconds

    def latency_records(self, *, alone: bool) -> int:
        """What is due until the end. Records enough for throughput may take hours at this rate: not as one of three."""
        endless = self.records is not None and alone
        seconds = self.seconds or (math.inf if endless else DEFAULT_SECONDS)
        scheduled = max(1, math.ceil(seconds * self.rate)) if seconds < math.inf else sys.maxsize
        return min(self.records or scheduled, scheduled)

    def producer_properties(self, linger_ms: float) -> dict[str, object]:
        return {
            "acks": self.acks,
            "enable.idempotence": self.acks == "all",
            "compression.type": self.compression,
            "batch.size": self.batch_bytes,
            "batch.num.messages": 100_000,
            "message.max.bytes": max(1_000_000, self.batch_bytes, self.size + 1024),
            "linger.ms": linger_ms if self.linger_ms is None else self.linger_ms,
            "queue.buffering.max.messages": 200_000,
        }

    def consumer_properties(self) -> dict[str, object]:
        return {
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.message.max.bytes": 4 << 20,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 128 << 10,
            "fetch.queue.backoff.ms": 10,  # of 1,000: a reader behind a full queue would stand still for a second
        }


@dataclass(slots=True)
class Findings:
    """The answer, built up phase by phase."""

    facts: dict[str, Any]
    problems: list[str] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        return self.facts | {"ok": not self.problems, "problems": self.problems}


@click.command("bench", help=_HELP, epilog=_EPILOG)
@click.argument("what", type=click.Choice(PHASES), default="all")
@click.option("--topic", type=TopicName(), help="Use this topic, which must exist, and leave it there.")
@click.option("--keep", is_flag=True, help="Leave the topic that was made for the run.")
@click.option("--records", type=click.IntRange(1), metavar="N", help="Stop after so many records.")
@click.option(
    "--seconds", type=click.FloatRange(0, 1e6, min_open=True), metavar="N", help="Stop after so many seconds."
)
@click.option(
    "--size",
    type=click.IntRange(MIN_RECORD_BYTES, 1_000_000_000),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Of a record's value.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help=f"Of the topic that is made.  [default: {DEFAULT_PARTITIONS}]",
)
@click.option("--topic-config", metavar="KEY=VALUE", multiple=True, help="A setting of the topic that is made.")
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True, help="Who must have a record."
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Of batches; the values compress to about half.",
)
@click.option("--keys", type=click.IntRange(0, 10_000_000), default=0, metavar="N", help="Give records one of N keys.")
@click.option("--producers", type=_PROCESSES, default=1, show_default=True, metavar="N", help="Processes that write.")
@click.option("--consumers", type=_PROCESSES, default=1, show_default=True, metavar="N", help="Processes that read.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=1000.0,
    show_default=True,
    metavar="N",
    help="Records a second, for latency.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, 2**31 - 1),
    default=1_000_000,
    show_default=True,
    metavar="BYTES",
    help="The largest batch.",
)
@click.option(
    "--linger-ms",
    type=click.FloatRange(0, 900_000),
    metavar="MS",
    help=f"Wait so long to fill a batch.  [default: {LINGER_MS:g}; for latency 0]",
)
@output_option
@server_options
def command(
    server: Server,
    what: str,
    topic: str | None,
    keep: bool,
    partitions: int | None,
    topic_config: Sequence[str],
    output: str,
    **options: Any,
) -> None:
    plan = Plan(server, **options)
    if topic is not None and (partitions is not None or topic_config or keep):
        raise CommandError(
            f"--partitions, --topic-config and --keep are for a topic that bench makes; {topic} stays as it is",
            code=USAGE,
        )
    found = Findings({"server": server.address, "topic": topic, "what": what})
    records = (plan.size, plan.keys)
    made = partitions or DEFAULT_PARTITIONS, read_properties(topic_config)
    place = passing_topic(server, *made, *records, keep=keep) if topic is None else found_topic(server, topic, *records)
    with _terminable(), place as used:
        found.facts |= {"topic": used.topic, "partitions": len(used.partitions), "record_bytes": plan.size}
        found.facts |= {"acks": plan.acks, "compression": plan.compression, "keys": plan.keys}
        _measure(plan, what, used, found, existing=topic is not None)
    show(found.answer(), output, lambda: _print(found))
    if found.problems:
        raise CommandError(f"topic {used.topic}: " + "; ".join(found.problems))


def _measure(plan: Plan, what: str, target: Target, found: Findings, *, existing: bool) -> None:
    if len(target.partitions) < plan.consumers and what in ("all", "consume"):
        raise CommandError(
            f"--consumers {plan.consumers}: topic {target.topic} has {len(target.partitions)} partitions, "
            "and a partition has one reader",
            code=USAGE,
        )
    if what == "consume" and existing:
        _consume(plan, target, find_stretches(target), found, limited=True)
        return
    if what != "latency":
        stretches = _produce(plan, target, found, existing=existing)
        if what != "produce":
            _consume(plan, target, stretches, found)
        if what == "consume":
            del found.facts["produce"]
    if what in ("all", "latency"):
        _latency(plan, target, found, plan.latency_records(alone=what == "latency"))


def _produce(plan: Plan, target: Target, found: Findings, *, existing: bool) -> dict[int, Stretch]:
    """Write, then hold what the broker has against what was sent; the result is where to read it."""
    from penstock.cli.bench.load import ProduceLoad, produce

    before = find_ends(target)
    properties, most = plan.producer_properties(LINGER_MS), plan.most_records
    loads = [
        ProduceLoad(target, properties, number, _share(most, plan.producers, number), plan.most_seconds)
        for number in range(plan.producers)
    ]
    loads = [load for load in loads if load.records != 0]
    with _progress("produce", most, plan.most_seconds) as watch:
        results: list[Produced] = run_processes(produce, loads, watch)
    sent = {at: {result.stream: result.sent[at] for result in results} for at in target.partitions}
    wanted = {at: before[at] + sum(sent[at].values()) for at in target.partitions}
    after = settled_ends(target, wanted)
    missing = sum(max(0, wanted[at] - after[at]) for at in target.partitions)
    surplus = sum(max(0, after[at] - wanted[at]) for at in target.partitions)
    errors = [error for result in results for error in result.errors]
    latency = summarise_ms(second for result in results for second in result.latencies_s)
    total = sum(wanted.values()) - sum(before.values())
    records = sum(result.work.records for result in results)
    found.facts["produce"] = summarise_work([result.work for result in results]) | {
        "warm_up_records": total - records,
        "ack_latency_ms": latency,
        "errors": missing,
    }
    why = f" ({', '.join(sorted(set(errors)))})" if errors else ""
    if missing:
        found.problems.append(f"{missing:,} of {total:,} records not stored{why}")
    elif errors:
        found.problems.append(f"records stored, but not acknowledged{why}")
    if surplus and not existing:
        found.problems.append(f"{format_count(surplus)} stored beyond those sent")
    return {
        at: Stretch(before[at], after[at], MARK + target.run, whole=True, sent=sent[at]) for at in target.partitions
    }


def _consume(
    plan: Plan, target: Target, stretches: Mapping[int, Stretch], found: Findings, *, limited: bool = False
) -> None:
    from penstock.cli.bench.load import Consumed, ConsumeLoad, consume

    total = sum(each.end - each.start for each in stretches.values())
    most = min(total, plan.most_records or total) if limited else total
    seconds = plan.most_seconds if limited else None
    if limited and not total:
        raise CommandError(f"topic {target.topic} has no records to read")
    loads = []
    for number in range(plan.consumers):
        own = {at: stretches[at] for at in target.partitions[number :: plan.consumers]}
        share = _share(most, plan.consumers, number) if most < total else None
        loads.append(ConsumeLoad(target, plan.consumer_properties(), own, share, seconds))
    with _progress("consume", most, seconds) as watch:
        results: list[Consumed] = run_processes(consume, loads, watch)
    check = Check()
    for result in results:
        check.add(result.check)
    whole = all(result.complete for result in results)
    found.facts["consume"] = summarise_work([result.work for result in results]) | {
        "complete": whole,
        "check": asdict(check),
    }
    found.problems += check.problems()


def _latency(plan: Plan, target: Target, found: Findings, records: int) -> None:
    from penstock.cli.bench.load import LatencyLoad, Measured, measure_latency, warm_up_records

    load = LatencyLoad(
        target,
        plan.producer_properties(0.0),
        plan.consumer_properties() | {"enable.partition.eof": False},
        plan.producers,
        plan.rate,
        records,
        find_ends(target),
    )
    with _progress("latency", records, records / plan.rate) as watch:
        results: list[Measured] = run_processes(measure_latency, [load], watch)
    (result,) = results
    found.facts["latency"] = summarise_work([result.work]) | {
        "warm_up_records": warm_up_records(target),
        "target_records_per_s": plan.rate,
        "behind_schedule_ms": round(result.late_s * 1000, 3),
        "ack_latency_ms": summarise_ms(result.ack_s),
        "end_to_end_latency_ms": summarise_ms(result.end_to_end_s),
        "errors": len(result.errors),
        "check": asdict(result.check),
    }
    if result.errors:
        found.problems.append(f"{len(result.errors):,} errors ({', '.join(sorted(set(result.errors)))})")
    found.problems += [f"{problem} at {plan.rate:g} records/s" for problem in result.check.problems()]


def _share(total: int | None, parts: int, number: int) -> int | None:
    """What the part with this number does of a total."""
    return None if total is None else total // parts + (number < total % parts)


@contextmanager
def _terminable() -> Iterator[None]:
    """Lets SIGTERM and a closed terminal end the run as Ctrl+C does: with the topic deleted."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise click.exceptions.Exit(128 + number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _progress(label: str, records: int | None, seconds: float | None) -> "Iterator[Callable[[int], None]]":
    """A bar with the rate by now, on a terminal's standard error."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    total = "" if records is None else f"/{records:,}"
    columns = (TextColumn(f"{label:8}"), BarColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn())
    lately: deque[tuple[float, int]] = deque(maxlen=6)
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bars:
        task = bars.add_task(label, total=1.0, text="connecting")
        began_s: float | None = None

        def watch(done: int) -> None:
            nonlocal began_s
            now_s = time.monotonic()
            began_s = began_s or now_s
            if not lately or lately[-1][1] != done:
                lately.append((now_s, done))
            (old_s, old), (new_s, new) = lately[0], lately[-1]
            rate = (new - old) / (new_s - old_s) if new_s > old_s else 0.0
            parts = [done / records if records else 0.0, (now_s - began_s) / seconds if seconds else 0.0]
            bars.update(task, completed=min(1.0, max(parts)), text=f"{done:,}{total} records  {rate:,.0f}/s")

        yield watch


def _print(found: Findings) -> None:
    rows = []
    for name in ("produce", "consume", "latency"):
        figures = found.facts.get(name)
        if figures is None:
            continue
        rates = [
            f"{figures['records']:,}",
            f"{figures['records_per_s']:,.0f}",
            f"{figures['mb_per_s']:,.1f}",
            f"{figures['client_cpu_percent']:.0f}",
        ]
        rows.append([name, *rates, *_milliseconds(figures.get("ack_latency_ms"))])
        if "end_to_end_latency_ms" in figures:
            rows.append(["  end to end", None, None, None, None, *_milliseconds(figures["end_to_end_latency_ms"])])
    columns = ["", "records", "records/s", "MB/s", "client CPU %", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms"]
    print_table(rows, columns)
    for line in _verdict(found):
        click.echo(line)


def _milliseconds(latency: Mapping[str, float] | None) -> list[str | None]:
    if latency is None:
        return [None] * 5
    return [f"{latency[name]:.2f}" for name in ("p50", "p95", "p99", "p99_9", "max")]


def _verdict(found: Findings) -> Iterator[str]:
    consumed, measured = found.facts.get("consume"), found.facts.get("latency")
    if measured is not None and measured["records_per_s"] < 0.95 * measured["target_records_per_s"]:
        yield (
            f"the schedule of {measured['target_records_per_s']:,.0f} records/s was not kept: "
            f"{measured['behind_schedule_ms']:,.0f} ms behind at the end"
        )
    if consumed is not None:
        foreign = consumed["check"]["foreign"]
        if foreign:
            yield f"{foreign:,} records are not of this tool and were read, not checked"
        if not found.problems and consumed["records"] > foreign:
            yield f"checked: {consumed['records'] - foreign:,} records came back, each once and in order"
