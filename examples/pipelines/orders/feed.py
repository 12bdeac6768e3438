"""Orders of two half days, the same each time: `python feed.py afternoon`, then `python feed.py evening`.

The evening begins with orders that come late: some in time, some not.
"""

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, KafkaException, Producer

TOPIC = "shop.orders"
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SHOPS = ("north", "east", "south", "west")  # the last one is not in shops.csv


def afternoon() -> Iterator[bytes]:
    yield from orders(1, NOON, 245)
    yield b'{"id": 9001, "shop": "north", "cents": '  # cut off
    yield record(9002, None, 100, NOON)
    yield record(9003, "east", -1, NOON)


def evening() -> Iterator[bytes]:
    yield from orders(2001, NOON + timedelta(hours=3, minutes=20), 10)  # the hour is open still
    yield from orders(3001, NOON + timedelta(hours=1, minutes=5), 7)  # the hour was written: too late
    yield from orders(4001, NOON + timedelta(minutes=246), 135)


def orders(first: int, start: datetime, minutes: int) -> Iterator[bytes]:
    """About two orders a minute, the last one in the last minute."""
    draw = random.Random(first)  # noqa: S311 - no secret
    for number in range(2 * minutes):
        at = start + timedelta(minutes=number // 2, seconds=draw.randrange(60))
        yield record(first + number, draw.choice(SHOPS), draw.randrange(100, 9_999), at)


def record(number: int, shop: str | None, cents: int, at: datetime) -> bytes:
    return json.dumps({"id": number, "shop": shop, "cents": cents, "at": at.isoformat()}).encode()


PARTS = {"afternoon": afternoon, "evening": evening}


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
    send(server, TOPIC, PARTS[sys.argv[1] if len(sys.argv) > 1 else "afternoon"]())
