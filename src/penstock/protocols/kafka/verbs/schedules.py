"""Verbs about the schedules of a queue, for whoever leads partition 0 of its topic."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from penstock.engine.access import Kind, Operation, Resource
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.schedules.machine import Standing
from penstock.engine.queues.schedules.schedule import LONGEST_KEY, LONGEST_VALUE, MOST_HEADERS
from penstock.engine.queues.schedules.schedules import AT, MOST_LISTED, NewSchedule
from penstock.engine.queues.schedules.zones import DEFAULT
from penstock.protocols.kafka.verbs.document import Document, bytes_fields, refused
from penstock.protocols.kafka.verbs.queues import group_and_topic, read_name
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Right, Verb
from penstock.records.record import Headers

_LONGEST_LISTED: Final = 1024
"""Of a value, in bytes; a list says only how long it is otherwise."""
_HEADER: Final = frozenset({"name", "value", "value_base64"})


async def add_schedule(asked: Asked) -> Answer:
    document, queue = asked.document, _queue(asked)
    wanted = NewSchedule(
        document.text("schedule"),
        document.text("cron"),
        document.text("zone", DEFAULT),
        _content(document, "value", LONGEST_VALUE) or b"",
        _content(document, "key", LONGEST_KEY),
        _headers(document),
    )
    standing = await asked.caller.acting.schedules.add(queue, wanted)
    return _fields(str(queue), standing)


async def list_schedules(asked: Asked) -> Answer:
    """With their messages for who may read these."""
    document, queue = asked.document, _queue(asked)
    most = document.number("limit", 1, MOST_LISTED, MOST_LISTED)
    await asked.context.turns.next()
    found, is_more = await asked.caller.acting.schedules.list(queue, document.text("after", ""), most)
    may_read = asked.caller.acting.rights.may(Operation.READ, Kind.TOPIC, queue.topic)
    rows = [_fields(str(queue), each) | (_message_fields(each) if may_read else {}) for each in found]
    return {"rows": rows, "more": is_more}


async def pause_schedule(asked: Asked) -> Answer:
    queue = _queue(asked)
    standing = await asked.caller.acting.schedules.pause(queue, asked.document.text("schedule"))
    return _fields(str(queue), standing)


async def resume_schedule(asked: Asked) -> Answer:
    queue = _queue(asked)
    standing = await asked.caller.acting.schedules.resume(queue, asked.document.text("schedule"))
    return _fields(str(queue), standing)


async def remove_schedule(asked: Asked) -> Answer:
    """`under_way`: a message of it is, and still comes."""
    queue, name = _queue(asked), asked.document.text("schedule")
    is_under_way = await asked.caller.acting.schedules.remove(queue, name)
    return {"queue": str(queue), "schedule": name, "under_way": is_under_way}


# --- fields


def _queue(asked: Asked) -> QueueName:
    """Who asks may say which partition's leader was meant; there is one that may be."""
    asked.document.number("partition", AT, AT, AT)
    return read_name(asked.document)


def _content(document: Document, name: str, most: int) -> bytes | None:
    """Bytes: a text, or in base64 with that behind the field's name; None if neither is there."""
    encoded = f"{name}_base64"
    if not document.has(encoded):
        return document.long_text(name, most).encode(errors="replace") if document.has(name) else None
    if document.has(name):
        raise refused(f"{name} and {encoded} exclude one another")
    try:
        return b64decode(document.long_text(encoded, 2 * most), validate=True)
    except Base64Error as error:
        raise refused(f"{encoded} is no base64: {error}") from None


def _headers(document: Document) -> Headers:
    rows = document.rows("headers", _HEADER, MOST_HEADERS) if document.has("headers") else []
    return tuple([(row.text("name"), _content(row, "value", LONGEST_VALUE)) for row in rows])


def _fields(queue: str, standing: Standing) -> dict[str, Any]:
    definition, progress = standing.definition, standing.progress
    return {
        "queue": queue,
        "schedule": definition.name,
        "cron": definition.cron,
        "zone": definition.zone,
        "paused": progress.is_paused,
        "knows_zone": standing.knows_zone,
        "next_ms": list(standing.next_ms),
        "planned_ms": progress.planned_ms,
        "fired_ms": progress.fired_ms,
        "value_bytes": len(definition.value),
    }


def _message_fields(standing: Standing) -> dict[str, Any]:
    definition = standing.definition
    headers = [{"name": name, **bytes_fields("value", value)} for name, value in definition.headers]
    value = definition.value if len(definition.value) <= _LONGEST_LISTED else None
    return {**bytes_fields("key", definition.key), **bytes_fields("value", value), "headers": headers}


def _changing(name: str, act: Callable[[Asked], Awaitable[Answer]], *fields: str) -> Verb:
    """One that takes the right to alter the queue, and to write to its topic."""
    known = frozenset({"queue", "partition", "schedule", *fields})
    return Verb(name, Operation.ALTER_CONFIGS, act, known, group_and_topic, besides=_to_write)


def _to_write(document: Document) -> Sequence[Right]:
    return ((Operation.WRITE, Resource(Kind.TOPIC, read_name(document).topic)),)


VERBS: Final[tuple[Verb, ...]] = (
    _changing(
        "queue.schedule.add",
        add_schedule,
        *("cron", "zone", "key", "key_base64", "value", "value_base64", "headers"),
    ),
    _changing("queue.schedule.pause", pause_schedule),
    _changing("queue.schedule.resume", resume_schedule),
    _changing("queue.schedule.remove", remove_schedule),
    Verb(
        "queue.schedule.list",
        Operation.DESCRIBE,
        list_schedules,
        frozenset({"queue", "partition", "after", "limit"}),
        group_and_topic,
    ),
)
