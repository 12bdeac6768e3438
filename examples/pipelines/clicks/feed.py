"""Clicks of some visitors, the same each time: `python feed.py morning`, then `python feed.py noon`.

Sessions that begin in the morning go on at noon. Every seventh click is there twice.
"""

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, Producer

TOPIC = "web.clicks"
NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
PAGES = ("/", "/search", "/shoes", "/hats", "/cart", "/pay")


def day() -> Iterator[tuple[datetime, str, bytes]]:
    """When, who and what, in the order of times: each visitor pauses for 1 to 65 minutes between clicks."""
    draw = random.Random(11)  # noqa: S311 - no secret
    clicks = []
    for number in range(12):
        at = NINE + timedelta(seconds=draw.randrange(3600))
        while at < NINE + timedelta(hours=6):
            clicks.append((at, f"visitor-{number}", draw.choice(PAGES)))
            pause_s = draw.choice((draw.randrange(60, 600), draw.randrange(60, 1700), draw.randrange(1900, 3900)))
            at += timedelta(seconds=pause_s)
    for number, (at, visitor, page) in enumerate(sorted(clicks)):
        value = {"id": f"c{number}", "visitor": visitor, "page": page, "at": at.isoformat()}
        for _ in range(2 if number % 7 == 0 else 1):
            yield at, visitor, json.dumps(value).encode()


def morning() -> Iterator[bytes]:
    yield from (value for at, _, value in day() if at < NINE + timedelta(hours=3))
    yield json.dumps({"id": "robot", "visitor": None, "page": "/", "at": NINE.isoformat()}).encode()


def noon() -> Iterator[bytes]:
    yield from (value for at, _, value in day() if at >= NINE + timedelta(hours=3))


PARTS = {"morning": morning, "noon": noon}


def send(server: str, topic: str, values: Iterable[bytes]) -> None:
    producer = Producer({"bootstrap.servers": server})
    for value in values:
        producer.produce(topic, value, on_delivery=check)
    producer.flush()


def check(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    server = os.environ.get("PENSTOCK_SERVER", "127.0.0.1:9092")
    send(server, TOPIC, PARTS[sys.argv[1] if len(sys.argv) > 1 else "morning"]())
