"""The steps of one micro-batch, evaluated on what the stream has carried."""

from functools import reduce
from typing import TYPE_CHECKING

from penstock.pipelines.model import Source, Spec
from penstock.pipelines.run.graph import ISSUES, ROWS, Carried, apply_step, untag
from penstock.pipelines.run.quality import Checked, inspect
from penstock.pipelines.run.sources import ORIGIN, open_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Evaluation:
    """Frames of a micro-batch; each node's is made once, when it is first asked for."""

    def __init__(self, spec: Spec, batch: "DataFrame", carried: tuple[Carried, ...]) -> None:
        self._spec = spec
        self._spark: SparkSession = batch.sparkSession
        self._brought = untag(batch, carried)
        self._checked: dict[str, Checked] = {}
        for name in [*(source.name for source in spec.sources), *(step.name for step in spec.steps)]:
            self._spark.catalog.dropTempView(name)  # the last batch's; nobody shall read them by mistake

    def rows_for(self, node: str) -> "DataFrame":
        """What a sink of the node gets."""
        return self.check(node).good.drop(ORIGIN)

    def check(self, name: str) -> Checked:
        if name not in self._checked:
            made = self._spec.source(name) or self._spec.step(name)
            assert made is not None
            checked = inspect(made, self._raw(made.name), tried=True)
            checked.good.createOrReplaceTempView(name)
            self._checked[name] = checked
        return self._checked[name]

    def issues(self, nodes: tuple[str, ...]) -> "DataFrame | None":
        """The issues of these nodes, and those that were carried."""
        found = [self._brought[each] for each in self._brought if each.kind == ISSUES]
        found += [checked.issues for name in nodes if (checked := self.check(name)).issues is not None]
        return reduce(lambda one, other: one.unionByName(other), found) if found else None

    def _raw(self, name: str) -> "DataFrame":
        brought = self._brought.get(Carried(name, ROWS))
        if brought is not None:
            return brought
        source, step = self._spec.source(name), self._spec.step(name)
        if isinstance(source, Source):
            return open_source(self._spark, self._spec, source)
        assert step is not None
        return apply_step(self._spark, step, {below: self.check(below).good for below in step.inputs})
