"""The log of marks: what was written, what became of it, and how it is read while others write in it."""

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from tests.relay import ANSWER, FETCH, PRODUCE, REQUEST, Cut, Relay, relayed_broker

from penstock.client.cluster import LATEST, Cluster
from penstock.client.producer import Parcel, Producer
from penstock.client.settings import Settings
from penstock.client.transaction import begin, end
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.spark.errors import SourceError
from penstock.spark.write.marks import TOPIC, Entry, Mark, MarkBook, MarksLog, open_book
from penstock.testing import embedded_broker

NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000


def mark_entry(offset: int, name: str, mark: Mark, *, producer: int = 7) -> Entry:
    body = {"query": mark.query, "batch": mark.batch, "rows": mark.rows, "total": mark.total}
    record = (None, b"", (), NOW_MS)
    header = decode_header(build_batch([record], producer_id=producer, producer_epoch=0, base_sequence=0))
    return Entry(offset, header, "mark", name, body)


def marker_entry(offset: int, marker: Marker, *, producer: int = 7) -> Entry:
    return Entry(offset, decode_header(build_marker(producer, 0, marker, 0, NOW_MS)), marker=marker)


def claim_entry(offset: int, name: str) -> Entry:
    return Entry(offset, decode_header(build_batch([(None, b"", (), NOW_MS)])), "claim", name, {})


def book_of(*entries: Entry) -> MarkBook:
    book = MarkBook()
    for entry in entries:
        book.step(entry)
    return book


ONE, TWO, OTHER = Mark("query", 1, 10, 7), Mark("query", 2, 20, 8), Mark("other", 5, 1, 9)


def test_a_mark_counts_from_its_commit_on() -> None:
    entries = [mark_entry(0, "a", ONE), claim_entry(1, "a"), marker_entry(2, Marker.COMMIT)]
    assert book_of(*entries[:2]).marks == {}
    assert book_of(*entries).marks == {"a": {"query": ONE}}
    assert book_of(*entries).position == 3


def test_an_aborted_mark_leaves_the_one_before() -> None:
    first = [mark_entry(0, "a", ONE), marker_entry(1, Marker.COMMIT)]
    aborted = [mark_entry(2, "a", TWO), marker_entry(3, Marker.ABORT)]
    assert book_of(*first, *aborted).marks == {"a": {"query": ONE}}
    assert book_of(*first, *aborted, marker_entry(4, Marker.COMMIT)).marks == {"a": {"query": ONE}}


def test_a_marker_ends_its_own_producers_transaction_alone() -> None:
    both = [mark_entry(0, "a", ONE, producer=7), mark_entry(1, "b", TWO, producer=8)]
    assert book_of(*both, marker_entry(2, Marker.COMMIT, producer=8)).marks == {"b": {"query": TWO}}
    ended = [marker_entry(2, Marker.ABORT, producer=7), marker_entry(3, Marker.COMMIT, producer=8)]
    assert book_of(*both, *ended).marks == {"b": {"query": TWO}}


def test_each_query_of_an_id_has_its_own_mark() -> None:
    """Where several took turns under one id, the mark of one says nothing of another's batches."""
    entries = [mark_entry(0, "a", ONE), marker_entry(1, Marker.COMMIT)]
    entries += [mark_entry(2, "a", OTHER), marker_entry(3, Marker.COMMIT)]
    entries += [mark_entry(4, "a", TWO), marker_entry(5, Marker.COMMIT)]
    assert book_of(*entries).marks == {"a": {"query": TWO, "other": OTHER}}


def test_a_transaction_that_ended_without_a_mark_changes_nothing() -> None:
    assert book_of(marker_entry(0, Marker.COMMIT)).marks == {}


def test_which_batches_a_mark_covers() -> None:
    mark = Mark("query", 5, 10, 0)
    assert mark.covers("query", 5)
    assert not mark.covers("query", 6)
    with pytest.raises(SourceError, match="batch 4 of query query comes after batch 5 was written: the checkpoint is"):
        mark.covers("query", 4)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with relayed_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def settings(relay: Relay) -> Settings:
    return Settings(relay.address)


@pytest.fixture
def log(settings: Settings, relay: Relay) -> Iterator[MarksLog]:
    with Cluster(settings) as cluster:
        made = MarksLog(cluster)
        made.create()
        yield made
    assert not relay.cuts, "a cut never happened"


@pytest.fixture
def name() -> str:
    """A transactional id no other test has."""
    return f"query-{uuid.uuid4().hex[:12]}"


def append_mark(log: MarksLog, name: str, mark: Mark, commit: bool | None) -> None:
    """None: the transaction stays open."""
    transaction = begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    log.append_mark(transaction, mark)
    if commit is not None:
        end(log.cluster, transaction, commit=commit)


def caught_up(log: MarksLog, book: MarkBook | None = None) -> MarkBook:
    book = book or MarkBook()
    book.catch_up(log)
    return book


def entries_of(log: MarksLog, name: str, start: int) -> list[Entry]:
    _, end = log.bounds()
    return [each for each in log.follow(start, patience_s=10, end=end) if each.transactional_id == name]


def test_the_topic_is_made_once(settings: Settings, log: MarksLog) -> None:
    with Cluster(settings) as cluster:
        assert MarksLog(cluster).create() == log.create()
    assert len(log.create().leaders) == 1


@pytest.mark.parametrize("commit", [True, False, None])
def test_marks_of_a_real_log(log: MarksLog, name: str, commit: bool | None) -> None:
    append_mark(log, name, ONE, True)
    append_mark(log, name, TWO, commit)
    begin(log.cluster, name, timeout_ms=TIMEOUT_MS)  # aborts what is open, and waits until readers know
    assert caught_up(log).marks[name]["query"] == (TWO if commit else ONE)


def test_a_book_reads_only_what_is_new(log: MarksLog, name: str) -> None:
    append_mark(log, name, ONE, True)
    begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    book = caught_up(log)
    assert book.position == log.bounds()[1]
    book.marks[name]["query"] = OTHER  # as if that had been read
    assert caught_up(log, book).marks[name] == {"query": OTHER}
    append_mark(log, name, TWO, True)
    begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    assert caught_up(log, book).marks[name] == {"query": TWO}


def test_a_mark_and_its_marker_may_be_read_in_two_goes(log: MarksLog, name: str) -> None:
    transaction = begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    log.append_mark(transaction, ONE)
    book = caught_up(log)
    assert name not in book.marks
    end(log.cluster, transaction, commit=True)
    begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    assert caught_up(log, book).marks[name] == {"query": ONE}


def test_somebody_elses_open_transaction_holds_nobody_up(log: MarksLog, name: str) -> None:
    append_mark(log, f"{name}-dead", ONE, None)
    append_mark(log, name, TWO, True)
    begin(log.cluster, name, timeout_ms=TIMEOUT_MS)
    place = (TOPIC, 0)
    stable = log.cluster.list_offsets({place: LATEST}, read_committed=True)[place]
    assert stable < log.bounds()[1]
    book = caught_up(log)
    assert book.marks[name] == {"query": TWO}
    assert f"{name}-dead" not in book.marks
    begin(log.cluster, f"{name}-dead", timeout_ms=TIMEOUT_MS)


def test_entries_come_as_they_are_written(settings: Settings, log: MarksLog, name: str) -> None:
    """A reader waits at the end of the log, across cuts of its connection."""
    _, start = log.bounds()
    found: list[Entry] = []

    def follow() -> None:
        with Cluster(settings) as cluster:
            for entry in MarksLog(cluster).follow(start, patience_s=20):
                if entry.transactional_id == name:
                    found.append(entry)
                if len(found) == 3:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(3):
        log.append("claim", name, {"number": number})
    thread.join(30)
    assert [(each.kind, each.body["number"]) for each in found] == [("claim", 0), ("claim", 1), ("claim", 2)]
    assert [each.offset for each in found] == sorted(each.offset for each in found)


@pytest.mark.parametrize("where", [REQUEST, ANSWER])
def test_following_goes_on_after_a_cut(relay: Relay, log: MarksLog, name: str, where: str) -> None:
    _, start = log.bounds()
    for number in range(20):
        log.append("claim", name, {"number": number})
    relay.cuts += [Cut(FETCH, where), Cut(FETCH, where)]
    assert [each.body["number"] for each in entries_of(log, name, start)] == list(range(20))


def test_an_entry_whose_answer_was_lost_stands_there_twice(relay: Relay, log: MarksLog, name: str) -> None:
    _, start = log.bounds()
    relay.cuts.append(Cut(PRODUCE, ANSWER))
    log.append("claim", name, {"number": 1})
    assert [each.body["number"] for each in entries_of(log, name, start)] == [1, 1]


def test_a_mark_whose_answer_was_lost_stands_there_once(relay: Relay, log: MarksLog, name: str) -> None:
    _, start = log.bounds()
    relay.cuts.append(Cut(PRODUCE, ANSWER))
    append_mark(log, name, ONE, True)
    assert [each.body["batch"] for each in entries_of(log, name, start)] == [1]


def test_patience_ends(log: MarksLog) -> None:
    _, end = log.bounds()
    told = f"topic '{TOPIC}': waited 0.2 s for an entry behind offset {end}"
    with pytest.raises(SourceError, match=told):
        next(iter(log.follow(end, patience_s=0.2)))


def put(cluster: Cluster, key: Any, value: Any) -> None:
    producer = Producer(cluster)
    producer.send(Parcel(TOPIC, 0, build_batch([(orjson.dumps(key), orjson.dumps(value), (), NOW_MS)])))
    producer.flush()


def test_an_entry_of_a_newer_version_is_not_guessed_at(log: MarksLog, name: str) -> None:
    _, start = log.bounds()
    put(log.cluster, ["claim"], {"version": 2, "id": name})
    with pytest.raises(SourceError, match=f"offset {start} is of version 2, 1 is known here: a newer Penstock writes"):
        entries_of(log, name, start)
    # Nobody after this test can read the whole log.
    delete_topic(log)


def delete_topic(log: MarksLog) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": log.cluster.settings.bootstrap})
    admin.delete_topics([TOPIC], operation_timeout=30)[TOPIC].result(30)
    deadline = time.monotonic() + 30
    while TOPIC in log.cluster.topics([TOPIC]):
        assert time.monotonic() < deadline, "the topic is still there"


def test_a_log_made_anew_is_noticed(log: MarksLog, name: str) -> None:
    append_mark(log, name, ONE, True)
    book = caught_up(log)
    delete_topic(log)
    with pytest.raises(SourceError, match=f"topic '{TOPIC}' was deleted and made anew while a query ran"):
        book.catch_up(log)


def test_compaction_keeps_marks_and_what_became_of_them(name: str) -> None:
    """Penstock's own compaction; a reader who begins at the log's start must come to the same marks after it."""
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "16384",
        "min.compaction.lag.ms": "0",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
        "flush": "os",
    }
    with embedded_broker() as broker, Cluster(Settings(broker.bootstrap)) as cluster:
        log = MarksLog(cluster)
        cluster.create_topic(TOPIC, 1, config)
        idle = f"{name}-idle"
        wanted = {idle: {"query": ONE}}
        append_mark(log, idle, ONE, True)  # the oldest entry of all must stay, with its marker
        append_mark(log, idle, TWO, False)
        deadline = time.monotonic() + 60
        batch = 0
        while batch % 50 or batch < 100 or _oldest(log, idle) < 50:
            query, mark = f"{name}-{batch % 3}", Mark("query", batch, 1, 0)
            commit = batch % 4 != 3
            append_mark(log, query, mark, commit)
            if commit:
                wanted[query] = {"query": mark}
            log.append("claim", query, {"padding": "x" * 500})
            batch += 1
            assert time.monotonic() < deadline, "nothing was compacted"
        for query in wanted:
            begin(log.cluster, query, timeout_ms=TIMEOUT_MS)
        assert caught_up(log).marks == wanted


def _oldest(log: MarksLog, idle: str) -> int:
    """The first batch of which a mark is still in the log, but for the idle query's."""
    _, end = log.bounds()
    marks = (each for each in log.follow(0, patience_s=10, end=end) if each.kind == "mark")
    return next((each.body["batch"] for each in marks if each.transactional_id != idle), 0)


def test_a_process_has_one_book_for_a_cluster(settings: Settings) -> None:
    assert open_book(settings) is open_book(Settings(settings.bootstrap))
    assert open_book(settings) is not open_book(Settings("elsewhere:9092"))
