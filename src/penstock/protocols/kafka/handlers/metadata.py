"""Metadata 0-13: brokers, topics, partitions; creates missing topics when the client and the broker allow it.

Version notes: 0 has no null list, an empty one asks for all; 1+ null asks for all; 4+ may forbid creation; 10+
topic ids, 12+ topics by id alone.
"""

from typing import Any

from penstock.engine.access import Operation
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import authorized_operations, cluster_view
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.topic_fields import describe_topic
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(3, "metadata", 0, 13, slow=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked = request.topics
    wants = bool(request.get("include_topic_authorized_operations"))
    answer = LongAnswer(context, API, version, "topics", "partitions")
    topics, lasts = [], True
    if asked is None or (version == 0 and not asked):
        for topic in list(caller.acting.topics.visible()):
            described = await describe_topic(
                context, topic, topic.partitions, _operations(caller, topic.name, wants), answer
            )
            topics.append(await answer.around(described))
    else:
        may_create = context.auto_create and request.get("allow_auto_topic_creation", True)
        for wanted in asked:
            described = await _find(context, caller, wanted, may_create, wants, answer)
            lasts = lasts and not described["error_code"]
            topics.append(await answer.around(described))
    return {
        "throttle_time": 0,
        "brokers": [endpoint._asdict() for endpoint in cluster_view.endpoints(context, departed=True)],
        "cluster_id": caller.acting.cluster_id,
        "controller_id": cluster_view.admin_broker_id(context),
        "topics": topics,
        "cluster_authorized_operations": (
            authorized_operations.of_cluster(caller)
            if request.get("include_cluster_authorized_operations")
            else authorized_operations.NOT_ASKED_FOR
        ),
        "error_code": errors.NONE,
        "lasts": lasts,  # told nobody: whether the answer stays right until the topics change
    }


async def _find(
    context: Context, caller: Caller, wanted: Message, may_create: bool, wants: bool, answer: LongAnswer
) -> Fields:
    """One that was named. Who may not see it is told so before anybody looks whether it is there."""
    topics = caller.acting.topics
    topic_id, name = wanted.get("topic_id"), wanted.name
    try:
        if topic_id is not None and topic_id.int:  # Java's client sends an empty name with it
            found = topics.get_by_id(topic_id, Operation.DESCRIBE)
            if found is None:
                return _missing(None, errors.UNKNOWN_TOPIC_ID, topic_id)
            name = found.name
        elif name is None:
            return _missing("", errors.INVALID_REQUEST)
        else:
            found = topics.get(name, Operation.DESCRIBE)
            if found is None and may_create:
                found = await _create(caller, name)
    except PenstockError as error:
        by_id = topic_id is not None and topic_id.int
        return _missing(None if by_id else name, errors.kafka_code(error), topic_id if by_id else None)
    if found is None:
        missing = _missing(name, errors.KAFKA_CODES[Code.UNKNOWN_TOPIC])
        return {**missing, "topic_authorized_operations": _operations(caller, name, wants)}
    return await describe_topic(context, found, found.partitions, _operations(caller, name, wants), answer)


async def _create(caller: Caller, name: str) -> Topic:
    """Raises PenstockError."""
    try:
        return await caller.acting.topics.create_missing(name)
    except PenstockError:
        found = caller.acting.topics.get(name, Operation.DESCRIBE)  # somebody else may have created it meanwhile
        if found is None:
            raise
        return found


def _operations(caller: Caller, name: str, wants: bool) -> int:
    return authorized_operations.of_topic(caller, name) if wants else authorized_operations.NOT_ASKED_FOR


def _missing(name: str | None, code: int, topic_id: Any = None) -> Fields:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": authorized_operations.NOT_ASKED_FOR,
    }
