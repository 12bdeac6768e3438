"""The matrix: which loads are measured, as two tables; every cell becomes rows of the report.

Durability says what a topic is created with. Page cache: Penstock `flush=os`, Kafka as it is. Synced: Penstock as it
is, Kafka `flush.messages=1`. Defaults: both as they are, so Penstock syncs before it acknowledges and Kafka never does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bench.rows import Bar, Row, at_least, at_most

Durability = Literal["page cache", "synced", "defaults"]
TOPIC_CONFIG: dict[Durability, dict[str, dict[str, str]]] = {
    "page cache": {"penstock": {"flush": "os"}, "kafka": {}},
    "synced": {"penstock": {}, "kafka": {"flush.messages": "1"}},
    "defaults": {"penstock": {}, "kafka": {}},
}
MEGABYTE = 1_000_000
POINTS = {"p50": "p50", "p99": "p99", "p999": "p99.9"}

_WIDE = 100
_PREFILL = 16

Bars = Mapping[str, tuple[Bar, ...]]
Reasons = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One topic written and read as fast as it goes; `bars` and `reasons` are by figure: produce, consume, cpu.

    With a `codec` librdkafka compresses, and values are text; megabytes are counted before that. `fetch` has the
    numbers of connections on which fetch.c reads the topic once more, without looking at it. `repeats` says what
    other cells show already, so that a brief run leaves this one out.
    """

    name: str
    client: Literal["librdkafka", "java"]
    record_bytes: int
    partitions: int
    acks: Literal["1", "all"]
    durability: Durability
    megabytes: int
    keyed: bool = False
    codec: str = ""
    fetch: tuple[int, ...] = ()
    bars: Bars = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)
    repeats: str = ""

    def records(self, share: float = 1.0) -> int:
        """At least one for each partition."""
        return max(self.partitions, int(self.megabytes * share * MEGABYTE) // self.record_bytes)

    @property
    def prefilled(self) -> int:
        """Records that every partition of a wide topic holds before it is measured."""
        return _PREFILL if self.partitions >= _WIDE else 0

    def title(self) -> str:
        spread = f"{self.partitions:,} partition{'s' if self.partitions > 1 else ''}"
        size = "1 KB" if self.record_bytes == 1024 else f"{self.record_bytes} B"
        keys = ", by key" if self.keyed else ""
        codec = f", {self.codec}" if self.codec else ""
        client = ", Java" if self.client == "java" else ""
        return f"{size}, {spread}{keys}, acks={self.acks}, {self.durability}{codec}{client}"


@dataclass(frozen=True, slots=True)
class Pace:
    """Records at a steady rate; `produce` ends at the acknowledgement, `passage` at the consumer."""

    name: str
    kind: Literal["produce", "passage"]
    rate: int
    acks: Literal["1", "all"]
    durability: Durability
    bars: Bars = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)

    def title(self, point: str) -> str:
        what = "produce" if self.kind == "produce" else "end to end"
        return f"{what} {POINTS[point]}, {self.rate:,}/s, acks={self.acks}, {self.durability}"


BASE = Cell(
    *("base", "librdkafka", 1024, 6, "1", "page cache", 1000),
    fetch=(1, 4),
    bars={
        "produce": (at_least(1.5),),
        "consume": (at_least(1.3),),
        "cpu": (at_most(0.5), at_most(2.0, "floor")),
    },
    reasons={
        "consume": "librdkafka asks again only when it has parsed the last answer, so the client's core is the limit "
        "for most of the time and neither broker is busy throughout. What the brokers can do stands below, without a "
        "client's work."
    },
)
_NOISE = "The client is the limit here; single rounds differ by more than this."
_APART = "what either half of it changes has a row of its own"
_NOISY = {"produce": _NOISE, "consume": _NOISE}
_NO_SYNC = {"produce": (at_least(1.0),)}
CELLS = (
    BASE,
    Cell(
        *("base-all", "librdkafka", 1024, 6, "all", "page cache", 300),
        reasons={"consume": _NOISE},
        repeats="a single broker does for acks=all what it does for acks=1",
    ),
    Cell("default", "librdkafka", 1024, 6, "all", "defaults", 1000, bars=_NO_SYNC),
    Cell("synced", "librdkafka", 1024, 6, "all", "synced", 100),
    Cell("one", "librdkafka", 1024, 1, "1", "page cache", 300, fetch=(1,)),
    Cell("one-synced", "librdkafka", 1024, 1, "all", "synced", 100, repeats=_APART),
    Cell("wide", "librdkafka", 1024, 1000, "1", "page cache", 50, fetch=(4,)),
    Cell("keyed", "librdkafka", 1024, 1000, "all", "defaults", 100, keyed=True, bars=_NO_SYNC),
    Cell("keyed-cached", "librdkafka", 1024, 1000, "all", "page cache", 50, keyed=True),
    Cell("keyed-synced", "librdkafka", 1024, 1000, "all", "synced", 2, keyed=True),
    Cell("small", "librdkafka", 100, 6, "1", "page cache", 100, fetch=(4,), reasons=_NOISY),
    Cell(*("small-default", "librdkafka", 100, 6, "all", "defaults", 100), reasons={"produce": _NOISE}, repeats=_APART),
    Cell("small-one", "librdkafka", 100, 1, "1", "page cache", 100, reasons={"consume": _NOISE}),
    Cell("java", "java", 1024, 6, "1", "page cache", 300),
    Cell("java-default", "java", 1024, 6, "all", "defaults", 300, repeats=_APART),
    Cell("java-small", "java", 100, 6, "1", "page cache", 100),
    Cell("java-wide", "java", 1024, 1000, "all", "page cache", 50),
)

_PROMPT = {"p50": (at_most(1.0),), "p99": (at_most(0.5),)}
_SYNC_COSTS = "Penstock waits for the disk before it acknowledges; Kafka's default does not."
_DISK = {"p50": _SYNC_COSTS, "p99": _SYNC_COSTS, "p999": _SYNC_COSTS}
PACES = (
    Pace("slow", "produce", 2_000, "1", "page cache", _PROMPT),
    Pace("fast", "produce", 20_000, "1", "page cache", _PROMPT),
    Pace("slow-default", "produce", 2_000, "all", "defaults", reasons=_DISK),
    Pace("fast-default", "produce", 20_000, "all", "defaults", reasons=_DISK),
    Pace("passage", "passage", 2_000, "1", "page cache"),
)
PACE_BYTES = 1024
PACE_PARTITIONS = 6

_CPU_UNIT = "CPU-s/GB"


def throughput_rows() -> list[Row]:
    """Consume rows only of the page cache cells: reading does not depend on how the records were acknowledged.

    A rate of reading has the broker's CPU below it: a rate that both reach alike is the client's, the CPU is not.
    """
    consumed = [cell for cell in CELLS if cell.durability == "page cache"]
    return [
        *(_row(cell, "produce", "Produce", "MB/s", more_is_better=True) for cell in CELLS),
        *(row for cell in consumed for row in consume_rows(cell)),
        *(row for cell in CELLS for connections in cell.fetch for row in fetch_rows(cell, connections)),
        *(_row(cell, "cpu", "Broker CPU for 1 GB in and out", "CPU-s") for cell in CELLS),
    ]


def consume_rows(cell: Cell) -> list[Row]:
    rate = _row(cell, "consume", "Consume", "MB/s", more_is_better=True)
    return [rate, Row(f"{cell.name}-cpu-consume", "Consume", f"{cell.title()}: broker's CPU", _CPU_UNIT)]


def fetch_rows(cell: Cell, connections: int) -> list[Row]:
    name, theme = fetch_name(cell, connections), "Consume without a client's work"
    title = f"{cell.title()}, {connections} connection{'s' if connections > 1 else ''}"
    return [
        Row(name, theme, title, "MB/s", more_is_better=True),
        Row(f"{name}-cpu", theme, f"{title}: broker's CPU", _CPU_UNIT),
        Row(f"{name}-reader", theme, f"{title}: reader's own CPU", _CPU_UNIT, judged=False),
    ]


def fetch_name(cell: Cell, connections: int) -> str:
    return f"{cell.name}-fetch{connections}"


def _row(cell: Cell, figure: str, theme: str, unit: str, more_is_better: bool = False) -> Row:
    bars, reason = tuple(cell.bars.get(figure, ())), cell.reasons.get(figure, "")
    return Row(f"{cell.name}-{figure}", theme, cell.title(), unit, bars, more_is_better, reason)


def latency_rows() -> list[Row]:
    return [
        Row(
            f"{pace.name}-{point}",
            "Latency",
            pace.title(point),
            "ms",
            tuple(pace.bars.get(point, ())),
            reason=pace.reasons.get(point, ""),
        )
        for pace in PACES
        for point in POINTS
    ]
