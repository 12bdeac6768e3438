"""DeleteTopics 1-6: by name, from 6 on by name or id."""

from typing import Any

from penstock.engine.access import Kind, Operation
from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(20, "delete_topics", 1, 6)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    wanted: list[tuple[str | None, Any]]
    if version < 6:
        wanted = [(name, None) for name in request.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    responses = []
    for name, topic_id in wanted:
        topic, code, text = None, errors.NONE, None
        try:
            topic = caller.acting.topics.to_delete(name, topic_id)
            await caller.acting.topics.delete(topic)
        except PenstockError as error:
            code, text = errors.kafka_code(error), errors.describe(error)
        known = topic.topic_id if topic is not None else topic_id
        responses.append(
            {
                "name": topic.name if topic is not None else name or _shown_name(caller, topic_id),
                "topic_id": known,
                "error_code": code,
                "error_message": text,
            }
        )
    return {"throttle_time": 0, "responses": responses}


def _shown_name(caller: Caller, topic_id: Any) -> str | None:
    """The name of a topic that was named by its id, for who may see it."""
    name = caller.acting.topics.name_of(topic_id) if topic_id is not None else None
    return name if name is not None and caller.acting.rights.may(Operation.DESCRIBE, Kind.TOPIC, name) else None
