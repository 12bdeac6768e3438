"""`penstock group`: plans and tables by themselves, the rest against a real broker."""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    Producer,
    TopicPartition,
)
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.cli import group_table, groups
from penstock.cli.connection import Server
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.group_offsets import (
    Aim,
    Change,
    Progress,
    Target,
    TopicChoice,
    TopicWord,
    choose_partitions,
    plan_changes,
    read_target,
    sum_lag,
)
from penstock.cli.groups import Coordinator, Group, Member, busy_group
from penstock.cli.main import main
from penstock.cli.topics import Span
from penstock.testing import EmbeddedBroker

Run = Callable[..., Any]
DEADLINE_S = 60
SPANS = {("t", 0): Span(10, 100, 0), ("t", 1): Span(0, 50, 0)}
COMMITTED = {("t", 0): 40, ("t", 1): 0}


class TestPlan:
    @pytest.mark.parametrize(
        ("target", "wanted"),
        [
            (Target(Aim.EARLIEST), [Change("t", 0, 40, 10), Change("t", 1, 0, 0)]),
            (Target(Aim.LATEST), [Change("t", 0, 40, 100), Change("t", 1, 0, 50)]),
            (Target(Aim.TIME, 5), [Change("t", 0, 40, 33), Change("t", 1, 0, 50)]),
            (Target(Aim.SHIFT, 20), [Change("t", 0, 40, 60), Change("t", 1, 0, 20)]),
            (Target(Aim.SHIFT, -35), [Change("t", 0, 40, 10, 5), Change("t", 1, 0, 0, -35)]),
            (Target(Aim.OFFSET, 60), [Change("t", 0, 40, 60), Change("t", 1, 0, 50, 60)]),
            (Target(Aim.OFFSET, 0), [Change("t", 0, 40, 10, 0), Change("t", 1, 0, 0)]),
        ],
    )
    def test_targets(self, target: Target, wanted: list[Change]) -> None:
        assert plan_changes(target, SPANS, COMMITTED, {("t", 0): 33, ("t", 1): -1}) == wanted

    def test_without_a_committed_offset_only_a_shift_is_impossible(self) -> None:
        assert plan_changes(Target(Aim.LATEST), SPANS, {})[0] == Change("t", 0, None, 100)
        assert Change("t", 0, None, 100).distance is None
        with pytest.raises(CommandError, match="--shift -5: nothing was committed for t:0, t:1"):
            plan_changes(Target(Aim.SHIFT, -5), SPANS, {})

    @pytest.mark.parametrize(
        "said", [(False, False, None, None, None), (True, True, None, None, None), (False, False, None, 0, 0)]
    )
    def test_exactly_one_target(self, said: tuple[Any, ...]) -> None:
        with pytest.raises(CommandError, match="one of --to-earliest") as raised:
            read_target(*said)
        assert raised.value.code == USAGE

    def test_a_target_of_zero_is_one(self) -> None:
        assert read_target(False, False, 0, None, None) == Target(Aim.TIME, 0)
        assert read_target(False, False, None, 0, None) == Target(Aim.SHIFT, 0)
        assert read_target(False, False, None, None, 0) == Target(Aim.OFFSET, 0)

    @pytest.mark.parametrize(
        ("word", "choice"),
        [
            ("orders", TopicChoice("orders")),
            ("orders:3", TopicChoice("orders", (3,))),
            ("orders:2,0,2", TopicChoice("orders", (0, 2))),
        ],
    )
    def test_topics_with_partitions(self, word: str, choice: TopicChoice) -> None:
        assert TopicWord().convert(word, None, None) == choice

    @pytest.mark.parametrize("word", ["", ":1", "orders:", "orders:x", "orders:1,", "orders:-1"])
    def test_no_topics_with_partitions(self, word: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["group", "reset-offsets", "g", "--to-latest", "--topic", word]) == 2
        assert f"{word!r} is neither TOPIC nor TOPIC:PARTITION" in capsys.readouterr().err

    def test_partitions(self) -> None:
        parts = [SimpleNamespace(id=number) for number in (0, 1, 2)]
        known: Any = {"a": SimpleNamespace(partitions=parts), "b": SimpleNamespace(partitions=parts[:1])}
        committed = [("a", 1), ("a", 7), ("b", 0), ("gone", 0)]
        assert choose_partitions([], known, committed) == [("a", 1), ("b", 0)]
        assert choose_partitions([TopicChoice("b"), TopicChoice("a", (2, 0))], known, []) == [
            ("a", 0),
            ("a", 2),
            ("b", 0),
        ]
        with pytest.raises(CommandError, match="topic 'a' has no partition 3; it has 0 to 2"):
            choose_partitions([TopicChoice("a", (3,))], known, [])


class TestTables:
    def test_lag(self) -> None:
        progress = [
            Progress("t", 0, 5, 9),
            Progress("t", 1, 5, 5),
            Progress("t", 2, None, 9),
            Progress("t", 3, 5, None),
            Progress("t", 4, 9, 5),
        ]
        assert [each.lag for each in progress] == [4, 0, None, None, -4]
        assert sum_lag(progress) == 4

    def test_what_is_furthest_behind_comes_first(self) -> None:
        lag = group_table.format_lag(
            {
                "slow": [Progress("a", 0, 0, 1), Progress("b", 0, 0, 2), Progress("b", 1, 0, 3)],
                "dead": [Progress("gone", 0, 4, None)],
                "slowest": [Progress("a", 0, 1, 10)],
            }
        )
        assert (lag["lag"], lag["unknown"]) == (15, 1)
        assert [(each["group"], each["lag"]) for each in lag["groups"]] == [("slowest", 9), ("slow", 6), ("dead", 0)]
        assert lag["groups"][1]["topics"] == [
            {
                "topic": "b",
                "lag": 5,
                "unknown": 0,
                "partitions": [
                    {"partition": 1, "offset": 0, "end": 3, "lag": 3},
                    {"partition": 0, "offset": 0, "end": 2, "lag": 2},
                ],
            },
            {
                "topic": "a",
                "lag": 1,
                "unknown": 0,
                "partitions": [{"partition": 0, "offset": 0, "end": 1, "lag": 1}],
            },
        ]

    @pytest.mark.parametrize(
        ("level", "lines"),
        [
            ("group", ["GROUP TOPICS PARTITIONS LAG", "g 2 3 6"]),
            ("topic", ["GROUP TOPIC PARTITIONS LAG", "g b 2 5", "g a 1 1"]),
            (
                "partition",
                ["GROUP TOPIC PARTITION OFFSET END LAG", "g b 1 0 5 5", "g a 0 0 1 1", "g b 0 4 - -"],
            ),
        ],
    )
    def test_rows_of_each_level(self, level: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        progress = {"g": [Progress("a", 0, 0, 1), Progress("b", 0, 4, None), Progress("b", 1, 0, 5)]}
        group_table.print_lag(group_table.format_lag(progress), level)
        *rows, total = capsys.readouterr().out.splitlines()
        assert [" ".join(row.split()) for row in rows] == lines
        assert total == "total lag 6 of 1 group, not counting 1 partitions that do not answer or are gone"

    def test_clamped_offsets_are_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        group_table.print_changes([Change("t", 0, 40, 10, 5), Change("t", 1, None, 50, 60), Change("t", 2, 7, 7)])
        out, err = capsys.readouterr()
        assert [line.split() for line in out.splitlines()] == [
            ["TOPIC", "PARTITION", "FROM", "TO", "CHANGE"],
            ["t", "0", "40", "10", "-30"],
            ["t", "1", "-", "50", "-"],
            ["t", "2", "7", "7", "0"],
        ]
        assert err.splitlines() == [
            "partition 0 of topic t: 5 is before its start, so it goes to 10",
            "partition 1 of topic t: 60 is past its end, so it goes to 50",
        ]

    def test_a_group_of_many(self) -> None:
        members = tuple(Member(f"m-{n}", f"client-{n}", "10.0.0.1", None, ()) for n in range(7))
        told = str(busy_group(Group("g", "stable", "classic", Coordinator(1, "a:1"), "range", None, members)))
        assert told.startswith("group 'g' has 7 members (client-0 at 10.0.0.1, ")
        assert "client-4 at 10.0.0.1, 2 more); stop them" in told

    @pytest.mark.parametrize(
        ("kafka", "word"),
        [("Stable", "stable"), ("PreparingRebalance", "preparing-rebalance"), ("Reconciling", "reconciling")],
    )
    def test_every_state_can_be_asked_for(self, kafka: str, word: str) -> None:
        assert groups._format_state(kafka) == word
        assert word in groups.STATES

    def test_every_state_of_the_library_has_a_word(self) -> None:
        assert {groups._state_word(each.name) for each in ConsumerGroupState} <= set(groups.STATES)


Fill = Callable[..., None]


@pytest.fixture
def fill(broker: EmbeddedBroker, run: Run) -> Fill:
    """Makes a topic of two partitions with so many records in each; timestamps are their offsets, in seconds."""

    def write(topic: str, counts: Mapping[int, int]) -> None:
        assert run("topic", "create", topic, "--partitions", "2", "--set", "retention.ms=-1").code == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for partition, count in counts.items():
            for number in range(count):
                producer.produce(topic, b"x", partition=partition, timestamp=(number + 1) * 1000)
        assert producer.flush(DEADLINE_S) == 0

    return write


Commit = Callable[..., None]


@pytest.fixture
def commit(broker: EmbeddedBroker) -> Commit:
    """Commits offsets for a group that nobody is in."""

    def write(group: str, topic: str, offsets: Mapping[int, int]) -> None:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        places = [TopicPartition(topic, *each) for each in offsets.items()]
        assert all(each.error is None for each in consumer.commit(offsets=places, asynchronous=False))
        consumer.close()

    return write


Join = Callable[..., Any]


@pytest.fixture
def join(broker: EmbeddedBroker) -> Join:
    """Joins a group, and is a member until the block ends."""

    @contextmanager
    def member(group: str, topic: str, protocol: str = "classic", **more: Any) -> Iterator[Consumer]:
        told = {"bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": f"{group}-client"}
        timeouts = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
        consumer = Consumer({**told, "group.protocol": protocol, "enable.auto.commit": False, **timeouts, **more})
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < deadline, "no assignment"
            consumer.poll(0.05)
        try:
            yield consumer
        finally:
            consumer.close()

    return member


@pytest.fixture
def group(topic: str) -> str:
    return f"group-{topic}"


def described(run: Run, group: str, *words: str) -> dict[str, Any]:
    done = run("group", "describe", group, "-o", "json", *words)
    assert done.code == 0, done.err
    (only,) = json.loads(done.out)
    return dict(only)


def committed(run: Run, group: str) -> dict[int, int]:
    return {each["partition"]: each["offset"] for each in described(run, group)["offsets"]}


def listed(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    done = run("group", "list", "-o", "json", *words)
    assert done.code == 0, done.err
    return {each["group"]: each for each in json.loads(done.out)}


class Terminal(io.StringIO):
    """Standard input of a person who has typed already."""

    def isatty(self) -> bool:
        return True


class TestList:
    def test_states_and_types(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit, join: Join) -> None:
        fill(topic, {})
        commit(group, topic, {0: 0})
        assert listed(run)[group] == {"group": group, "state": "empty", "type": "classic"}
        assert group in listed(run, "--state", "EMPTY", "--state", "stable", "--type", "classic")
        assert group not in listed(run, "--state", "stable")
        assert group not in listed(run, "--type", "consumer")
        with join(group, topic):
            assert listed(run, "--state", "stable")[group]["state"] == "stable"
        rows = [line.split() for line in run("group", "list").out.splitlines()]
        assert rows[0] == ["GROUP", "STATE", "TYPE"]
        assert [group, "empty", "classic"] in rows

    def test_a_broker_without_an_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        """While a broker starts, librdkafka hands its error beside the groups of the others."""
        listing = SimpleNamespace(group_id="g", state=ConsumerGroupState.STABLE, type=ConsumerGroupType.CLASSIC)
        server = Server("there:9092", "a test")

        def listing_of(*valid: Any) -> Any:
            future: Future[Any] = Future()
            loading = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
            future.set_result(SimpleNamespace(valid=list(valid), errors=[loading]))
            return SimpleNamespace(list_consumer_groups=lambda request_timeout: future)

        assert list(groups.fetch_groups(server, listing_of(listing))) == ["g"]
        assert capsys.readouterr().err == "some groups may be missing: Broker: Coordinator load in progress\n"
        with pytest.raises(CommandError, match="Coordinator load in progress"):
            groups.fetch_groups(server, listing_of())

    @pytest.mark.parametrize(("security", "state"), [("plaintext", "reconciling"), ("ssl", "unknown")])
    def test_a_state_that_librdkafka_has_no_word_for(self, security: str, state: str) -> None:
        listing = SimpleNamespace(group_id="g", state=ConsumerGroupState.UNKNOWN, type=ConsumerGroupType.CONSUMER)
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(valid=[listing], errors=[]))
        admin: Any = SimpleNamespace(list_consumer_groups=lambda request_timeout: future)
        detail = {"group_id": "g", "group_state": "Reconciling", "group_epoch": 3, "assignment_epoch": 3}
        with scripted_broker(
            find_coordinator=Script(10, 0, 3, lambda _: {"host": broker.host, "port": broker.port}),
            consumer_group_describe=Script(69, 0, 1, lambda _: {"groups": [detail]}),
        ) as broker:
            server = Server(broker.address, "a test", {"security.protocol": security})
            assert groups.fetch_groups(server, admin) == {"g": ("g", state, "consumer")}

    def test_nothing_to_list(self, run: Run) -> None:
        assert run("group", "list", "--state", "dead") == (0, "", "no groups like that\n")

    def test_wrong_usage(self, run: Run) -> None:
        assert run("group", "list", "--state", "sleepy").code == 2
        assert run("group", "list", "--type", "share").code == 2


class TestDescribe:
    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_members_and_offsets(self, run: Run, topic: str, group: str, fill: Fill, join: Join, protocol: str) -> None:
        fill(topic, {0: 5, 1: 3})
        with join(group, topic, protocol, **{"group.instance.id": "desk-1"}) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
            found = described(run, group)
            shown = run("group", "describe", group).out
            only_members = described(run, group, "--members")
        (member,) = found["members"]
        assert (found["state"], found["type"], bool(found["assignor"])) == ("stable", protocol, True)
        assert (found["epoch"] is not None, member["epoch"] is not None) == (protocol == "consumer",) * 2
        assert (member["client_id"], member["host"], member["instance_id"]) == (
            f"{group}-client",
            "127.0.0.1",
            "desk-1",
        )
        assert member["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        owner = {"topic": topic, "client_id": f"{group}-client"}
        assert found["offsets"] == [
            {**owner, "partition": 0, "offset": 2, "end": 5, "lag": 3},
            {**owner, "partition": 1, "offset": None, "end": 3, "lag": None},
        ]
        assert found["lag"] == 3
        rows = [line.split() for line in shown.splitlines()]
        assert rows[0] == [group]
        assert [f"{group}-client", "127.0.0.1", "desk-1", f"{topic}:0,1"] in rows
        assert [topic, "0", "2", "5", "3", f"{group}-client"] in rows
        assert ("epoch" in shown) == (protocol == "consumer")
        assert "offsets" not in only_members
        assert only_members["members"] == [member]

    def test_without_members(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {0: 5})
        commit(group, topic, {0: 5})
        found = described(run, group)
        assert (found["state"], found["members"], found["lag"]) == ("empty", [], 0)
        assert found["coordinator"]["address"].startswith("127.0.0.1:")

    def test_a_group_that_is_not_there(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {})
        commit(group, topic, {0: 0})
        done = run("group", "describe", f"{group}x")
        assert (done.code, done.out) == (1, "")
        assert f"no group '{group}x', did you mean {group}?" in done.err


class TestLag:
    def test_named_groups_by_partition(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {0: 5, 1: 9})
        commit(group, topic, {0: 4, 1: 2})
        lines = run("group", "lag", group).out.splitlines()
        assert [line.split() for line in lines[1:-1]] == [
            [group, topic, "1", "2", "9", "7"],
            [group, topic, "0", "4", "5", "1"],
        ]
        assert lines[-1] == "total lag 8 of 1 group"
        (row,) = run("group", "lag", group, "--by", "topic").out.splitlines()[1:-1]
        assert row.split() == [group, topic, "2", "8"]

    def test_all_groups(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {0: 5, 1: 9})
        commit(group, topic, {0: 4, 1: 2})
        commit(f"{group}-b", topic, {0: 0})
        found = json.loads(run("group", "lag", "-o", "json").out)
        lags = {each["group"]: each["lag"] for each in found["groups"]}
        assert (lags[group], lags[f"{group}-b"]) == (8, 5)
        assert found["lag"] == sum(lags.values())
        assert list(lags.values()) == sorted(lags.values(), reverse=True)

    def test_a_topic_that_is_gone(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        """Kafka forgets the offsets of a deleted topic; either way the others are told."""
        fill(topic, {0: 5})
        fill(f"{topic}-old", {0: 5})
        commit(group, topic, {0: 1})
        commit(group, f"{topic}-old", {0: 1})
        assert run("topic", "delete", f"{topic}-old", "--yes").code == 0
        done = run("group", "lag", group)
        assert done.code == 0
        assert [group, topic, "0", "1", "5", "4"] in [line.split() for line in done.out.splitlines()]

    def test_a_group_that_is_not_there(self, run: Run, group: str) -> None:
        assert run("group", "lag", group).code == 1


class TestReset:
    @pytest.mark.parametrize(
        ("words", "offsets"),
        [
            (["--to-earliest"], {0: 0, 1: 0}),
            (["--to-latest"], {0: 9, 1: 4}),
            (["--to-time", "3000"], {0: 2, 1: 2}),
            (["--to-time", "5s"], {0: 9, 1: 4}),
            (["--shift", "-1"], {0: 4, 1: 0}),
            (["--to-offset", "6"], {0: 6, 1: 4}),
        ],
    )
    def test_targets(
        self, run: Run, topic: str, group: str, fill: Fill, commit: Commit, words: list[str], offsets: dict[int, int]
    ) -> None:
        fill(topic, {0: 9, 1: 4})
        commit(group, topic, {0: 5, 1: 0})
        done = run("group", "reset-offsets", group, "--all-topics", *words, "--dry-run", "-o", "json")
        planned = {each["partition"]: each["to"] for each in json.loads(done.out)["changes"]}
        assert (done.code, planned, committed(run, group)) == (0, offsets, {0: 5, 1: 0})
        assert run("group", "reset-offsets", group, "--all-topics", *words, "--yes").code == 0
        assert committed(run, group) == offsets

    def test_some_partitions(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {0: 9, 1: 4})
        commit(group, topic, {0: 5})
        done = run("group", "reset-offsets", group, "--topic", f"{topic}:1", "--to-latest", "--yes")
        assert (done.code, done.err) == (0, "")
        assert [line.split() for line in done.out.splitlines()] == [
            ["TOPIC", "PARTITION", "FROM", "TO", "CHANGE"],
            [topic, "1", "-", "4", "-"],
            ["reset", "1", "offset", "in", "group", group],
        ]
        assert committed(run, group) == {0: 5, 1: 4}
        done = run("group", "reset-offsets", group, "--topic", f"{topic}:1", "--to-latest", "--yes")
        assert done.out.endswith(f"nothing to change in group {group}\n")
        done = run("group", "reset-offsets", group, "--topic", f"{topic}:2", "--to-latest", "--yes")
        assert (done.code, f"topic '{topic}' has no partition 2" in done.err) == (1, True)

    @pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("", 130)])
    def test_asks_a_person(
        self,
        run: Run,
        topic: str,
        group: str,
        fill: Fill,
        commit: Commit,
        typed: str,
        code: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        fill(topic, {0: 9})
        commit(group, topic, {0: 5})
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        done = run("group", "reset-offsets", group, "--all-topics", "--to-latest")
        assert done.code == code
        assert f"Reset 1 offset of group {group}? [y/N]" in done.err
        assert ("nothing was reset" in done.err) == (code == 1)
        assert committed(run, group) == {0: 9 if code == 0 else 5}

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_not_while_there_are_members(
        self, run: Run, topic: str, group: str, fill: Fill, join: Join, protocol: str
    ) -> None:
        fill(topic, {0: 9})
        words = ("group", "reset-offsets", group, "--topic", topic, "--to-latest")
        with join(group, topic, protocol) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
            done = run(*words, "--yes")
            dry = run(*words, "--dry-run")
            assert committed(run, group)[0] == 2
        assert (done.code, done.out) == (1, "")
        assert f"group '{group}' has 1 member ({group}-client at 127.0.0.1); stop them" in done.err
        assert (dry.code, f"group {group} has members" in dry.err) == (0, True)

    def test_a_group_that_is_not_there(self, run: Run, topic: str, group: str, fill: Fill) -> None:
        fill(topic, {0: 9, 1: 4})
        words = ("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--yes")
        done = run(*words)
        assert (done.code, f"no group '{group}'" in done.err, group in listed(run)) == (1, True, False)
        assert run(*words, "--create").code == 0
        assert committed(run, group) == {0: 9, 1: 4}

    @pytest.mark.parametrize(
        "words",
        [
            ["--to-latest"],
            ["--all-topics"],
            ["--all-topics", "--topic", "t", "--to-latest"],
            ["--all-topics", "--to-latest", "--shift", "1"],
            ["--all-topics", "--to-offset", "-1"],
            ["--all-topics", "--to-time", "soon"],
        ],
    )
    def test_wrong_usage(self, run: Run, group: str, words: list[str]) -> None:
        assert run("group", "reset-offsets", group, *words).code == 2

    def test_an_unknown_topic_changes_nothing(
        self, run: Run, topic: str, group: str, fill: Fill, commit: Commit
    ) -> None:
        fill(topic, {0: 9})
        commit(group, topic, {0: 5})
        words = ("--topic", topic, "--topic", f"{topic}x", "--to-latest", "--yes")
        done = run("group", "reset-offsets", group, *words)
        assert (done.code, f"no topic '{topic}x', did you mean {topic}?" in done.err) == (1, True)
        assert committed(run, group) == {0: 5}


class TestDelete:
    def test_with_yes(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {})
        commit(group, topic, {0: 0})
        assert run("group", "delete", group, "--yes") == (0, f"deleted group {group}\n", "")
        assert group not in listed(run)
        assert run("group", "delete", group, "--yes").code == 1
        done = run("group", "delete", group, "--yes", "--if-exists", "-o", "json")
        assert (done.code, json.loads(done.out)) == (0, [{"group": group, "status": "missing"}])

    @pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1)])
    def test_asks_a_person(
        self,
        run: Run,
        topic: str,
        group: str,
        fill: Fill,
        commit: Commit,
        typed: str,
        code: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        fill(topic, {})
        commit(group, topic, {0: 0, 1: 0})
        assert run("group", "delete", group).code == 2
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        done = run("group", "delete", group)
        assert (done.code, f"Delete {group} with 2 committed offsets? [y/N]" in done.err) == (code, True)
        assert (group in listed(run)) == (code != 0)

    def test_one_with_members_saves_the_others(
        self, run: Run, topic: str, group: str, fill: Fill, commit: Commit, join: Join
    ) -> None:
        fill(topic, {})
        commit(f"{group}-b", topic, {0: 0})
        with join(group, topic):
            done = run("group", "delete", f"{group}-b", group, "--yes")
        assert (done.code, done.out) == (1, "")
        assert f"group '{group}' has 1 member ({group}-client at 127.0.0.1)" in done.err
        assert f"{group}-b" in listed(run)


class TestDeleteOffsets:
    def test_of_one_partition(self, run: Run, topic: str, group: str, fill: Fill, commit: Commit) -> None:
        fill(topic, {})
        commit(group, topic, {0: 0, 1: 0})
        done = run("group", "delete-offsets", group, "--topic", f"{topic}:1", "--yes", "-o", "json")
        assert json.loads(done.out) == {"group": group, "deleted": [{"topic": topic, "partition": 1}]}
        assert committed(run, group) == {0: 0}
        done = run("group", "delete-offsets", group, "--topic", f"{topic}:1", "--yes")
        assert (done.code, f"group '{group}' has no offsets of {topic}:1" in done.err) == (1, True)

    def test_not_of_a_topic_that_is_read(self, run: Run, topic: str, group: str, fill: Fill, join: Join) -> None:
        fill(topic, {})
        with join(group, topic) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            done = run("group", "delete-offsets", group, "--topic", topic, "--yes")
        assert (done.code, f"{topic}:0 (group subscribed to topic)" in done.err) == (1, True)

    def test_wrong_usage(self, run: Run, group: str) -> None:
        assert run("group", "delete-offsets", group, "--yes").code == 2


def test_names_are_completed(run: Run, topic: str, group: str, fill: Fill, commit: Commit, closed_port: int) -> None:
    fill(topic, {})
    commit(group, topic, {0: 0})
    context = click.Context(click.Command("describe"))
    offered = groups.GroupName().shell_complete(context, click.Argument(["name"]), group[:-1])
    assert [each.value for each in offered] == [group]
    context.params["address"] = f"127.0.0.1:{closed_port}"
    assert groups.GroupName().shell_complete(context, click.Argument(["name"]), "") == []


def test_no_server(closed_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list"], ["lag"], ["describe", "g"], ["delete", "g"]):
        assert main(["group", *words, "--server", f"127.0.0.1:{closed_port}"]) == 3
        assert "Connection refused" in capsys.readouterr().err
