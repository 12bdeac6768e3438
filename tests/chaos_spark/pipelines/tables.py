"""Tables of files, watched by their directories: Parquet, Delta and Iceberg."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .destinations import Look, changes_of, names_in, paths_under
from .rows import Row


class ParquetTable:
    name, upserts = "parquet", False

    def __init__(self, directory: Path) -> None:
        self._table = directory / "parquet"

    def keys(self) -> dict[str, Any]:
        return {"parquet": str(self._table)}

    def phases(self) -> Mapping[str, Look]:
        return {
            "file": paths_under(self._table / "_penstock" / "staging", "*/*/*.parquet"),
            "entry": names_in(self._table / "_penstock" / "entries"),
            "placed": names_in(self._table, ".parquet"),
        }

    def mark(self, query: str) -> int | None:
        entries = sorted((self._table / "_penstock" / "entries").glob("*.json"))
        marks = [json.loads(path.read_bytes())["body"]["marks"].get(f"{query}/{self.name}") for path in entries]
        return max((each for each in marks if each is not None), default=None)

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        from penstock.pipelines.sinks.parquet import files

        listed = [str(path) for path in self._table.glob("*.parquet")]
        return {"parquet, directory": [_read_files(listed)], "parquet, manifest": [_read_files(files(self._table))]}


class DeltaLake:
    name, upserts = "delta", False

    def __init__(self, directory: Path) -> None:
        self._table = directory / "delta"

    def keys(self) -> dict[str, Any]:
        return {"delta": str(self._table)}

    def phases(self) -> Mapping[str, Look]:
        return {"file": names_in(self._table, ".parquet"), "log": names_in(self._table / "_delta_log", ".json")}

    def mark(self, query: str) -> int | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(str(self._table)).transaction_version(f"{query}/{self.name}")
        except TableNotFoundError:
            return None

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        from deltalake import DeltaTable

        return {self.name: [_rows(DeltaTable(str(self._table)).to_pyarrow_table())]}


class IcebergTable:
    name, upserts = "iceberg", False

    def __init__(self, directory: Path) -> None:
        self._warehouse = directory / "iceberg"

    def keys(self) -> dict[str, Any]:
        return {"iceberg": "shop.rows", "warehouse": str(self._warehouse)}

    def phases(self) -> Mapping[str, Look]:
        table = self._warehouse / "shop" / "rows"
        return {
            "file": names_in(table / "data", ".parquet"),
            "manifest": names_in(table / "metadata", ".avro"),
            "metadata": names_in(table / "metadata", ".metadata.json"),
            "catalog": changes_of(self._warehouse / "catalog.db"),
        }

    def mark(self, query: str) -> int | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            mark = self._load().properties.get(f"penstock.mark.{query}/{self.name}")
        except (NoSuchNamespaceError, NoSuchTableError):
            return None
        return None if mark is None else int(mark)

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        return {self.name: [_rows(self._load().scan().to_arrow())]}

    def _load(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        self._warehouse.mkdir(exist_ok=True)
        uri = f"sqlite:///{self._warehouse / 'catalog.db'}"
        return SqlCatalog("penstock", uri=uri, warehouse=self._warehouse.as_uri()).load_table("shop.rows")


def _read_files(paths: Sequence[str]) -> list[Row]:
    import pyarrow.parquet as pq

    return [row for path in paths for row in _rows(pq.ParquetFile(path).read())]


def _rows(table: Any) -> list[Row]:
    columns = (table.column(name).to_pylist() for name in Row._fields)
    return [Row(*values) for values in zip(*columns, strict=True)]
