"""CreateTopics 2-7: topics with partitions, settings, or explicit replicas; `validate_only` creates nothing.

Error texts say what is wrong with which value.
"""

from collections import Counter

from penstock.engine.access import Kind, Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.configs import topic_entries
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(19, "create_topics", 2, 7)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    named = Counter(topic.name for topic in request.topics)
    topics: list[Fields] = []
    for topic in request.topics:
        if named[topic.name] > 1:
            topics.append(_refused(topic.name, errors.INVALID_REQUEST, "the topic is named twice in one request"))
        else:
            topics.append(await _create(context, caller, topic, request.validate_only))
    return {"throttle_time": 0, "topics": topics}


async def _create(context: Context, caller: Caller, wanted: Message, validate_only: bool) -> Fields:
    try:
        assignment = _assignment(wanted)
        partitions = len(assignment) if assignment is not None else wanted.num_partitions
        settings = {config.name: config.value for config in wanted.configs if config.value is not None}
        topic = await caller.acting.topics.create(
            wanted.name,
            -1 if assignment is not None else partitions,
            settings,
            replication=-1 if assignment is not None else wanted.replication_factor,
            assignment=assignment,
            validate_only=validate_only,
        )
    except PenstockError as error:
        return _refused(wanted.name, errors.kafka_code(error), errors.describe(error))
    made = {
        "name": wanted.name,
        "topic_id": None if validate_only else topic.topic_id,
        "error_code": errors.NONE,
        "error_message": None,
    }
    if not caller.acting.rights.may(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, wanted.name):
        untold = {"num_partitions": -1, "replication_factor": -1, "configs": None}
        return {**made, **untold, "topic_config_error_code": errors.TOPIC_AUTHORIZATION_FAILED}
    replication = len(topic.partitions[0].state.replicas) if topic.partitions else _replication(wanted)
    return {
        **made,
        "num_partitions": len(topic.partitions) or (context.default_partitions if partitions == -1 else partitions),
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
