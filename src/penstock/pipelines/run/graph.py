"""All nodes of a pipeline as streaming frames, and which of them the one streaming query carries to its micro-batches.

Steps that keep state, and what feeds them, must run in the stream. Everything else is evaluated on each micro-batch, so
that many sinks, expectations and dead letters need the source's rows once. What is carried are rows of sources and of
steps that keep state, and issues of nodes that lie before such steps. When it is more than one thing, the stream is
their union: a tag, and a struct for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipelines.errors import Finding, SpecError
from penstock.pipelines.model import Source, Spec, Step, Watermark
from penstock.pipelines.run.mistakes import explain, locate
from penstock.pipelines.run.plans import find_state, plan_of
from penstock.pipelines.run.quality import Checked, inspect
from penstock.pipelines.run.sources import ORIGIN, Bounds, open_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TAG: Final = "_of"


class Carried(NamedTuple):
    """What the stream brings: all `rows` of a node, before they are inspected, or its `issues` alone."""

    node: str
    kind: str


ROWS, ISSUES = "rows", "issues"


@dataclass(frozen=True, slots=True)
class Node:
    """A source or step as a frame.

    Attributes:
        raw: its rows as they come.
        checked: good rows and issues.
        state: the operators of its plan that keep state; `own_state`: whether some are not those of its inputs.
    """

    made: Source | Step
    raw: "DataFrame"
    checked: Checked
    state: frozenset[str]
    own_state: bool

    @property
    def is_streaming(self) -> bool:
        return self.raw.isStreaming


@dataclass(frozen=True, slots=True)
class Graph:
    """What `build` makes."""

    spec: Spec
    nodes: Mapping[str, Node]
    carried: tuple[Carried, ...]

    @property
    def is_stateful(self) -> bool:
        return any(node.own_state for node in self.nodes.values())

    def stream(self) -> "DataFrame":
        """The frame of the query."""
        frames = {each: self._frame(each) for each in self.carried}
        if len(frames) == 1:
            return next(iter(frames.values()))
        return _tagged_union(list(frames.values()))

    def schema_of(self, node: str) -> "StructType":
        """The columns a sink of the node gets."""
        return self.nodes[node].checked.good.drop(ORIGIN).schema

    def _frame(self, carried: Carried) -> "DataFrame":
        node = self.nodes[carried.node]
        if carried.kind == ROWS:
            return node.raw
        assert node.checked.issues is not None
        return node.checked.issues


def build(spec: Spec, spark: "SparkSession", bounds: Mapping[str, Bounds] | None = None) -> Graph:
    """Frames of all nodes. Spark analyses them; no job runs.

    Args:
        bounds: which part of a topic source is read, by the source's name; the others are read as they say.

    Raises:
        SpecError: a query, an expectation or a function is wrong; each mistake with its place.
    """
    nodes: dict[str, Node] = {}
    for source in spec.sources:
        raw = _guard_source(spark, spec, source, (bounds or {}).get(source.name))
        nodes[source.name] = _enter(spark, source, raw, frozenset(), frozenset())
    for step in spec.steps:
        inputs = {name: nodes[name].checked.good for name in step.inputs}
        raw = apply_step(spark, step, inputs)
        state = frozenset(find_state(plan_of(raw))) if raw.isStreaming else frozenset()
        below = frozenset().union(*(nodes[name].state for name in step.inputs))
        nodes[step.name] = _enter(spark, step, raw, state, below)
    for sink in spec.sinks:
        if not nodes[sink.source].is_streaming:
            raise SpecError([Finding(sink.place, f"sink {sink.name}: {sink.source} does not stream; it never changes")])
    return Graph(spec, nodes, _choose(spec, nodes))


def _guard_source(spark: "SparkSession", spec: Spec, source: Source, bounds: Bounds | None) -> "DataFrame":
    from pyspark.errors import PySparkException

    try:
        return open_source(spark, spec, source, bounds)
    except PySparkException as error:
        raise SpecError([Finding(source.place, f"source {source.name}: {explain(error)}")]) from None


def _enter(
    spark: "SparkSession", made: Source | Step, raw: "DataFrame", state: frozenset[str], below: frozenset[str]
) -> Node:
    checked = inspect(made, raw)
    if made.watermark is not None and raw.isStreaming:
        checked = Checked(_watermark(checked.good, made, made.watermark), checked.issues)
    checked.good.createOrReplaceTempView(made.name)
    return Node(made, raw, checked, state, not state <= below)


def _watermark(frame: "DataFrame", made: Source | Step, wanted: Watermark) -> "DataFrame":
    from pyspark.errors import PySparkException

    try:
        return frame.withWatermark(wanted.column, wanted.delay)
    except PySparkException as error:
        raise SpecError([Finding(made.place, f"watermark of {made.name}: {explain(error)}")]) from None


def apply_step(spark: "SparkSession", step: Step, inputs: "Mapping[str, DataFrame]") -> "DataFrame":
    """A step's rows from those of its inputs, which are views of the session for SQL.

    Raises:
        SpecError: Spark does not understand the query, or the function fails.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    if not step.python and step.function is None:
        try:
            return spark.sql(step.sql)
        except PySparkException as error:
            raise SpecError([locate(step, error)]) from None
    assert step.function is not None, f"step {step.name}: its function is not loaded"
    try:
        made = step.function(*inputs.values())
    except PySparkException as error:
        raise SpecError([locate(step, error)]) from error
    except Exception as error:
        raise SpecError(
            [Finding(step.place, f"step {step.name}: its function fails with {type(error).__name__}: {error}")]
        ) from error
    if not isinstance(made, DataFrame):
        raise SpecError(
            [Finding(step.place, f"step {step.name}: its function returns {type(made).__name__}, not a DataFrame")]
        )
    return made


def _choose(spec: Spec, nodes: Mapping[str, Node]) -> tuple[Carried, ...]:
    rows: list[str] = []

    def need(name: str) -> None:
        node = nodes[name]
        if not node.is_streaming:
            return
        if node.own_state or isinstance(node.made, Source):
            if name not in rows:
                rows.append(name)
            return
        for below in node.made.inputs:
            need(below)

    for sink in spec.sinks:
        need(sink.source)
    issues = [
        name
        for name, node in nodes.items()
        if node.checked.issues is not None and node.is_streaming and not can_evaluate(nodes, rows, name)
    ]
    return tuple([Carried(name, ROWS) for name in rows] + [Carried(name, ISSUES) for name in issues])


def can_evaluate(nodes: Mapping[str, Node], rows: list[str], name: str) -> bool:
    """Whether a node's rows can be had on a micro-batch that brings `rows`."""
    node = nodes[name]
    if name in rows or not node.is_streaming:
        return True
    if node.own_state or isinstance(node.made, Source):
        return False
    return all(can_evaluate(nodes, rows, below) for below in node.made.inputs)


def _tagged_union(frames: "list[DataFrame]") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    union: DataFrame | None = None
    for at, frame in enumerate(frames):
        columns = [
            F.struct(*[F.col(f"`{name}`") for name in frame.columns]).alias(f"c{number}")
            if number == at
            else F.lit(None).cast(other.schema).alias(f"c{number}")
            for number, other in enumerate(frames)
        ]
        tagged = frame.select(F.lit(at).alias(TAG), *columns)
        union = tagged if union is None else union.union(tagged)
    assert union is not None
    return union


def untag(batch: "DataFrame", carried: tuple[Carried, ...]) -> "dict[Carried, DataFrame]":
    """What a micro-batch brings, each thing as a frame of its own."""
    if len(carried) == 1:
        return {carried[0]: batch}
    return {each: batch.where(f"{TAG} = {at}").select(f"c{at}.*") for at, each in enumerate(carried)}
