"""The log of events: turning over, several writers, readers that follow."""

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from penstock.pipelines.home import Event, EventLog

SMALL = 2000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "revenue" / "events.jsonl"


def texts(events: Iterator[Event] | list[Event]) -> list[str]:
    return [each.text for each in events]


def take(events: Iterator[Event], count: int) -> list[str]:
    return [next(events).text for _ in range(count)]


def test_written_and_read(path: Path) -> None:
    log = EventLog(path)
    assert log.read() == []
    log.write("info", "started", "it runs", batch=7, path=path)
    log.write("error", "failed", "two\nlines")
    first, second = log.read()
    assert (first.level, first.event, first.text, first.facts) == (
        "info",
        "started",
        "it runs",
        {"batch": 7, "path": str(path)},
    )
    assert first.time.endswith("Z") and first.time <= second.time
    assert second.text == "two\nlines"
    assert len(path.read_bytes().splitlines()) == 2
    assert texts(log.read(1)) == ["two\nlines"]
    assert log.read(0) == []


def test_it_turns_over_and_keeps_two(path: Path) -> None:
    log = EventLog(path, size_bytes=SMALL)
    for number in range(100):
        log.write("info", "x", str(number))
    files = sorted(path.parent.iterdir())
    assert [each.name for each in files] == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    assert all(each.stat().st_size <= SMALL for each in files)
    kept = texts(log.read(1000))
    assert kept == [str(number) for number in range(100 - len(kept), 100)]
    assert 40 < len(kept) < 100
    assert texts(log.read(30)) == [str(number) for number in range(70, 100)]


def test_a_line_larger_than_a_file(path: Path) -> None:
    log = EventLog(path, size_bytes=SMALL)
    log.write("info", "x", "a" * 2 * SMALL)
    log.write("info", "x", "b")
    assert [each[:1] for each in texts(log.read())] == ["a", "b"]


def test_a_torn_line_takes_no_other_with_it(path: Path) -> None:
    log = EventLog(path)
    log.write("info", "x", "before")
    with path.open("ab") as file:
        file.write(b'{"time": "2026-')
    log.write("info", "x", "after")
    assert texts(log.read()) == ["before", "after"]
    assert take(log.follow(10), 2) == ["before", "after"]


def test_several_writers_lose_nothing(path: Path) -> None:
    def write(name: str) -> None:
        log = EventLog(path, size_bytes=20 * SMALL)
        for number in range(200):
            log.write("info", name, str(number))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    read = EventLog(path).read(1000)
    for name in "abc":
        assert [each.text for each in read if each.event == name] == [str(number) for number in range(200)]


def test_somebody_else_turns_it_over_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited for the lock may have it of a file that was moved."""
    log = EventLog(path)
    log.write("info", "x", "old")
    flock, older = fcntl.flock, path.with_name("events.jsonl.1")

    def turn(file: BinaryIO, how: int) -> None:
        flock(file, how)
        if not older.exists():
            os.replace(path, older)

    monkeypatch.setattr("fcntl.flock", turn)
    log.write("info", "x", "new")
    assert len(older.read_bytes().splitlines()) == len(path.read_bytes().splitlines()) == 1
    assert texts(log.read()) == ["old", "new"]


def test_follow_begins_with_the_last(path: Path) -> None:
    log = EventLog(path, size_bytes=SMALL)
    for number in range(60):
        log.write("info", "x", str(number))
    following = log.follow(last=40)
    assert take(following, 40) == [str(number) for number in range(20, 60)]
    log.write("info", "x", "new")
    assert take(following, 1) == ["new"]


def test_follow_reads_on_over_the_turn(path: Path) -> None:
    log = EventLog(path, size_bytes=SMALL)
    log.write("info", "x", "first")
    following = log.follow(last=1)
    assert take(following, 1) == ["first"]
    for round_ in range(6):
        for number in range(15):  # less than a file: so that each turn falls somewhere else
            log.write("info", "x", f"{round_}.{number}")
        assert take(following, 15) == [f"{round_}.{number}" for number in range(15)]
    assert (path.parent / "events.jsonl.2").exists()


def test_follow_over_two_turns_at_once(path: Path) -> None:
    log = EventLog(path, size_bytes=SMALL)
    log.write("info", "x", "first")
    following = log.follow(last=1)
    assert take(following, 1) == ["first"]
    numbers: list[Any] = []
    while not (path.parent / "events.jsonl.2").exists():
        numbers.append(str(len(numbers)))
        log.write("info", "x", numbers[-1])
    assert take(following, len(numbers)) == numbers


def test_follow_waits(path: Path) -> None:
    """For a line, and before that for the file."""
    log = EventLog(path)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(take(EventLog(path).follow(), 2)), daemon=True)
    reader.start()
    log.write("info", "x", "1")
    log.write("info", "x", "2")
    for _ in range(100):  # the reader may have begun behind the first ones
        log.write("info", "x", "more")
        reader.join(0.05)
        if not reader.is_alive():
            break
    assert len(got) == 2
