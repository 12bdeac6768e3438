"""DeleteTopics 1-6: by name, from 6 on by name or id."""

from typing import Any

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(20, "delete_topics", 1, 6)


async def handle(context: Context, request: Message, version: int) -> Fields:
    wanted: list[tuple[str | None, Any]]
    if version < 6:
        wanted = [(name, None) for name in request.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    responses = []
    for name, topic_id in wanted:
        topics = context.engine.topics
        topic = topics.get(name) if name is not None else topics.get_by_id(topic_id)
        code, text = errors.NONE, None
        try:
            if topic is None:
                missing = Code.UNKNOWN_TOPIC if name is not None else Code.UNKNOWN_TOPIC_ID
                raise PenstockError(missing, f"topic {name if name is not None else topic_id} is unknown")
            await context.engine.delete_topic(topic)
        except PenstockError as error:
            code, text = errors.kafka_code(error), errors.describe(error)
        known = topic.topic_id if topic is not None else topic_id
        responses.append(
            {
                "name": topic.name if topic is not None else name,
                "topic_id": known,
                "error_code": code,
                "error_message": text,
            }
        )
    return {"throttle_time": 0, "responses": responses}
