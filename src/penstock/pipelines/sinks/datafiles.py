"""One task's rows as Parquet files: split by partition, rolled by size, under names that nobody else takes.

A file's name has the query, the batch, the task, its try and a random part, so a task that runs twice, or goes on after
its driver died, never writes into a file of another. What the driver learns of a task is `Written`, or why there is
nothing: a task tells trouble as its answer, for the text of a failed Spark job cannot be told apart.
"""

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.keys import Key
from penstock.pipelines.sinks.arrow_columns import partition_text
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.parts import Task, write_parts
from penstock.pipelines.sinks.storage import Storage, may_pass

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

_ROW_GROUP_BYTES: Final = 16 * 2**20  # of Arrow memory: some MB in the file, and enough for a column to be packed well
_PENDING_BYTES: Final = 128 * 2**20  # of rows that wait for their row group, over all partitions of a task
_OPEN_FILES: Final = 64  # partitions that a task writes at a time; beyond it the fullest file is closed early
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
_HIVE_ESCAPED: Final = re.compile(r'[\x00-\x1f\x7f"#%\'*/:=?\\{\[\]^]')
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")

KEYS: Final = (
    Key("partition_by", "texts", "Columns whose values become directories.", default=()),
    Key("compression", "choice", "How pages of the files are packed.", default="zstd", choices=("zstd", "snappy")),
    Key("file_size", "size", "A task begins a new file when one has this size.", default=128 * 2**20, least=1024),
)
"""The keys of every sink that writes data files."""


class Written(NamedTuple):
    """A data file that a task made.

    Attributes:
        path: relative to the table's directory.
        size: in bytes.
        partition: the text of each partition column's value, None for null.
        about: what the sink's `describe` said of the file.
    """

    path: str
    rows: int
    size: int
    partition: dict[str, str | None]
    about: str = ""


class Split(NamedTuple):
    """What rows are partitioned by: a column's values, or with a `unit` (`day`, ...) what they are rounded down to."""

    column: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """How files of a table look.

    Attributes:
        split_by: what partitions are made of.
        keep: partition columns are in the files too.
        directories: `hive` as Spark writes and reads them; `safe` for people only, where a log knows the values.
        below: a directory that all files are in, with its slash, or "".
    """

    schema: "pa.Schema"
    split_by: tuple[Split, ...]
    compression: str
    file_size: int
    keep: bool = False
    directories: Literal["hive", "safe"] = "hive"
    below: str = ""

    @property
    def file_schema(self) -> "pa.Schema":
        import pyarrow as pa

        gone = () if self.keep else tuple(each.column for each in self.split_by)
        return pa.schema([each for each in self.schema if each.name not in gone])

    def path(self, values: Sequence[str | None], name: str) -> str:
        pairs = ((split.column, value) for split, value in zip(self.split_by, values, strict=True))
        return self.below + "".join(f"{self._directory(*pair)}/" for pair in pairs) + name

    def _directory(self, column: str, value: str | None) -> str:
        value = value or NULL_DIRECTORY
        if self.directories == "hive":
            return f"{hive_text(column)}={hive_text(value)}"
        return f"{_ODD.sub('_', column)}={_ODD.sub('_', value)[:64]}"


def hive_text(text: str) -> str:
    """A column's name or value as it stands in a directory's name."""
    return _HIVE_ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def mark_key(identity: BatchId, sink: str) -> str:
    """What a destination remembers a query's last batch under: two sinks of a pipeline may share it."""
    return f"{identity.query}/{sink}"


def name_stem(identity: BatchId, sink: str) -> str:
    digest = hashlib.sha256(mark_key(identity, sink).encode()).hexdigest()
    return f"part-{digest[:12]}-{identity.batch}"


Describe = Callable[["pq.FileMetaData"], str]


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes a task's rows and answers with its files; pickled, so it holds plain data only."""

    storage: Storage
    layout: Layout
    stem: str
    describe: Describe | None = None

    def __call__(self, task: Task, batches: "Iterator[pa.RecordBatch]") -> bytes | None:
        files = _TaskFiles(self, f"{self.stem}-{task.partition}-{task.attempt}-{uuid.uuid4().hex[:12]}")
        for batch in batches:
            if trouble := _trouble(files, files.add, batch):
                return trouble
        if trouble := _trouble(files, files.finish):
            return trouble
        return json.dumps({"files": files.written}).encode() if files.written else None


def write_files(rows: "DataFrame", part: PartWriter, sink: str) -> list[Written]:
    """Every task writes its rows; see `read_answers`."""
    return read_answers(write_parts(rows, part), part.storage, sink)


def read_answers(answers: Iterable[bytes], storage: Storage, sink: str) -> list[Written]:
    """The files of all tasks. Where one task failed, what the others wrote is taken back.

    Raises:
        SinkUnavailable: a task found no room, or its storage away.
        SinkError: a task's rows do not fit.
    """
    said = [json.loads(answer) for answer in answers]
    files = sorted(Written(*each) for one in said for each in one.get("files", ()))
    for one in said:
        if "trouble" in one:
            for each in files:
                storage.remove(each.path)
            raise (SinkUnavailable if one["may_pass"] else SinkError)(f"sink {sink}: {one['trouble']}")
    return files


def _trouble(files: "_TaskFiles", act: Callable[..., None], *given: Any) -> bytes | None:
    import pyarrow as pa

    try:
        act(*given)
    except OSError as error:
        files.abandon()
        where = error.filename or files.at_work
        what = f"cannot write {where}: {error.strerror or error}"
        return json.dumps({"trouble": what, "may_pass": may_pass(error)}).encode()
    except (pa.ArrowInvalid, ValueError, OverflowError) as error:
        files.abandon()
        return json.dumps({"trouble": f"rows that do not fit the table: {error}", "may_pass": False}).encode()
    except BaseException:
        files.abandon()
        raise
    return None


@dataclass(slots=True)
class _OpenFile:
    path: str
    partition: dict[str, str | None]
    sink: IO[bytes]
    writer: "pq.ParquetWriter"
    footers: "list[pq.FileMetaData]"
    rows: int = 0
    pending: "list[pa.RecordBatch]" = field(default_factory=list)
    pending_bytes: int = 0

    @property
    def fullness(self) -> int:
        return self.pending_bytes + int(self.sink.tell())


class _TaskFiles:
    """The files of one task, at most one open for each partition."""

    def __init__(self, part: PartWriter, stem: str) -> None:
        self._part = part
        self._layout = part.layout
        self._schema = part.layout.file_schema
        self._stem = stem
        self._row_group_bytes = min(_ROW_GROUP_BYTES, part.layout.file_size)
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._made: list[str] = []
        self.written: list[Written] = []
        self.at_work = ""

    def add(self, batch: "pa.RecordBatch") -> None:
        batch = _conform(batch, self._layout.schema)
        for values, rows in _split(batch, self._layout.split_by):
            file = self._file(values)
            file.pending.append(rows.select(self._schema.names))
            file.pending_bytes += rows.nbytes
            file.rows += rows.num_rows
            if file.pending_bytes >= self._row_group_bytes:
                self._write_group(file)
                if file.sink.tell() >= self._layout.file_size:
                    self._finish(values)
        while sum(each.pending_bytes for each in self._open.values()) > _PENDING_BYTES:
            self._write_group(max(self._open.values(), key=lambda each: each.pending_bytes))

    def finish(self) -> None:
        for values in list(self._open):
            self._finish(values)

    def abandon(self) -> None:
        """Take back what was written: nobody will be told of it, and a full disk needs the room."""
        for each in self._open.values():
            _close_quietly(each)
        for path in self._made:
            self._part.storage.remove(path)

    def _file(self, values: tuple[str | None, ...]) -> _OpenFile:
        import pyarrow.parquet as pq

        if values in self._open:
            return self._open[values]
        if len(self._open) >= _OPEN_FILES:
            self._finish(max(self._open, key=lambda each: self._open[each].fullness))
        name = f"{self._stem}-{len(self._made)}.parquet"
        path = self._layout.path(values, name)
        self.at_work = self._part.storage.place(path)
        self._made.append(path)
        sink = self._part.storage.create(path)
        footers: list[pq.FileMetaData] = []
        level = 1 if self._layout.compression == "zstd" else None
        writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=self._layout.compression,
            compression_level=level,
            metadata_collector=footers,
            store_schema=False,
        )
        columns = (split.column for split in self._layout.split_by)
        # A directory's name and Delta's log have one word for an empty text and null.
        known = values if self._layout.keep else (value or None for value in values)
        partition = dict(zip(columns, known, strict=True))
        self._open[values] = file = _OpenFile(path, partition, sink, writer, footers)
        return file

    def _write_group(self, file: _OpenFile) -> None:
        import pyarrow as pa

        self.at_work = self._part.storage.place(file.path)
        table = pa.Table.from_batches(file.pending, self._schema)
        file.pending, file.pending_bytes = [], 0
        file.writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def _finish(self, values: tuple[str | None, ...]) -> None:
        file = self._open[values]
        if file.pending:
            self._write_group(file)
        self.at_work = self._part.storage.place(file.path)
        file.writer.close()
        size = int(file.sink.tell())
        self._part.storage.seal(file.path, file.sink)
        del self._open[values]
        about = self._part.describe(file.footers[0]) if self._part.describe else ""
        self.written.append(Written(file.path, file.rows, size, file.partition, about))


def _close_quietly(file: _OpenFile) -> None:
    for close in (file.writer.close, file.sink.close):
        with contextlib.suppress(Exception):  # the file is thrown away: why it cannot be closed is no news
            close()


def _conform(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """The rows in exactly these columns; those that they lack are null."""
    import pyarrow as pa

    columns: list[Any] = []
    for each in schema:
        index = batch.schema.get_field_index(each.name)
        column = pa.nulls(batch.num_rows, each.type) if index < 0 else batch.column(index)
        if column.null_count and not each.nullable:
            raise ValueError(f"column {each.name} is null in a row, and the table does not allow that")
        columns.append(column if column.type.equals(each.type) else column.cast(each.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _split(
    batch: "pa.RecordBatch", split_by: tuple[Split, ...]
) -> "Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]":
    """The rows of each partition, in their order, and the partition's values."""
    import numpy as np
    import pyarrow.compute as pc

    if not split_by:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    encoded = []
    for split in split_by:
        column = batch.column(batch.schema.get_field_index(split.column))
        if split.unit:
            column = pc.floor_temporal(column, unit=split.unit)
        dictionary = column.dictionary_encode(null_encoding="encode")
        encoded.append(dictionary)
        codes = codes * len(dictionary.dictionary) + dictionary.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    starts = [0, *ends.tolist()]
    if len(starts) > 1:
        batch = batch.take(order)
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        values = tuple(partition_text(each[int(order[start])].as_py()) for each in encoded)
        yield values, batch.slice(start, end - start)
