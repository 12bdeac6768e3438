"""DeleteShareGroupOffsets 0 (KIP-932): have a share group without members forget topics, as if they were new to it."""

from uuid import UUID

from penstock.engine.access import NotAuthorised
from penstock.engine.queues.share_offsets import check_count
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(92, "delete_share_group_offsets", 0, 0, slow=True)
_NO_ID = UUID(int=0)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    answer = LongAnswer(context, API, version, "responses")
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "the group id is empty; name the group")
        check_count(len(request.topics))
        names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
        results = await caller.acting.shares.delete(request.group_id, names)
    except PenstockError as error:
        return {
            "throttle_time": 0,
            "error_code": errors.kafka_code(error),
            "error_message": errors.describe(error),
            "responses": (),
        }
    responses = [await answer.row(_row(caller, name, results[name])) for name in names]
    return {"throttle_time": 0, "error_code": errors.NONE, "error_message": None, "responses": responses}


def _row(caller: Caller, name: str, error: PenstockError | None) -> Fields:
    topic_id = None if isinstance(error, NotAuthorised) else caller.acting.topics.id_of(name)
    return {
        "topic_name": name,
        "topic_id": topic_id or _NO_ID,
        "error_code": errors.NONE if error is None else errors.kafka_code(error),
        "error_message": None if error is None else errors.describe(error),
    }
