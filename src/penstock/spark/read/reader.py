"""Batch reads: the driver settles the offsets and plans ranges, tasks read them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.spark.errors import OptionError
from penstock.spark.options.options import ReadOptions
from penstock.spark.options.pushdown import Bounds, bounds_of
from penstock.spark.read.ranges import Range, TopicPartition, split
from penstock.spark.read.reading import Chunk, Reading, lost
from penstock.spark.read.topics import Catalogue, check_all_found, find_subscribed, resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from penstock.spark.read.stopped import StoppedDirectory

_SMALL_REST = 0.5  # of a piece from files: so much more the same task fetches from the broker


class TopicReader(DataSourceReader):
    """Reads what is there when it plans."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._options = options
        self._reading = open_reading(options, schema)
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with open_catalogue(options) as catalogue:
            subscribed = find_subscribed(catalogue, options.subscription)
            check_all_found(subscribed, options.subscription, options.settings.bootstrap or str(options.path))
            for positions in (options.starting, options.ending):
                positions.questions(subscribed.partitions)  # names what is not subscribed to
            kept = [key for key in subscribed.partitions if self._bounds.keeps(key[1])]
            starts = resolve(catalogue, options.starting, kept, read_committed=options.read_committed)
            ends = resolve(catalogue, options.ending, kept, read_committed=options.read_committed)
            self._check(catalogue, starts, ends)
            self._narrow(catalogue, starts, ends)
        ranges = [
            Range(topic, subscribed.ids[topic], partition, starts[topic, partition], ends[topic, partition])
            for topic, partition in kept
            if starts[topic, partition] < ends[topic, partition]
        ]
        return plan(options, ranges)

    def _check(self, catalogue: Catalogue, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Offsets that were given as numbers must be in the log: too old means loss, too new a mistake."""
        given, _ = self._options.starting.questions(starts, partial=True)
        oldest = catalogue.list_offsets(dict.fromkeys(given, EARLIEST), read_committed=False) if given else {}
        for key, offset in oldest.items():
            if starts[key] < offset:
                if self._options.fail_on_data_loss:
                    name = f"partition {key[1]} of topic {key[0]!r}"
                    raise lost(f"startingOffsets: offset {starts[key]} of {name} is gone, its log begins at {offset}")
                starts[key] = offset
        given = {**given, **self._options.ending.questions(ends, partial=True)[0]}
        newest = catalogue.list_offsets(dict.fromkeys(given, LATEST), read_committed=False) if given else {}
        for key, offset in newest.items():
            for option, chosen in (("startingOffsets", starts), ("endingOffsets", ends)):
                if chosen[key] > offset:
                    name = f"partition {key[1]} of topic {key[0]!r}"
                    raise OptionError(f"{option}: offset {chosen[key]} of {name} is behind its end, {offset}")

    def _narrow(self, catalogue: Catalogue, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Cut the ranges to what filters let through."""
        bounds = self._bounds
        if bounds.timestamp_from_ms is not None and starts and self._options.settings.bootstrap:
            asked = dict.fromkeys(starts, max(0, bounds.timestamp_from_ms))
            for key, offset in catalogue.list_offsets(asked, read_committed=False).items():
                starts[key] = max(starts[key], offset) if offset >= 0 else ends[key]
        for key in starts:
            if bounds.offset_from is not None:
                starts[key] = max(starts[key], bounds.offset_from)
            if bounds.offset_to is not None:
                ends[key] = min(ends[key], bounds.offset_to)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_range(self._options, self._reading, partition)


class FilteredTopicReader(TopicReader):
    """Also takes filters: a class of its own, as Spark refuses one that could, unless its session allows filters."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802 - Spark's name
        self._bounds = bounds_of(filters)
        return filters  # Spark checks again, so ranges may be wider than the filters


def open_catalogue(options: ReadOptions) -> "Cluster | StoppedDirectory":
    """The brokers, or with `path` alone the directory."""
    if options.settings.bootstrap or options.path is None:
        return Cluster(replace(options.settings, patience_s=0.0))  # who starts a read wants to hear of a wrong address
    from penstock.spark.read.stopped import StoppedDirectory

    return StoppedDirectory(options.path)


def open_reading(options: ReadOptions, schema: "StructType") -> Reading:
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.formats import open_format
    from penstock.spark.options.columns import schema_of

    value_format = open_format(options.format_options) if options.format_options else None
    ours = schema_of(options.columns, value_format.fields if value_format else None)
    if schema.fieldNames() != ours.fieldNames() or [f.dataType for f in schema] != [f.dataType for f in ours]:
        raise OptionError(
            f"schema: {schema.simpleString()} is not what this read gives, {ours.simpleString()}. "
            "Leave .schema() out; columns= chooses columns, value.format gives typed ones"
        )
    return Reading(
        settings=options.settings,
        columns=options.columns,
        value_format=value_format,
        schema=to_arrow_schema(ours, timezone="UTC"),
        read_committed=options.read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
        patience_s=options.poll_timeout_s,
        fetch_bytes=options.fetch_bytes,
    )


def plan(options: ReadOptions, ranges: Sequence[Range]) -> list[Range]:
    """The tasks' ranges: from files as far as `path` has them, then cut to as many and as small as asked."""
    if options.path is not None:
        ranges = [part for each in ranges for part in _from_files(options, options.path, each)]
    return split(ranges, at_least=options.min_partitions, at_most_rows=options.max_records_per_partition)


def _from_files(options: ReadOptions, path: str, whole: Range) -> Iterator[Range]:
    from penstock.spark.segments import segments

    pieces, rest = segments.plan(
        path,
        whole.topic,
        whole.topic_id,
        whole.partition,
        whole.start,
        whole.end,
        read_committed=options.read_committed,
        stopped=not options.settings.bootstrap,
    )
    for piece in pieces:
        end = piece.end
        if piece is pieces[-1] and 0 < whole.end - rest <= (piece.end - piece.first) * _SMALL_REST:
            end = rest = whole.end  # a task of its own costs more than reading on
        yield Range(whole.topic, whole.topic_id, whole.partition, piece.first, end, piece)
    if rest < whole.end:
        yield Range(whole.topic, whole.topic_id, whole.partition, rest, whole.end)


def read_range(options: ReadOptions, reading: Reading, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """In a task: the rows of a range, from files as far as its piece goes; none for the empty plan's placeholder."""
    if not isinstance(partition, Range):
        return iter(())
    piece = partition.piece
    if piece is None or options.path is None or partition.start >= piece.end:
        return reading.read(partition)
    from penstock.spark.segments import segments

    end = min(partition.end, piece.end)
    try:
        chunks = segments.read(
            options.path, piece._replace(first=partition.start, end=end), read_committed=reading.read_committed
        )
    except segments.SegmentsGone:
        if not options.settings.bootstrap:
            raise
        return reading.read(partition)  # retention or compaction was faster: the broker knows
    from_files = (Chunk(data, places, partition.start) for data, places in chunks)
    rows = reading.read(replace(partition, end=end), from_files)
    if end == partition.end:
        return rows
    return chain(rows, reading.read(replace(partition, start=end)))
