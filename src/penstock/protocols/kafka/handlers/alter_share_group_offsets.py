"""AlterShareGroupOffsets 0 (KIP-932): have a share group without members begin anew at other offsets.

The group is made if there is none. What it had done with messages from there on counts for nothing then; an offset that
is not in the partition counts as the nearest that is, and -1 as where the group's settings say.
"""

from uuid import UUID

from penstock.engine.access import NotAuthorised
from penstock.engine.queues.share_offsets import check_count
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(91, "alter_share_group_offsets", 0, 0, slow=True)
_NO_ID = UUID(int=0)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    answer = LongAnswer(context, API, version, "responses", "partitions")
    asked: dict[str, dict[int, int]] = {}
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "the group id is empty; name the group")
        check_count(len(request.topics) + sum(len(topic.partitions) for topic in request.topics))
        for topic in request.topics:
            offsets = asked.setdefault(topic.topic_name, {})
            for row in topic.partitions:
                offsets[row.partition_index] = row.start_offset
                await answer.count_row()
        wanted = {(name, index): offset for name, offsets in asked.items() for index, offset in offsets.items()}
        results = await caller.acting.shares.alter(request.group_id, wanted)
    except PenstockError as error:
        return {
            "throttle_time": 0,
            "error_code": errors.kafka_code(error),
            "error_message": errors.describe(error),
            "responses": (),
        }
    responses = []
    for name, offsets in asked.items():
        rows = [await answer.row(_row(index, results[name, index])) for index in offsets]
        is_hidden = any(isinstance(results[name, index], NotAuthorised) for index in offsets)
        topic_id = None if is_hidden else caller.acting.topics.id_of(name)
        responses.append({"topic_name": name, "topic_id": topic_id or _NO_ID, "partitions": rows})
    return {"throttle_time": 0, "error_code": errors.NONE, "error_message": None, "responses": responses}


def _row(index: int, error: PenstockError | None) -> Fields:
    return {
        "partition_index": index,
        "error_code": errors.NONE if error is None else errors.kafka_code(error),
        "error_message": None if error is None else errors.describe(error),
    }
