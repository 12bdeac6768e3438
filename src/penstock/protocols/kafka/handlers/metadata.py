"""Metadata 0-13: brokers, topics, partitions; creates missing topics when the client and the broker allow it.

Version notes: 0 has no null list, an empty one asks for all; 1+ null asks for all; 4+ may forbid creation; 10+
topic ids, 12+ topics by id alone.
"""

from typing import Any

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import cluster_view, errors
from penstock.protocols.kafka.handlers import CLUSTER_OPERATIONS, NO_OPERATIONS, TOPIC_OPERATIONS, Api, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.messages import Message
from penstock.protocols.kafka.topic_fields import describe_topic

API = Api(3, "metadata", 0, 13, slow=True)


async def handle(context: Context, request: Message, version: int) -> Fields:
    asked = request.topics
    operations = TOPIC_OPERATIONS if request.get("include_topic_authorized_operations") else NO_OPERATIONS
    answer = LongAnswer(context, API, version, "topics", "partitions")
    topics, lasts = [], True
    if asked is None or (version == 0 and not asked):
        for topic in list(context.engine.topics):
            described = await describe_topic(context, topic, topic.partitions, operations, answer)
            topics.append(await answer.around(described))
    else:
        may_create = context.auto_create and request.get("allow_auto_topic_creation", True)
        for wanted in asked:
            described = await _find(context, wanted, may_create, operations, answer)
            lasts = lasts and not described["error_code"]
            topics.append(await answer.around(described))
    return {
        "throttle_time": 0,
        "brokers": [endpoint._asdict() for endpoint in cluster_view.endpoints(context, departed=True)],
        "cluster_id": context.engine.cluster_id,
        "controller_id": cluster_view.admin_broker_id(context),
        "topics": topics,
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if request.get("include_cluster_authorized_operations") else NO_OPERATIONS
        ),
        "error_code": errors.NONE,
        "lasts": lasts,  # told nobody: whether the answer stays right until the topics change
    }


async def _find(context: Context, wanted: Message, may_create: bool, operations: int, answer: LongAnswer) -> Fields:
    topics = context.engine.topics
    topic_id, name = wanted.get("topic_id"), wanted.name
    if topic_id is not None and topic_id.int:  # Java's client sends an empty name with it
        found = topics.get_by_id(topic_id)
        return (
            await describe_topic(context, found, found.partitions, operations, answer)
            if found
            else _missing(None, errors.UNKNOWN_TOPIC_ID, topic_id)
        )
    if name is None:
        return _missing("", errors.INVALID_REQUEST)
    found = topics.get(name)
    if found is None and may_create:
        try:
            create = context.engine.internal_topic if name in INTERNAL_TOPICS else context.engine.create_topic
            found = await create(name)
        except PenstockError as error:
            found = topics.get(name)  # somebody else may have created it meanwhile
            if found is None:
                return _missing(name, errors.kafka_code(error))
    if found is None:
        return _missing(name, errors.KAFKA_CODES[Code.UNKNOWN_TOPIC])
    return await describe_topic(context, found, found.partitions, operations, answer)


def _missing(name: str | None, code: int, topic_id: Any = None) -> Fields:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": NO_OPERATIONS,
    }
