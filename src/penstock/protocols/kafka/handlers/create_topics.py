"""CreateTopics 2-7: topics with partitions, settings, or explicit replicas; `validate_only` creates nothing.

Explicit assignments must put every partition on this one broker. Error texts say what is wrong with which value.
"""

from collections import Counter

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.configs import topic_entries
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(19, "create_topics", 2, 7)


async def handle(context: Context, request: Message, version: int) -> Fields:
    named = Counter(topic.name for topic in request.topics)
    topics: list[Fields] = []
    for topic in request.topics:
        if named[topic.name] > 1:
            topics.append(_refused(topic.name, errors.INVALID_REQUEST, "the topic is named twice in one request"))
        else:
            topics.append(await _create(context, topic, request.validate_only))
    return {"throttle_time": 0, "topics": topics}


async def _create(context: Context, wanted: Message, validate_only: bool) -> Fields:
    try:
        partitions = _partitions(context, wanted)
        settings = {config.name: config.value for config in wanted.configs if config.value is not None}
        topic = await context.engine.create_topic(wanted.name, partitions, settings, validate_only=validate_only)
    except PenstockError as error:
        return _refused(wanted.name, errors.kafka_code(error), errors.describe(error))
    return {
        "name": wanted.name,
        "topic_id": None if validate_only else topic.topic_id,
        "error_code": errors.NONE,
        "error_message": None,
        "num_partitions": len(topic.partitions)
        or (context.engine.default_partitions if partitions == -1 else partitions),
        "replication_factor": 1,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": False,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in topic_entries(context, topic.config.given)
        ],
    }


def _partitions(context: Context, wanted: Message) -> int:
    """How many partitions are asked for; -1 is the broker's default."""
    if not wanted.assignments:
        if wanted.replication_factor not in (-1, 1):
            raise PenstockError(
                Code.INVALID_REPLICATION,
                f"replication factor {wanted.replication_factor} for {wanted.name!r}; there is 1 broker",
            )
        count: int = wanted.num_partitions
        return count if count != 0 else -2  # 0 is a mistake, not the default
    indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise PenstockError(Code.INVALID_REQUEST, f"assigned partitions of {wanted.name!r} do not run from 0 up")
    for assignment in wanted.assignments:
        if list(assignment.broker_ids) != [context.node_id]:
            raise PenstockError(
                Code.INVALID_REPLICATION,
                f"partition {assignment.partition_index} of {wanted.name!r} assigned to brokers "
                f"{list(assignment.broker_ids)}; there is only {context.node_id}",
            )
    return len(indexes)


def _refused(name: str, code: int, text: str) -> Fields:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": text,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
