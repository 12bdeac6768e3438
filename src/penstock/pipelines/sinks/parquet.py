"""Parquet files in a directory, each micro-batch once, by a manifest of our own (`parquet_manifest`)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import SinkError
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks import datafiles
from penstock.pipelines.sinks.arrow_columns import arrow_schema, check_partitioning, fit
from penstock.pipelines.sinks.contract import BatchId, Context, Reject
from penstock.pipelines.sinks.datafiles import Layout, PartWriter, Split, Written, mark_key, name_stem, write_files
from penstock.pipelines.sinks.parquet_manifest import (
    SNAPSHOT_EVERY,
    CommittedFile,
    Manifest,
    batch_entry,
    files,
    read_manifest,
    table_entry,
)
from penstock.pipelines.sinks.storage import LocalStorage, as_sink_trouble, destination, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.pipelines.model import SinkSpec

__all__ = ["ABOUT", "EXAMPLE", "KEYS", "ParquetSink", "files", "open_sink", "read_manifest"]

KEYS: Final[Keys] = (
    Key("parquet", "text", "The directory, or a `file:` URI. Made when it is missing.", required=True),
    *datafiles.KEYS,
)
ABOUT: Final = """\
Writes Parquet files into a directory that the driver and all workers see: a local one, or a share. Any reader of
Parquet can read it (`spark.read.parquet(DIR)`, `pyarrow.dataset.dataset(DIR, partitioning="hive")`), because they
ignore names that begin with `_`.

Workers write into `DIR/_penstock/staging`. An entry in `DIR/_penstock/entries`, with the query, the batch and its
files, is the commit. Then the files are moved into place; after a crash the next run finishes that. A reader of the
directory sees no row twice and none that was not committed, but while files are moved it may see a part of a batch.
To read whole batches only, take the files from `penstock.pipelines.sinks.parquet.files(DIR)`. Several pipelines may
write to one directory.

The columns are those of the first run. A column that the directory lacks, or that has another type there, is refused;
a column that the rows lack is written as null. An empty text in a partition column is read as null, as with Spark's
own files. The next batch of the same query deletes files that were not committed. What a pipeline left in
`DIR/_penstock/staging` that will never run again, you may delete while no pipeline writes."""
EXAMPLE: Final = """\
lake:
  from: clean
  parquet: ./lake/orders
  partition_by: [day]"""


def open_sink(spec: "SinkSpec", context: Context) -> "ParquetSink":
    text = str(spec.options["parquet"])
    if local_path(text) is None:
        raise SinkError(
            f"sink {spec.name}: parquet: {text} is not a path. Files are moved into place, which object stores cannot "
            "do; use delta or iceberg there"
        )
    return ParquetSink(spec, Path(destination(context, text)))


class ParquetSink:
    """See the module."""

    def __init__(self, spec: "SinkSpec", directory: Path) -> None:
        self._name = spec.name
        self._directory = directory
        self._partition_by = tuple(spec.options["partition_by"])
        self._compression = str(spec.options["compression"])
        self._file_size = int(spec.options["file_size"])
        self._manifest = Manifest(directory)
        self._layout: Layout | None = None

    def probe(self) -> None:
        with as_sink_trouble(self._name, self._directory):
            nearest = next(each for each in (self._directory, *self._directory.parents) if each.exists())
            if not nearest.is_dir():
                raise SinkError(f"sink {self._name}: {nearest} is not a directory")
            self._manifest.refresh()
            self._check_foreign()

    def prepare(self, schema: "StructType") -> None:
        rows = arrow_schema(schema, self._name)
        check_partitioning(rows, self._partition_by, self._name)
        with as_sink_trouble(self._name, self._directory):
            self._manifest.refresh()
            self._check_foreign()
            while not self._manifest.table:
                if not self._manifest.append(table_entry(schema.jsonValue(), self._partition_by)):
                    self._manifest.refresh()
            self._manifest.finish()
        self._layout = self._fitting_layout(schema)

    def is_written(self, identity: BatchId) -> bool:
        with as_sink_trouble(self._name, self._directory):
            self._manifest.refresh()
            self._manifest.finish()
        return identity.repeats(self._manifest.marks.get(mark_key(identity, self._name)), self._name)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        return self.commit(write_files(rows, self.part_writer(identity), self._name), identity)

    def part_writer(self, identity: BatchId) -> PartWriter:
        """What a task of the batch runs."""
        assert self._layout is not None, "prepare comes first"
        staged = self._manifest.staging_of(mark_key(identity, self._name)) / str(identity.batch)
        return PartWriter(LocalStorage(str(staged), flat=True), self._layout, name_stem(identity, self._name))

    def commit(self, written: list[Written], identity: BatchId) -> int:
        """Make the files of a batch count, all at once. A batch without files needs no mark: it may be repeated."""
        if not written:
            return 0
        key = mark_key(identity, self._name)
        committed = tuple(CommittedFile(each.path, each.rows, each.size, each.partition) for each in written)
        with as_sink_trouble(self._name, self._directory):
            self._manifest.refresh()
            while not identity.repeats(self._manifest.marks.get(key), self._name):
                entry = batch_entry(self._manifest.number + 1, key, identity.batch, committed)
                if not self._manifest.append(entry):
                    self._manifest.refresh()
            self._manifest.finish()
            self._manifest.drop_staging(key, identity.batch)
            if len(self._manifest.recent) >= SNAPSHOT_EVERY:
                self._manifest.compact()
        return sum(each.rows for each in written)

    def close(self) -> None:
        pass

    def _check_foreign(self) -> None:
        """Files that are not ours would be read as rows of the table: a directory with some is refused."""
        if self._manifest.table or not self._directory.is_dir():
            return
        found = next(self._directory.rglob("*.parquet"), None)
        if found is not None:
            raise SinkError(
                f"sink {self._name}: {self._directory} has Parquet files that Penstock did not write, as {found.name}. "
                "Write into a directory of its own"
            )

    def _fitting_layout(self, schema: "StructType") -> Layout:
        from pyspark.sql.types import StructType

        table = self._manifest.table
        rows = arrow_schema(schema, self._name)
        there = arrow_schema(StructType.fromJson(dict(table["schema"])), self._name)
        what = f"the table in {self._directory}"
        fitted = fit(rows, there, self._name, what, add_column="Write into another directory")
        if (partitioned := tuple(table["partition_by"])) != self._partition_by:
            raise SinkError(
                f"sink {self._name}: partition_by is {list(self._partition_by)}, and {what} is partitioned by "
                f"{list(partitioned)}. Say the same, or write into another directory"
            )
        return Layout(fitted, tuple(map(Split, partitioned)), self._compression, self._file_size)
