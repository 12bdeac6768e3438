"""Where a pipeline's rows go, each micro-batch once. A kind of sink is a module; deleting it and its line deletes it.

contract.py  what every sink promises       parts.py  how rows leave Spark's tasks
topic.py  parquet.py  delta.py  iceberg.py  jdbc/  bigquery/
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from penstock.pipelines.sinks.contract import Context, Kind, Sink

if TYPE_CHECKING:
    from penstock.pipelines.model import SinkSpec

KINDS: Final = {
    "topic": "penstock.pipelines.sinks.topic",
    "parquet": "penstock.pipelines.sinks.parquet",
    "delta": "penstock.pipelines.sinks.delta",
    "iceberg": "penstock.pipelines.sinks.iceberg",
    "jdbc": "penstock.pipelines.sinks.jdbc",
    "bigquery": "penstock.pipelines.sinks.bigquery",
}


def kind_of(name: str) -> Kind:
    """The module of a kind in `KINDS`."""
    return cast(Kind, import_module(KINDS[name]))


def open_sink(spec: "SinkSpec", context: Context) -> Sink:
    return kind_of(spec.kind).open_sink(spec, context)
