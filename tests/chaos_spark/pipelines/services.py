"""Sinks that are servers: topics, watched by the log of their marks, and the stand-in for BigQuery."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.peers.bigquery import BigQuery
from tests.spark.observer import Observer

from .destinations import Look, changes_of
from .rows import PARTITIONS, Row

_MARKS = "__penstock_spark_marks"
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class Topic:
    name, upserts = "topic", False

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._bootstrap = bootstrap
        self._writer = f"penstock-pipeline/{pipeline}/sink/{self.name}"
        self._seen: dict[str, set[str]] = {"claim": set(), "done": set(), "seal": set(), "mark": set()}
        self._follower = _follow(bootstrap, _MARKS)

    def keys(self) -> dict[str, Any]:
        return {"topic": "copied", "key": "who", "partitions": PARTITIONS}

    def phases(self) -> Mapping[str, Look]:
        return {kind: lambda kind=kind: self._look(kind) for kind in self._seen}  # type: ignore[misc]

    def mark(self, query: str) -> int | None:
        """Marks of transactions that did not end well are left out by the consumer."""
        (log,) = Observer(self._bootstrap).read(_MARKS, settled=False)
        found = [json.loads(each.value or b"") for each in log]
        own = [each for each in found if each.get("id") == self._writer and each.get("query") == query]
        return max((each["batch"] for each in own if "total" in each), default=None)

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        partitions = Observer(self._bootstrap).read("copied")
        return {self.name: [[_row(json.loads(each.value or b"")) for each in part] for part in partitions]}

    def _look(self, kind: str) -> set[str]:
        for message in self._follower.consume(100, 0.002):
            if _is_record(message) and json.loads(message.value() or b"").get("id") == self._writer:
                self._seen[json.loads(message.key() or b"")[0]].add(str(message.offset()))
        return set(self._seen[kind])


class BigQueryTable:
    name, upserts = "bigquery", False

    def __init__(self, server: BigQuery, state: Path) -> None:
        """`state`: what the sink writes down on the driver."""
        self._server, self._state = server, state
        server.datasets.add("project.shop")

    def keys(self) -> dict[str, Any]:
        # Trouble of the network does not last long here.
        waits = {"retry_from": "100ms", "retry_to": "1s", "timeout": "10s"}
        return {"bigquery": "project.shop.fed", "create": True, **waits, **self._server.options}

    def phases(self) -> Mapping[str, Look]:
        return {
            "stream": lambda: set(dict(self._server.streams)),
            "finalized": lambda: {name for name, each in dict(self._server.streams).items() if each.finalized},
            "intent": lambda: {name for path in self._state.glob("intent-*.json") for name in changes_of(path)()},
            "committed": lambda: {name for name, each in dict(self._server.streams).items() if each.committed},
        }

    def mark(self, query: str) -> int | None:
        """What was written down, where its streams were committed."""
        for path in self._state.glob(f"intent-{query}.json"):
            intent = json.loads(path.read_bytes())["body"]
            if intent["done"] or all(self._server.streams[each].committed for each in intent["streams"]):
                return int(intent["batch"])
            return int(intent["batch"]) - 1
        return None

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        return {self.name: [[_row(each) for each in self._server.tables["project.shop.fed"].rows]]}


def read_values(bootstrap: str, topic: str) -> list[bytes]:
    """Of all committed records."""
    return [each.value or b"" for part in Observer(bootstrap).read(topic) for each in part]


def _row(found: Mapping[str, Any]) -> Row:
    return Row(*(found.get(name) for name in Row._fields))  # type: ignore[arg-type]


def _follow(bootstrap: str, topic: str) -> Consumer:
    """A reader of all there is in a topic of one partition, which need not be there yet."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def _is_record(message: Message) -> bool:
    error = message.error()
    assert error is None or error.code() in (*_MISSING, *_AWAY), error
    return error is None
