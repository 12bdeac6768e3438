"""Changes of a table of customers, the same each time: `python feed.py monday`, then `python feed.py tuesday`."""

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

TOPIC = "crm.customers"
CITIES = ("Oslo", "Riga", "Bari", "Cork")

Change = tuple[bytes, bytes]
"""Key and value of a record."""


def changes() -> Iterator[dict[str, Any]]:
    """A hundred customers, changed and deleted here and there; some come back under their number."""
    draw = random.Random(5)  # noqa: S311 - no secret
    there: set[int] = set()
    for lsn in range(1, 901):
        number = draw.randrange(100)
        if number not in there:
            op = "c"
            there.add(number)
        else:
            op = draw.choice("uuud")
            there -= {number} if op == "d" else set()
        row: dict[str, Any] = {"id": number}
        if op != "d":
            row |= {
                "name": f"Customer {number}",
                "city": draw.choice(CITIES),
                "credit": f"{draw.randrange(99_999) / 100:.2f}",
            }
        yield {"op": op, "lsn": lsn, "row": row}


def monday() -> Iterator[Change]:
    yield from (record(each) for each in changes() if each["lsn"] <= 600)
    yield record({"op": "x", "lsn": 601, "row": {"id": 1}})  # nothing that we know


def tuesday() -> Iterator[Change]:
    yield from (record(each) for each in changes() if each["lsn"] > 600)


def record(change: dict[str, Any]) -> Change:
    return str(change["row"]["id"]).encode(), json.dumps(change).encode()


PARTS = {"monday": monday, "tuesday": tuesday}


def send(server: str, topic: str, records: Iterable[Change]) -> None:
    producer = Producer({"bootstrap.servers": server})
    for key, value in records:
        producer.produce(topic, value, key, on_delivery=check)
    producer.flush()


def check(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    server = os.environ.get("PENSTOCK_SERVER", "127.0.0.1:9092")
    send(server, TOPIC, PARTS[sys.argv[1] if len(sys.argv) > 1 else "monday"]())
