"""Delta tables, each micro-batch once, by the package `deltalake`: tasks write data files, the driver commits them.

The commit carries an application transaction, (query and sink, batch): Delta's own mark for writers that repeat. It is
in the same log entry as the files, and of two commits of one application that do not know of each other one fails.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks import datafiles
from penstock.pipelines.sinks.arrow_columns import arrow_schema, check_partitioning, fit, plain_schema
from penstock.pipelines.sinks.contract import BatchId, Context, Reject
from penstock.pipelines.sinks.datafiles import Layout, PartWriter, Split, Written, mark_key, name_stem, write_files
from penstock.pipelines.sinks.delta_stats import delta_stats
from penstock.pipelines.sinks.storage import (
    DeltaStorage,
    LocalStorage,
    Storage,
    as_sink_trouble,
    destination,
    local_path,
    make_directories,
    one_line,
    sync_files,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import RemoveAction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.pipelines.model import SinkSpec

KEYS: Final[Keys] = (
    Key("delta", "text", "The table: a directory, or a URI such as `s3://bucket/table`.", required=True),
    Key("create", "flag", "Make the table when it is missing.", default=True),
    *datafiles.KEYS,
    Key(
        "storage_options",
        "map",
        "Credentials and settings of the object store, under the names that `deltalake` uses.",
        default={},
        secret=True,
    ),
)
ABOUT: Final = """\
Appends to a Delta table, in a directory that the driver and all workers see or in an object store, without a jar.
Workers write the data files; the driver commits all files of a batch at once, together with Delta's transaction mark
of application `<query>/<sink>` and version `<batch>`. Other writers may append at the same time: if one of them commits
first, the driver commits again.

The table's columns and partitioning stay as they are. A column that the table lacks, or that has another type there,
is refused; a nullable column that the rows lack is written as null. `timestamp_ntz` needs the table feature
`timestampNtz`, which a table made by this sink has. Tables with constraints, generated or identity columns, column
mapping or row tracking are refused, because this sink's data files would not follow those rules. An empty text in a
partition column is null, as always with Delta.

Files of a run that crashed before its commit are in the table's directory, but in no version of the table; `vacuum`
deletes them. The table property `delta.setTransactionRetentionDuration` lets marks expire: set it longer than the
pipeline is ever stopped."""
EXAMPLE: Final = """\
lake:
  from: clean
  delta: s3://bucket/orders
  partition_by: [day]
  storage_options:
    aws_region: eu-central-1"""

_TRIES: Final = 20
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Of these the names alone say nothing: what they ask for is looked for in the table.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "identityColumns",
    }
)
_COLUMN_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")


def open_sink(spec: "SinkSpec", context: Context) -> "DeltaSink":
    return DeltaSink(spec, destination(context, str(spec.options["delta"])))


class DeltaSink:
    """See the module."""

    def __init__(self, spec: "SinkSpec", target: str) -> None:
        self._name = spec.name
        self._target = target
        self._path = local_path(target)
        self._create = bool(spec.options["create"])
        self._partition_by = tuple(spec.options["partition_by"])
        self._compression = str(spec.options["compression"])
        self._file_size = int(spec.options["file_size"])
        self._options: Mapping[str, str] = {key: str(value) for key, value in spec.options["storage_options"].items()}
        self._table: DeltaTable | None = None
        self._layout: Layout | None = None

    def probe(self) -> None:
        with self._troubles():
            if (table := self._load()) is None and not self._create:
                raise self._is_missing()
            if table is not None:
                self._check_rules(table)

    def prepare(self, schema: "StructType") -> None:
        rows = arrow_schema(schema, self._name)
        check_partitioning(rows, self._partition_by, self._name)
        with self._troubles():
            table = self._load() or self._make(rows)
            self._check_rules(table)
        there = _arrow_schema(table)
        how = f"Add it (ALTER TABLE delta.`{self._target}` ADD COLUMN ...)"
        fitted = fit(rows, there, self._name, f"the Delta table {self._target}", add_column=how)
        partitioned = tuple(table.metadata().partition_columns)
        if partitioned != self._partition_by:
            raise SinkError(
                f"sink {self._name}: partition_by is {list(self._partition_by)}, and the Delta table {self._target} is "
                f"partitioned by {list(partitioned)}. Say the same, or write another table"
            )
        splits = tuple(map(Split, partitioned))
        self._layout = Layout(fitted, splits, self._compression, self._file_size, directories="safe")
        self._table = table

    def is_written(self, identity: BatchId) -> bool:
        table = self._prepared()
        with self._troubles():
            table.update_incremental()
            last = table.transaction_version(mark_key(identity, self._name))
        return identity.repeats(last, self._name)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        return self.commit(write_files(rows, self.part_writer(identity), self._name), identity)

    def part_writer(self, identity: BatchId) -> PartWriter:
        """What a task of the batch runs."""
        assert self._layout is not None, "prepare comes first"
        local = self._path is not None
        storage: Storage = LocalStorage(self._target) if local else DeltaStorage(self._target, self._options)
        return PartWriter(storage, self._layout, name_stem(identity, self._name), delta_stats)

    def commit(self, written: list[Written], identity: BatchId) -> int:
        """Make the files of a batch count, all at once. A batch without files needs no mark: it may be repeated."""
        from deltalake.exceptions import CommitFailedError

        if not written:
            return 0
        table = self._prepared()
        before = table.version()
        for last_try in (*[False] * (_TRIES - 1), True):
            # A commit that is said to have failed may have been made: the mark knows.
            if self.is_written(identity):
                break
            try:
                with self._troubles():
                    self._append(table, written, identity)
            except CommitFailedError as error:
                if last_try:
                    raise SinkUnavailable(
                        f"sink {self._name}: Delta table {self._target}: {_TRIES} commits failed: {one_line(error)}"
                    ) from error
            except SinkUnavailable:
                self._take_back(written, identity)
                raise
        self._sync_log(before + 1, table.version())
        return sum(each.rows for each in written)

    def close(self) -> None:
        self._table = None

    def _append(self, table: "DeltaTable", written: list[Written], identity: BatchId) -> None:
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        now_ms = time.time_ns() // 1_000_000
        adds: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, each.partition, now_ms, True, each.about) for each in written
        ]
        mark = Transaction(mark_key(identity, self._name), identity.batch)
        table.create_write_transaction(
            adds,
            mode="append",
            schema=table.schema(),
            partition_by=list(self._partition_by),
            commit_properties=CommitProperties(
                app_transactions=[mark],
                custom_metadata={"penstock.query": identity.query, "penstock.batch": str(identity.batch)},
            ),
        )

    def _take_back(self, written: list[Written], identity: BatchId) -> None:
        """Delete files that a disk had no room to commit. On an object store the commit may still be on its way."""
        with contextlib.suppress(SinkError):
            if self._path is not None and not self.is_written(identity):
                storage = LocalStorage(self._target)
                for each in written:
                    storage.remove(each.path)

    def _sync_log(self, first: int, last: int) -> None:
        """Make log entries outlast a crash of the machine, which `deltalake` does not see to."""
        if self._path is not None:
            log = self._path / "_delta_log"
            paths = (log / f"{version:020}.json" for version in range(first, last + 1))
            with as_sink_trouble(self._name, self._target):
                sync_files([each for each in paths if each.exists()])

    def _prepared(self) -> "DeltaTable":
        if self._table is None:
            with self._troubles():
                self._table = self._load()
        if self._table is None:
            raise self._is_missing()
        return self._table

    def _load(self) -> "DeltaTable | None":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._path is not None and not (self._path / "_delta_log").is_dir():
            return None
        try:
            return DeltaTable(self._target, storage_options=dict(self._options))
        except TableNotFoundError:
            return None

    def _make(self, rows: "pa.Schema") -> "DeltaTable":
        from deltalake import DeltaTable, Schema

        if not self._create:
            raise self._is_missing()
        if self._path is not None:
            make_directories(self._path)
        partition_by = list(self._partition_by)
        options = dict(self._options)
        return DeltaTable.create(
            self._target, Schema.from_arrow(rows), mode="ignore", partition_by=partition_by, storage_options=options
        )

    def _is_missing(self) -> SinkError:
        return SinkError(
            f"sink {self._name}: there is no Delta table {self._target}. Make it, or say create: true in the sink"
        )

    def _check_rules(self, table: "DeltaTable") -> None:
        """Refuse a table whose rows must obey more than types."""
        settings = table.metadata().configuration
        rules = [f"constraint {key[18:]}" for key in settings if key.startswith("delta.constraints.")]
        if (mapping := settings.get("delta.columnMapping.mode", "none")) != "none":
            rules.append(f"column mapping {mapping}")
        for field in table.schema().fields:
            found = [key for key in field.metadata if key.startswith(_COLUMN_RULES)]
            rules += [f"{key} of column {field.name}" for key in found]
        rules += [f"table feature {each}" for each in table.protocol().writer_features or () if each not in _FEATURES]
        if rules:
            raise SinkError(
                f"sink {self._name}: the Delta table {self._target} has {', '.join(rules)}, which this sink does not "
                "obey. Drop that, or write another table"
            )

    @contextlib.contextmanager
    def _troubles(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

        try:
            with as_sink_trouble(self._name, self._target):
                yield
        except CommitFailedError:
            raise
        except (DeltaProtocolError, SchemaMismatchError) as error:
            raise SinkError(f"sink {self._name}: Delta table {self._target}: {one_line(error)}") from error
        except DeltaError as error:
            raise SinkUnavailable(f"sink {self._name}: Delta table {self._target}: {one_line(error)}") from error


def _arrow_schema(table: "DeltaTable") -> "pa.Schema":
    import pyarrow as pa

    schema: Any = table.schema().to_arrow()
    return plain_schema(pa.schema(schema))
