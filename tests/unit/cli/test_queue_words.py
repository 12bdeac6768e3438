"""`penstock queue`: what is decided before a server is asked, and loops that ask one again and again."""

import io
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import click
import pytest

from penstock.cli import queue_receive, queue_redrive, queue_removal, queue_view
from penstock.cli.connection import Refused, Server
from penstock.cli.failure import UNREACHABLE, CommandError
from penstock.cli.main import main
from penstock.cli.queue_leaders import Leaders, unknown_queues
from penstock.cli.queue_messages import BROWSED, LANES, LEASED, QueueMessage
from penstock.cli.queue_times import RETURN_DELAY, TIME_TO_LIVE, VISIBILITY
from penstock.cli.queue_view import read_place
from penstock.cli.record_text import render_json, render_lines, render_people, render_template
from penstock.cli.verbs import Led, Verbs
from penstock.engine.queues import headers
from penstock.engine.queues.receipts import make_receipt
from penstock.engine.queues.settings import LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS, QUEUE_RULES, format_rules
from penstock.engine.queues.verdicts import LONGEST_DELAY_MS

Call = Callable[..., tuple[int, str, str]]
TOLD: Mapping[str, Any] = {
    "receipt": make_receipt(2, 7, 5),
    "partition": 2,
    "offset": 7,
    "timestamp": 1_777_593_600_123,
    "key": "k",
    "value_base64": "/w==",
    "headers": [{"name": "penstock-id", "value": "4711"}, {"name": "none", "value": None}],
    "deliveries": 3,
    "attempts": 1,
    "until_ms": 1_777_593_630_123,
}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closed_port: int) -> Call:
    """`penstock queue WORDS...` where no server is."""
    monkeypatch.setenv("PENSTOCK_SERVER", f"127.0.0.1:{closed_port}")

    def run(*words: str, said: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said)))
        capsys.readouterr()
        code = main(["queue", *words])
        return code, *capsys.readouterr()

    return run


class TestWords:
    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ("create bad/name", "queue name 'bad/name'"),
            ("create jobs:", "there is no group behind its ':'"),
            ("create jobs --on-full never", "'never' is not one of 'reject', 'drop-oldest', 'dead-letter'"),
            ("create jobs --ttl 1d --set ttl=2d", "ttl is said twice"),
            ("create jobs --set ttl", "'ttl' is no KEY=VALUE"),
            ("alter jobs", "nothing to change"),
            ("alter jobs --ttl 1d --unset ttl", "ttl is both set and unset"),
            ("send jobs x --delay 5m --deliver-at 2026-05-01", "--delay and --deliver-at exclude one another"),
            ("send jobs x --deliver-at 5m", "'5m' is no point in time"),
            ("send jobs x --priority urgent", "--priority: 'urgent' is not 0 to 9, or critical"),
            ("send jobs x --priority 10", "--priority: '10' is not 0 to 9"),
            ("send jobs x --ttl 0s", "'--ttl': '0s' is out of bounds; a message may wait for 1ms to 36500d"),
            ("send jobs x y --id a", "2 messages would have the same --id; with --json each line has its own"),
            ("send jobs x --ttl 5", "'5' is no duration"),
            ("send jobs x --file f", "exclude --file and --whole"),
            ("send jobs x --header h", "header 'h' is no NAME=VALUE"),
            ("receive jobs --max 0", "0 is not in the range"),
            ("receive jobs --visibility 1ms", "'--visibility': '1ms' is out of bounds; a lease lasts 1s to 12h"),
            ("extend jobs r --visibility 13h", "'--visibility': '13h' is out of bounds; a lease lasts 1s to 12h"),
            ("nack jobs r --delay 8d", "'--delay': '8d' is out of bounds; a message that comes back waits 0ms to 7d"),
            ("receive jobs --show state", "'state' is no field; there are receipt, topic"),
            ("browse jobs --format %r", "'%r' is no token"),
            ("browse jobs --state settled", "'settled' is not one of 'ready', 'leased', 'delayed', 'dying'"),
            ("nack jobs r --reject --delay 5m", "--reject and --delay exclude one another"),
            ("ack jobs -", "no receipts on standard input"),
            ("where jobs", "say which message"),
            ("where jobs 0:1 --id x", "say which message"),
            ("redrive jobs", "say which dead letters"),
            ("redrive jobs 0:1 --all", "say which dead letters"),
            ("redrive jobs 0", "'0' is no PARTITION:OFFSET"),
            ("create jobs --single-active --set single-active=true", "single-active is said twice"),
            ("create jobs --lanes first", "'first' is not one of 'weighted', 'strict'"),
            ("receive jobs --lane urgent", "'urgent' is not one of 'critical', 'high', 'normal', 'low', 'background'"),
            ("delayed jobs 0:1", "say what is to become of them: --cancel or --now"),
            ("delayed jobs --all", "say what is to become of them: --cancel or --now"),
            ("delayed jobs --cancel --now 0:1", "--cancel and --now exclude one another"),
            ("delayed jobs --cancel", "say which messages: PARTITION:OFFSET"),
            ("delayed jobs --now 0:1 --all", "say which messages: PARTITION:OFFSET"),
            ("delayed jobs --now 0:1 -p 0", "--partition is for looking, or with --all"),
            ("delayed jobs --cancel --all -n 3", "--count is for looking"),
            ("delayed jobs --cancel 0:1", "Nobody can be asked here: say --yes"),
            ("delayed jobs --show state", "'state' is no field; there are due, topic"),
            ("sned jobs", "no command queue 'sned'; did you mean send?"),
        ],
    )
    def test_what_cannot_be_meant(self, call: Call, words: str, told: str) -> None:
        code, out, err = call(*words.split(" "))
        assert (code, out) == (2, "")
        assert told in err

    def test_without_a_server(self, call: Call) -> None:
        for words in ("list", "describe jobs", "receive jobs", f"ack jobs {make_receipt(0, 1, 2)}", "send jobs x"):
            code, out, err = call(*words.split(" "))
            assert (code, out, "no server at" in err) == (3, "", True), words

    def test_every_command_has_a_help(self, call: Call) -> None:
        _, told, _ = call("--help")
        for name in ("create", "describe", "send", "receive", "delayed", "redrive", "where"):
            assert f"  {name} " in told
            code, out, _ = call(name, "--help")
            assert (code, "Examples:" in out) == (0, True)

    def test_times_are_bounded_as_the_broker_does(self) -> None:
        bounds = [(LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS), (0, LONGEST_DELAY_MS), (1, headers.LONGEST_MS)]
        for taken, (least_ms, most_ms) in zip((VISIBILITY, RETURN_DELAY, TIME_TO_LIVE), bounds, strict=True):
            assert [taken.convert(f"{ms}ms", None, None) for ms in (least_ms, most_ms)] == [least_ms, most_ms]
            for beyond in {max(least_ms - 1, 0), most_ms + 1} - {least_ms}:
                with pytest.raises(click.BadParameter):
                    taken.convert(f"{beyond}ms", None, None)

    def test_help_tells_the_defaults(self, call: Call) -> None:
        told = " ".join(call("create", "--help")[1].split())
        rules = format_rules(QUEUE_RULES)
        for name in ("visibility", "max-attempts", "backoff"):
            assert f"{name} {rules[name]}," in told
        assert (rules["dead-letter"], rules["ttl"], rules["max-size"]) == ("default", "none", "none")
        assert "dead letters in topic dlq.QUEUE, no ttl and no max-size" in told

    def test_a_flag_for_every_setting_of_order(self, call: Call) -> None:
        told = " ".join(call("alter", "--help")[1].split())
        for words in ("--kind [standard|fifo]", "--single-active / --no-single-active", "--lanes [weighted|strict]"):
            assert words in told
        assert set(LANES) == set(headers.LANES)

    @pytest.mark.parametrize("word", ["", "1", ":1", "1:", "a:1", "1:-1", "1:2:3", "1:" + "9" * 30])
    def test_what_is_an_id(self, word: str) -> None:
        assert read_place(word) is None

    def test_what_is_a_place(self) -> None:
        assert read_place("2:1045") == (2, 1045)

    def test_a_name_that_may_have_been_meant(self) -> None:
        told = str(unknown_queues(["job", "x"], ["jobs", "mails"]))
        assert "no queue 'job', did you mean jobs?; no queue 'x' (" in told


class TestSending:
    """--dry-run asks no server."""

    def test_what_flags_say_is_in_the_headers(self, call: Call) -> None:
        flags = "--id a --ttl 1h --priority high --delay 5m --tenant acme -H x=y --key k"
        code, out, _ = call("send", "jobs:audit", "pay", "--dry-run", *flags.split(" "))
        record = json.loads(out)
        assert (code, record["topic"], record["key"], record["value"]) == (0, "jobs", "k", "pay")
        assert {each["name"]: each["value"] for each in record["headers"]} == {
            "x": "y",
            "penstock-id": "a",
            "penstock-ttl-ms": "3600000",
            "penstock-priority": "high",
            "penstock-delay-ms": "300000",
            "penstock-tenant": "acme",
        }

    @pytest.mark.parametrize("said", ["2026-05-01T00:00:00.123Z", "1777593600123"])
    def test_a_moment(self, call: Call, said: str) -> None:
        _, out, _ = call("send", "jobs", "x", "--dry-run", "--deliver-at", said)
        assert json.loads(out)["headers"] == [{"name": "penstock-deliver-at", "value": "1777593600123"}]

    def test_words_lines_and_json(self, call: Call) -> None:
        def values(*words: str, said: bytes = b"") -> list[Any]:
            _, out, _ = call("send", "jobs", "--dry-run", *words, said=said)
            return [(record["key"], record["value"]) for record in map(json.loads, out.splitlines())]

        assert values("one", "", "two\n") == [(None, "one"), (None, ""), (None, "two\n")]
        assert values(said=b"one\ntwo") == [(None, "one"), (None, "two")]
        assert values("a:1", "-K", ":") == [("a", "1")]
        assert values("--json", '{"key": "k", "value": {"a": 1}}') == [("k", '{"a":1}')]
        assert values("one", "two", "-n", "1") == [(None, "one")]

    def test_what_receive_prints_is_good_input(self, call: Call) -> None:
        line = render_json(terminal=False, words=LEASED)([QueueMessage("jobs", dict(TOLD))])
        code, out, err = call("send", "copy", "--json", "--dry-run", said=line)
        assert (code, err) == (0, "1 message would be sent\n")
        assert json.loads(out)["value_base64"] == "/w=="

    def test_no_two_messages_get_one_id(self, call: Call) -> None:
        for words, said in ((["x", "y"], b""), ([], b"x\ny\n")):
            code, _, err = call("send", "jobs", "--id", "a", "--dry-run", *words, said=said)
            assert (code, "would have the same --id" in err) == (2, True)


class TestPrinting:
    def test_a_leased_message(self) -> None:
        message = QueueMessage("jobs", dict(TOLD))
        assert json.loads(render_json(terminal=False, words=LEASED)([message])) == {
            "receipt": TOLD["receipt"],
            "deliveries": 3,
            "attempts": 1,
            "until_ms": 1_777_593_630_123,
            "topic": "jobs",
            "partition": 2,
            "offset": 7,
            "timestamp": 1_777_593_600_123,
            "time": "2026-05-01T00:00:00.123Z",
            "key": "k",
            "value_base64": "/w==",
            "headers": [{"name": "penstock-id", "value": "4711"}, {"name": "none", "value": None}],
        }
        line = render_lines(["receipt", "deliveries", "until"], b"\n", LEASED)([message])
        assert line == f"{TOLD['receipt']}\t3\t2026-05-01T00:00:30.123Z\t".encode() + b"\xff\n"
        shown = render_template("%r %d %a %u %p:%o", terminal=False, words=LEASED)([message])
        assert shown == f"{TOLD['receipt']} 3 1 2026-05-01T00:00:30.123Z 2:7".encode()

    def test_a_message_that_is_looked_at(self) -> None:
        told = {**TOLD, "state": "delayed", "until_ms": None, "value": "v", "attempts": 0, "deliveries": 1}
        del told["value_base64"]
        message = QueueMessage("jobs", told)
        assert render_lines(["state", "until"], b"\n", BROWSED)([message]) == b"delayed\t-\tv\n"
        shown = render_people(["state", "deliveries", "until", "key"], colour=False, words=BROWSED)([message])
        assert shown == b"delayed  k  v\n", "what goes without saying is not said"
        tried = QueueMessage("jobs", {**told, "attempts": 1, "deliveries": 2})
        assert b"delivery 2 (1 failed)" in render_people(["deliveries"], colour=False, words=BROWSED)([tried])


class FakeVerbs(Verbs):
    def __init__(self, answer: Callable[[Any, Mapping[str, Any]], Any], leaders: Mapping[int, Any]) -> None:
        self.asked: list[tuple[Any, Mapping[str, Any]]] = []
        self._told = leaders
        self._answer = answer

    def leaders(self, topic: str) -> Led:
        return Led(sorted(self._told), dict(self._told))

    def ask(self, what: str, verb: str, /, *, at: Any = None, **fields: Any) -> Any:
        self.asked.append((at, fields))
        return self._answer(at, fields)


def leasing(verbs: Verbs, most: int, partitions: list[int], *, is_choice: bool = False) -> queue_receive._Leasing:
    leaders = Leaders(Server("h:1", "a test", timeout_s=1), verbs, "jobs")
    return queue_receive._Leasing(leaders, partitions, is_choice, most, None)


class TestLeasing:
    def test_all_brokers_are_asked_until_there_are_enough(self) -> None:
        left = {"a": 150, "b": 70}

        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            count = min(left[at], fields["most"])
            left[at] -= count
            return {"messages": [dict(TOLD)] * count}

        verbs = FakeVerbs(answer, {0: "a", 1: "b", 2: "a"})
        assert sum(map(len, leasing(verbs, 200, [0, 1, 2]).batches(0))) == 200
        assert sum(left.values()) == 20
        assert all(fields["wait_ms"] == 0 and fields["partition"] is None for _, fields in verbs.asked)
        assert len({fields["consumer"] for _, fields in verbs.asked}) == 1

    def test_partitions_that_were_chosen_are_asked_one_by_one(self) -> None:
        verbs = FakeVerbs(lambda at, fields: {"messages": []}, {0: "a", 1: "b", 2: "a"})
        assert list(leasing(verbs, 5, [0, 1, 2], is_choice=True).batches(0)) == []
        assert sorted((at, fields["partition"]) for at, fields in verbs.asked) == [("a", 0), ("a", 2), ("b", 1)]

    def test_who_waits_lets_brokers_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            now[0] += fields["wait_ms"] / 1000
            return {"messages": [dict(TOLD)] if now[0] >= 102.5 else []}

        verbs = FakeVerbs(answer, {0: "a", 1: "b"})
        assert sum(map(len, leasing(verbs, 1, [0, 1]).batches(110))) == 1
        assert now[0] == 102.5
        assert max(fields["wait_ms"] for _, fields in verbs.asked) == 500, "a second in all, then all are asked anew"

    def test_a_broker_that_is_gone_takes_nothing_from_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "sleep", lambda seconds: None)

        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            if at == "a":
                raise CommandError("gone", code=UNREACHABLE)
            return {"messages": [dict(TOLD)]}

        assert sum(map(len, leasing(FakeVerbs(answer, {0: "a", 1: "b"}), 3, [0, 1]).batches(0))) == 3

    def test_what_nobody_sees_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Closed(io.BytesIO):
            def flush(self) -> None:
                raise BrokenPipeError

        verbs = FakeVerbs(lambda at, fields: {"results": [{"receipt": TOLD["receipt"], "error": None}]}, {2: None})
        leaders = Leaders(Server("h:1", "a test"), verbs, "jobs")
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Closed()))
        with pytest.raises(BrokenPipeError):
            queue_receive._print(leaders, [QueueMessage("jobs", dict(TOLD))], lambda messages: b"x")
        assert verbs.asked == [
            (None, {"queue": "jobs", "receipts": [{"receipt": TOLD["receipt"], "verdict": "release"}]})
        ]


class TestDeleting:
    SERVER = Server("h:1", "a test", timeout_s=0.2)

    def test_leaders_forget_before_and_after(self) -> None:
        verbs = FakeVerbs(lambda at, fields: {}, {0: "a", 1: "b"})
        assert queue_removal._delete(self.SERVER, verbs, ["jobs"]) == {}
        assert [(at, fields.get("partition")) for at, fields in verbs.asked] == [
            *(("a", 0), ("b", 1)),
            (None, None),
            *(("a", 0), ("b", 1)),
        ]

    def test_while_a_leader_is_away_nothing_is_deleted(self) -> None:
        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            if at == "b":
                raise CommandError("b is away", code=UNREACHABLE)

        verbs = FakeVerbs(answer, {0: "a", 1: "b"})
        assert queue_removal._delete(self.SERVER, verbs, ["jobs"]) == {"jobs": "b is away"}
        assert None not in [at for at, _ in verbs.asked]


class TestDescribing:
    def test_a_leader_that_is_away_is_told_of(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            if at == "b":
                raise CommandError("b is away", code=UNREACHABLE)
            counts = {"ready": 3, "leased": 1, "delayed": 0, "dying": 0, "held_bytes": 5, "oldest_ms": 7}
            row = {"partition": 0, "leader": 1, **counts}
            head = {"queue": "jobs", "topic": "jobs", "group": "jobs", "made_by": "queue", "dead_letter_topic": None}
            return {**head, "settings": [], "partitions": [row]}

        leaders = Leaders(Server("h:1", "a test"), FakeVerbs(answer, {0: "a", 1: "b"}), "jobs")
        monkeypatch.setattr(queue_view, "leaders_of", lambda server, queue: nullcontext(leaders))
        found = queue_view.describe_queue(leaders.server, "jobs")
        assert (found["ready"], found["oldest_ms"], found["silent"]) == (3, 7, [1])
        assert queue_view.sum_unsettled([found]) == 4

    @pytest.mark.parametrize("knows", [True, False])
    def test_a_group_is_there_if_any_leader_knows_it(self, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            row = {"partition": 0 if at == "a" else 1, "leader": 1}
            counts = {"ready": 3, "leased": 1, "delayed": 0, "dying": 0, "held_bytes": 5, "oldest_ms": 7}
            head = {"queue": "jobs:g", "topic": "jobs", "group": "g", "made_by": "share", "dead_letter_topic": None}
            return {**head, "settings": [], "partitions": [row | counts if knows and at == "b" else row]}

        leaders = Leaders(Server("h:1", "a test"), FakeVerbs(answer, {0: "a", 1: "b"}), "jobs:g")
        monkeypatch.setattr(queue_view, "leaders_of", lambda server, queue: nullcontext(leaders))
        if knows:
            found = queue_view.describe_queue(leaders.server, "jobs:g")
            assert (found["ready"], found["silent"]) == (3, [])
        else:
            with pytest.raises(Refused, match="there is no queue 'jobs:g'"):
                queue_view.describe_queue(leaders.server, "jobs:g")


class TestRedriving:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
        return now

    def redriving(
        self, dead: dict[int, int], most: int | None = None, rate: float | None = None
    ) -> tuple[queue_redrive._Redriving, FakeVerbs]:
        """With so many dead letters in each partition; each question meets five more."""
        ends = dict(dead)

        def answer(at: Any, fields: Mapping[str, Any]) -> Any:
            number = fields["partition"]
            if offsets := fields.get("offsets"):
                return {"moved": len(offsets), "next": None, "end": None}
            end = ends[number] if fields["end"] is None else fields["end"]
            ends[number] += 5
            start = fields["offset"] or 0
            moved = min(end - start, fields["most"])
            return {"moved": moved, "next": start + moved if start + moved < end else None, "end": end}

        verbs = FakeVerbs(answer, dict.fromkeys(dead))
        letters = Leaders(Server("h:1", "a test"), verbs, "dlq.jobs")
        return queue_redrive._Redriving(letters, {"origin": "jobs", "to": None}, most, rate), verbs

    def test_all_are_those_there_were_at_first(self, clock: list[float]) -> None:
        redriving, _ = self.redriving({0: 250, 1: 30})
        assert not redriving.run([])
        assert redriving.moved == 280

    def test_some(self, clock: list[float]) -> None:
        redriving, verbs = self.redriving({0: 110, 1: 30}, 120)
        assert not redriving.run([])
        asked = [(fields["partition"], fields["most"]) for _, fields in verbs.asked]
        assert (redriving.moved, asked) == (120, [(0, 100), (0, 20), (1, 10)])

    def test_those_that_are_named(self, clock: list[float]) -> None:
        redriving, verbs = self.redriving({0: 10, 1: 10})
        assert not redriving.run([(1, 7), (0, 5), (1, 3), (1, 7)])
        asked = [(fields["partition"], fields["offsets"]) for _, fields in verbs.asked]
        assert (redriving.moved, asked) == (3, [(0, [5]), (1, [3, 7])])
        with pytest.raises(CommandError, match="has no partition 2"):
            redriving.run([(2, 1)])

    def test_a_rate_is_kept(self, clock: list[float]) -> None:
        redriving, verbs = self.redriving({0: 250}, 100, 50)
        redriving.run([])
        assert (redriving.moved, len(verbs.asked)) == (100, 20)
        assert clock[0] == pytest.approx(2)


def test_what_is_in_a_transaction_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    place = {"partition": 0, "offset": 3, "state": "leased", "deliveries": 1, "attempts": 0, "until_ms": None}
    queue_view._print_place("jobs", {**place, "in_transaction": True})
    assert "leased, acknowledged in a transaction that has not ended" in capsys.readouterr().out
    queue_view._print_place("jobs", place)
    assert "transaction" not in capsys.readouterr().out
    assert queue_view._format_pending(0) == {}
    assert queue_view._format_pending(1200)["in a transaction"].startswith("1,200 of what is leased")
