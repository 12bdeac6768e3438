"""Where a pipeline's rows go, each micro-batch once. A kind of sink is a module; deleting it and its line deletes it.

contract.py  what every sink promises       parts.py  how rows leave Spark's tasks
topic.py  parquet.py  delta.py  iceberg.py  jdbc/  bigquery/

datafiles.py  Parquet files of one task     storage.py        where files go: a disk or an object store
delta_stats.py  what Delta says of a file   parquet_manifest.py  which files belong to which batch
arrow_columns.py  columns as Arrow          iceberg_transaction.py  a quicker transaction of pyiceberg
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
