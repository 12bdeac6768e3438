"""Verbs over a memory connection, and a question for each that there is an answer to."""

import struct
from typing import Any, NamedTuple

import orjson

from penstock.engine.queues.receipts import make_receipt
from penstock.protocols.kafka_wire.messages import decode, encode, schema_of
from penstock.protocols.kafka_wire.penstock_verb import API
from tests.doors.kafka import Client

RULE = {
    "principal": "User:eve",
    "host": "*",
    "operation": "read",
    "kind": "topic",
    "pattern": "literal",
    "name": "t",
    "effect": "allow",
}
QUEUE = {"queue": "jobs"}
PARTITION = {**QUEUE, "partition": 0}
CASES: dict[str, dict[str, Any]] = {
    "user.list": {},
    "user.create": {"user": "eve", "roles": ["admin"]},
    "user.delete": {"user": "alice"},
    "role.list": {},
    "role.show": {"role": "admin"},
    "role.set": {"role": "clerk", "rules": [RULE]},
    "role.delete": {"role": "made"},
    "role.grant": {"role": "admin", "user": "alice"},
    "role.revoke": {"role": "consumer", "user": "alice"},
    "apikey.create": {"user": "alice", "lasts_ms": 1000},
    "apikey.list": {},
    "apikey.delete": {"id": "0" * 16},
    "rule.explain": {"principal": "User:alice", "operation": "read", "kind": "topic", "name": "t"},
    "security.refusals": {},
    "security.forget": {},
    "security.sealing": {},
    "security.reseal": {"by": "x"},
    "queue.create": {**QUEUE, "settings": {"visibility": "5m"}, "partitions": 2},
    "queue.list": {},
    "queue.describe": QUEUE,
    "queue.alter": {**QUEUE, "settings": {"ttl": "1d"}, "unset": ["visibility"]},
    "queue.delete": QUEUE,
    "queue.forget": PARTITION,
    "queue.lease": {**PARTITION, "most": 2, "visibility_ms": 5000, "consumer": "c"},
    "queue.settle": {**QUEUE, "receipts": [{"receipt": make_receipt(0, 0, 1), "verdict": "ack"}]},
    "queue.extend": {**QUEUE, "receipts": [make_receipt(0, 0, 1)]},
    "queue.purge": PARTITION,
    "queue.browse": {**PARTITION, "states": ["ready"]},
    "queue.where": {**PARTITION, "id": "4711"},
    "queue.delayed": {**PARTITION, "most": 10},
    "queue.cancel": {**PARTITION, "offsets": [0]},
    "queue.deliver": {**PARTITION, "all": True},
    "queue.schedule.add": {**QUEUE, "schedule": "nightly", "cron": "30 3 * * *", "value": "x"},
    "queue.schedule.list": QUEUE,
    "queue.schedule.pause": {**QUEUE, "schedule": "nightly"},
    "queue.schedule.resume": {**QUEUE, "schedule": "nightly"},
    "queue.schedule.remove": {**QUEUE, "schedule": "nightly"},
    "queue.redrive": {**PARTITION, "origin": "jobs", "most": 10},
}
"""By verb. Users alice and role made are there; the key is not, nor is what seals called x, nor the queue at first."""


class Told(NamedTuple):
    code: int
    text: str
    help: str
    document: Any


def frame_of(verb: str, document: bytes) -> bytes:
    head = struct.pack(">hhih", API.key, 0, 7, -1) + b"\0"
    return head + encode(schema_of(API.name, 0, "request"), {"verb": verb, "document": document})


async def ask(client: Client, verb: str, document: Any = None, *, data: bytes | None = None) -> Told:
    """One verb; `data` in place of a document that is JSON."""
    client.send_frame(frame_of(verb, orjson.dumps(document or {}) if data is None else data))
    frame = await client.receive_frame()
    assert struct.unpack_from(">i", frame) == (7,) and frame[4] == 0
    answer = decode(schema_of(API.name, 0, "response"), memoryview(frame), 5)
    told = orjson.loads(answer.document) if answer.document else None
    return Told(answer.error_code, answer.error_message or "", answer.help or "", told)
