"""`penstock txn`: transactions of a real broker; those that hang are a scripted one's."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from confluent_kafka import KafkaException, Producer
from tests.unit.cli.scripted_broker import Script, ScriptedBroker, scripted_broker

from penstock.cli.main import main
from penstock.cli.transactions import Duration, Transaction, TransactionalId, _format_state, _kafka_state, format_age
from penstock.testing import EmbeddedBroker

Run = Callable[..., Any]
DEADLINE_S = 60
FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")


class TestWords:
    @pytest.mark.parametrize(
        ("word", "ms"), [("250ms", 250), ("90s", 90_000), ("1.5m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000)]
    )
    def test_durations(self, word: str, ms: int) -> None:
        assert Duration().convert(word, None, None) == ms

    @pytest.mark.parametrize("word", ["", "5", "m", "-5m", "5 m", "5y"])
    def test_no_durations(self, word: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["txn", "list", "--longer-than", word]) == 2
        assert f"{word!r} is no duration" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("ms", "word"),
        [
            (None, None),
            (0, "0ms"),
            (999, "999ms"),
            (59_999, "59s"),
            (60_000, "1m"),
            (7_500_000, "2h 5m"),
            (86_400_000 + 61_000, "1d 1m"),
        ],
    )
    def test_ages(self, ms: int | None, word: str | None) -> None:
        assert format_age(ms) == word

    @pytest.mark.parametrize(
        ("kafka", "word"),
        [("Ongoing", "ongoing"), ("CompleteCommit", "complete-commit"), ("PrepareEpochFence", "prepare-epoch-fence")],
    )
    def test_states_are_kafka_s(self, kafka: str, word: str) -> None:
        assert _format_state(kafka) == word
        assert _kafka_state(word) == kafka

    def test_only_an_open_transaction_has_an_age(self) -> None:
        assert Transaction("t", "ongoing", 1, 1, start_ms=1_000).age_ms(1_500) == 500
        assert Transaction("t", "ongoing", 1, 1, start_ms=1_500).age_ms(1_000) == 0  # the server's clock is ahead
        assert Transaction("t", "complete-abort", 1, 1, start_ms=1_000).age_ms(1_500) is None
        assert Transaction("t", "ongoing", 1, 1).age_ms(1_500) is None


Begin = Callable[[str], Producer]


@pytest.fixture
def begin(broker: EmbeddedBroker) -> Begin:
    """Starts a producer whose transaction is open in partitions 0 and 1 of a topic; its id is the topic's name."""

    def start(topic: str) -> Producer:
        assert main(["topic", "create", topic, "--partitions", "2", "--server", broker.bootstrap]) == 0
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        return producer

    return start


def listed(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    done = run("txn", "list", "-o", "json", *words)
    assert done.code == 0, done.err
    return {each["transactional_id"]: each for each in json.loads(done.out)}


def described(run: Run, name: str) -> dict[str, Any]:
    done = run("txn", "describe", name, "-o", "json")
    assert done.code == 0, done.err
    (only,) = json.loads(done.out)
    return dict(only)


class TestRealTransactions:
    def test_list(self, run: Run, topic: str, begin: Begin) -> None:
        producer = begin(topic)
        mine = listed(run)[topic]
        assert (mine["state"], mine["partitions"]) == ("ongoing", 2)
        assert 0 <= mine["age_ms"] < DEADLINE_S * 1000
        assert list(listed(run, "--producer-id", str(mine["producer_id"]))) == [topic]
        assert topic in listed(run, "--state", "ongoing", "--state", "empty")
        assert topic in listed(run, "--longer-than", "0s")
        assert topic not in listed(run, "--longer-than", "1h")
        assert topic not in listed(run, "--state", "complete-commit")
        assert topic not in listed(run, "--producer-id", str(mine["producer_id"] + 1_000_000))
        producer.commit_transaction(DEADLINE_S)
        ended = listed(run)[topic]
        assert ended["state"] in ("prepare-commit", "complete-commit")
        assert topic not in listed(run, "--longer-than", "0s", "--state", "ongoing")

    def test_describe(self, run: Run, topic: str, begin: Begin) -> None:
        producer = begin(topic)
        found = described(run, topic)
        assert (found["state"], found["timeout_ms"], found["producer_epoch"] >= 0) == ("ongoing", 60_000, True)
        assert found["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        lines = run("txn", "describe", topic).out.splitlines()
        assert lines[0] == topic
        assert ["timeout", "1m"] in [line.split() for line in lines]
        assert [[topic, "0"], [topic, "1"]] == [line.split() for line in lines if line.startswith(f"{topic} ")]
        producer.abort_transaction(DEADLINE_S)

    def test_ids_are_completed(self, run: Run, topic: str, begin: Begin, closed_port: int) -> None:
        producer = begin(topic)
        context = click.Context(click.Command("describe"))
        offered = TransactionalId().shell_complete(context, click.Argument(["id"]), topic[:-1])
        assert [each.value for each in offered] == [topic]
        context.params["address"] = f"127.0.0.1:{closed_port}"
        assert TransactionalId().shell_complete(context, click.Argument(["id"]), "") == []
        producer.abort_transaction(DEADLINE_S)

    def test_describe_what_is_not_there(self, run: Run, topic: str) -> None:
        done = run("txn", "describe", topic)
        assert done == (1, "", f"penstock: no transactional id '{topic}' ('penstock txn list' shows them all)\n")

    def test_abort_fences_the_producer(self, run: Run, topic: str, begin: Begin) -> None:
        producer = begin(topic)
        before = described(run, topic)
        done = run("txn", "abort", topic)
        assert (done.code, done.out) == (2, "")
        assert "2 partitions" in done.err
        assert "--yes" in done.err
        assert described(run, topic)["state"] == "ongoing"
        done = run("txn", "abort", topic, "--yes", "-o", "json")
        answer = json.loads(done.out)
        assert (done.code, answer["transactional_id"], answer["aborted"]) == (0, topic, True)
        assert (answer["producer_id"], answer["producer_epoch"]) > (before["producer_id"], before["producer_epoch"])
        assert described(run, topic)["partitions"] == []
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(DEADLINE_S)
        assert raised.value.args[0].name() in FENCED
        done = run("txn", "abort", topic, "--yes")
        assert done.code == 0
        assert done.out.startswith(f"no transaction was open; fenced the producer of {topic}; ")

    def test_abort_makes_no_id(self, run: Run, topic: str) -> None:
        assert run("txn", "abort", topic, "--yes").code == 1
        assert topic not in listed(run)

    def test_one_that_does_not_hang(self, run: Run, topic: str, begin: Begin) -> None:
        producer = begin(topic)
        assert json.loads(run("txn", "hanging", "--topic", topic, "--longer-than", "0s", "-o", "json").out) == []
        words = ("txn", "abort", "--topic", topic, "--partition", "1", "--yes", "--start-offset")
        done = run(*words, "0")
        assert (done.code, done.out) == (1, "")
        assert f"does not hang: it belongs to '{topic}'; 'penstock txn abort {topic}'" in done.err
        done = run(*words, "7")
        assert (done.code, f"no transaction is open at offset 7 of {topic}:1; those there begin at 0" in done.err) == (
            1,
            True,
        )
        producer.commit_transaction(DEADLINE_S)
        done = run(*words, "0")
        assert (done.code, done.out) == (1, "")
        assert described(run, topic)["state"] in ("prepare-commit", "complete-commit")

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["id", "--topic", "t"],
            ["--topic", "t"],
            ["--topic", "t", "--partition", "0"],
            ["--partition", "0", "--start-offset", "0"],
        ],
    )
    def test_wrong_usage(self, run: Run, words: list[str]) -> None:
        done = run("txn", "abort", *words, "--yes")
        assert (done.code, "either TXN_ID, or --topic, --partition and --start-offset" in done.err) == (2, True)


PRODUCER = {
    "producer_id": 40,
    "producer_epoch": 3,
    "last_sequence": 0,
    "last_timestamp": 1_000,
    "coordinator_epoch": -1,
    "current_txn_start_offset": 17,
}
OWNED = {
    "transactional_id": "alive",
    "transaction_state": "Ongoing",
    "producer_id": 40,
    "producer_epoch": 3,
    "transaction_timeout": 60_000,
    "transaction_start_time": 1_000,
}


class Stage:
    """A server with one topic, `orders`, of two partitions; partition 1 has an open transaction at offset 17."""

    def __init__(self) -> None:
        self.owned_partitions: list[int] = []
        self.state = "Ongoing"
        self.ends_meanwhile = False
        self.markers: list[Any] = []
        self.broker: ScriptedBroker

    def scripts(self) -> dict[str, Script]:
        return {
            "metadata": Script(3, 0, 12, lambda _: self._metadata()),
            "find_coordinator": Script(10, 0, 3, lambda _: self._here()),
            "describe_producers": Script(61, 0, 0, self._producers),
            "list_transactions": Script(66, 0, 1, self._list),
            "describe_transactions": Script(65, 0, 0, lambda _: {"transaction_states": [self._owned()]}),
            "write_txn_markers": Script(27, 1, 1, self._mark),
        }

    def _here(self) -> dict[str, Any]:
        return {"node_id": 5, "host": self.broker.host, "port": self.broker.port}

    def _metadata(self) -> dict[str, Any]:
        partitions = [
            {"partition_index": number, "leader_id": 5, "replica_nodes": [5], "isr_nodes": [5]} for number in (0, 1)
        ]
        topic = {"name": "orders", "topic_id": uuid.UUID(int=1), "partitions": partitions}
        return {"brokers": [self._here()], "controller_id": 5, "topics": [topic]}

    def _producers(self, request: Any) -> dict[str, Any]:
        opened = [] if self.markers else [PRODUCER]
        (asked,) = request.topics
        answer = [
            {
                "partition_index": number,
                "active_producers": opened
                if number == 1
                else [{**PRODUCER, "producer_id": 41, "current_txn_start_offset": -1}],
            }
            for number in asked.partition_indexes
        ]
        if self.ends_meanwhile:
            self.markers.append("commit")
        return {"topics": [{"name": "orders", "partitions": answer}]}

    def _list(self, request: Any) -> dict[str, Any]:
        assert request.producer_id_filters == (40,)
        return {"error_code": 0, "transaction_states": [{**OWNED, "transaction_state": self.state}]}

    def _owned(self) -> dict[str, Any]:
        topics = [{"topic": "orders", "partitions": self.owned_partitions}] if self.owned_partitions else []
        return {**OWNED, "transaction_state": self.state, "topics": topics}

    def _mark(self, request: Any) -> dict[str, Any]:
        (marker,) = request.markers
        self.markers.append(marker)
        (topic,) = marker.topics
        results = [{"partition_index": number, "error_code": 0} for number in topic.partition_indexes]
        return {
            "markers": [{"producer_id": marker.producer_id, "topics": [{"name": topic.name, "partitions": results}]}]
        }


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage()
    with scripted_broker(**made.scripts()) as made.broker:
        monkeypatch.setenv("PENSTOCK_SERVER", made.broker.address)
        yield made


ABORT = ["txn", "abort", "--topic", "orders", "--partition", "1", "--start-offset", "17"]


class TestHanging:
    def test_an_abort_marker_ends_it(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        stage.owned_partitions = [0]  # its id goes on elsewhere
        assert main([*ABORT, "--yes", "-o", "json"]) == 0
        expected = {"topic": "orders", "partition": 1, "start_offset": 17, "producer_id": 40}
        assert json.loads(capsys.readouterr().out) == expected
        (marker,) = stage.markers
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (40, 3, 0)
        assert marker.transaction_result is False
        assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("orders", (1,))]

    def test_asks_first(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(ABORT) == 2
        told = capsys.readouterr().err
        assert "Abort the transaction of producer 40 at offset 17 of orders:1, silent for " in told
        assert stage.markers == []

    def test_an_abort_that_waits_for_this_partition_is_helped(self, stage: Stage) -> None:
        stage.owned_partitions, stage.state = [1], "PrepareAbort"
        assert main([*ABORT, "--yes"]) == 0
        assert len(stage.markers) == 1

    @pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit"])
    def test_not_while_a_coordinator_has_it(self, stage: Stage, state: str, capsys: pytest.CaptureFixture[str]) -> None:
        stage.owned_partitions, stage.state = [1], state
        assert main([*ABORT, "--yes"]) == 1
        assert "does not hang: it belongs to 'alive'" in capsys.readouterr().err
        assert stage.markers == []

    def test_one_that_ends_meanwhile_did_not_hang(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        stage.ends_meanwhile = True
        assert main([*ABORT, "--yes"]) == 1
        assert "no transaction is open at offset 17 of orders:1; there is none" in capsys.readouterr().err
        assert "commit" in stage.markers
        assert not any(hasattr(each, "producer_id") for each in stage.markers)

    def test_not_what_is_being_committed(self, stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
        stage.state = "PrepareCommit"
        assert main(["txn", "abort", "alive", "--yes"]) == 1
        assert "is being committed and cannot be aborted any more" in capsys.readouterr().err

    @pytest.mark.parametrize(("owned", "found"), [([], True), ([1], False)])
    def test_found(
        self,
        stage: Stage,
        owned: list[int],
        found: bool,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._hide_librdkafka(stage, monkeypatch)
        stage.owned_partitions = owned
        assert main(["txn", "hanging", "-o", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["topic"], row["partition"], row["start_offset"], row["producer_id"]) for row in rows] == (
            [("orders", 1, 17, 40)] if found else []
        )
        assert main(["txn", "hanging", "--longer-than", "999999d"]) == 0
        assert capsys.readouterr() == ("", "no hanging transactions\n")

    def test_not_what_ended_meanwhile(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._hide_librdkafka(stage, monkeypatch)
        stage.ends_meanwhile = True
        assert main(["txn", "hanging", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == []

    def test_an_unknown_topic(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._hide_librdkafka(stage, monkeypatch)
        assert main(["txn", "hanging", "--topic", "order"]) == 1
        assert "no topic 'order', did you mean orders?" in capsys.readouterr().err

    def _hide_librdkafka(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """The scripted server cannot tell it of topics; what it would say is said here."""
        from types import SimpleNamespace

        told = {"orders": SimpleNamespace(partitions={number: SimpleNamespace(leader=5) for number in (0, 1)})}
        monkeypatch.setattr("penstock.cli.transactions.fetch_topics", lambda server, admin: told)
        monkeypatch.setattr("penstock.cli.connection.Server.admin", lambda self: None)


def test_a_server_without_transactions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    scripts = {"metadata": stage.scripts()["metadata"]}
    with scripted_broker(**scripts) as stage.broker:
        monkeypatch.setenv("PENSTOCK_SERVER", stage.broker.address)
        assert main(["txn", "list"]) == 1
    told = f"penstock: the server at {stage.broker.address} does not have ListTransactions\n"
    assert capsys.readouterr() == ("", told)
