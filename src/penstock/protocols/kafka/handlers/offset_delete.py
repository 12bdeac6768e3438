"""OffsetDelete 0: make a group forget how far it has read, but in topics it is reading."""

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(47, "offset_delete", 0, 0)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(row.partition_index for row in topic.partitions))
    spots = [(name, index) for name, indexes in asked.items() for index in indexes]
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "the group id is empty; name the group")
        results = await caller.acting.groups.delete_offsets(request.group_id, spots)
    except PenstockError as error:
        return {"error_code": errors.kafka_code(error), "throttle_time": 0, "topics": []}
    topics, answer = [], LongAnswer(context, API, version, "topics", "partitions")
    for name, indexes in asked.items():
        rows = []
        for index in indexes:
            refusal = results[name, index]
            code = errors.kafka_code(refusal) if refusal else errors.NONE
            rows.append(await answer.row({"partition_index": index, "error_code": code}))
        topics.append({"name": name, "partitions": rows})
    return {"error_code": errors.NONE, "throttle_time": 0, "topics": topics}
