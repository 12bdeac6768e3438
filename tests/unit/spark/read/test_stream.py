"""The planner of a stream, against a cluster in memory: which offsets a micro-batch has, and has again if repeated."""

import json
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from tests.unit.spark.read.scripted_cluster import ScriptedCluster

from penstock.records.control import Marker
from penstock.spark.errors import DataLossError, OptionError
from penstock.spark.options.columns import ENVELOPE, schema_of
from penstock.spark.options.options import parse_read
from penstock.spark.read import stream as streams
from penstock.spark.read.ranges import Range
from penstock.spark.read.stream import TopicStream, format_offsets, parse_offsets

ALL = ReadAllAvailable()
COLUMNS = tuple(name for name in ENVELOPE.names if name != "headers")
Open = Callable[..., TopicStream]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    made = ScriptedCluster()
    monkeypatch.setattr(streams, "Cluster", lambda settings: made)
    monkeypatch.setattr(streams, "PartitionFetcher", made.fetcher)
    return made


@pytest.fixture
def open_stream(cluster: ScriptedCluster) -> Open:
    def make(**options: str) -> TopicStream:
        subscription = {} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "orders"}
        given = {"kafka.bootstrap.servers": "scripted:9092"} | subscription | options
        parsed = parse_read(given, streaming=True)
        cluster.settings = parsed.settings
        return TopicStream(parsed, schema_of(COLUMNS, None))

    return make


def offsets(found: dict[str, Any], topic: str = "orders") -> list[int]:
    """By partition, of one topic."""
    assert json.loads(json.dumps(found)) == found
    return [found[topic][str(number)] for number in range(len(found[topic]))]


def batch(
    stream: TopicStream, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
    """One micro-batch as Spark has it: its end, and the partition, first and last offset of each range."""
    end = stream.latestOffset(start, limit)
    return end, ranges(stream, start, end)


def ranges(stream: TopicStream, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    found = stream.partitions(start, end)
    assert all(isinstance(each, Range) for each in found)
    return [(each.partition, each.start, each.end) for each in found if isinstance(each, Range)]


class TestOffsets:
    def test_written_as_kafka_s_connector_does_but_for_the_ids(self) -> None:
        text = json.dumps(
            format_offsets({("b", 10): 1, ("b", 2): 5, ("a", 0): 7}, {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2)})
        )
        assert text == (
            '{"a": {"0": 7}, "b": {"2": 5, "10": 1}, "#ids": {"a": "00000000-0000-0000-0000-000000000001", '
            '"b": "00000000-0000-0000-0000-000000000002"}}'
        )

    @given(
        st.dictionaries(
            st.tuples(st.sampled_from(["a", "b", "ids", "-.-"]), st.integers(0, 200)), st.integers(-1, 1 << 62)
        )
    )
    def test_read_back(self, written: dict[tuple[str, int], int]) -> None:
        ids = {topic: uuid.uuid4() for topic, _ in written}
        assert parse_offsets(json.loads(json.dumps(format_offsets(written, ids)))) == (written, ids)

    def test_those_of_kafka_s_connector(self) -> None:
        assert parse_offsets({"a": {"1": 3}}) == ({("a", 1): 3}, {})


class TestStart:
    def test_the_end_is_not_a_number_yet(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5, 0)
        assert offsets(open_stream().initialOffset()) == [-1, -1]
        assert offsets(open_stream(startingOffsets="earliest").initialOffset()) == [0, 0]

    def test_each_partition_its_own(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        first, _, _ = cluster.create("orders", 5, 5, 5)
        first.start = 2
        chosen = json.dumps({"orders": {"0": -2, "1": -1, "2": 3}})
        assert offsets(open_stream(startingOffsets=chosen).initialOffset()) == [2, -1, 3]

    def test_by_time(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5, 2)  # the record at offset n is of 1000 + n ms
        with pytest.raises(OptionError, match="orders-1 has no record at or after 1003 ms"):
            open_stream(startingTimestamp="1003").initialOffset()
        late = {"startingTimestamp": "1003", "startingOffsetsByTimestampStrategy": "latest"}
        assert offsets(open_stream(**late).initialOffset()) == [3, -1]
        each = json.dumps({"orders": {"0": 1001, "1": 1000}})
        assert offsets(open_stream(startingOffsetsByTimestamp=each).initialOffset()) == [1, 0]

    def test_a_topic_that_is_not_there(self, open_stream: Open) -> None:
        with pytest.raises(
            OptionError, match="no topic 'orders' at scripted:9092; create it first, or correct subscribe"
        ):
            open_stream().initialOffset()

    def test_a_pattern_that_nothing_matches_yet(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        stream = open_stream(subscribePattern="^ord")
        start = stream.initialOffset()
        cluster.create("orders", 3)
        cluster.create("border", 3)
        _, found = batch(stream, start)
        assert found == [(0, 0, 3)]

    def test_partitions_must_be_named_as_they_are(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5)
        with pytest.raises(OptionError, match="startingOffsets names orders-1"):
            open_stream(startingOffsets=json.dumps({"orders": {"0": 0, "1": 0}})).initialOffset()
        with pytest.raises(OptionError, match="assign names partition 1 of topic 'orders', which has 0 to 0"):
            open_stream(assign='{"orders":[1]}').initialOffset()


class TestBatches:
    def test_one_after_the_other(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        first, _ = cluster.create("orders", 3, 1)
        stream = open_stream(startingOffsets="earliest")
        end, found = batch(stream, stream.initialOffset())
        assert found == [(0, 0, 3), (1, 0, 1)]
        assert stream.latestOffset(end, ALL) == end
        first.append(2)
        end, found = batch(stream, end)
        assert (offsets(end), found) == ([5, 1], [(0, 3, 5)])

    def test_a_first_batch_from_the_end_that_is_repeated_loses_nothing(
        self, cluster: ScriptedCluster, open_stream: Open
    ) -> None:
        log, _ = cluster.create("orders", 3, 0)
        stream = open_stream()
        start = stream.initialOffset()
        end, found = batch(stream, start)
        assert (offsets(end), found) == ([3, 0], [])
        assert json.dumps(end) != json.dumps(start)  # else Spark would not write it down
        log.append(4)
        again = open_stream()  # after a crash: Spark has both offsets from its log
        assert ranges(again, start, end) == []
        end, found = batch(again, end)
        assert found == [(0, 3, 7)]

    def test_undecided_records_wait(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        (log,) = cluster.create("orders", 3)
        log.append(2, producer=4)
        stream = open_stream(startingOffsets="earliest")
        end, found = batch(stream, stream.initialOffset())
        assert found == [(0, 0, 3)]
        assert stream.latestOffset(end, ALL) == end
        _, found = batch(open_stream(startingOffsets="earliest", **{"kafka.isolation.level": "read_uncommitted"}), end)
        assert found == [(0, 3, 5)]
        log.end_transaction(4, Marker.COMMIT)
        _, found = batch(stream, end)
        assert found == [(0, 3, 6)]

    def test_a_start_among_undecided_records_is_no_loss(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        (log,) = cluster.create("orders", 3)
        log.append(2, producer=4)
        stream = open_stream(startingOffsets=json.dumps({"orders": {"0": 4}}))
        end, found = batch(stream, stream.initialOffset())
        assert (offsets(end), found) == ([4], [])
        log.end_transaction(4, Marker.COMMIT)
        _, found = batch(stream, end)
        assert found == [(0, 4, 6)]

    def test_as_many_ranges_as_asked(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 12)
        stream = open_stream(startingOffsets="earliest", minPartitions="3")
        assert batch(stream, stream.initialOffset())[1] == [(0, 0, 4), (0, 4, 8), (0, 8, 12)]
        stream = open_stream(startingOffsets="earliest", maxRecordsPerPartition="5")
        assert batch(stream, stream.initialOffset())[1] == [(0, 0, 4), (0, 4, 8), (0, 8, 12)]

    def test_a_checkpoint_of_kafka_s_connector_goes_on(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5)
        stream = open_stream()
        assert ranges(stream, {"orders": {"0": 1}}, {"orders": {"0": 3}}) == [(0, 1, 3)]
        end, found = batch(stream, {"orders": {"0": 3}})
        assert found == [(0, 3, 5)]
        assert end["#ids"] == {"orders": str(cluster.ids["orders"])}

    def test_the_end_for_the_progress_report(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5, 1)
        stream = open_stream(maxOffsetsPerTrigger="1")
        found = stream.reportLatestOffset()
        assert found is not None
        assert offsets(found) == [5, 1]

    def test_tasks_get_it_without_its_connections(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 1)
        stream = open_stream()
        stream.initialOffset()
        copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 - our own
        assert copy._cluster is None


class TestAdmission:
    @pytest.mark.parametrize(
        ("options", "limit"),
        [
            ({}, ALL),
            ({"maxOffsetsPerTrigger": "40"}, ReadMaxRows(40)),
            ({"maxBytesPerTrigger": "1000"}, ReadMaxBytes(1000)),
        ],
    )
    def test_the_limit_of_the_options(
        self, cluster: ScriptedCluster, open_stream: Open, options: dict[str, str], limit: ReadLimit
    ) -> None:
        assert open_stream(**options).getDefaultReadLimit() == limit

    def test_rows_are_shared_by_what_there_is(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 30, 10, 0)
        stream = open_stream(startingOffsets="earliest", maxOffsetsPerTrigger="999")
        end, found = batch(stream, stream.initialOffset(), ReadMaxRows(8))  # Spark's word counts, not the option
        assert found == [(0, 0, 6), (1, 0, 2)]
        assert offsets(end) == [6, 2, 0]

    @pytest.mark.parametrize("limit", [ReadMaxRows(7), ReadMaxRows(1), ReadMaxBytes(1), ReadMaxBytes(500)])
    def test_whatever_the_limit_all_is_read_once(
        self, cluster: ScriptedCluster, open_stream: Open, limit: ReadLimit
    ) -> None:
        cluster.create("orders", 12, 3, 0, 1)
        stream = open_stream(startingOffsets="earliest")
        end = stream.initialOffset()
        read = []
        for _ in range(16):
            end, found = batch(stream, end, limit)
            assert found or offsets(end) == [12, 3, 0, 1]
            read += [(partition, at) for partition, first, last in found for at in range(first, last)]
        assert sorted(read) == [(number, at) for number, count in enumerate((12, 3, 0, 1)) for at in range(count)]
        assert offsets(end) == [12, 3, 0, 1]

    def test_bytes_are_reckoned_by_what_records_have(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        (log,) = cluster.create("orders", 40)
        limit = ReadMaxBytes(5 * len(log.batches[0]))
        stream = open_stream(startingOffsets="earliest")
        _, found = batch(stream, stream.initialOffset(), limit)
        assert found == [(0, 0, 5)]

    def test_bytes_are_reckoned_from_the_middle_of_a_batch_too(
        self, cluster: ScriptedCluster, open_stream: Open
    ) -> None:
        """Else the nearer its end, the fewer of its records a micro-batch would have."""
        (log,) = cluster.create("orders", 0)
        log.append(100)
        stream = open_stream(startingOffsets=json.dumps({"orders": {"0": 90}}))
        _, found = batch(stream, stream.initialOffset(), ReadMaxBytes(len(log.batches[0]) // 20))
        assert found == [(0, 90, 95)]

    def test_what_is_left_when_only_available_records_are_read(
        self, cluster: ScriptedCluster, open_stream: Open
    ) -> None:
        (log,) = cluster.create("orders", 10)
        stream = open_stream(startingOffsets="earliest")
        stream.prepareForTriggerAvailableNow()
        start = stream.initialOffset()
        log.append(5)
        cluster.logs["orders"].append(type(log)())
        cluster.logs["orders"][1].append(5)
        end, found = batch(stream, start, ReadMaxRows(6))
        assert found == [(0, 0, 6)]
        end, found = batch(stream, end, ReadMaxRows(6))
        assert found == [(0, 6, 10)]
        assert stream.latestOffset(end, ReadMaxRows(6)) == end
        later = open_stream()
        later.prepareForTriggerAvailableNow()
        _, found = batch(later, end)
        assert found == [(0, 10, 15), (1, 0, 5)]


class TestChanges:
    """Of the topics, under a stream."""

    def test_a_new_partition_is_read_from_its_beginning(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        (log,) = cluster.create("orders", 5)
        stream = open_stream()
        end, _ = batch(stream, stream.initialOffset())
        added = type(log)()
        added.append(3)
        cluster.logs["orders"].append(added)
        start = end
        end, found = batch(stream, start)
        assert found == [(1, 0, 3)]
        added.append(1)
        assert ranges(open_stream(), start, end) == [(1, 0, 3)]

    def test_a_new_partition_whose_beginning_is_gone(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        (log,) = cluster.create("orders", 5)
        stream = open_stream()
        end, _ = batch(stream, stream.initialOffset())
        added = type(log)()
        added.append(9)
        added.start = 4
        cluster.logs["orders"].append(added)
        with pytest.raises(DataLossError, match=r"partition 1 of topic 'orders'.*begins at 4"):
            stream.latestOffset(end, ALL)
        _, found = batch(open_stream(failOnDataLoss="false"), end)
        assert found == [(1, 4, 9)]

    def test_a_new_partition_whose_beginning_goes_before_its_batch_is_repeated(
        self, cluster: ScriptedCluster, open_stream: Open
    ) -> None:
        (log,) = cluster.create("orders", 5)
        stream = open_stream()
        start, _ = batch(stream, stream.initialOffset())
        added = type(log)()
        added.append(9)
        cluster.logs["orders"].append(added)
        end, found = batch(stream, start)
        assert found == [(1, 0, 9)]
        added.start = 4
        with pytest.raises(DataLossError, match=r"partition 1 of topic 'orders'.*begins at 4"):
            open_stream().partitions(start, end)
        assert ranges(open_stream(failOnDataLoss="false"), start, end) == [(1, 4, 9)]

    def test_a_topic_made_anew(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5)
        stream = open_stream(startingOffsets="earliest")
        start = stream.initialOffset()
        end, _ = batch(stream, start)
        cluster.create("orders", 8)  # longer than what was read: offsets alone would not tell
        with pytest.raises(DataLossError, match=r"topic 'orders' was deleted and made anew.*failOnDataLoss=false"):
            stream.latestOffset(end, ALL)
        allowed = open_stream(failOnDataLoss="false")
        after, found = batch(allowed, end)
        assert found == [(0, 0, 8)]
        assert allowed.latestOffset(after, ALL) == after
        # A batch that was planned before and is repeated now still means the old topic.
        (planned,) = allowed.partitions(start, end)
        assert isinstance(planned, Range)
        assert str(planned.topic_id) == end["#ids"]["orders"]

    def test_a_topic_that_is_gone(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5)
        cluster.create("bills", 2)
        stream = open_stream(subscribe="orders,bills", startingOffsets="earliest")
        end, _ = batch(stream, stream.initialOffset())
        del cluster.logs["orders"]
        with pytest.raises(DataLossError, match="topic 'orders' is gone"):
            stream.latestOffset(end, ALL)
        cluster.logs["bills"][0].append()
        allowed = open_stream(subscribe="orders,bills", failOnDataLoss="false")
        end, found = batch(allowed, end)
        assert found == [(0, 2, 3)]
        cluster.create("orders", 1)
        assert batch(allowed, end)[1] == [(0, 0, 1)]

    def test_fewer_partitions(self, cluster: ScriptedCluster, open_stream: Open) -> None:
        cluster.create("orders", 5, 5)
        stream = open_stream()
        end, _ = batch(stream, stream.initialOffset())
        cluster.logs["orders"].pop()
        with pytest.raises(DataLossError, match="partition 1 of topic 'orders' is gone"):
            stream.latestOffset(end, ALL)

    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_log_that_was_cut(self, cluster: ScriptedCluster, open_stream: Open, available_now: bool) -> None:
        (log,) = cluster.create("orders", 5)
        stream = open_stream()
        end, _ = batch(stream, stream.initialOffset())
        del log.batches[3:]
        log.end = 3
        again = open_stream()
        if available_now:
            again.prepareForTriggerAvailableNow()
        with pytest.raises(DataLossError, match=r"partition 0 of topic 'orders' ends at 3, before offset 5"):
            again.latestOffset(end, ALL)
        after, found = batch(open_stream(failOnDataLoss="false"), end)
        assert (offsets(after), found) == ([3], [])
