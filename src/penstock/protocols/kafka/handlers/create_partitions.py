"""CreatePartitions 0-3: let a topic grow to a count; `validate_only` only looks whether it may."""

from collections import Counter

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(37, "create_partitions", 0, 3)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    named = Counter(topic.name for topic in request.topics)
    results = []
    for wanted in {topic.name: topic for topic in request.topics}.values():
        code, text = errors.NONE, None
        try:
            if named[wanted.name] > 1:
                raise PenstockError(Code.INVALID_REQUEST, f"topic {wanted.name!r} is named twice in one request")
            topic = caller.acting.topics.to_grow(wanted.name)
            await caller.acting.topics.create_partitions(
                topic,
                wanted.count,
                assignment=_assignment(wanted, wanted.count - len(topic.partitions)),
                validate_only=request.validate_only,
            )
        except PenstockError as error:
            code, text = errors.kafka_code(error), errors.describe(error)
        results.append({"name": wanted.name, "error_code": code, "error_message": text})
    return {"throttle_time": 0, "results": results}


def _assignment(wanted: Message, new: int) -> list[list[int]] | None:
    """Which brokers are to hold each new partition, if the client says so."""
    if wanted.assignments is None or new <= 0:
        return None
    if len(wanted.assignments) != new:
        raise PenstockError(
            Code.INVALID_ASSIGNMENT,
            f"{len(wanted.assignments)} assignments for {new} new partitions of {wanted.name!r}",
        )
    return [list(assignment.broker_ids) for assignment in wanted.assignments]
