"""What readers see of a broker's answers, and that no failure on the way loses or doubles a row."""

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.spark.read.scripted_cluster import (
    SETTINGS,
    Lasting,
    Passing,
    ScriptedCluster,
    ScriptedLog,
    restamp,
    value_of,
)

from penstock.client.errors import ClientError
from penstock.client.fetching import Fetched
from penstock.records.batch import HEADER_BYTES, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.spark.arrow.decode import TYPES
from penstock.spark.errors import DataLossError, SourceError
from penstock.spark.formats import open_format
from penstock.spark.read import reading
from penstock.spark.read.ranges import Range
from penstock.spark.read.reading import Reading, walk

ID = uuid.UUID(int=7)
COLUMNS = ("offset", "value")
ABORT, COMMIT = Marker.ABORT, Marker.COMMIT


def wanted(start: int, end: int) -> Range:
    return Range("orders", ID, 0, start, end)


def a_batch(base: int, count: int, **options: Any) -> bytes:
    records = [(None, value_of(base + at), (), 1000) for at in range(count)]
    return build_batch(records, base_offset=base, **options)


def answer(*batches: bytes, aborted: list[tuple[int, int]] | None = None) -> Fetched:
    return Fetched(0, 1000, 1000, 0, aborted or [], memoryview(b"".join(batches)))


def seen(fetched: Fetched, position: int, asked: Range, *, read_committed: bool = True) -> tuple[list[int], int]:
    """Base offsets of the batches that readers see, and where to go on; each must lie where it is said to."""
    places, reached = walk(fetched, position, asked, read_committed=read_committed)
    for place in places:
        assert decode_header(fetched.records, place.position) == place.header
    return [place.header.base_offset for place in places], reached


class TestWalk:
    def test_whole_batches(self) -> None:
        assert seen(answer(a_batch(5, 3), a_batch(8, 2)), 5, wanted(5, 100)) == ([5, 8], 10)

    def test_nothing_came(self) -> None:
        assert seen(answer(), 5, wanted(5, 100)) == ([], 5)

    def test_the_range_ends_inside_a_batch(self) -> None:
        assert seen(answer(a_batch(5, 3), a_batch(8, 2)), 5, wanted(5, 6)) == ([5], 6)

    def test_the_first_batch_begins_before_the_range(self) -> None:
        assert seen(answer(a_batch(5, 10)), 12, wanted(12, 100)) == ([5], 15)

    def test_a_batch_before_the_range_is_left_out(self) -> None:
        assert seen(answer(a_batch(0, 5), a_batch(5, 5)), 5, wanted(5, 100)) == ([5], 10)

    def test_every_cut_of_the_last_batch_is_left_for_the_next_fetch(self) -> None:
        first, second = a_batch(0, 2), a_batch(2, 3)
        for size in range(len(second)):
            assert seen(answer(first, second[:size]), 0, wanted(0, 100)) == ([0], 2)
        assert seen(answer(first[:-1]), 0, wanted(0, 100)) == ([], 0)

    def test_gaps_that_compaction_left(self) -> None:
        thinned = restamp(a_batch(0, 2), last_offset_delta=9)
        empty = restamp(a_batch(20, 1)[:HEADER_BYTES], batch_length=HEADER_BYTES - 12, last_offset_delta=9)
        empty = restamp(empty, record_count=0)
        assert seen(answer(thinned, empty, a_batch(50, 1)), 0, wanted(0, 100)) == ([0, 50], 51)
        assert seen(answer(empty), 12, wanted(12, 100)) == ([], 30)

    def test_all_of_the_range_is_gone_by_compaction(self) -> None:
        assert seen(answer(a_batch(50, 1)), 10, wanted(10, 20)) == ([], 20)

    def test_control_batches_are_never_seen(self) -> None:
        log = ScriptedLog()
        log.append(2, producer=4)
        log.end_transaction(4, COMMIT)
        log.append(1)
        for read_committed in (True, False):
            fetched = log.fetch(0, 1 << 20, read_committed=read_committed)
            assert seen(fetched, 0, wanted(0, 100), read_committed=read_committed) == ([0, 3], 4)

    def test_aborted_batches_are_seen_by_those_who_asked(self) -> None:
        log = ScriptedLog()
        log.append(2, producer=4)
        log.append(1)
        log.end_transaction(4, ABORT)
        log.append(1, producer=4)
        log.end_transaction(4, COMMIT)
        assert seen(log.fetch(0, 1 << 20, read_committed=True), 0, wanted(0, 100)) == ([2, 4], 6)
        uncommitted = log.fetch(0, 1 << 20, read_committed=False)
        assert seen(uncommitted, 0, wanted(0, 100), read_committed=False) == ([0, 2, 4], 6)

    def test_an_aborted_transaction_of_which_only_the_marker_is_in_the_answer(self) -> None:
        """What its producer commits next must be seen."""
        log = ScriptedLog()
        log.append(2, producer=4)
        log.end_transaction(4, ABORT)
        log.append(1, producer=4)
        log.end_transaction(4, COMMIT)
        assert seen(log.fetch(2, 1 << 20, read_committed=True), 2, wanted(2, 100)) == ([3], 5)

    def test_a_record_outside_transactions_is_seen_whoever_wrote_it(self) -> None:
        theirs: dict[str, int] = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}
        aborted, plain = a_batch(0, 1, transactional=True, **theirs), a_batch(1, 1, **theirs)
        assert seen(answer(aborted, plain, aborted=[(4, 0)]), 0, wanted(0, 100)) == ([1], 2)

    def test_a_damaged_batch_is_told(self) -> None:
        good, bad = a_batch(0, 2), bytearray(a_batch(2, 3))
        for at in range(16, len(bad), 7):
            broken = bytearray(bad)
            broken[at] ^= 0x10
            with pytest.raises(SourceError, match=r"the batch at offset 2 of 'orders'/0 (does not match|is in format)"):
                walk(answer(good, bytes(broken)), 0, wanted(0, 100), read_committed=True)

    @pytest.mark.parametrize("length", [-12, -1, 0, 48])
    def test_a_length_that_is_none_is_told(self, length: int) -> None:
        broken = restamp(a_batch(0, 2), batch_length=length)
        with pytest.raises(SourceError, match="does not match its checksum"):
            walk(answer(broken), 0, wanted(0, 100), read_committed=True)

    @pytest.mark.parametrize("magic", [0, 1, 3])
    def test_another_format_is_told(self, magic: int) -> None:
        with pytest.raises(SourceError, match=rf"the batch at offset 0 of 'orders'/0 is in format {magic}; only 2"):
            walk(answer(restamp(a_batch(0, 2), magic=magic)), 0, wanted(0, 100), read_committed=True)


@st.composite
def logs(draw: st.DrawFn) -> ScriptedLog:
    """Two producers, in and out of transactions, in any order."""
    log = ScriptedLog()
    steps = st.tuples(st.sampled_from([-1, 4, 4, 5]), st.integers(1, 3), st.sampled_from([None, COMMIT, ABORT]))
    for producer, count, end in draw(st.lists(steps, max_size=12)):
        log.append(count, producer=producer)
        if end is not None and producer in log.open:
            log.end_transaction(producer, end)
    return log


def make_reading(**changes: Any) -> Reading:
    schema = pa.schema([pa.field(name, TYPES[name]) for name in COLUMNS])
    made = Reading(
        settings=SETTINGS,
        columns=COLUMNS,
        value_format=None,
        schema=schema,
        read_committed=True,
        fail_on_data_loss=True,
        patience_s=5.0,
        fetch_bytes=300,
    )
    return made._replace(**changes)


class SleptTime:
    """Time that passes only when somebody sleeps, or a fetch comes back empty."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SleptTime:
    made = SleptTime()
    monkeypatch.setattr(reading, "time", made)
    return made


def read_log(
    cluster: ScriptedCluster, start: int, end: int, *, topic_id: uuid.UUID | None = None, **how: Any
) -> list[int]:
    """The offsets that come out; every value must be the one of its offset."""
    asked = Range("orders", topic_id or cluster.ids["orders"], 0, start, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "Cluster", lambda settings: cluster)
        patch.setattr(reading, "PartitionFetcher", cluster.fetcher)
        offsets: list[int] = []
        for rows in make_reading(**how).read(asked):
            found = rows.column("offset").to_pylist()
            assert rows.column("value").to_pylist() == [value_of(offset) for offset in found]
            offsets += found
    return offsets


def cluster_of(log: ScriptedLog) -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.create("orders")
    cluster.logs["orders"] = [log]
    return cluster


@settings(max_examples=100, deadline=None)
@given(log=logs(), read_committed=st.booleans(), fetch_bytes=st.sampled_from([1, 200, 1 << 20]), data=st.data())
def test_any_range_of_any_log_in_fetches_of_any_size(
    log: ScriptedLog, read_committed: bool, fetch_bytes: int, data: st.DataObject
) -> None:
    """Wherever a fetch begins, what an aborted transaction wrote is told from what its producer's next one did."""
    end = data.draw(st.integers(0, log.stable if read_committed else log.end))
    visible = log.visible(read_committed=read_committed)
    for start in range(end):
        found = read_log(cluster_of(log), start, end, read_committed=read_committed, fetch_bytes=fetch_bytes)
        assert found == [at for at in visible if start <= at < end]


@settings(max_examples=200, deadline=None)
@given(failing=st.lists(st.integers(0, 60), max_size=12), fetch_bytes=st.sampled_from([1, 300, 1 << 20]))
@example(failing=[2], fetch_bytes=1)
def test_failures_anywhere_neither_lose_nor_double_a_row(failing: list[int], fetch_bytes: int) -> None:
    """Every question, and every wait for an answer, may fail: before rows are handed over, and after."""
    log = ScriptedLog()
    for count in (1, 2, 3, 1, 2, 1):
        log.append(count)
    cluster = cluster_of(log)
    calls = iter(range(1_000_000))

    def trip(_: str) -> None:
        if next(calls) in failing:
            raise Passing("for a moment")

    cluster.trip = trip
    assert read_log(cluster, 0, 10, fetch_bytes=fetch_bytes) == list(range(10))


def test_the_next_fetch_is_under_way_while_rows_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(ScriptedLog())
    log = cluster.logs["orders"][0]
    log.append()
    log.append()
    monkeypatch.setattr(reading, "Cluster", lambda settings: cluster)
    monkeypatch.setattr(reading, "PartitionFetcher", cluster.fetcher)
    rows = make_reading(fetch_bytes=1).read(Range("orders", cluster.ids["orders"], 0, 0, 2))
    next(rows)
    assert [asked for name, asked in cluster.asked if name == "fetch"] == [0, 1]
    next(rows)
    assert next(rows, None) is None
    assert [asked for name, asked in cluster.asked if name == "fetch"] == [0, 1]  # and none behind the end


def test_a_failure_that_stays_is_told() -> None:
    cluster = cluster_of(ScriptedLog())
    cluster.logs["orders"][0].append()

    def trip(name: str) -> None:
        if name == "receive":
            raise Lasting("not allowed to")

    cluster.trip = trip
    with pytest.raises(ClientError, match="not allowed to"):
        read_log(cluster, 0, 1)


def test_a_broker_that_does_not_come_back_is_told(clock: SleptTime) -> None:
    cluster = cluster_of(ScriptedLog())
    cluster.logs["orders"][0].append()

    def trip(_: str) -> None:
        raise Passing("nobody there")

    cluster.trip = trip
    with pytest.raises(
        SourceError, match=r"offsets 0 to 1 of partition 0 of topic 'orders': nothing new behind offset 0 for 5 s"
    ):
        read_log(cluster, 0, 1)
    assert 5 <= clock.now < 6


def test_an_end_that_never_comes_is_told() -> None:
    log = ScriptedLog()
    log.append()
    log.append(producer=4)
    told = "the log ends at 2, last stable offset 1. kafkaConsumer.pollTimeoutMs sets how long to wait"
    with pytest.raises(SourceError, match=told):
        read_log(cluster_of(log), 0, 2)
    assert read_log(cluster_of(log), 0, 2, read_committed=False) == [0, 1]


def test_patience_begins_anew_with_every_step(clock: SleptTime) -> None:
    cluster = ScriptedCluster()
    cluster.create("orders", 10)
    fetches = 0

    def trip(name: str) -> None:
        nonlocal fetches
        clock.now += 1 if name == "receive" else 0
        fetches += name == "receive"
        if name == "receive" and fetches == 8:
            raise Passing("for a moment")

    cluster.trip = trip
    assert read_log(cluster, 0, 10, fetch_bytes=1) == list(range(10))
    assert clock.now > 10  # and all the patience there is are 5 s


def test_a_log_that_grew_between_two_questions() -> None:
    """A broker that has just come back may know less at first."""
    cluster = ScriptedCluster()
    (log,) = cluster.create("orders", 12)
    ends = iter([5, 10, 10, 12])  # when fetched from, asked for both ends, and fetched from again

    def trip(name: str) -> None:
        if name in ("receive", "list_offsets"):
            log.end = next(ends, 12)

    cluster.trip = trip
    assert read_log(cluster, 10, 12) == [10, 11]


@pytest.fixture
def overtaken() -> ScriptedCluster:
    """Ten records, of which retention has left the last four."""
    log = ScriptedLog()
    for _ in range(10):
        log.append()
    log.start = 6
    return cluster_of(log)


def test_retention_was_faster(overtaken: ScriptedCluster) -> None:
    told = "offsets 2 to 8 of partition 0 of topic 'orders': 2 is gone, the log now begins at 6.*failOnDataLoss=false"
    with pytest.raises(DataLossError, match=told):
        read_log(overtaken, 2, 8)
    assert read_log(overtaken, 2, 8, fail_on_data_loss=False) == [6, 7]
    assert read_log(overtaken, 2, 5, fail_on_data_loss=False) == []


def test_retention_overtakes_in_the_middle(overtaken: ScriptedCluster) -> None:
    log = overtaken.logs["orders"][0]

    def trip(name: str) -> None:
        if name == "receive" and [asked for kind, asked in overtaken.asked if kind == "fetch"][-1] == 3:
            log.start = 6

    log.start, overtaken.trip = 0, trip
    assert read_log(overtaken, 0, 10, fetch_bytes=1, fail_on_data_loss=False) == [0, 1, 2, 6, 7, 8, 9]
    log.start = 0
    with pytest.raises(DataLossError, match="3 is gone, the log now begins at 6"):
        read_log(overtaken, 0, 10, fetch_bytes=1)


def test_what_was_deleted_within_a_batch_stays_deleted() -> None:
    log = ScriptedLog()
    log.append(10)
    log.start = 6
    assert read_log(cluster_of(log), 0, 10, fail_on_data_loss=False) == [6, 7, 8, 9]


def test_the_log_was_cut(overtaken: ScriptedCluster) -> None:
    with pytest.raises(DataLossError, match="20 is gone, the log ends at 10: it was cut, or made anew"):
        read_log(overtaken, 20, 30)
    assert read_log(overtaken, 20, 30, fail_on_data_loss=False) == []


@pytest.mark.parametrize("moment", ["before", "during"])
def test_another_topic_under_the_name(moment: str) -> None:
    """Its records are not the ones that were planned."""
    cluster = ScriptedCluster()
    cluster.create("orders", 10)
    planned = cluster.ids["orders"]

    def trip(name: str) -> None:
        fetches = [asked for kind, asked in cluster.asked if kind == "fetch"]
        if cluster.ids["orders"] == planned and (moment == "before" or fetches[-1:] == [3]):
            cluster.create("orders", 10)

    cluster.trip = trip
    with pytest.raises(DataLossError, match="it was deleted and made anew"):
        read_log(cluster, 0, 10, topic_id=planned, fetch_bytes=1)
    cluster.create("orders", 10)
    cluster.asked.clear()
    planned = cluster.ids["orders"]
    found = read_log(cluster, 0, 10, topic_id=planned, fetch_bytes=1, fail_on_data_loss=False)
    assert found == ([] if moment == "before" else [0, 1, 2])


def test_the_topic_is_gone() -> None:
    cluster = ScriptedCluster()
    with pytest.raises(DataLossError, match="there is no such topic any more"):
        read_log(cluster, 0, 10, topic_id=ID)
    assert read_log(cluster, 0, 10, topic_id=ID, fail_on_data_loss=False) == []


def test_batches_that_hold_no_records_are_told() -> None:
    log = ScriptedLog()
    log.append(2)
    good = log.batches.pop()
    log.batches.append(restamp(good, attributes=Codec.ZSTD))
    with pytest.raises(SourceError, match="offsets 0 to 1 of 'orders'/0 hold no proper records: zstd"):
        read_log(cluster_of(log), 0, 2)


def test_typed_rows_keep_the_bytes_that_could_not_be_read() -> None:
    log = ScriptedLog()
    bodies = [b'{"id": 1}', b"{", None]
    log.batches.append(build_batch([(None, body, (), 1) for body in bodies]))
    log.end = len(bodies)
    cluster = cluster_of(log)
    value_format = open_format({"format": "json", "schema": "id BIGINT"})
    kept = {name: TYPES[name] for name in COLUMNS}
    schema = pa.schema([*kept.items(), ("id", pa.int64()), ("_error", pa.string())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "Cluster", lambda settings: cluster)
        patch.setattr(reading, "PartitionFetcher", cluster.fetcher)
        typed = make_reading(value_format=value_format, schema=schema)
        (rows,) = typed.read(Range("orders", cluster.ids["orders"], 0, 0, 3))
        (bare,) = typed._replace(columns=(), schema=schema.remove(0).remove(0)).read(
            Range("orders", cluster.ids["orders"], 0, 0, 3)
        )
    assert rows.column("value").to_pylist() == [None, b"{", None]
    assert rows.column("id").to_pylist() == [1, None, None]
    assert [error is None for error in rows.column("_error").to_pylist()] == [True, False, True]
    assert bare.schema.names == ["id", "_error"]
    assert bare.column("id").to_pylist() == [1, None, None]


def test_large_answers_become_batches_of_a_good_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK_ROWS", 4)
    log = ScriptedLog()
    for count in (3, 1, 1, 9, 1):
        log.append(count)
    cluster = cluster_of(log)
    monkeypatch.setattr(reading, "Cluster", lambda settings: cluster)
    monkeypatch.setattr(reading, "PartitionFetcher", cluster.fetcher)
    chunks: Iterator[pa.RecordBatch] = make_reading(fetch_bytes=1 << 20).read(
        Range("orders", cluster.ids["orders"], 0, 0, 15)
    )
    assert [rows.num_rows for rows in chunks] == [4, 1, 9, 1]
