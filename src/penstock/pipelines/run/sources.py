"""A source's rows as Spark has them: its fields, and in `_origin` where each row comes from.

What could not be decoded has a reason in `_error`; `quality` takes such rows out before any step sees them. A topic
without a format has Kafka's own columns instead of fields.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import Finding, SpecError
from penstock.pipelines.model import CONTEXT, Source, Spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN: Final = "_origin"
ERROR: Final = "_error"
RAW: Final = "_raw"
"""The bytes of a record that could not be decoded."""
_PREFIX: Final = "_field_"
_ENVELOPE: Final = ("topic", "partition", "offset", "timestamp", "key")
_SETTLED: Final = ("starting", "ending", "subscribe", "assign", "value.", "kafka.bootstrap", "columns", "path")
_TEXT_FORMATS: Final = frozenset({"json", "csv"})

Offsets = Mapping[str, Mapping[str, int]]
"""Topic, partition (as text), offset."""


class Bounds:
    """Which part of a topic is read, instead of what the source's `from` says; without an end it goes on."""

    __slots__ = ("end", "start")

    def __init__(self, start: Offsets, end: Offsets | None) -> None:
        self.start = start
        self.end = end


def open_source(spark: "SparkSession", spec: Spec, source: Source, bounds: Bounds | None = None) -> "DataFrame":
    """The source's frame, streaming unless the source is static."""
    if source.kind == "topic":
        return _open_topic(spark, spec, source, bounds)
    return _open_files(spark, spec, source)


def topic_options(spec: Spec, source: Source, bounds: Bounds | None = None) -> dict[str, str]:
    """What `format("penstock")` is asked for."""
    given = source.options
    options = kafka_options(given.get("server") or spec.server, spec.client)
    if given.get("pattern"):
        options["subscribePattern"] = given["pattern"]
    else:
        options["subscribe"] = ",".join(given["topic"])
    if given.get("format"):
        options |= {"value.format": given["format"], "value.prefix": _PREFIX}
        for name, option in (("schema", "value.schema"), ("message", "value.message")):
            if given.get(name):
                options[option] = given[name]
        if given.get("schema_file"):
            options["value.schema.file"] = str(spec.directory / given["schema_file"])
    options["maxOffsetsPerTrigger"] = str(spec.limit)
    more = {name: str(value) for name, value in (given.get("options") or {}).items()}
    for name in more:
        if name.lower().startswith(_SETTLED):
            raise SpecError([Finding(source.place, f"source {source.name}: option {name} is settled by its own keys")])
    return options | more | (_start(given.get("from", "earliest")) if bounds is None else _bounded(bounds))


def kafka_options(server: str, client: Mapping[str, str]) -> dict[str, str]:
    brokers = {"kafka.bootstrap.servers": server} if server else {}
    named = {CONTEXT: client[CONTEXT]} if CONTEXT in client else {}
    return brokers | named | {f"kafka.{name}": str(value) for name, value in client.items() if name != CONTEXT}


def _start(given: Any) -> dict[str, str]:
    if isinstance(given, Mapping):
        return {"startingOffsets": json.dumps(given)}
    if given in ("earliest", "latest"):
        return {"startingOffsets": given}
    moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return {
        "startingTimestamp": str(int(moment.timestamp() * 1000)),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def _bounded(bounds: Bounds) -> dict[str, str]:
    start = {"startingOffsets": json.dumps(bounds.start)}
    return start if bounds.end is None else start | {"endingOffsets": json.dumps(bounds.end)}


def _open_topic(spark: "SparkSession", spec: Spec, source: Source, bounds: Bounds | None) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    options = topic_options(spec, source, bounds)
    frame = spark.readStream.format("penstock").options(**options).load()
    origin = F.struct(*_ENVELOPE).alias(ORIGIN)
    if "value.format" not in options:
        return frame.select(*frame.columns, origin)
    fields = [F.col(name).alias(name.removeprefix(_PREFIX)) for name in frame.columns if name.startswith(_PREFIX)]
    return frame.select(*fields, origin, F.col(ERROR), F.col("value").alias(RAW))


def _open_files(spark: "SparkSession", spec: Spec, source: Source) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    given = source.options
    paths = [_resolve(spec.directory, each) for each in given["files"]]
    options = {name: str(value) for name, value in (given.get("options") or {}).items()}
    kind, schema = given["format"], given.get("schema")
    checked = kind in _TEXT_FORMATS and schema is not None
    if checked:
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": ERROR}
        schema = f"{schema}, {ERROR} STRING"
    if source.is_static:
        reader = spark.read.format(kind).options(**options)
        frame = (reader.schema(schema) if schema else reader).load(paths)
    else:
        if not schema:
            place = source.place
            raise SpecError([Finding(place, f"source {source.name}: files that are streamed need a schema")])
        streamed = spark.readStream.format(kind).schema(schema).options(**options)
        # Streams take one pattern.
        frame = streamed.load(paths[0] if len(paths) == 1 else "{" + ",".join(paths) + "}")
    names = [name for name in frame.columns if name != ERROR]
    columns = [F.col(name) for name in names]
    columns.append(F.struct(F.col("_metadata.file_path").alias("file")).alias(ORIGIN))
    if checked:
        columns += [
            F.when(F.col(ERROR).isNotNull(), F.lit(f"no {kind} of the source's schema")).alias(ERROR),
            F.col(ERROR).cast("binary").alias(RAW),
        ]
    return frame.select(*columns)


def _resolve(directory: Path, path: str) -> str:
    return path if "://" in path or path.startswith("/") else str((directory / path).absolute())
