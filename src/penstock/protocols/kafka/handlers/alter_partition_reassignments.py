"""AlterPartitionReassignments 0-1: let partitions move to other brokers, or take a move back (KIP-455).

Answered when the move is decided; ListPartitionReassignments tells how it goes on.

Version notes: 1 may forbid that the number of replicas changes.
"""

from collections import Counter
from collections.abc import Sequence

from penstock.cluster.operations import Outcomes, Place
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.operator_calls import by_topic, outcome_fields, outcomes_in_time
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(45, "alter_partition_reassignments", 0, 1)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    wanted = [
        ((topic.name, each.partition_index), each.replicas) for topic in request.topics for each in topic.partitions
    ]
    named = Counter(place for place, _ in wanted)
    may_resize = request.get("allow_replication_factor_change", True)
    outcomes: Outcomes = {}
    targets: dict[Place, Sequence[int] | None] = {}
    for place, target in wanted:
        try:
            if named[place] > 1:
                raise PenstockError(Code.INVALID_REQUEST, f"{place[0]}-{place[1]} is named twice in one request")
            if target is not None and not may_resize:
                _check_size(context, place, target)
            targets[place] = target
        except PenstockError as error:
            outcomes[place] = error
    refused = None
    try:
        outcomes |= await outcomes_in_time(
            context, caller, request.timeout, targets, lambda operations: operations.move(targets)
        )
    except PenstockError as error:
        refused = error.kept()
        outcomes = dict.fromkeys(named, refused)
    return {
        "throttle_time": 0,
        "allow_replication_factor_change": may_resize,
        **outcome_fields(refused),
        "responses": [
            {
                "name": topic,
                "partitions": [{"partition_index": place[1], **outcome_fields(outcomes[place])} for place in places],
            }
            for topic, places in by_topic(outcomes)
        ],
    }


def _check_size(context: Context, place: Place, target: Sequence[int]) -> None:
    """Of a partition that moves already, the number it is on its way to counts."""
    entry = context.image.topics.get(place[0]) if context.image is not None else None
    state = context.image.states.get(entry.record.topic_id, {}).get(place[1]) if context.image and entry else None
    if state is None:
        return
    size = len(state.target or state.replicas)
    if len(target) != size:
        raise PenstockError(
            Code.INVALID_REPLICATION,
            f"{place[0]}-{place[1]} has {size} replicas and would have {len(target)}, which the request does not allow",
        )
