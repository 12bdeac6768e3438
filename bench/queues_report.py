"""docs/benchmarks-queues.md, from what `python -m bench.queues` has measured."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench import machine
from bench.ledger import BACKLOGS, UNSETTLED

RESULTS: Final = machine.ROOT / "bench" / "results" / "queues"
PAGE: Final = machine.ROOT / "docs" / "benchmarks-queues.md"
FLAT: Final = 1.2
Rounds = Sequence[Mapping[str, Mapping[str, float]]]

_HEAD = """# What queues cost

Run with `{command}` at revision {revision} on {date}; {cores} cores, {cpu}, Linux {kernel}, Python \
{python}, {java}, Kafka {kafka}.
Other work took {busy_percent:.0f} % of the machine when it began.
Figures are medians of {rounds} rounds, a ratio is the median of the rounds' own ratios.

## Share groups beside Apache Kafka's

Kafka's own share consumer reads {messages:,} messages of 100 B and acknowledges them, over 6 \
partitions, each broker with its defaults and data in the page cache.
Then librdkafka's share consumer gets messages one by one, each sent when the one before has arrived.
CPU is the broker's user and system time; brokers take turns in which is first.

"""
_LEDGER = """
## The ledger by itself

Messages of 100 B in one partition, inside the broker's process and without any door: sent, leased \
and acknowledged in batches of 100, 32 batches at a time, each send and each acknowledgement on the \
disk (`flush=commit`).
The other rows are the ledger alone, which makes the entries and keeps none: {ledger_messages:,} \
messages leased and acknowledged in batches of 100 in front of a backlog, and a tenth as many one by \
one in random order.
`compiled` has `penstock.records` compiled, as it is installed where there is a C compiler; the \
ledger itself is Python in both.

"""


class Row(NamedTuple):
    """Attributes:
    bar: what the ratio of ours to Kafka's is held against, in words, and whether it is met.
    """

    key: str
    title: str
    unit: str
    bar: str
    is_met: Callable[[float], bool]


SHARES: Final = (
    Row("rate", "leased and acknowledged", "messages/s", ">= 1 x Kafka", lambda ratio: ratio >= 1),
    Row("cpu_us", "broker CPU a message", "us", "<= 0.5 x Kafka", lambda ratio: ratio <= 0.5),
    Row("p50_ms", "send to receive, p50", "ms", "", lambda ratio: True),
    Row("p99_ms", "send to receive, p99", "ms", "<= 1 x Kafka", lambda ratio: ratio <= 1),
)


def write_page(found: Mapping[str, Any]) -> None:
    facts = {**found["machine"], **{name: each for name, each in found.items() if name != "machine"}}
    text = _HEAD.format_map({**facts, "rounds": len(found["shares"])})
    text += shares_table(found["shares"]) + _LEDGER.format_map(facts) + ledger_table(found["ledger"])
    PAGE.write_text(text)


def shares_table(rounds: Rounds) -> str:
    lines = ["|  | unit | Penstock | Apache Kafka | ratio | bar |", "|---|---|---|---|---|---|"]
    for row in SHARES:
        ours, theirs = (_median(rounds, name, row.key) for name in ("penstock", "kafka"))
        ratio = statistics.median(each["penstock"][row.key] / each["kafka"][row.key] for each in rounds)
        verdict = f"{row.bar}: {_verdict(row.is_met(ratio))}" if row.bar else ""
        lines.append(f"| {row.title} | {row.unit} | {_format(ours)} | {_format(theirs)} | {ratio:.2f} | {verdict} |")
    return "\n".join(lines) + "\n"


def ledger_table(rounds: Rounds) -> str:
    lines = ["|  | unit | compiled | pure | bar |", "|---|---|---|---|---|"]

    def row(title: str, unit: str, key: str, bar: str = "") -> None:
        figures = " | ".join(_format(_median(rounds, form, key)) for form in ("compiled", "pure"))
        lines.append(f"| {title} | {unit} | {figures} | {bar} |")

    rate = _median(rounds, "compiled", "engine-rate")
    row("sent, leased, acknowledged", "messages/s", "engine-rate", f">= 100,000: {_verdict(rate >= 100_000)}")
    row("the same, CPU a message", "us", "engine-us")
    for backlog in BACKLOGS:
        row(f"backlog of {backlog:,}", "us", f"backlog-{backlog}-us", _flat(rounds, "backlog", BACKLOGS, backlog))
    for count in UNSETTLED:
        bar = _flat(rounds, "disorder", UNSETTLED, count)
        row(f"one by one, {count:,} out of order", "us", f"disorder-{count}-us", bar)
    row("memory of a million that are leased", "MB", "unsettled-mb")
    return "\n".join(lines) + "\n"


def _flat(rounds: Rounds, kind: str, sizes: Sequence[int], size: int) -> str:
    """Beside the smallest of its kind."""
    if size == sizes[0]:
        return ""
    ratio = statistics.median(
        each["compiled"][f"{kind}-{size}-us"] / each["compiled"][f"{kind}-{sizes[0]}-us"] for each in rounds
    )
    return f"<= {FLAT} x that of {sizes[0]:,}: {ratio:.2f}, {_verdict(ratio <= FLAT)}"


def _median(rounds: Rounds, name: str, key: str) -> float:
    return statistics.median(each[name][key] for each in rounds)


def _verdict(is_met: bool) -> str:
    return "pass" if is_met else "**miss**"


def _format(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
