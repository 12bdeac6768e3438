"""OffsetCommit 2-10: keep how far a group has read; each partition has an error of its own.

Version notes: 5+ has no retention time, and the one of 2-4 is ignored: the broker's holds; 7+ static members; 9+ member
epochs of consumer groups, and says when the group is missing; 10 names topics by id.
"""

from penstock.engine.groups.offsets import CommitRequest, NewOffset, Spot
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.messages import Message

API = Api(8, "offset_commit", 2, 10)
_KNOWS_EPOCHS = 9


async def handle(context: Context, request: Message, version: int) -> Fields:
    names = [_name(context, topic) for topic in request.topics]
    offsets: dict[Spot, NewOffset] = {}
    answer = LongAnswer(context, API, version, "topics", "partitions")
    for topic, name in zip(request.topics, names, strict=True):
        for partition in topic.partitions:
            await answer.look()
            if name is not None and _exists(context, name, partition.partition_index):
                offsets[name, partition.partition_index] = NewOffset(
                    partition.committed_offset,
                    partition.get("committed_leader_epoch", -1),
                    partition.committed_metadata or "",
                )
    codes = await _commit(context, request, offsets, version) if offsets else {}
    return {
        "throttle_time": 0,
        "topics": [
            await _answer(topic, name, codes, answer) for topic, name in zip(request.topics, names, strict=True)
        ],
    }


def _name(context: Context, topic: Message) -> str | None:
    """The topic's name; None when it has an id that is unknown."""
    if (name := topic.get("name")) is not None:
        return str(name)
    found = context.engine.topics.get_by_id(topic.topic_id)
    return None if found is None else found.name


def _exists(context: Context, name: str, index: int) -> bool:
    topic = context.engine.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)


async def _commit(context: Context, request: Message, offsets: dict[Spot, NewOffset], version: int) -> dict[Spot, int]:
    wanted = CommitRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        group_instance_id=request.get("group_instance_id"),
        offsets=offsets,
        knows_epochs=version >= _KNOWS_EPOCHS,
    )
    try:
        results = await context.engine.groups.commit(wanted)
    except PenstockError as error:
        return dict.fromkeys(offsets, errors.kafka_code(error))
    return {spot: errors.kafka_code(error) if error else errors.NONE for spot, error in results.items()}


async def _answer(topic: Message, name: str | None, codes: dict[Spot, int], answer: LongAnswer) -> Fields:
    missing = errors.UNKNOWN_TOPIC_ID if name is None else errors.KAFKA_CODES[Code.UNKNOWN_TOPIC]
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
