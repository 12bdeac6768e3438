"""Typed columns through a Spark session: a value that cannot be read costs its own row's fields, and no batch."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from tests.conformance.records import Record
from tests.peers.broker import Broker

from .publisher import Publisher

NewTopic = Callable[..., str]
Load = Callable[..., DataFrame]
AT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
GARBAGE = b"\xff\xfe garbage \x00"
FIELDS = "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>, place STRUCT<x: INT, y: DOUBLE>"
RECORD = {"id": 1, "name": "ü", "at": AT.isoformat(), "tags": ["a", "b"], "place": {"x": -5, "y": 0.5}}


@pytest.fixture
def load(spark: SparkSession, broker: Broker, publisher: Publisher, new_topic: NewTopic) -> Load:
    """A read of a topic that holds some values: `load([b"{}"], **{"value.format": "json"})`."""

    def read(values: list[bytes | None], **options: str) -> DataFrame:
        topic = new_topic("typed")
        publisher.send(topic, [Record(value, b"k") for value in values], codec="zstd")
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
        return spark.read.format("penstock").options(**given).load()

    return read


def outcomes(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """For each record its fields; for one that could not be read its bytes."""
    found: list[tuple[Any, ...]] = []
    for row in frame.orderBy("offset").collect():
        fields = tuple(row[name] for name in names)
        if row["_error"] is None:
            assert row.value is None
            found.append(fields)
        else:
            assert set(fields) == {None}
            assert row["_error"].strip()
            found.append((bytes(row.value),))
    return found


def test_json(load: Load) -> None:
    good = [json.dumps(RECORD).encode(), b'{"id": 2, "other": 7}', b'{"id": null}']
    bad = [GARBAGE, b"", b'{"id": "x"}', b'{"id": 1', b"[1]"]
    typed = load([*good, *bad, None], columns="offset,value", **{"value.format": "json", "value.schema": FIELDS})
    assert typed.columns == ["offset", "value", "id", "name", "at", "tags", "place", "_error"]
    assert outcomes(typed.withColumn("at", F.unix_micros("at")), "id", "name", "at", "tags", "place") == [
        (1, "ü", int(AT.timestamp()) * 1_000_000 + 123456, ["a", "b"], (-5, 0.5)),
        (2, None, None, None, None),
        (None, None, None, None, None),
        *[(value,) for value in bad],
        (None, None, None, None, None),
    ]
    assert typed.where("_error IS NOT NULL").count() == len(bad)


def test_json_as_spark_reads_it(load: Load, spark: SparkSession, broker: Broker) -> None:
    values: list[bytes | None] = [json.dumps({**RECORD, "id": at}).encode() for at in range(300)]
    values[100] = b"{"
    typed = load(
        values, columns="topic,offset,value", **{"value.format": "json", "value.schema": FIELDS, "value.prefix": "v_"}
    )
    topic = typed.select("topic").first()
    assert topic is not None
    raw = (
        spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic[0]})
        .load()
    )
    parsed = raw.select("offset", F.from_json(F.col("value").cast("string"), FIELDS).alias("v")).select("offset", "v.*")
    ours = typed.select("offset", *[F.col(f"v_{name}") for name in ("id", "name", "at", "tags", "place")])
    assert ours.orderBy("offset").collect() == parsed.orderBy("offset").collect()


def test_msgpack(load: Load) -> None:
    good = [msgspec.msgpack.encode({**RECORD, "at": AT}), msgspec.msgpack.encode({"id": 2})]
    bad = [GARBAGE, good[0][:-1], good[0] + b"\xc0"]
    typed = load([*good, *bad, None], **{"value.format": "msgpack", "value.schema": FIELDS})
    assert outcomes(typed.withColumn("at", F.unix_micros("at")), "id", "name", "at", "tags", "place") == [
        (1, "ü", int(AT.timestamp()) * 1_000_000 + 123456, ["a", "b"], (-5, 0.5)),
        (2, None, None, None, None),
        *[(value,) for value in bad],
        (None, None, None, None, None),
    ]


def test_avro(load: Load, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    parsed = fastavro.parse_schema(schema)

    def encode(**changes: Any) -> bytes:
        row = {"id": 1, "name": "ü", "day": date(2026, 3, 1), "at": AT, "price": Decimal("12.30"), "tags": ["a"]}
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, {**row, **changes})
        return out.getvalue()

    good = [encode(), encode(id=-(1 << 60), name=None, tags=[])]
    bad = [GARBAGE, b"", good[0][:-1], good[0] + b"\x00"]
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    typed = load([*good, *bad, None], **{"value.format": "avro", "value.schema.file": str(tmp_path / "order.avsc")})
    names = ("id", "name", "day", "at", "price", "tags")
    moment = int(AT.timestamp()) * 1_000_000 + 123456
    assert outcomes(typed.withColumn("at", F.unix_micros("at")), *names) == [
        (1, "ü", date(2026, 3, 1), moment, Decimal("12.30"), ["a"]),
        (-(1 << 60), None, date(2026, 3, 1), moment, Decimal("12.30"), []),
        *[(value,) for value in bad],
        (None,) * len(names),
    ]


def test_protobuf(load: Load, tmp_path: Path) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    described = descriptor_pb2.FileDescriptorSet()
    file = described.file.add(name="orders.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=types.TYPE_INT64, label=types.LABEL_OPTIONAL)
    message.field.add(name="name", number=2, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
    message.field.add(name="sizes", number=3, type=types.TYPE_INT32, label=types.LABEL_REPEATED)
    (tmp_path / "orders.desc").write_bytes(described.SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    good = [order(id=1, name="ü", sizes=[1, -1]).SerializeToString(), b""]
    bad = [GARBAGE, good[0][:-1], b"\x12\x02\xff\xff"]
    options = {
        "value.format": "protobuf",
        "value.schema.file": str(tmp_path / "orders.desc"),
        "value.message": "shop.Order",
    }
    typed = load([*good, *bad, None], **options)
    assert outcomes(typed, "id", "name", "sizes") == [
        (1, "ü", [1, -1]),
        (0, "", []),
        *[(value,) for value in bad],
        (None, None, None),
    ]


def test_a_stream_goes_on_past_bad_records(
    spark: SparkSession, broker: Broker, publisher: Publisher, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic("typed")
    publisher.send(topic, [b'{"id": 1}', GARBAGE, b'{"id": 3}'])
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "columns": "offset,value",
        "value.format": "json",
        "value.schema": "id BIGINT",
    }
    found: list[tuple[Any, ...]] = []
    stream = spark.readStream.format("penstock").options(**given).load()
    sink = stream.writeStream.foreachBatch(lambda frame, _: found.extend(outcomes(frame, "id")))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120), query.status
    assert found == [(1,), (GARBAGE,), (3,)]


def test_a_schema_that_takes_a_column_s_name(load: Load) -> None:
    options = {"value.format": "json", "value.schema": "offset BIGINT"}
    with pytest.raises(Exception, match=r"the value's field 'offset' has the name of .*; set value\.prefix"):
        load([b"{}"], **options).count()
    (row,) = load([b'{"offset": 5}'], **options, **{"value.prefix": "v_"}).collect()
    assert (row.offset, row.v_offset) == (0, 5)
