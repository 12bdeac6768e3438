"""DescribeShareGroupOffsets 0-1 (KIP-932): where share groups stand in partitions, and from version 1 on how far behind
they are (KIP-1226).

Below a start offset everything is settled. Lag counts what is not settled yet, whoever has it. Both are -1 where a
group has not begun, and so for whatever topic, partition or group is not there. Without topics, those that a group was
given.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from penstock.engine.access import NotAuthorised
from penstock.engine.queues.share_ledgers import Standing
from penstock.engine.queues.share_offsets import check_count
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(90, "describe_share_group_offsets", 0, 1, reads=True)
_ROW_BYTES = 40
_TOPIC_BYTES = 30
_NOWHERE = Standing()
_NO_ID = UUID(int=0)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    room = AnswerRoom()
    answer = LongAnswer(context, API, version, "groups", "topics", "partitions")
    asked = {group.group_id: group.topics for group in request.groups}
    groups = [await _describe(context, caller, group_id, topics, answer, room) for group_id, topics in asked.items()]
    return {"throttle_time": 0, "groups": groups}


async def _describe(
    context: Context,
    caller: Caller,
    group_id: str,
    topics: Iterable[Message] | None,
    answer: LongAnswer,
    room: AnswerRoom,
) -> dict[str, Any]:
    await context.turns.next()
    try:
        if not group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "the group id is empty; name the group")
        listed = None if topics is None else await _listed(tuple(topics), answer)
        spots = None if listed is None else [(name, index) for name, indexes in listed.items() for index in indexes]
        found, hidden = await caller.acting.shares.describe(group_id, spots)
        if listed is None:
            listed = {}
            for name, index in found:
                listed.setdefault(name, {})[index] = None
        size = sum(len(name) + _TOPIC_BYTES + _ROW_BYTES * len(indexes) for name, indexes in listed.items())
        room.take(f"group {group_id!r}", size)
    except PenstockError as error:
        return {
            "group_id": group_id,
            "topics": (),
            "error_code": errors.kafka_code(error),
            "error_message": errors.describe(error),
        }
    shown = []
    for name, indexes in listed.items():
        refusal = hidden.get(name)
        topic_id = None if refusal is not None else caller.acting.topics.id_of(name)
        rows = [await answer.row(_row(index, found.get((name, index), _NOWHERE), refusal)) for index in indexes]
        shown.append({"topic_name": name, "topic_id": topic_id or _NO_ID, "partitions": rows})
    return {"group_id": group_id, "topics": shown, "error_code": errors.NONE, "error_message": None}


async def _listed(topics: Sequence[Message], answer: LongAnswer) -> dict[str, dict[int, None]]:
    """What was asked for, each once. Raises PenstockError INVALID_REQUEST."""
    check_count(len(topics) + sum(len(topic.partitions) for topic in topics))
    listed: dict[str, dict[int, None]] = {}
    for topic in topics:
        listed.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
        await answer.count_row()
    return listed


def _row(index: int, standing: Standing, refusal: NotAuthorised | None) -> Fields:
    error = refusal if refusal is not None else standing.error
    return {
        "partition_index": index,
        "start_offset": standing.start,
        "leader_epoch": standing.leader_epoch,
        "lag": standing.lag,
        "error_code": errors.NONE if error is None else errors.kafka_code(error),
        "error_message": None if error is None else errors.describe(error),
    }
