"""What a pipeline is, whoever wrote it down: a YAML file and a Python program become the same `Spec`.

Values are read and checked (durations are seconds, sizes bytes, variables filled in); defaults are filled in from the
tables of keys. Nothing here imports pyspark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

CONTEXT: Final = "context"
"""Among client properties: which context of the driver's they go over."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands, for people."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Action(StrEnum):
    """What becomes of a row that breaks an expectation."""

    WARN = "warn"
    """It goes on, and is counted."""
    DROP = "drop"
    """It ends here, and is counted."""
    QUARANTINE = "quarantine"
    """It goes to the dead letters, with the reason."""
    FAIL = "fail"
    """Nothing of its micro-batch is written, and the pipeline stops."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must hold for every row: `that`, an SQL predicate. Null is not true, so it does not hold."""

    name: str
    that: str
    otherwise: Action
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may be: those older than the newest `column` by more than `delay` are not waited for."""

    column: str
    delay: str
    """An SQL interval, as `10 minutes`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows from topics or files, under a name that steps use as a table's.

    Attributes:
        kind: `topic` or `files`.
        options: by the keys of its table (`penstock.pipelines.spec.tables`), defaults included.
    """

    name: str
    kind: str
    options: Mapping[str, Any]
    expect: tuple[Expectation, ...] = ()
    watermark: Watermark | None = None
    place: Place | None = None

    @property
    def is_static(self) -> bool:
        """Read whole in every micro-batch, as a table to join with, instead of streamed."""
        return self.kind == "files" and bool(self.options.get("static"))


@dataclass(frozen=True, slots=True)
class Step:
    """One table made of others: by an SQL query, or by a Python function over DataFrames.

    Attributes:
        inputs: names of sources and earlier steps; for a function they are its arguments.
        python: `file.py:function` or `package.module:function`, as it stands in the file; "" for SQL.
        function: the function itself; it may be None until somebody needs it (see `spec.functions`).
        sql_place: where the first line of the query stands.
    """

    name: str
    inputs: tuple[str, ...]
    sql: str = ""
    python: str = ""
    function: Callable[..., Any] | None = None
    expect: tuple[Expectation, ...] = ()
    watermark: Watermark | None = None
    place: Place | None = None
    sql_place: Place | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Where the rows of a source or step go.

    Attributes:
        kind: a name in `penstock.pipelines.sinks.KINDS`.
        source: whose rows.
        options: by the keys of the kind's table, defaults included; under the kind's own name the destination.
        places: where each key stands.
    """

    name: str
    kind: str
    source: str
    options: Mapping[str, Any]
    place: Place | None = None
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where rows go that could not be decoded, were quarantined, or were refused by a sink.

    Attributes:
        kind: `topic`, `file`, `log` or `drop`.
        target: the topic or the directory; "" for the others.
    """

    kind: str
    target: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A whole pipeline.

    Attributes:
        server: brokers for topics that name no other, `host:port,...`; empty where a context says which.
        client: Kafka client properties without the prefix `kafka.`, as `security.protocol`, and which `CONTEXT`.
        every_s: how often a micro-batch begins when the pipeline runs on; 0 as soon as the last one is done.
        limit: rows a micro-batch takes from each source at most.
        mode: Spark's output mode, `append` or `update`.
        patience_s: how long a sink or broker that is away is waited for before the pipeline stops.
        spark: Spark settings of its session (`spark.sql...`).
        directory: what relative paths are relative to.
        file: what it was read from.
    """

    name: str
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[SinkSpec, ...]
    dead_letters: DeadLetters
    server: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    every_s: float = 1.0
    limit: int = 500_000
    mode: str = "append"
    patience_s: float = 600.0
    spark: Mapping[str, str] = field(default_factory=dict)
    directory: Path = Path()
    file: Path | None = None
    place: Place | None = None

    def source(self, name: str) -> Source | None:
        return next((each for each in self.sources if each.name == name), None)

    def step(self, name: str) -> Step | None:
        return next((each for each in self.steps if each.name == name), None)
