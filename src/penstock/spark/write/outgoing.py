"""Rows on their way out of a task: each finds its topic and partition, and rows of one partition become sections of
record batches."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.arrow.encode import Section, encode
from penstock.spark.arrow.partitioner import choose_partitions
from penstock.spark.errors import OptionError, SourceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TopicPartition = tuple[str, int]
COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
TOTAL_MASK: Final = (1 << 62) - 1


class Outgoing:
    """Splits and encodes the rows of one task.

    Args:
        topic: for all rows, or None where each row names its own.
        partitions_of: how many partitions a topic has; raises for one that is not there.
        first: where rows without key or partition begin to go round, so that tasks do not all begin alike.
        headers: whether a column of that name is written.
    """

    def __init__(
        self,
        topic: str | None,
        partitions_of: Callable[[str], int],
        *,
        first: int,
        headers: bool,
        codec: int,
        batch_bytes: int,
    ) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._round = first
        self._headers = headers
        self._codec = codec
        self._batch_bytes = batch_bytes

    def encode(self, rows: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Section]]:
        """Sections in the rows' order for each partition; rows without key or partition all go to one, the next time
        to the next."""
        now_ms = time.time_ns() // 1_000_000
        self._round += 1
        for topic, part in self._by_topic(rows):
            for partition, group in self._by_partition(topic, part):
                keys, values, headers = group
                for section in encode(keys, values, headers, now_ms, codec=self._codec, max_bytes=self._batch_bytes):
                    yield (topic, partition), section

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, rows
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise SourceError("a row names no topic: its column 'topic' is null. Fill it, or set the option topic")
        names = pc.unique(topics)
        for name in names.to_pylist():
            yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics, name))

    def _by_partition(
        self, topic: str, rows: pa.RecordBatch
    ) -> Iterator[tuple[int, tuple[pa.Array | None, pa.Array, pa.Array | None]]]:
        keys, headers = _column(rows, "key"), _column(rows, "headers") if self._headers else None
        values = _column(rows, "value")
        count = self._partitions_of(topic)
        named = _column(rows, "partition")
        if keys is None and named is None:
            yield self._round % count, (keys, values, headers)
            return
        try:
            chosen = choose_partitions(keys, named, count, self._round % count)
        except ValueError as error:
            raise SourceError(f"topic {topic!r}: {error}") from None
        first = int(chosen[0]) if len(chosen) else 0
        if (chosen == first).all():
            yield first, (keys, values, headers)
            return
        order = np.argsort(chosen.astype(np.uint16) if count <= 1 << 16 else chosen, kind="stable")  # radix sort
        bounds = np.flatnonzero(np.diff(chosen[order], prepend=-1, append=-1))
        index = pa.array(order)
        columns = [each if each is None else each.take(index) for each in (keys, values, headers)]
        for low, high in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
            key, value, header = (each if each is None else each.slice(low, high - low) for each in columns)
            yield int(chosen[order[low]]), (key, value, header)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    if index < 0:
        return None
    column = rows.column(index)
    return column.cast(pa.binary()) if name in ("key", "value") and column.type != pa.binary() else column


def sum_content(rows: pa.RecordBatch) -> int:
    """A sum over keys and values: their bytes and lengths, whatever their order or the batches they come in."""
    total = 0
    for weight, name in ((3, "key"), (1, "value")):
        column = _column(rows, name)
        if column is None or not len(column):
            continue
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
        text = np.frombuffer(data, np.uint8)[ends[0] : ends[1]] if data is not None else np.empty(0, np.uint8)
        total += weight * (int(text.sum(dtype=np.uint32)) + (text.size << 32) + (column.null_count << 24))
    return total & TOTAL_MASK


def check_columns(schema: "StructType", topic: str | None) -> None:
    """Raise `OptionError` unless rows of the schema can be written, before a row moves."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

    kinds: Mapping[str, tuple[type, ...]] = {
        "key": (StringType, BinaryType),
        "value": (StringType, BinaryType),
        "topic": (StringType,),
        "partition": (IntegerType,),
        "headers": (ArrayType,),
    }
    for field in schema:
        if field.name not in kinds:
            known = ", ".join(COLUMNS)
            raise OptionError(
                f"column {field.name!r} has no place in a record; {known} have. Select or rename columns first"
            )
        if not isinstance(field.dataType, kinds[field.name]):
            wanted = " or ".join(kind.__name__.removesuffix("Type").lower() for kind in kinds[field.name])
            raise OptionError(
                f"column {field.name!r} is {field.dataType.simpleString()}, but must be {wanted}; cast it"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("rows to write have no column 'value' (string or binary)")
    if topic is None and "topic" not in names:
        raise OptionError("no topic to write to: set the option topic, or give rows a column 'topic'")
    if "headers" in names:
        headers = schema["headers"].dataType
        assert isinstance(headers, ArrayType)
        element = headers.elementType
        fields = [(f.name, type(f.dataType)) for f in element] if isinstance(element, StructType) else []
        if fields != [("key", StringType), ("value", BinaryType)]:
            raise OptionError(
                f"column 'headers' is {headers.simpleString()}, but must be array<struct<key:string,value:binary>>"
            )
