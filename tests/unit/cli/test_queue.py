"""`penstock queue` against a real broker."""

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Run

from penstock.testing import EmbeddedBroker

Queue = Callable[..., str]
DEADLINE_S = 60


@pytest.fixture
def queue(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """`penstock queue COMMAND WORDS...` about a queue of the test's own, which is done; returns what it prints."""

    def call(command: str, *words: str, said: str = "", code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        done = run("queue", command, topic, *words)
        assert done.code == code, done
        return done.err if code else done.out

    assert call("create", "--partitions", "2") == f"created queue {topic}: topic {topic}, made with it, 2 partitions\n"
    return call


def taken(queue: Queue, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in queue("receive", "-o", "json", *words).splitlines()]


def described(queue: Queue) -> Any:
    (found,) = json.loads(queue("describe", "-o", "json"))
    return found


def counts(queue: Queue) -> tuple[int, ...]:
    found = described(queue)
    return tuple(found[name] for name in ("ready", "leased", "delayed", "dying"))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline


class TestQueues:
    def test_made_once(self, queue: Queue, topic: str) -> None:
        told = queue("create", code=1)
        assert told.startswith(f"penstock: queue '{topic}' exists already; --if-not-exists leaves it as it is, ")
        assert queue("create", "--if-not-exists") == f"queue {topic} exists already\n"
        assert json.loads(queue("create", "--if-not-exists", "-o", "json")) == {"status": "exists", "queue": topic}

    def test_what_the_server_does_not_take(self, queue: Queue, run: Run, topic: str) -> None:
        done = run("queue", "create", f"{topic}:b", "--visibility", "1")
        assert (done.code, "queue setting visibility is '1'; allowed: 1s to 12h" in done.err) == (1, True)
        done = run("queue", "create", f"{topic}:b", "--set", "visibilty=1m")
        assert (done.code, "did you mean visibility?" in done.err) == (1, True)

    def test_the_list(self, queue: Queue, run: Run, topic: str) -> None:
        assert run("queue", "create", f"{topic}:b", "--ttl", "1d", "--on-expiry", "dead-letter").code == 0
        shown = run("queue", "list", "--pattern", f"{topic}*").out.splitlines()
        assert [line.split() for line in shown] == [
            ["QUEUE", "PARTITIONS", "SETTINGS"],
            [topic, "2", "-"],
            [f"{topic}:b", "2", "ttl=1d,", "on-expiry=dead-letter"],
        ]
        (row,) = json.loads(run("queue", "list", "--pattern", f"{topic}:*", "-o", "json").out)
        assert (row["topic"], row["group"], row["settings"]) == (topic, "b", {"ttl": "1d", "on-expiry": "dead-letter"})
        assert run("queue", "list", "--pattern", "none-*") == (0, "", "no queues like that\n")

    def test_altered(self, queue: Queue, topic: str) -> None:
        told = queue("alter", "--visibility", "5m", "--set", "max-unacked-consumer=5")
        assert told.splitlines() == [
            f"altered queue {topic}:",
            "  visibility            30s → 5m",
            "  max-unacked-consumer  2000 → 5",
        ]
        assert json.loads(queue("alter", "--unset", "visibility", "-o", "json"))["changes"] == [
            {"name": "visibility", "old": "5m", "new": "30s"}
        ]

    def test_a_mistyped_name(self, queue: Queue, run: Run, topic: str) -> None:
        mistyped = f"{topic[:-1]}-"
        for words in (["describe", mistyped], ["alter", mistyped, "--ttl", "1d"], ["delete", mistyped, "--yes"]):
            done = run("queue", *words)
            assert (done.code, done.out) == (1, "")
            assert f"no queue '{mistyped}', did you mean {topic}" in done.err
        assert mistyped not in run("topic", "list").out

    def test_deleted(self, queue: Queue, run: Run, topic: str) -> None:
        queue("send", "x")
        assert f"Delete queue {topic} with 1 message that nobody has settled? " in queue("delete", code=2)
        assert queue("delete", "--yes") == f"deleted queue {topic}\n"
        assert f"no queue '{topic}'" in queue("delete", "--yes", code=1)
        assert queue("delete", "--yes", "--if-exists") == f"no queue {topic}\n"
        for command in (["receive"], ["describe"], ["send", "x"]):
            assert "no queue" in queue(*command, code=1)
        assert run("consume", topic).out == "x\n", "the topic stays"
        assert queue("create") == f"created queue {topic}: topic {topic}, which is there, 2 partitions\n"
        assert queue("receive", "--ack") == "x\n", "and another queue begins with it"
        assert queue("delete", "--yes", "--with-topic") == f"deleted queue {topic}\n"
        assert "no topic" in run("topic", "describe", topic).err

    def test_completion(self, broker: EmbeddedBroker, queue: Queue, run: Run, topic: str) -> None:
        run("queue", "create", f"{topic}:b")
        asked = {
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": f"penstock queue receive {topic}",
            "COMP_CWORD": "3",
        }
        penstock = str(Path(sys.executable).with_name("penstock"))
        env = os.environ | asked | {"PENSTOCK_SERVER": broker.bootstrap}
        done = subprocess.run([penstock], env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert [offer.partition(",")[2] for offer in done.stdout.split()] == [topic, f"{topic}:b"]


class TestMessages:
    def test_sent_received_and_acknowledged(self, queue: Queue, run: Run, topic: str) -> None:
        assert run("queue", "send", topic, "one", "two").err.startswith("2 messages, 6 bytes, to partition")
        assert counts(queue) == (2, 0, 0, 0)
        given = taken(queue, "--max", "10")
        assert sorted(each["value"] for each in given) == ["one", "two"]
        assert counts(queue) == (0, 2, 0, 0)
        assert queue("receive", "--max", "10") == "", "nobody else gets them"
        receipts = [each["receipt"] for each in given]
        assert queue("ack", *receipts) == "2 messages acknowledged\n"
        assert counts(queue) == (0, 0, 0, 0)

    def test_what_receive_prints_can_be_given_back(self, queue: Queue) -> None:
        queue("send", "one", "t\two", "three")
        shown = queue("receive", "--max", "3")
        assert sorted(line.split("\t", 1)[1] for line in shown.splitlines()) == ["one", "t\two", "three"]
        assert queue("release", "-", said=shown) == "3 messages released\n"
        again = taken(queue, "--max", "3")
        assert {(each["deliveries"], each["attempts"]) for each in again} == {(2, 0)}
        (first, *others) = [each["receipt"] for each in again]
        assert queue("extend", first, "--visibility", "1h") == "1 message extended\n"
        assert queue("nack", "-", "--delay", "1h", said="\n".join(others)) == "2 messages returned as failed\n"
        assert counts(queue) == (0, 1, 2, 0)
        assert queue("nack", first, "--reject", "--reason", "no") == "1 message rejected\n"

    def test_receipts_that_are_no_good(self, queue: Queue) -> None:
        queue("send", "-K", ":", "k:one", "k:two", "k:three")
        one, two, three = [each["receipt"] for each in taken(queue, "--max", "3")]
        queue("ack", two)
        told = queue("ack", two, three, "nonsense", code=1)
        assert "receipt 'nonsense' has 8 characters, and not 34; give back the receipt that came" in told
        assert "is not leased under this receipt any more" in told
        assert counts(queue) == (0, 1, 0, 0), "the others are done"
        rows = json.loads(queue("ack", one, "-o", "json"))
        assert [row["error"] for row in rows] == [None]

    def test_acknowledged_after_it_was_printed(self, queue: Queue) -> None:
        queue("send", said="one\ntwo\n")
        assert sorted(queue("receive", "--max", "2", "--ack").splitlines()) == ["one", "two"]
        assert counts(queue) == (0, 0, 0, 0)

    def test_forms(self, queue: Queue, topic: str) -> None:
        queue("send", "-K", ":", "-H", "h=1", said="k:v\n")
        (message,) = taken(queue)
        assert (message["topic"], message["key"], message["value"], message["headers"]) == (
            topic,
            "k",
            "v",
            [{"name": "h", "value": "1"}],
        )
        queue("release", message["receipt"])
        assert queue("receive", "--show", "key,deliveries,attempts") == "k\t2\t0\tv\n"
        assert queue("browse", "--format", "%w %k=%s %d\\n") == "leased k=v 2\n"
        assert "value: v" in queue("browse", "-o", "yaml")

    def test_who_waits_gets_what_comes(self, broker: EmbeddedBroker, queue: Queue, topic: str) -> None:
        penstock = [sys.executable, "-m", "penstock.cli.main", "queue"]
        env = os.environ | {"PENSTOCK_SERVER": broker.bootstrap}
        words = ["receive", topic, "--max", "2", "--wait", "60s", "--ack", "--format", "%s\\n"]
        with subprocess.Popen([*penstock, *words], env=env, stdout=subprocess.PIPE, text=True) as receiving:
            assert receiving.stdout is not None
            watchdog = threading.Timer(DEADLINE_S, receiving.kill)
            watchdog.start()
            for value in ("one", "two"):
                queue("send", value)
                assert receiving.stdout.readline() == f"{value}\n", "as it comes"
            assert receiving.wait(DEADLINE_S) == 0
            watchdog.cancel()
        assert counts(queue) == (0, 0, 0, 0)

    def test_nothing_there(self, queue: Queue) -> None:
        assert queue("receive") == queue("browse") == queue("receive", "-p", "1", "--wait", "100ms") == ""
        assert "has no partition 2; it has 0 to 1" in queue("receive", "-p", "2", code=1)

    def test_groups_get_every_message_each(self, queue: Queue, run: Run, topic: str) -> None:
        run("queue", "create", f"{topic}:audit")
        queue("send", "x")
        assert queue("receive", "--ack") == "x\n"
        assert run("queue", "receive", f"{topic}:audit", "--ack").out == "x\n"

    def test_no_more_than_there_is_room_for(self, queue: Queue) -> None:
        queue("alter", "--max-size", "2")
        taken(queue)
        assert "a queue of the topic is full" in queue("send", *"12345678", code=1)
        queue("alter", "--on-full", "drop-oldest")
        queue("send", "9")

    def test_sent_to_nobody(self, run: Run, topic: str) -> None:
        done = run("queue", "send", topic, "x")
        assert (done.code, f"no queue '{topic}'" in done.err) == (1, True)
        run("topic", "create", topic)
        assert run("queue", "send", topic, "x").code == 1, "a topic alone is no queue"


class TestLooking:
    def test_described(self, queue: Queue, topic: str, run: Run) -> None:
        queue("send", "one", "two")
        shown = queue("describe").splitlines()
        assert shown[0] == topic
        assert [line.split(None, 1) for line in shown[1:7]] == [
            ["topic", topic],
            ["group", topic],
            ["made", "by    queue"],
            ["kind", "standard, lanes weighted"],
            ["ready", "2"],
            ["leased", "0"],
        ]
        assert f"  dead       0 in topic dlq.{topic}" in shown
        assert any(line.split() == ["visibility", "30s", "default"] for line in shown)
        found = described(queue)
        assert [row["partition"] for row in found["partitions"]] == [0, 1]
        assert sum(row["ready"] for row in found["partitions"]) == 2
        assert (found["silent"], found["dead"], found["held_bytes"]) == ([], 0, 0)
        assert 0 <= found["oldest_ms"] < DEADLINE_S * 1000

    def test_dead_letters_are_counted(self, queue: Queue, run: Run, topic: str) -> None:
        queue("send", "x")
        queue("nack", taken(queue)[0]["receipt"], "--reject", "--reason", "no such customer")
        wait_until(lambda: described(queue)["dead"] == 1)
        letter = json.loads(run("consume", f"dlq.{topic}", "-o", "json").out)
        assert {"name": "penstock-sys-detail", "value": "no such customer"} in letter["headers"]

    def test_dead_letters_are_brought_back(self, queue: Queue, topic: str) -> None:
        assert (
            queue("redrive", "--all", "--yes")
            == f"0 dead letters of topic dlq.{topic} brought back into queue {topic}\n"
        )
        queue("send", *(f"{number}" for number in range(5)))
        queue("nack", *(each["receipt"] for each in taken(queue, "--max", "5")), "--reject")
        wait_until(lambda: described(queue)["dead"] == 5)
        assert f"Bring all dead letters of queue {topic} in topic dlq.{topic} back into {topic}? " in queue(
            "redrive", "--all", code=2
        )
        assert json.loads(queue("redrive", "--max", "2", "-o", "json"))["moved"] == 2
        wait_until(lambda: counts(queue)[0] == 2)
        assert "of those named: no dead letter" in queue("redrive", "0:100", code=1)
        assert queue("redrive", "--all", "--yes", "--rate", "1000").startswith("3 dead letters of topic")
        wait_until(lambda: counts(queue)[0] == 5)
        again = taken(queue, "--max", "5")
        assert sorted(each["value"] for each in again) == list("01234")
        assert {(each["deliveries"], each["attempts"]) for each in again} == {(1, 0)}, "they begin anew"
        assert {header["value"] for each in again for header in each["headers"] if "reason" in header["name"]} == {
            "rejected"
        }, "and say how they died"
        assert not [header for each in again for header in each["headers"] if header["name"].startswith("__dlq")]
        assert queue("redrive", "--all", "--yes").startswith("0 dead letters")
        assert "no topic 'nowhere' of dead letters" in queue("redrive", "--max", "1", "--from", "nowhere", code=1)
        assert described(queue)["dead"] == 0, "what was brought back is no dead letter any more"

    def test_watched(self, queue: Queue, run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def pause(seconds: float) -> None:
            if seconds > 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", pause)
        done = run("queue", "describe", topic, "--watch", "5", "-o", "json")
        assert (done.code, json.loads(done.out)[0]["queue"]) == (130, topic)

    def test_browsing_leases_nothing(self, queue: Queue) -> None:
        queue("send", *(f"{number}" for number in range(20)))
        given = taken(queue, "--max", "3")
        shown = [line.split("\t") for line in queue("browse").splitlines()]
        assert sorted(int(line[3]) for line in shown) == list(range(20))
        assert sorted(line[3] for line in shown if line[0] == "leased") == sorted(each["value"] for each in given)
        assert len(queue("browse", "-n", "5").splitlines()) == 5
        assert len(queue("browse", "--state", "leased").splitlines()) == 3
        assert counts(queue) == (17, 3, 0, 0)

    def test_where_a_message_is(self, queue: Queue, topic: str) -> None:
        queue("send", *(f"{number}" for number in range(5)))
        queue("send", "--id", "order-4711", "pay")
        found = json.loads(queue("where", "order-4711", "-o", "json"))
        place = f"{found['partition']}:{found['offset']}"
        assert (found["state"], found["id"]) == ("ready", "order-4711")
        assert json.loads(queue("where", place, "-o", "json")) == found
        shown = queue("where", place).splitlines()
        assert shown[0] == f"queue {topic}, partition {found['partition']}, offset {found['offset']}"
        assert [line.split()[0] for line in shown[1:]] == ["state", "id", "published", "deliveries", "failed", "copies"]
        torn = taken(queue)[0]
        queue("nack", torn["receipt"], "--reject", "--reason", "torn")
        wait_until(lambda: described(queue)["dead"] == 1)
        shown = queue("where", f"{torn['partition']}:{torn['offset']}").splitlines()
        assert shown[1].split(maxsplit=1) == ["state", "dead letter"]
        assert [line.split(maxsplit=2)[2] for line in shown[-3:]] == [
            "dying: rejected: torn",
            f"written to dead letters, to topic dlq.{topic}",
            "dead letter",
        ]
        assert "has no message 'order-4712' that is not settled" in queue("where", "order-4712", code=1)
        assert f"has no message '{place}'" in queue("where", "--id", place, code=1)
        assert "has no partition 7; it has 0 to 1" in queue("where", "7:0", code=1)

    def test_purged(self, queue: Queue, run: Run, topic: str) -> None:
        queue("send", "one", "two", "three")
        taken(queue)
        assert f"Purge queue {topic} of 3 messages? " in queue("purge", code=2)
        assert queue("purge", "--yes").splitlines()[0] == f"purged 3 messages from queue {topic}"
        assert json.loads(queue("purge", "--yes", "-o", "json"))["purged"] == 0
        assert (counts(queue), queue("receive")) == ((0, 0, 0, 0), "")
        assert len(run("consume", topic).out.splitlines()) == 3, "the topic keeps its records"
