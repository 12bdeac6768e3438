"""Iceberg tables, each micro-batch once, by the package `pyiceberg`: tasks write data files, the driver commits them.

The mark, the last batch of a query, is a property of the table and set in the same commit as the files are added:
snapshots, which say the batch too, are expired some day, properties stay.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks import datafiles
from penstock.pipelines.sinks.arrow_columns import arrow_schema, check_partitioning, fit, plain_schema, type_text
from penstock.pipelines.sinks.contract import BatchId, Context, Reject
from penstock.pipelines.sinks.datafiles import Layout, PartWriter, Split, Written, mark_key, name_stem, write_files
from penstock.pipelines.sinks.iceberg_transaction import quick_transaction
from penstock.pipelines.sinks.storage import (
    IcebergStorage,
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
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.pipelines.model import SinkSpec

KEYS: Final[Keys] = (
    Key("iceberg", "text", "The table, as `namespace.table`.", required=True),
    Key("warehouse", "text", "The directory or URI that new tables are made under.", default=""),
    Key(
        "catalog",
        "map",
        "Properties of the catalog, under pyiceberg's names, as `{type: rest, uri: ...}`; `name` is the "
        "catalog's name. "
        "Default: an SQLite file `catalog.db` in the warehouse.",
        default={},
        secret=True,
    ),
    Key("create", "flag", "Make the namespace and the table when they are missing.", default=True),
    *datafiles.KEYS,
)
ABOUT: Final = """\
Appends to an Iceberg table through a catalog, without a jar. Any catalog of pyiceberg works. With only a `warehouse`
directory, the catalog is an SQLite file in it, which needs no server and which Iceberg's JDBC catalog can read, too
(catalog name `penstock`). Workers write the data files, so they must see the warehouse. The driver adds all files of
a batch in one commit, together with the table property `penstock.mark.<query>/<sink>`, which is the mark, and with
`penstock.query` and `penstock.batch` in the snapshot. Other writers may commit at the same time: if one of them commits
first, the driver commits again.

`partition_by` takes columns and `year(at)`, `month(at)`, `day(at)`, `hour(at)`; a table that is partitioned by a
bucket or a truncated value is refused. The table's columns stay as they are. A column that the table lacks, or that
has another type there, is refused; an optional column that the rows lack is written as null. Iceberg has no tinyint
and smallint: they become int.

Files of a run that crashed before its commit are in the table's directory, but in no snapshot; Iceberg's
`remove_orphan_files` deletes them. A commit takes longer the more snapshots the table keeps: expire old ones. Do not
remove the properties `penstock.mark.*` of pipelines that still run."""
EXAMPLE: Final = """\
lake:
  from: clean
  iceberg: shop.orders
  warehouse: ./warehouse
  partition_by: [day(at)]"""

_TRIES: Final = 20
_NEW_TABLE: Final = {"commit.manifest-merge.enabled": "true", "write.metadata.delete-after-commit.enabled": "true"}
_UNITS: Final = ("year", "month", "day", "hour")
_PARTITION: Final = re.compile(rf"\s*({'|'.join(_UNITS)})\s*\(\s*(.+?)\s*\)\s*")


def open_sink(spec: "SinkSpec", context: Context) -> "IcebergSink":
    options = dict(spec.options)
    identifier = str(options["iceberg"])
    if not all(identifier.split(".")) or "." not in identifier:
        raise SinkError(f"sink {spec.name}: iceberg: {identifier} is not of the form namespace.table")
    properties = {key: str(value) for key, value in options["catalog"].items()}
    name = properties.pop("name", "penstock")
    if options["warehouse"]:
        warehouse = destination(context, str(options["warehouse"]))
        path = local_path(warehouse)
        properties.setdefault("warehouse", warehouse if path is None else path.as_uri())
        if "uri" not in properties and "type" not in properties and path is not None:
            properties |= {"type": "sql", "uri": f"sqlite:///{path / 'catalog.db'}"}
    if not {"uri", "type", "py-catalog-impl"} & properties.keys():
        raise SinkError(
            f"sink {spec.name}: nothing says where the catalog is. Give warehouse, a directory, or catalog, as "
            "{type: rest, uri: http://...}"
        )
    return IcebergSink(spec, name, properties)


def _splits(partition_by: tuple[str, ...]) -> tuple[Split, ...]:
    found = ((_PARTITION.fullmatch(each), each) for each in partition_by)
    return tuple(Split(match[2], match[1]) if match else Split(each) for match, each in found)


class IcebergSink:
    """See the module."""

    def __init__(self, spec: "SinkSpec", catalog_name: str, properties: Mapping[str, str]) -> None:
        self._name = spec.name
        self._identifier = str(spec.options["iceberg"])
        self._catalog_name = catalog_name
        self._properties = properties
        self._create = bool(spec.options["create"])
        self._split_by = _splits(tuple(spec.options["partition_by"]))
        self._compression = str(spec.options["compression"])
        self._file_size = int(spec.options["file_size"])
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._layout: Layout | None = None

    def probe(self) -> None:
        if (path := self._sqlite()) is not None and not path.exists():
            if not self._create:
                raise self._is_missing()
            return
        with self._troubles():
            if self._load() is None and not self._create:
                raise self._is_missing()

    def prepare(self, schema: "StructType") -> None:
        rows = arrow_schema(schema, self._name, widen=True)
        check_partitioning(rows, [each.column for each in self._split_by], self._name, kept=True)
        _check_units(rows, self._split_by, self._name)
        with self._troubles():
            table = self._load() or self._make(rows)
        what = f"the Iceberg table {self._identifier}"
        how = f"Add it (ALTER TABLE {self._identifier} ADD COLUMN ...)"
        fitted = fit(rows, _arrow_schema(table), self._name, what, add_column=how)
        if (partitioned := self._partitioning(table)) != self._split_by:
            raise SinkError(
                f"sink {self._name}: partition_by is [{_texts(self._split_by)}], and {what} is partitioned by "
                f"[{_texts(partitioned)}]. Say the same, or write another table"
            )
        self._layout = Layout(
            fitted, partitioned, self._compression, self._file_size, keep=True, directories="safe", below="data/"
        )
        self._table = table

    def is_written(self, identity: BatchId) -> bool:
        table = self._prepared()
        with self._troubles():
            table.refresh()
        mark = table.properties.get(self._mark(identity))
        return identity.repeats(None if mark is None else int(mark), self._name)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        return self.commit(write_files(rows, self.part_writer(identity), self._name), identity)

    def part_writer(self, identity: BatchId) -> PartWriter:
        """What a task of the batch runs."""
        assert self._layout is not None, "prepare comes first"
        location = self._prepared().location().rstrip("/")
        path = local_path(location)
        storage: Storage
        storage = LocalStorage(str(path)) if path is not None else IcebergStorage(location, self._io_properties())
        return PartWriter(storage, self._layout, name_stem(identity, self._name))

    def commit(self, written: list[Written], identity: BatchId) -> int:
        """Make the files of a batch count, all at once. A batch without files needs no mark: it may be repeated."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        if not written:
            return 0
        table = self._prepared()
        for last_try in (*[False] * (_TRIES - 1), True):
            # A commit whose outcome nobody told may have been made: the mark knows.
            if self.is_written(identity):
                break
            try:
                with self._troubles():
                    self._append(table, written, identity)
            except (CommitFailedException, CommitStateUnknownException) as error:
                if last_try:
                    raise SinkUnavailable(
                        f"sink {self._name}: {self._place()}: {_TRIES} commits failed: {one_line(error)}"
                    ) from error
            except SinkUnavailable:
                self._take_back(written, identity)
                raise
        self._sync_metadata(table)
        return sum(each.rows for each in written)

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
        self._catalog = self._table = None

    def _append(self, table: "Table", written: list[Written], identity: BatchId) -> None:
        location = table.location().rstrip("/")
        about = {"penstock.query": identity.query, "penstock.batch": str(identity.batch)}
        with quick_transaction(table) as transaction:
            transaction.set_properties({self._mark(identity): str(identity.batch)})
            transaction.add_files(
                [f"{location}/{each.path}" for each in written], snapshot_properties=about, check_duplicate_files=False
            )

    def _take_back(self, written: list[Written], identity: BatchId) -> None:
        """Delete files that a disk had no room to commit. On a server the commit may still be on its way."""
        with contextlib.suppress(SinkError):
            if self._sqlite() is not None and not self.is_written(identity):
                storage = self.part_writer(identity).storage
                for each in written:
                    storage.remove(each.path)

    def _sync_metadata(self, table: "Table") -> None:
        """Make what the last commit wrote outlast a crash of the machine, which `pyiceberg` does not see to."""
        snapshot = table.current_snapshot()
        names = [table.metadata_location]
        if snapshot is not None:
            manifests = snapshot.manifests(table.io)
            names += [snapshot.manifest_list]
            names += [each.manifest_path for each in manifests if each.added_snapshot_id == snapshot.snapshot_id]
        paths = (local_path(each) for each in names)
        with as_sink_trouble(self._name, self._place()):
            sync_files([each for each in paths if each is not None and each.exists()])

    def _mark(self, identity: BatchId) -> str:
        return f"penstock.mark.{mark_key(identity, self._name)}"

    def _prepared(self) -> "Table":
        if self._table is None:
            with self._troubles():
                self._table = self._load()
        if self._table is None:
            raise self._is_missing()
        return self._table

    def _open_catalog(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            if (path := self._sqlite()) is not None:
                make_directories(path.parent)
            self._catalog = load_catalog(self._catalog_name, **self._properties)
        return self._catalog

    def _load(self) -> "Table | None":
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return self._open_catalog().load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _make(self, rows: "pa.Schema") -> "Table":
        from pyiceberg.exceptions import TableAlreadyExistsError

        if not self._create:
            raise self._is_missing()
        catalog = self._open_catalog()
        catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        with (
            contextlib.suppress(TableAlreadyExistsError),
            catalog.create_table_transaction(self._identifier, rows, properties=_NEW_TABLE) as transaction,
            transaction.update_spec() as spec,
        ):
            for each in self._split_by:
                spec.add_field(
                    each.column, each.unit or "identity", f"{each.column}_{each.unit}" if each.unit else None
                )
        return catalog.load_table(self._identifier)

    def _partitioning(self, table: "Table") -> tuple[Split, ...]:
        found = []
        for each in table.spec().fields:
            column, transform = table.schema().find_column_name(each.source_id) or "?", str(each.transform)
            if transform != "identity" and transform not in _UNITS:
                raise SinkError(
                    f"sink {self._name}: the Iceberg table {self._identifier} is partitioned by {transform} of "
                    f"{column}; this sink can write partitions by columns and by {', '.join(_UNITS)}"
                )
            found.append(Split(column, "" if transform == "identity" else transform))
        return tuple(found)

    def _sqlite(self) -> Path | None:
        uri = self._properties.get("uri", "")
        return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None

    def _io_properties(self) -> dict[str, str]:
        return {**self._properties, **self._prepared().io.properties}

    def _place(self) -> str:
        where = self._properties.get("warehouse") or re.sub(r"//[^/@]*@", "//", self._properties.get("uri", ""))
        return f"Iceberg table {self._identifier} in {where}"

    def _is_missing(self) -> SinkError:
        return SinkError(
            f"sink {self._name}: there is no Iceberg table {self._identifier}. Make it, or say create: true in the sink"
        )

    @contextlib.contextmanager
    def _troubles(self) -> Iterator[None]:
        from pyiceberg import exceptions as said

        passing: tuple[type[Exception], ...]
        passing = (said.ServiceUnavailableError, said.ServerError, said.TooManyRequestsError, *_database_errors())
        lasting = (said.RESTError, said.ValidationError, said.NotInstalledError, said.OAuthError)
        what = f"sink {self._name}: {self._place()}"
        try:
            with as_sink_trouble(self._name, self._place()):
                yield
        except said.CommitStateUnknownException:
            raise
        except passing as error:
            raise SinkUnavailable(f"{what}: {one_line(error)}") from error
        except lasting as error:
            raise SinkError(f"{what}: {one_line(error)}") from error


def _database_errors() -> tuple[type[Exception], ...]:
    try:
        from sqlalchemy.exc import OperationalError
    except ImportError:  # only catalogs in databases need it
        return ()
    return (OperationalError,)


def _check_units(rows: "pa.Schema", splits: tuple[Split, ...], sink: str) -> None:
    for each in splits:
        kind = type_text(rows.field(each.column).type)
        if each.unit and kind not in ("timestamp", "timestamp_ntz") and (kind, each.unit == "hour") != ("date", False):
            raise SinkError(
                f"sink {sink}: partition_by names {each.unit}({each.column}), and {each.column} is {kind}; that needs "
                "a timestamp, or a date where it is not hour"
            )


def _texts(splits: tuple[Split, ...]) -> str:
    return ", ".join(f"{each.unit}({each.column})" if each.unit else each.column for each in splits)


def _arrow_schema(table: "Table") -> "pa.Schema":
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema: Any = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return plain_schema(schema)
