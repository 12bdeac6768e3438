"""CreateTopics 2-7: topics with partitions, settings, or explicit replicas; `validate_only` creates nothing.

Error texts say what is wrong with which value.
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
        assignment = _assignment(wanted)
        partitions = len(assignment) if assignment is not None else wanted.num_partitions
        settings = {config.name: config.value for config in wanted.configs if config.value is not None}
        topic = await context.engine.create_topic(
            wanted.name,
            -1 if assignment is not None else partitions,
            settings,
            replication=-1 if assignment is not None else wanted.replication_factor,
            assignment=assignment,
            validate_only=validate_only,
        )
    except PenstockError as error:
        return _refused(wanted.name, errors.kafka_code(error), errors.describe(error))
    replication = len(topic.partitions[0].state.replicas) if topic.partitions else _replication(wanted)
    return {
        "name": wanted.name,
        "topic_id": None if validate_only else topic.topic_id,
        "error_code": errors.NONE,
        "error_message": None,
        "num_partitions": len(topic.partitions)
        or (context.engine.default_partitions if partitions == -1 else partitions),
        "replication_factor": replication,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": False,
                "config_source": entry.source,
                "is_sensitive": False,
            }
            for entry in topic_entries(context, topic, replication)
        ],
    }


def _assignment(wanted: Message) -> list[list[int]] | None:
    """Which brokers are to hold each partition, if the client says so."""
    if not wanted.assignments:
        return None
    placed = {assignment.partition_index: list(assignment.broker_ids) for assignment in wanted.assignments}
    if sorted(placed) != list(range(len(wanted.assignments))):
        raise PenstockError(Code.INVALID_REQUEST, f"assigned partitions of {wanted.name!r} do not run from 0 up")
    return [placed[index] for index in range(len(placed))]


def _replication(wanted: Message) -> int:
    return len(wanted.assignments[0].broker_ids) if wanted.assignments else max(wanted.replication_factor, 1)


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
