"""Streaming reads: the driver's planner says which offsets come next, tasks read them.

An offset is Kafka's connector's own JSON, `{"topic": {"0": 5}}`, and under `#ids` the topics' ids, so that a topic made
anew under an old name is noticed. -1 as a start means "from the end, whatever that was": the first micro-batch of a
read from the latest offsets is empty and only writes the offsets down. (Were they asked for again when Spark repeats a
first batch after a crash, all that came in between would be lost.)
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.client.errors import ClientError
from penstock.client.fetching import PartitionFetcher
from penstock.records.batch import HEADER_BYTES, decode_header
from penstock.spark.options.options import ReadOptions
from penstock.spark.read.ranges import Range, TopicPartition, admit
from penstock.spark.read.reader import open_reading, plan, read_range
from penstock.spark.read.reading import lost
from penstock.spark.read.topics import Subscribed, check_all_found, find_subscribed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_IDS: Final = "#ids"  # no topic can be called so
_FROM_THE_END: Final = -1
_SAMPLE_BYTES: Final = 64 << 10
_SAMPLES: Final = 16
_TYPICAL_BYTES: Final = 1000.0

Offsets = dict[TopicPartition, int]


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._options = options
        self._reading = open_reading(options, schema)
        self._cluster: Cluster | None = None
        # Where the stream ends, or a run for what is available now.
        self._stop_at: Offsets | None = dict(options.ending.each) or None
        self._known_sizes: dict[TopicPartition, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}  # a task has connections of its own

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        options = self._options
        with Cluster(replace(options.settings, patience_s=0.0)) as cluster:  # to hear of a wrong address at once
            found = find_subscribed(cluster, options.subscription)
        check_all_found(found, options.subscription, options.settings.bootstrap)
        fixed, asked = options.starting.questions(found.partitions)
        from_the_end = {key for key, question in asked.items() if question == LATEST}
        questions = {key: question for key, question in asked.items() if key not in from_the_end}
        answers = self._ask().list_offsets(questions, read_committed=options.read_committed) if questions else {}
        # A time that no record has reached yet is not the end of now either.
        settled = {
            key: options.starting.settle(key, asked[key], answer, _FROM_THE_END) for key, answer in answers.items()
        }
        return format_offsets({**dict.fromkeys(from_the_end, _FROM_THE_END), **fixed, **settled}, found.ids)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found = self._find()
        began, ids = parse_offsets(start)
        self._check_topics(found, began, ids)
        latest = self._latest(found.partitions)
        starts = self._starts(latest, began, ids, found.ids)
        self._check_fresh(starts, began)
        self._check_ends(starts, latest)
        there = starts.keys()
        if self._stop_at is not None:
            latest = {key: min(offset, self._stop_at[key]) for key, offset in latest.items() if key in self._stop_at}
            starts = {key: starts[key] for key in latest}
        # What is not there now may come back as it was: an unreadable topic is not a new one.
        away = {
            key: offset
            for key, offset in began.items()
            if key not in latest and (key in there or (key[0] in ids and key[0] not in found.ids))
        }
        return format_offsets({**away, **self._admit(starts, latest, limit)}, {**ids, **found.ids})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        found = self._find()
        return format_offsets(self._latest(found.partitions), found.ids)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        latest = self._latest(self._find().partitions)
        stop_at = self._stop_at
        self._stop_at = (
            latest if stop_at is None else {key: min(latest.get(key, end), end) for key, end in stop_at.items()}
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        (began, old_ids), (ends, ids) = parse_offsets(start), parse_offsets(end)
        if any(topic not in ids for topic, _ in ends):  # a checkpoint of Kafka's connector
            ids = {**self._find().ids, **ids}
            for topic, _ in ends:
                if topic not in ids:
                    raise lost(f"topic {topic!r}, which the checkpoint's last batch has, is gone")
        starts = self._starts(ends, began, old_ids, ids)
        self._check_fresh(starts, began)
        ranges = [Range(key[0], ids[key[0]], key[1], starts[key], ends[key]) for key in ends if starts[key] < ends[key]]
        return plan(self._options, ranges)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_range(self._options, self._reading, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: offsets are in the query's checkpoint."""

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _ask(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.settings)
        return self._cluster

    def _find(self) -> Subscribed:
        cluster = self._ask()
        cluster.refresh()
        return find_subscribed(cluster, self._options.subscription)

    def _latest(self, partitions: Sequence[TopicPartition]) -> Offsets:
        asked = dict.fromkeys(partitions, LATEST)
        return self._ask().list_offsets(asked, read_committed=self._options.read_committed) if asked else {}

    def _starts(self, ends: Offsets, began: Offsets, old_ids: Mapping[str, UUID], ids: Mapping[str, UUID]) -> Offsets:
        """Where each partition goes on; one that nobody has read yet, or of a topic made anew, at its beginning."""
        known = {key for key in ends if key in began and old_ids.get(key[0], ids[key[0]]) == ids[key[0]]}
        fresh = dict.fromkeys(set(ends) - known, EARLIEST)
        first = self._ask().list_offsets(fresh, read_committed=False) if fresh else {}
        starts = {}
        for key, end in ends.items():
            start = began[key] if key in known else min(first[key], end)
            starts[key] = end if start == _FROM_THE_END else start
        return starts

    def _check_topics(self, found: Subscribed, began: Offsets, ids: Mapping[str, UUID]) -> None:
        if not self._options.fail_on_data_loss:
            return
        for topic, known in ids.items():
            if topic not in found.ids:
                raise lost(f"topic {topic!r} is gone")
            if found.ids[topic] != known:
                raise lost(f"topic {topic!r} was deleted and made anew: its id was {known} and is {found.ids[topic]}")
        for topic, partition in set(began) - set(found.partitions):
            raise lost(f"partition {partition} of topic {topic!r} is gone")

    def _check_ends(self, starts: Offsets, latest: Offsets) -> None:
        """Bring ends that lie before their starts up to them; if the log itself is that short, records are lost."""
        behind = {key: LATEST for key, start in starts.items() if start > latest[key]}
        ends = self._ask().list_offsets(behind, read_committed=False) if behind else {}
        for key, end in ends.items():
            if starts[key] <= end:  # among records whose transactions are open
                latest[key] = starts[key]
            elif self._options.fail_on_data_loss:
                name = f"partition {key[1]} of topic {key[0]!r}"
                raise lost(f"{name} ends at {end}, before offset {starts[key]}, where the query is to go on")

    def _check_fresh(self, starts: Offsets, began: Offsets) -> None:
        for key in starts.keys() - began.keys():
            if starts[key] and self._options.fail_on_data_loss:
                name = f"partition {key[1]} of topic {key[0]!r}"
                raise lost(f"{name} is new to the query, but its log begins at {starts[key]}: what was before is gone")

    def _admit(self, starts: Offsets, latest: Offsets, limit: ReadLimit) -> Offsets:
        """How far the next micro-batch goes."""
        available = {key: max(0, latest[key] - start) for key, start in starts.items()}
        if isinstance(limit, ReadMaxRows):
            shares = admit(available, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            sizes = self._sizes(starts, available)
            in_bytes = {key: round(count * sizes[key]) for key, count in available.items()}
            shares = {
                key: min(available[key], math.ceil(share / sizes[key]))
                for key, share in admit(in_bytes, limit.max_bytes).items()
            }
        else:
            shares = available
        # Behind the end without an error: loss is allowed, or a run for what is available now has had its part.
        return {
            key: start + shares[key] if latest[key] >= start or self._stop_at is not None else latest[key]
            for key, start in starts.items()
        }

    def _sizes(self, starts: Offsets, available: Offsets) -> dict[TopicPartition, float]:
        """Bytes per offset of each partition, from a look at the next batches of those that have most to read."""
        behind = sorted((key for key, count in available.items() if count), key=lambda key: -available[key])
        for key in behind[:_SAMPLES]:
            size = self._sample(key, starts[key])
            if size is not None:
                self._known_sizes[key] = size
        average = sum(self._known_sizes.values()) / len(self._known_sizes) if self._known_sizes else _TYPICAL_BYTES
        return {key: self._known_sizes.get(key, average) for key in starts}

    def _sample(self, key: TopicPartition, start: int) -> float | None:
        """Bytes per offset of the next batches; None if they cannot be had."""
        topic = self._ask().topics([key[0]]).get(key[0])
        if topic is None:
            return None
        fetcher = PartitionFetcher(
            self._options.settings, self._ask(), topic, key[1], read_committed=False, max_bytes=_SAMPLE_BYTES
        )
        try:
            fetcher.send(start)
            records = fetcher.receive().records
        except ClientError:
            return None  # an estimate is not worth a failure; the read itself will tell
        finally:
            fetcher.close()
        at = offsets = 0
        while len(records) - at >= HEADER_BYTES and (header := decode_header(records, at)).size <= len(records) - at:
            offsets += header.last_offset_delta + 1
            at += header.size
        return max(1.0, at / offsets) if offsets else None


def parse_offsets(offsets: Mapping[str, Any]) -> tuple[Offsets, dict[str, UUID]]:
    found = {
        (topic, int(partition)): int(offset)
        for topic, by_partition in offsets.items()
        if topic != _IDS
        for partition, offset in by_partition.items()
    }
    return found, {topic: UUID(text) for topic, text in offsets.get(_IDS, {}).items()}


def format_offsets(offsets: Mapping[TopicPartition, int], ids: Mapping[str, UUID]) -> dict[str, Any]:
    """In a fixed order: Spark compares the text."""
    told: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        told.setdefault(topic, {})[str(partition)] = offset
    return {**told, _IDS: {topic: str(ids[topic]) for topic in told}}
