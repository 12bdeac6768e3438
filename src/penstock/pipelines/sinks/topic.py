"""Rows become records of a topic: every micro-batch is one transaction with its mark in it."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.contract import BatchId, Context, Reject

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.spark.write.marks import Mark, MarkBook

KEYS: Final[Keys] = (
    Key("topic", "text", "The topic's name.", required=True),
    Key("key", "text", "An SQL expression for the record's key, such as a column's name. Without it there is none."),
    Key(
        "value",
        "text",
        "An SQL expression for the record's value. Without it: the column `value` if rows have only columns of a "
        "record (key, value, headers, partition), else all columns as a JSON object.",
    ),
    Key("headers", "map", "Headers: for each name an SQL expression.", default={}),
    Key("create", "flag", "Make the topic when it is missing.", default=True),
    Key("partitions", "number", "How many partitions the topic gets when it is made.", default=1, least=1),
    Key("config", "map", "Settings that the topic gets when it is made, such as `retention.ms`.", default={}),
    Key("server", "text", "Brokers of the topic, if not the pipeline's."),
    Key("compression", "choice", "How record batches are compressed.", default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd")),
)  # fmt: skip
ABOUT: Final = """\
Writes records in a Kafka transaction, one for each micro-batch, with the batch's mark in the same transaction (topic
`__penstock_spark_marks`). Readers must read committed records only, as Penstock's do by default. If two runs of one
pipeline meet, the newer one fences the older one. Works with Penstock and Apache Kafka."""
EXAMPLE: Final = """\
hourly:
  from: revenue
  topic: revenue.hourly
  key: shop
"""
RECORD_COLUMNS: Final = frozenset({"key", "value", "headers", "partition"})


def open_sink(spec: SinkSpec, context: Context) -> "TopicSink":
    return TopicSink(spec, context)


class TopicWriter:
    """Writes frames of records into a topic, each micro-batch once.

    Args:
        name: the transactional id; whoever wrote under it before is shut out.
    """

    def __init__(self, topic: str, name: str, options: dict[str, str]) -> None:
        self.topic = topic
        self._name = name
        self._options = options
        self._book: MarkBook | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_book": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def open_cluster(self, *, patience_s: float = 0.0) -> Cluster:
        from penstock.spark.options.options import parse_write

        settings = parse_write(self._options | {"topic": self.topic}, streaming=False).settings
        return Cluster(replace(settings, patience_s=patience_s, timeout_s=min(settings.timeout_s, 10.0)))

    def exists(self) -> bool:
        with self._told(), self.open_cluster() as cluster:
            return self.topic in cluster.topics([self.topic])

    def create(self, partitions: int, config: dict[str, str]) -> None:
        with self._told(), self.open_cluster() as cluster:
            if self.topic not in cluster.topics([self.topic]):
                cluster.create_topic(self.topic, partitions, config)

    def is_written(self, identity: BatchId) -> bool:
        mark = self._mark(identity.query)
        return identity.repeats(None if mark is None else mark.batch, self.topic)

    def write(self, records: "DataFrame", identity: BatchId) -> int:
        """Returns how many records were written."""
        options = {
            **self._options,
            "topic": self.topic,
            "delivery": "exactly-once",
            "transactional.id": self._name,
            "batch.query": identity.query,
            "batch.id": str(identity.batch),
            # A repeat is known before it is evaluated; functions such as current_timestamp() may differ.
            "checkRepeats": "false",
        }
        records.write.format("penstock").options(**options).mode("append").save()
        mark = self._mark(identity.query)
        return mark.rows if mark is not None and mark.batch == identity.batch else 0

    def _mark(self, query: str) -> "Mark | None":
        from penstock.spark.write.marks import MarkBook, MarksLog

        with self._lock, self._told(), self.open_cluster(patience_s=5.0) as cluster:
            book = self._book or MarkBook()
            book.catch_up(MarksLog(cluster))
            self._book = book
            return book.marks.get(self._name, {}).get(query)

    def _told(self) -> "_Told":
        return _Told(self.topic)


class _Told:
    """Foreign errors, said as ours."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from penstock.spark.errors import SourceError

        if isinstance(error, ClientError):
            kind = SinkUnavailable if error.retriable else SinkError
            raise kind(f"topic {self._topic}: {error}") from error
        if isinstance(error, SourceError):
            raise SinkError(f"topic {self._topic}: {error}") from error


class TopicSink:
    def __init__(self, spec: SinkSpec, context: Context) -> None:
        from penstock.pipelines.run.sources import kafka_options

        given = spec.options
        self._spec = spec
        options = kafka_options(given.get("server") or context.server, context.client)
        options["kafka.compression.type"] = given.get("compression") or "none"
        self._writer = TopicWriter(given["topic"], f"penstock-pipeline/{context.pipeline}/sink/{spec.name}", options)

    def probe(self) -> None:
        if not self._writer.exists() and not self._spec.options.get("create", True):
            raise SinkError(f"sink {self._spec.name}: no topic {self._writer.topic!r}; create it, or set create: true")

    def prepare(self, schema: "StructType") -> None:
        self.probe()
        given = self._spec.options
        if given.get("create", True):
            config = {name: str(value) for name, value in (given.get("config") or {}).items()}
            self._writer.create(int(given.get("partitions") or 1), config)
        if self._is_record(schema):  # expressions are looked at when the first frame is made, before it runs
            from penstock.spark.errors import OptionError
            from penstock.spark.write.outgoing import check_columns

            try:
                check_columns(schema, self._writer.topic)
            except OptionError as error:
                raise SinkError(f"sink {self._spec.name}: {error}") from error

    def is_written(self, identity: BatchId) -> bool:
        return self._writer.is_written(identity)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        return self._writer.write(self.records(rows), identity)

    def close(self) -> None:
        pass

    def records(self, rows: "DataFrame") -> "DataFrame":
        """Rows as records."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        given = self._spec.options
        if self._is_record(rows.schema):
            return rows
        value = F.expr(given["value"]) if given.get("value") else F.struct("*")
        columns = [_as_bytes(rows, value).alias("value")]
        if given.get("key"):
            columns.append(_as_bytes(rows, F.expr(given["key"])).alias("key"))
        if given.get("headers"):
            pairs = [
                F.struct(F.lit(name).alias("key"), _as_bytes(rows, F.expr(str(text))).alias("value"))
                for name, text in given["headers"].items()
            ]
            columns.append(F.array(*pairs).alias("headers"))
        return rows.select(*columns)

    def _is_record(self, schema: "StructType") -> bool:
        given = self._spec.options
        names = set(schema.fieldNames())
        return not given.get("value") and not given.get("key") and "value" in names and names <= RECORD_COLUMNS


def _as_bytes(rows: "DataFrame", column: "Column") -> "Column":
    """Bytes as they are, numbers and times as people write them, anything nested as JSON."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    kind = rows.select(column).schema.fields[0].dataType
    if isinstance(kind, BinaryType):
        return column
    text = F.to_json(column) if isinstance(kind, (ArrayType, MapType, StructType)) else column.cast("string")
    return text.cast("binary")
