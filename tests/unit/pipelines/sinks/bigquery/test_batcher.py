"""When gathered rows are sent, by a clock that the test moves."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hand_clock import HandClock

from penstock.pipelines.sinks.bigquery.batcher import Batcher, Limits, timed


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def batcher(clock: HandClock) -> Batcher[str]:
    return Batcher(Limits(rows=3, size_bytes=100, wait_s=1.0, at_once=10), clock.monotonic)


def test_rows_fill_it(batcher: Batcher[str]) -> None:
    assert list(batcher.add("a", 1, 1)) == []
    assert list(batcher.add("b", 1, 1)) == []
    assert batcher.room == 1
    assert list(batcher.add("c", 1, 1)) == [["a", "b", "c"]]
    assert batcher.room == 3
    assert list(batcher.flush()) == []


def test_bytes_fill_it(batcher: Batcher[str]) -> None:
    assert list(batcher.add("a", 1, 60)) == []
    assert list(batcher.add("b", 1, 40)) == [["a", "b"]]


def test_what_does_not_fit_opens_the_next(batcher: Batcher[str]) -> None:
    assert list(batcher.add("a", 1, 60)) == []
    assert list(batcher.add("b", 1, 41)) == [["a"]]
    assert list(batcher.flush()) == [["b"]]


def test_a_full_one_behind_one_that_does_not_fit_comes_out_too(batcher: Batcher[str]) -> None:
    assert list(batcher.add("a", 1, 60)) == []
    assert list(batcher.add("b", 1, 100)) == [["a"], ["b"]]


def test_rows_that_do_not_fit_open_the_next(batcher: Batcher[str]) -> None:
    assert list(batcher.add("a", 2, 1)) == []
    assert list(batcher.add("b", 2, 1)) == [["a"]]


def test_the_oldest_decides_how_long(batcher: Batcher[str], clock: HandClock) -> None:
    assert batcher.left_s() is None
    list(batcher.add("a", 1, 1))
    clock.now += 0.75
    list(batcher.add("b", 1, 1))
    assert batcher.left_s() == 0.25
    assert list(batcher.due()) == []
    clock.now += 0.25
    assert list(batcher.due()) == [["a", "b"]]
    assert batcher.left_s() is None
    assert list(batcher.due()) == []


def test_waiting_begins_anew_with_the_next(batcher: Batcher[str], clock: HandClock) -> None:
    list(batcher.add("a", 3, 1))
    clock.now += 10
    list(batcher.add("b", 1, 1))
    assert batcher.left_s() == 1.0


def test_time_passes_while_the_next_item_is_awaited() -> None:
    come = threading.Event()

    def items() -> Iterator[str]:
        yield "a"
        come.wait(20)
        yield "b"

    waits = iter([None, 0.0])
    stream = timed(items(), lambda: next(waits, None))
    assert next(stream) == "a"
    assert next(stream) is None
    come.set()
    assert list(stream) == ["b"]


def test_an_error_of_the_items_is_raised_where_they_are_used() -> None:
    def items() -> Iterator[str]:
        yield "a"
        raise OSError("the JVM is gone")

    stream = timed(items(), lambda: None)
    assert next(stream) == "a"
    with pytest.raises(OSError, match="JVM is gone"):
        next(stream)


def test_whoever_stops_early_stops_the_reading() -> None:
    reader: list[threading.Thread] = []
    drawn = []

    def items() -> Iterator[int]:
        reader.append(threading.current_thread())
        for number in range(1_000_000):
            drawn.append(number)
            yield number

    stream: Any = timed(items(), lambda: None)
    assert next(stream) == 0
    stream.close()
    reader[0].join(20)
    assert not reader[0].is_alive()
    assert len(drawn) < 10
