"""OffsetCommit 2-10: keep how far a group has read; each partition has an error of its own.

Version notes: 5+ has no retention time, and the one of 2-4 is ignored: the broker's holds; 7+ static members; 9+ member
epochs of consumer groups, and says when the group is missing; 10 names topics by id.
"""

from penstock.engine.access import Operation
from penstock.engine.groups.offsets import CommitRequest, NewOffset, Spot
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(8, "offset_commit", 2, 10)
_KNOWS_EPOCHS = 9


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    names = [_name(caller, topic) for topic in request.topics]
    offsets: dict[Spot, NewOffset] = {}
    codes: dict[Spot, int] = {}
    answer = LongAnswer(context, API, version, "topics", "partitions")
    unknown = _unknown_id(caller, request.group_id) if None in names else errors.UNKNOWN_TOPIC_ID
    for topic, name in zip(request.topics, names, strict=True):
        for partition in topic.partitions:
            await answer.count_row()
            if name is None:
                continue
            spot = name, partition.partition_index
            if (refusal := _refusal(caller, request.group_id, spot)) is not None:
                codes[spot] = refusal
                continue
            offsets[spot] = NewOffset(
                partition.committed_offset,
                partition.get("committed_leader_epoch", -1),
                partition.committed_metadata or "",
            )
    if offsets:
        codes |= await _commit(caller, request, offsets, version)
    return {
        "throttle_time": 0,
        "topics": [
            await _answer(topic, name, codes, unknown, answer)
            for topic, name in zip(request.topics, names, strict=True)
        ],
    }


def _name(caller: Caller, topic: Message) -> str | None:
    """The topic's name; None when it has an id that is unknown."""
    if (name := topic.get("name")) is not None:
        return str(name)
    return caller.acting.topics.name_of(topic.topic_id)


def _refusal(caller: Caller, group_id: str, spot: Spot) -> int | None:
    """Why nothing can be committed there, if that is known before the group is asked."""
    try:
        caller.acting.groups.check(Operation.READ, group_id)
        caller.acting.topics.partition(*spot, Operation.READ)
    except PenstockError as error:
        return errors.kafka_code(error)
    return None


async def _commit(caller: Caller, request: Message, offsets: dict[Spot, NewOffset], version: int) -> dict[Spot, int]:
    wanted = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        group_instance_id=request.get("group_instance_id"),
        offsets=offsets,
        knows_epochs=version >= _KNOWS_EPOCHS,
    )
    try:
        results = await caller.acting.groups.commit(wanted)
    except PenstockError as error:
        return dict.fromkeys(offsets, errors.kafka_code(error))
    return {spot: errors.kafka_code(error) if error else errors.NONE for spot, error in results.items()}


def _unknown_id(caller: Caller, group_id: str) -> int:
    """What is told of an id that no topic has: whoever may not use the group hears of that alone."""
    try:
        caller.acting.groups.check(Operation.READ, group_id)
    except PenstockError as error:
        return errors.kafka_code(error)
    return errors.UNKNOWN_TOPIC_ID


async def _answer(topic: Message, name: str | None, codes: dict[Spot, int], unknown: int, answer: LongAnswer) -> Fields:
    missing = unknown if name is None else errors.KAFKA_CODES[Code.UNKNOWN_TOPIC]
    partitions = [
        await answer.row(
            {
                "partition_index": partition.partition_index,
                "error_code": missing if name is None else codes.get((name, partition.partition_index), missing),
            }
        )
        for partition in topic.partitions
    ]
    return {"name": name, "topic_id": topic.get("topic_id"), "partitions": partitions}
