"""What is fed to a pipeline: records with growing numbers, of which some cannot be decoded and some are not good."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import KafkaError, Producer

PARTITIONS = 2
KEYS = 12
SLOTS = 250
"""Rows that are upserted share so many keys. Those of one micro-batch have different ones."""
SCHEMA = "id BIGINT, who STRING, n BIGINT"
QUERY = "SELECT id, who, n, id % 250 AS slot FROM fed"
EXPECTED = {"positive": "n >= 0"}
_BROKEN_EVERY = 50
_DELIVERY_S = 60.0


class Row(NamedTuple):
    """A row as every sink has it."""

    id: int
    who: str
    n: int


def row_of(number: int) -> Row:
    return Row(number, f"w{number % KEYS}", number * 7)


def is_undecodable(number: int) -> bool:
    return number % _BROKEN_EVERY == 7


def is_unwanted(number: int) -> bool:
    """Can be decoded, and breaks the step's expectation."""
    return number % _BROKEN_EVERY == 23


def good(count: int) -> Iterator[Row]:
    """Of the first `count` records those that every sink must have."""
    return (row_of(number) for number in range(count) if not is_undecodable(number) and not is_unwanted(number))


def dead(count: int) -> Iterator[bytes]:
    """The values of the dead letters."""
    for number in range(count):
        if is_undecodable(number):
            yield value_of(number)
        elif is_unwanted(number):
            yield b'{"id":%d,"who":"w%d","n":-1,"slot":%d}' % (number, number % KEYS, number % SLOTS)


def latest(count: int) -> list[Row]:
    """What upserts leave: of the rows of each slot the last one."""
    return list({row.id % SLOTS: row for row in good(count)}.values())


def value_of(number: int) -> bytes:
    if is_undecodable(number):
        return b"{broken %d" % number
    row = row_of(number)
    return json.dumps({"id": row.id, "who": row.who, "n": -1 if is_unwanted(number) else row.n}).encode()


class Feed:
    """Writes records to a topic. What was sent is there when `flush` returns, whatever became of the broker."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
        )
        self._failed: list[KafkaError] = []
        self.count = 0

    def send(self, count: int) -> None:
        """So many more; returns before they are there."""
        for number in range(self.count, self.count + count):
            self._producer.produce(
                self._topic, value_of(number), row_of(number).who, number % PARTITIONS, on_delivery=self._delivered
            )
        self.count += count
        self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(_DELIVERY_S)
        assert not left and not self._failed, f"{left} records were not delivered; {self._failed[:1]}"

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failed.append(error)
