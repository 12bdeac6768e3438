"""OffsetFetch 1-10: how far groups have read; a partition without a commit is answered with -1.

Version notes: 1 has no error for the group as a whole: its partitions carry it; 2+ null topics ask for all; 7+ may
insist on offsets no transaction is about to change; 8+ several groups; 9+ member epochs of consumer groups; 10 names
topics by id, and an answer with all of them leaves out topics that are no more.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.engine.coordination.schemas import OffsetValue
from penstock.engine.groups.offsets import NO_OFFSET, FetchRequest, Spot
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(9, "offset_fetch", 1, 10, reads=True)
_MANY_GROUPS = 8
_TOPIC_IDS = 10
_ASK_AGAIN = -1000
"""Stands where the offset would, beside the error that a transaction is not over. librdkafka 2.16 takes over the offset
of an answer it will not retry, because its assignment has grown meanwhile: with Kafka's -1 it starts at
`auto.offset.reset`, and records are read twice. -1000 is its own word for "the committed offset", so it asks again.
Others look at the error first."""
_ROW_BYTES = 300  # of a partition, before it is encoded: all that two groups can have fits


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    stable = request.get("require_stable", False)
    room = AnswerRoom()
    if version >= _MANY_GROUPS:
        answer = LongAnswer(context, API, version, "groups", "topics", "partitions")
        asked: dict[str, Message] = {}
        for group in request.groups:
            asked.setdefault(group.group_id, group)
        groups = [
            await _fetch(context, caller, group, version, room, answer, stable=stable) for group in asked.values()
        ]
        return {"throttle_time": 0, "groups": groups}
    answer = LongAnswer(context, API, version, "topics", "partitions")
    return {"throttle_time": 0, **await _fetch(context, caller, request, version, room, answer, stable=stable)}


async def _fetch(
    context: Context,
    caller: Caller,
    group: Message,
    version: int,
    room: AnswerRoom,
    answer: LongAnswer,
    *,
    stable: bool,
) -> Fields:
    await context.turns.next()
    named = None if group.topics is None else [(_name(caller, topic), topic) for topic in group.topics]
    spots = None
    if named is not None:
        spots = tuple((name, index) for name, topic in named if name is not None for index in topic.partition_indexes)
    wanted = FetchRequest(group.group_id, spots, stable, group.get("member_id"), group.get("member_epoch", -1))
    try:
        fetched = await caller.acting.groups.fetch(wanted)
        room.take(f"group {group.group_id!r}", sum(map(_size_bytes, fetched.values())))
    except PenstockError as error:
        code = errors.kafka_code(error)
        topics = [await _refused(topic, code, answer) for topic in group.topics] if version == 1 else []
        return {"group_id": group.group_id, "topics": topics, "error_code": code}
    if named is None:
        topics = await _all(caller, fetched, answer, by_id=version >= _TOPIC_IDS)
    else:
        topics = [await _asked(topic, name, fetched, answer) for name, topic in named]
    return {"group_id": group.group_id, "topics": topics, "error_code": errors.NONE}


def _name(caller: Caller, topic: Message) -> str | None:
    """The topic's name; None when it has an id that is unknown."""
    if (name := topic.get("name")) is not None:
        return str(name)
    return caller.acting.topics.name_of(topic.topic_id)


async def _asked(
    topic: Message, name: str | None, fetched: Mapping[Spot, OffsetValue | PenstockError], answer: LongAnswer
) -> Fields:
    if name is None:
        return await _refused(topic, errors.UNKNOWN_TOPIC_ID, answer)
    rows = [await answer.row(_row(index, fetched[name, index])) for index in topic.partition_indexes]
    return {"name": name, "topic_id": topic.get("topic_id"), "partitions": rows}


async def _refused(topic: Message, code: int, answer: LongAnswer) -> Fields:
    rows = [await answer.row(_row(index, NO_OFFSET, code)) for index in topic.partition_indexes]
    return {"name": topic.get("name"), "topic_id": topic.get("topic_id"), "partitions": rows}


async def _all(
    caller: Caller, fetched: Mapping[Spot, OffsetValue | PenstockError], answer: LongAnswer, *, by_id: bool
) -> list[Fields]:
    rows: dict[str, list[bytes]] = {}
    for (name, index), value in fetched.items():
        rows.setdefault(name, []).append(await answer.row(_row(index, value)))
    ids: dict[str, UUID] = {}
    if by_id:
        ids = {name: topic_id for name in rows if (topic_id := caller.acting.topics.id_of(name)) is not None}
    return [
        {"name": name, "topic_id": ids.get(name), "partitions": partitions}
        for name, partitions in rows.items()
        if name in ids or not by_id
    ]


def _size_bytes(value: OffsetValue | PenstockError) -> int:
    return _ROW_BYTES + (len(value.metadata) if isinstance(value, OffsetValue) else 0)


def _row(index: int, value: OffsetValue | PenstockError, code: int = errors.NONE) -> dict[str, Any]:
    if isinstance(value, PenstockError):
        unknown = NO_OFFSET._replace(offset=_ASK_AGAIN) if value.code is Code.UNSTABLE_OFFSET else NO_OFFSET
        return _row(index, unknown, errors.kafka_code(value))
    return {
        "partition_index": index,
        "committed_offset": value.offset,
        "committed_leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "error_code": code,
    }
