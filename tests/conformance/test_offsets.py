"""Where to read from: given offsets, times, both ends, and offsets that do not exist."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from .clients import CLIENTS, NO_MATCH, ClientError
from .conftest import Judges
from .records import Record, matches

OFFSET_OUT_OF_RANGE = 1
COUNT = 300
STEP_MS = 1000


@dataclass(frozen=True, slots=True)
class Timeline:
    """Records one second apart, in a few large batches, on a partition of their own."""

    topic: str
    records: list[Record]
    start_ms: int


@pytest.fixture(scope="module", params=["none", "zstd"])
def timeline(
    judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, request: pytest.FixtureRequest
) -> Timeline:
    records = [Record(b"value %d" % n, b"%d" % n, (), yesterday_ms + n * STEP_MS) for n in range(COUNT)]
    topic = new_topic("timeline")
    # Three calls, so at least three batches, and each of them holds many records.
    for first in range(0, COUNT, 100):
        judges["java"].produce(topic, 0, records[first : first + 100], codec=request.param)
    return Timeline(topic, records, yesterday_ms)


@pytest.mark.parametrize("first", [0, 1, 57, 99, 100, 101, 199, 298, 299])
@pytest.mark.parametrize("reader", CLIENTS)
def test_read_from_an_offset(judges: Judges, timeline: Timeline, reader: str, first: int) -> None:
    count = min(20, COUNT - first)
    received = judges[reader].read(timeline.topic, 0, first, count)
    matches(timeline.records[first : first + count], received, first)


@pytest.mark.parametrize("reader", CLIENTS)
def test_both_ends(judges: Judges, timeline: Timeline, new_topic: Callable[..., str], reader: str) -> None:
    client = judges[reader]
    assert (client.earliest(timeline.topic, 0), client.latest(timeline.topic, 0)) == (0, COUNT)
    empty = new_topic("empty")
    assert (client.earliest(empty, 0), client.latest(empty, 0)) == (0, 0)


@pytest.mark.parametrize("reader", CLIENTS)
def test_offset_for_a_time(judges: Judges, timeline: Timeline, reader: str) -> None:
    def ask(timestamp_ms: int) -> int:
        return judges[reader].offset_for_time(timeline.topic, 0, timestamp_ms)

    assert ask(timeline.start_ms - 1) == 0
    assert ask(timeline.start_ms) == 0
    for position in (1, 99, 100, 150, COUNT - 1):  # inside a batch and at its edges
        exact_ms = timeline.start_ms + position * STEP_MS
        assert ask(exact_ms) == position
        assert ask(exact_ms - STEP_MS + 1) == position
    assert ask(timeline.start_ms + COUNT * STEP_MS) == NO_MATCH


@pytest.mark.parametrize("reader", CLIENTS)
def test_no_time_matches_an_empty_partition(
    judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, reader: str
) -> None:
    assert judges[reader].offset_for_time(new_topic("empty"), 0, yesterday_ms) == NO_MATCH


@pytest.mark.parametrize("reader", CLIENTS)
def test_times_out_of_order(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, reader: str) -> None:
    topic = new_topic("jumble")
    for seconds in (5, 3, 9, 1, 7):  # one batch each
        record = Record(b"%d" % seconds, None, (), yesterday_ms + seconds * 1000)
        judges["confluent"].produce(topic, 0, [record])
    client = judges[reader]
    # The first record, in offset order, at or after the time.
    assert client.offset_for_time(topic, 0, yesterday_ms + 2000) == 0
    assert client.offset_for_time(topic, 0, yesterday_ms + 6000) == 2
    assert client.offset_for_time(topic, 0, yesterday_ms + 9001) == NO_MATCH


@pytest.mark.parametrize("reader", [name for name, each in CLIENTS.items() if each.has_max_timestamp])
def test_greatest_timestamp(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, reader: str) -> None:
    topic = new_topic("greatest")
    assert judges[reader].max_timestamp(topic, 0)[0] == NO_MATCH
    for batch in ((5, 3), (9, 1), (7, 8)):
        records = [Record(b"%d" % seconds, None, (), yesterday_ms + seconds * 1000) for seconds in batch]
        judges["java"].produce(topic, 0, records)
    assert judges[reader].max_timestamp(topic, 0) == (2, yesterday_ms + 9000)


@pytest.mark.parametrize("reader", CLIENTS)
def test_beyond_the_end_is_an_error_or_the_beginning(judges: Judges, timeline: Timeline, reader: str) -> None:
    with pytest.raises(ClientError) as failure:
        judges[reader].read(timeline.topic, 0, COUNT + 1000, 1)
    assert failure.value.code == OFFSET_OUT_OF_RANGE
    received = judges[reader].read(timeline.topic, 0, COUNT + 1000, 10, reset="earliest")
    matches(timeline.records[:10], received)


@pytest.mark.parametrize("reader", CLIENTS)
def test_beyond_the_end_may_mean_what_comes_next(judges: Judges, new_topic: Callable[..., str], reader: str) -> None:
    topic = new_topic("next")
    writer = judges["aiokafka"]
    writer.produce(topic, 0, [Record(b"old")] * 5)
    done = threading.Event()

    def keep_writing() -> None:
        # The reader looks up the end at a moment of its own, so one record might come too early for it.
        while not done.wait(0.05):
            writer.produce(topic, 0, [Record(b"new")])

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        received = judges[reader].read(topic, 0, 10_000, 1, reset="latest")
    finally:
        done.set()
        thread.join()
    assert received[0].value == b"new"
    assert received[0].offset >= 5


@pytest.mark.parametrize("reader", CLIENTS)
def test_waiting_at_the_end_gets_the_next_record(judges: Judges, new_topic: Callable[..., str], reader: str) -> None:
    topic = new_topic("wait")
    writer = judges["aiokafka"]
    writer.produce(topic, 0, [Record(b"old")] * 3)
    received: list[bytes | None] = []
    thread = threading.Thread(
        target=lambda: received.extend(each.value for each in judges[reader].read(topic, 0, 3, 2))
    )
    thread.start()
    writer.produce(topic, 0, [Record(b"new")])
    writer.produce(topic, 0, [Record(b"newer")])
    thread.join()
    assert received == [b"new", b"newer"]
