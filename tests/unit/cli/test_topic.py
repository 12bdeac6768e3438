"""`penstock topic` against a real broker: what is changed, what is said, what is refused."""

import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from penstock.cli import topic as topic_commands
from penstock.cli.alteration import Step
from penstock.cli.connection import Server
from penstock.cli.topics import unknown_topics
from penstock.testing import EmbeddedBroker

Run = Callable[..., Any]
Fill = Callable[..., None]

DAY_MS = 86_400_000
LONG_AGO_MS = (int(time.time()) - 6 * 86_400) * 1000  # and not so long that retention takes it while a test looks on


@pytest.fixture
def fill(broker: EmbeddedBroker) -> Fill:
    """Writes records with the given timestamps."""

    def write(topic: str, partition: int, timestamps_ms: Sequence[int]) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for timestamp_ms in timestamps_ms:
            producer.produce(topic, b"x", partition=partition, timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    return write


class Terminal(io.StringIO):
    """Standard input of a person who has typed already."""

    def isatty(self) -> bool:
        return True


def described(run: Run, topic: str, *more: str) -> dict[str, Any]:
    done = run("topic", "describe", topic, "-o", "json", *more)
    assert done.code == 0, done.err
    (only,) = json.loads(done.out)
    return dict(only)


def settings(run: Run, topic: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in described(run, topic)["settings"]}


def exists(run: Run, topic: str) -> bool:
    return [each["name"] for each in json.loads(run("topic", "list", "--pattern", topic, "-o", "json").out)] == [topic]


class TestCreate:
    def test_several_with_settings(self, run: Run, topic: str) -> None:
        second = f"{topic}-b"
        done = run("topic", "create", topic, second, "--partitions", "2", "--set", f"retention.ms={DAY_MS}")
        assert done == (0, f"created topic {topic}\ncreated topic {second}\n", "")
        for name in (topic, second):
            assert len(described(run, name)["partitions"]) == 2
            assert settings(run, name) == {"retention.ms": str(DAY_MS)}

    def test_the_server_s_defaults(self, run: Run, topic: str) -> None:
        assert run("topic", "create", topic).code == 0
        assert len(described(run, topic)["partitions"]) == 3
        assert settings(run, topic) == {}

    def test_one_that_exists_is_refused_and_the_others_are_made(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "create", topic, f"{topic}-b")
        told = f"penstock: topic '{topic}' exists already; --if-not-exists leaves it as it is\n"
        assert done == (1, f"created topic {topic}-b\n", told)

    def test_if_not_exists(self, run: Run, topic: str) -> None:
        words = ("topic", "create", topic, "--if-not-exists", "-o", "json")
        assert json.loads(run(*words).out) == [{"topic": topic, "status": "created"}]
        done = run(*words, "--partitions", "9")
        assert (done.code, json.loads(done.out)) == (0, [{"topic": topic, "status": "exists"}])
        assert len(described(run, topic)["partitions"]) == 3

    def test_a_dry_run_makes_nothing(self, run: Run, topic: str) -> None:
        assert run("topic", "create", topic, "--dry-run") == (0, f"topic {topic} could be created\n", "")
        assert not exists(run, topic)

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            (["--set", "retention.mss=1"], "retention.mss"),
            (["--set", "retention.ms=long"], "'long'"),
            (["--replication-factor", "7"], "7"),
        ],
    )
    def test_what_the_server_refuses_is_told_in_its_words(
        self, run: Run, topic: str, more: list[str], told: str
    ) -> None:
        done = run("topic", "create", topic, *more)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"penstock: topic '{topic}' cannot be created: ")
        assert told in done.err
        assert not exists(run, topic)

    def test_a_name_that_is_none(self, run: Run) -> None:
        done = run("topic", "create", "two words")
        assert done.code == 1
        assert "'two words'" in done.err

    @pytest.mark.parametrize("more", [["--partitions", "0"], ["--partitions", "x"], ["--set", "retention.ms"], []])
    def test_wrong_usage(self, run: Run, topic: str, more: list[str]) -> None:
        assert run("topic", "create", *([topic, *more] if more else [])).code == 2
        assert not exists(run, topic)


class TestList:
    def test_sizes_and_policies(self, run: Run, topic: str, fill: Fill) -> None:
        run("topic", "create", topic, "--partitions", "2")
        fill(topic, 0, [LONG_AGO_MS] * 3)
        fill(topic, 1, [LONG_AGO_MS] * 4)
        done = run("topic", "list", "--pattern", f"{topic[:-2]}*")
        header, row = done.out.splitlines()
        assert header.split() == ["NAME", "PARTITIONS", "REPLICAS", "RECORDS", "CLEANUP", "POLICY"]
        assert row.split() == [topic, "2", "1", "7", "delete"]

    def test_for_scripts(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, f"{topic}-b")
        expected = {"partitions": 3, "replicas": 1, "records": 0, "cleanup_policy": "delete", "internal": False}
        rows = [{"name": topic, **expected}, {"name": f"{topic}-b", **expected}]
        assert json.loads(run("topic", "list", "--pattern", f"{topic}*", "-o", "json").out) == rows
        assert yaml.safe_load(run("topic", "list", "--pattern", f"{topic}*", "-o", "yaml").out) == rows

    def test_the_server_s_own_topics_are_hidden(self, run: Run, topic: str) -> None:
        run("topic", "create", f"__{topic}")
        pattern = ("--pattern", f"*{topic}", "-o", "json")
        assert json.loads(run("topic", "list", *pattern).out) == []
        assert [each["internal"] for each in json.loads(run("topic", "list", *pattern, "--internal").out)] == [True]

    def test_no_match_is_said_beside_the_answer(self, run: Run, topic: str) -> None:
        assert run("topic", "list", "--pattern", topic) == (0, "", "no topics like that\n")

    def test_the_number_of_requests_does_not_grow_with_the_topics(
        self, run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("topic", "create", *(f"{topic}-{number}" for number in range(20)))
        calls = []
        make = Server.admin

        def counted(server: Server) -> Any:
            class Counting:
                admin = make(server)

                def __getattr__(self, name: str) -> Any:
                    calls.append(name)
                    return getattr(self.admin, name)

            return Counting()

        monkeypatch.setattr(Server, "admin", counted)
        assert len(json.loads(run("topic", "list", "--pattern", f"{topic}-*", "-o", "json").out)) == 20
        assert calls == ["list_topics", "describe_configs", "list_offsets", "list_offsets"]


class TestDescribe:
    def test_for_people(self, run: Run, topic: str, fill: Fill) -> None:
        run("topic", "create", topic, "--partitions", "2", "--set", "retention.bytes=1000000")
        fill(topic, 1, [LONG_AGO_MS] * 5)
        lines = [line.split() for line in run("topic", "describe", topic).out.splitlines()]
        assert [topic] in lines
        assert ["records", "5"] in lines
        assert ["PARTITION", "LEADER", "REPLICAS", "IN", "SYNC", "START", "END", "RECORDS", "EPOCH"] in lines
        assert ["1", "1", "1", "1", "0", "5", "5", "0"] in lines
        assert ["retention.bytes", "1000000", "topic"] in lines
        assert not any("segment.bytes" in line for line in lines)

    def test_what_unchecked_records_give_up_is_said(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "records.check=none")
        assert "records.check=none: other batches are kept as they come" in run("topic", "describe", topic).out
        run("topic", "alter", topic, "--unset", "records.check")
        assert "stop every reader" not in run("topic", "describe", topic, "--all").out

    def test_who_may_lead_without_being_in_sync_is_shown(
        self, run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("topic", "create", topic, "--partitions", "2")
        assert [each["eligible"] for each in described(run, topic)["partitions"]] == [[], []]
        monkeypatch.setattr("penstock.cli.topics.fetch_eligible", lambda *_: {(topic, 1): [2, 3]})
        lines = [line.split() for line in run("topic", "describe", topic).out.splitlines()]
        assert any(line[-1:] == ["ELIGIBLE"] for line in lines)
        assert any(line[:1] == ["1"] and line[-1] == "2,3" for line in lines)

    def test_every_setting_with_source_and_default(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "retention.bytes=1000000")
        found = {each["name"]: each for each in described(run, topic, "--all")["settings"]}
        assert (found["retention.bytes"]["source"], found["retention.bytes"]["default"]) == ("topic", "-1")
        assert (found["segment.ms"]["source"], found["segment.ms"]["value"]) == ("static", "3600000")
        assert found["segment.bytes"]["source"] == "default"
        assert found["segment.bytes"]["default"] == found["segment.bytes"]["value"]
        assert ["segment.ms", "3600000", "static"] in [
            line.split()[:3] for line in run("topic", "describe", topic, "--all").out.splitlines()
        ]

    def test_the_id_is_written_as_kafka_writes_it(self, run: Run, topic: str) -> None:
        names = [f"{topic}-{number}" for number in range(30)]  # one in two ids has a character that may be wrong
        run("topic", "create", *names, "-p", "1")
        ids = [each["id"] for each in json.loads(run("topic", "describe", *names, "-o", "json").out)]
        assert len(set(ids)) == 30
        assert all(len(each) == 22 and each.replace("-", "").replace("_", "").isalnum() for each in ids)

    def test_an_unknown_one_is_not_made_by_asking(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "describe", topic + "x")
        assert (done.code, done.out) == (1, "")
        assert (
            done.err == f"penstock: no topic '{topic}x', did you mean {topic}? ('penstock topic list' shows them all)\n"
        )
        assert not exists(run, topic + "x")


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    assert str(unknown_topics(["q"], ["orders"])) == "no topic 'q' ('penstock topic list' shows them all)"


class TestAlter:
    def test_settings_old_and_new(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "retention.ms=1000")
        done = run("topic", "alter", topic, "--set", "retention.ms=2000", "--set", "segment.bytes=2000000")
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines() == [
            f"altered topic {topic}:",
            "  retention.ms   1000 → 2000",
            "  segment.bytes  1073741824 → 2000000",
        ]
        assert settings(run, topic) == {"retention.ms": "2000", "segment.bytes": "2000000"}

    def test_unset_goes_back_to_the_server_s_default(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "segment.ms=1000")
        done = run("topic", "alter", topic, "--unset", "segment.ms")
        assert done.out == f"altered topic {topic}:\n  segment.ms  1000 → 3600000 (default)\n"
        assert settings(run, topic) == {}

    def test_more_partitions(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "alter", topic, "--partitions", "5")
        assert done.out == f"altered topic {topic}:\n  partitions  3 → 5\n"
        assert "key" in done.err
        assert len(described(run, topic)["partitions"]) == 5

    def test_a_dry_run_changes_nothing(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "segment.ms=1000")
        done = run(
            *("topic", "alter", topic, "--set", "retention.ms=2000", "--unset", "segment.ms"),
            *("--partitions", "5", "--dry-run", "-o", "json"),
        )
        assert json.loads(done.out) == {
            "topic": topic,
            "dry_run": True,
            "changes": [
                {"name": "segment.ms", "operation": "delete", "old": "1000", "new": None},
                {"name": "retention.ms", "operation": "set", "old": "604800000", "new": "2000"},
                {"name": "partitions", "operation": "set", "old": 3, "new": 5},
            ],
        }
        assert settings(run, topic) == {"segment.ms": "1000"}
        assert len(described(run, topic)["partitions"]) == 3

    @pytest.mark.parametrize(
        "words",
        [
            ["--set", "retention.ms=2000", "--partitions", "2"],
            ["--set", "retention.ms=long", "--partitions", "5"],
            ["--set", "retention.ms=2000", "--set", "no.such.setting=1"],
        ],
    )
    def test_one_refusal_and_nothing_changes(self, run: Run, topic: str, words: list[str]) -> None:
        run("topic", "create", topic)
        done = run("topic", "alter", topic, *words)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"penstock: topic '{topic}' cannot ")
        assert settings(run, topic) == {}
        assert len(described(run, topic)["partitions"]) == 3

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            ([], "nothing to change"),
            (["--set", "a=1", "--unset", "a"], "a: changed twice"),
            (["--set", "oops"], "'oops' is no KEY=VALUE"),
        ],
    )
    def test_wrong_usage(self, run: Run, topic: str, words: list[str], told: str) -> None:
        done = run("topic", "alter", topic, *words)
        assert done.code == 2
        assert told in done.err

    def test_an_unknown_topic(self, run: Run, topic: str) -> None:
        done = run("topic", "alter", topic, "--set", "retention.ms=1")
        assert done.code == 1
        assert f"no topic '{topic}'" in done.err
        assert not exists(run, topic)

    def test_a_list_is_added_to_on_the_server(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, "--set", "cleanup.policy=delete")
        done = run("topic", "alter", topic, "--add", "cleanup.policy=delete")
        assert done.out == f"altered topic {topic}:\n  cleanup.policy  delete → delete\n"
        assert settings(run, topic) == {"cleanup.policy": "delete"}


@pytest.mark.parametrize(
    ("step", "old", "new"),
    [
        (Step("SET", "k", "v"), "w", "v"),
        (Step("DELETE", "k", None), "w", None),
        (Step("APPEND", "k", "b,c"), "a,b", "a,b,c"),
        (Step("APPEND", "k", "a"), "", "a"),
        (Step("APPEND", "k", "a"), None, "a"),
        (Step("SUBTRACT", "k", "a,x"), "a,b", "b"),
        (Step("SUBTRACT", "k", "a"), "a", ""),
    ],
)
def test_what_a_step_makes_of_a_value(step: Step, old: str | None, new: str | None) -> None:
    assert step.apply(old) == new


class TestDelete:
    def test_with_yes(self, run: Run, topic: str) -> None:
        run("topic", "create", topic, f"{topic}-b")
        assert run("topic", "delete", topic, f"{topic}-b", "--yes") == (
            0,
            f"deleted topic {topic}\ndeleted topic {topic}-b\n",
            "",
        )
        assert not exists(run, topic)

    def test_refuses_where_nobody_can_be_asked(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "delete", topic)
        assert (done.code, done.out) == (2, "")
        assert "--yes" in done.err
        assert exists(run, topic)

    @pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 130)])
    def test_asks_a_person(
        self, run: Run, topic: str, fill: Fill, typed: str, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("topic", "create", topic)
        fill(topic, 0, [LONG_AGO_MS] * 3)
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        done = run("topic", "delete", topic)
        assert done.code == code
        assert f"Delete {topic} with 3 records? [y/N]" in done.err
        assert done.out == (f"deleted topic {topic}\n" if code == 0 else "")
        assert ("nothing was deleted" in done.err) == (code == 1)
        assert exists(run, topic) == (code != 0)

    def test_an_unknown_name_saves_the_others(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "delete", topic, f"{topic}x", "--yes")
        assert (done.code, done.out) == (1, "")
        assert f"did you mean {topic}?" in done.err
        assert exists(run, topic)

    def test_if_exists(self, run: Run, topic: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "delete", f"{topic}x", topic, "--yes", "--if-exists", "-o", "json")
        assert done.code == 0
        assert json.loads(done.out) == [
            {"topic": f"{topic}x", "status": "missing"},
            {"topic": topic, "status": "deleted"},
        ]
        assert run("topic", "delete", topic, "--if-exists") == (0, f"no topic {topic}\n", "")


class TestTrim:
    def starts(self, run: Run, topic: str) -> list[int]:
        return [each["start"] for each in described(run, topic)["partitions"]]

    @pytest.fixture
    def filled(self, run: Run, topic: str, fill: Fill) -> str:
        """Partition 0 holds a record of each of six days, partition 1 nothing, partition 2 two of the first day."""
        run("topic", "create", topic, "--set", "retention.ms=-1")
        fill(topic, 0, [LONG_AGO_MS + day * DAY_MS for day in range(6)])
        fill(topic, 2, [LONG_AGO_MS, LONG_AGO_MS + 1])
        return topic

    def test_before_an_offset_of_a_partition(self, run: Run, filled: str) -> None:
        done = run("topic", "trim", filled, "--partition", "0", "--before-offset", "4", "--yes")
        assert (done.code, done.err) == (0, "")
        title, header, row = done.out.splitlines()
        assert title == f"trimmed 4 records from topic {filled}"
        assert header.split() == ["PARTITION", "OLD", "START", "START", "END"]
        assert row.split() == ["0", "0", "4", "6"]
        assert self.starts(run, filled) == [4, 0, 0]

    def test_before_a_time(self, run: Run, filled: str) -> None:
        done = run("topic", "trim", filled, "--before-time", str(LONG_AGO_MS + 3 * DAY_MS), "--yes", "-o", "json")
        assert json.loads(done.out) == {
            "topic": filled,
            "records": 5,
            "partitions": [
                {"partition": 0, "old_start": 0, "start": 3, "end": 6},
                {"partition": 1, "old_start": 0, "start": 0, "end": 0},
                {"partition": 2, "old_start": 0, "start": 2, "end": 2},
            ],
        }
        assert self.starts(run, filled) == [3, 0, 2]

    def test_a_time_before_all_records_trims_nothing(self, run: Run, filled: str) -> None:
        done = run("topic", "trim", filled, "--before-time", "2001-01-01")
        assert done == (0, f"nothing to trim in topic {filled}\n", "")

    def test_up_to_the_end(self, run: Run, filled: str) -> None:
        assert run("topic", "trim", filled, "--before-offset", "end", "--yes").code == 0
        assert self.starts(run, filled) == [6, 0, 2]

    def test_an_offset_beyond_the_end_trims_nothing(self, run: Run, filled: str) -> None:
        done = run("topic", "trim", filled, "--before-offset", "2", "--yes")
        assert (done.code, done.out) == (1, "")
        assert f"partition 1 of topic '{filled}' ends at 0" in done.err
        assert self.starts(run, filled) == [0, 0, 0]

    def test_refuses_where_nobody_can_be_asked(self, run: Run, filled: str) -> None:
        done = run("topic", "trim", filled, "--before-offset", "end")
        assert done.code == 2
        assert f"Delete 8 records from {filled}?" in done.err
        assert self.starts(run, filled) == [0, 0, 0]

    def test_a_person_may_say_no(self, run: Run, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
        assert run("topic", "trim", filled, "--before-offset", "end").code == 1
        assert self.starts(run, filled) == [0, 0, 0]

    @pytest.mark.parametrize(
        ("words", "code", "told"),
        [
            ([], 2, "either --before-offset or --before-time"),
            (["--before-offset", "1", "--before-time", "1h"], 2, "either --before-offset or --before-time"),
            (["--before-offset", "-3"], 2, "'-3' is neither a number nor 'end'"),
            (["--before-time", "yesterday"], 2, "'yesterday' is no point in time"),
            (["--before-offset", "0", "--partition", "9"], 1, "has no partition 9; it has 0 to 2"),
        ],
    )
    def test_wrong_usage(self, run: Run, topic: str, words: list[str], code: int, told: str) -> None:
        run("topic", "create", topic)
        done = run("topic", "trim", topic, *words, "--yes")
        assert done.code == code
        assert told in done.err


@pytest.mark.parametrize("name", topic_commands.command.commands)
def test_every_help_has_examples(name: str, run: Run) -> None:
    text = run("topic", name, "--help").out
    assert "Examples:\n" in text
    assert f"penstock topic {name}" in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ["create", "t"],
        ["list"],
        ["describe", "t"],
        ["alter", "t", "--set", "a=b"],
        ["delete", "t", "--yes"],
        ["trim", "t", "--before-offset", "0"],
    ],
)
def test_no_server(run: Run, words: list[str], closed_port: int) -> None:
    done = run("topic", *words, "--server", f"127.0.0.1:{closed_port}")
    assert (done.code, done.out) == (3, "")
    assert f"no server at 127.0.0.1:{closed_port} (from --server): Connection refused" in done.err
