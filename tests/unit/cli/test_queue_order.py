"""`penstock queue` about which message is next, against a real broker: lanes, tenants, and what is not due yet."""

import json
from typing import Any

import pytest
from tests.unit.cli.conftest import Run
from tests.unit.cli.test_queue import Queue, described, queue, taken, wait_until

from penstock.cli import queue_delayed

__all__ = ["queue"]
MINUTE_MS = 60_000


def waiting(queue: Queue, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in queue("delayed", "-o", "json", *words).splitlines()]


def values(messages: list[dict[str, Any]]) -> list[str]:
    return [each["value"] for each in messages]


def place(message: dict[str, Any]) -> str:
    return f"{message['partition']}:{message['offset']}"


def test_a_lane_alone(queue: Queue) -> None:
    queue("send", "plain")
    queue("send", "--priority", "9", "--tenant", "gold", "urgent")
    assert values(taken(queue, "--lane", "critical", "--max", "9")) == ["urgent"]
    assert taken(queue, "--lane", "high") == []
    assert values(taken(queue, "--max", "9")) == ["plain"]


def test_the_settings_of_order(queue: Queue, topic: str) -> None:
    words = ("--kind", "fifo", "--on-exhausted", "block", "--single-active", "--lanes", "strict")
    queue("alter", *words, "--delay", "10m", "--tenant-weights", "gold=4,trial=0.5")
    said = {each["name"]: each["value"] for each in described(queue)["settings"] if each["own"]}
    assert said == {
        "kind": "fifo",
        "on-exhausted": "block",
        "single-active": "true",
        "lanes": "strict",
        "delay": "10m",
        "tenant-weights": "gold=4,trial=0.5",
    }
    shown = [line.split() for line in queue("describe").splitlines()]
    assert ["kind", "fifo,", "one", "active", "consumer,", "lanes", "strict"] in shown
    assert "single-active  true → false" in queue("alter", "--no-single-active")


def test_lanes_are_described_where_there_is_more_than_one(queue: Queue) -> None:
    queue("send", "a", "b")
    assert "LANE" not in queue("describe")
    queue("send", "--priority", "high", "c")
    taken(queue, "--lane", "high")
    found = described(queue)
    lanes = {
        each["lane"]: [each[name] for name in ("ready", "leased", "arrived", "delivered")] for each in found["lanes"]
    }
    assert lanes == {
        "critical": [0] * 4,
        "high": [0, 1, 1, 1],
        "low": [0] * 4,
        "background": [0] * 4,
        "normal": lanes["normal"],
    }
    assert sum(row["ready"] for row in found["partitions"]) == 2
    assert ["high", "0", "1", "1", "1"] in [line.split() for line in queue("describe").splitlines()]


def test_what_is_not_due_yet_soonest_first_over_partitions(queue: Queue) -> None:
    for minutes in (30, 10, 20):
        queue("send", "--delay", f"{minutes}m", "--id", f"in-{minutes}", "-k", str(minutes), f"{minutes} minutes")
    queue("send", "now")
    found = waiting(queue)
    assert values(found) == ["10 minutes", "20 minutes", "30 minutes"]
    assert all(
        0 <= each["due_ms"] - each["timestamp"] - minutes * MINUTE_MS <= MINUTE_MS
        for each, minutes in zip(found, (10, 20, 30), strict=True)
    )
    assert values(waiting(queue, "-n", "1")) == ["10 minutes"]
    assert queue("delayed", "--show", "id,key").splitlines() == [
        f"in-{each}\t{each}\t{each} minutes" for each in (10, 20, 30)
    ]
    totals = described(queue)
    assert (totals["ready"], totals["delayed"], totals["not_due"]) == (1, 3, 3)
    states = [line.split("\t")[0] for line in queue("browse", "--state", "delayed").splitlines()]
    assert states == ["delayed"] * 3


def test_cancelled_and_delivered(queue: Queue, topic: str) -> None:
    queue("send", "--delay", "1h", "a", "b", "c")
    a, b, c = sorted(waiting(queue), key=lambda each: str(each["value"]))
    assert queue("delayed", "--cancel", place(a), "--yes") == f"cancelled 1 message of queue {topic}\n"
    assert f"1 message of those named: due by now, settled, or never delayed: {place(a)}" in queue(
        "delayed", "--cancel", place(a), "--yes", code=1
    )
    assert json.loads(queue("delayed", "--now", place(b), "-o", "json")) == {
        "queue": topic,
        "delivered": 1,
        "missed": [],
    }
    wait_until(lambda: values(taken(queue, "--ack")) == ["b"])
    assert queue("delayed", "--now", "--all") == f"delivered 1 message of queue {topic} before their time\n"
    assert values(taken(queue, "--wait", "30s", "--ack")) == [c["value"]]
    assert waiting(queue) == []


def test_cancelling_asks_first(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue("send", "--delay", "1h", "a", "b")
    asked: list[str] = []

    def no(question: str, otherwise: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(queue_delayed, "confirm", no)
    queue("delayed", "--cancel", "--all", code=1)
    assert "that are not due yet (2 now)?" in asked[0]
    assert len(waiting(queue)) == 2


def test_where_every_message_waits_they_are_counted(queue: Queue, run: Run, topic: str) -> None:
    queue("alter", "--delay", "1h")
    queue("send", "a", "b")
    done = run("queue", "delayed", topic)
    assert done == (0, "", "2 more wait because every message of this queue does (setting delay)\n")
    assert taken(queue) == []
