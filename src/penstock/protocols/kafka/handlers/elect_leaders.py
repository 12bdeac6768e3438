"""ElectLeaders 0-2: let the preferred replicas lead (KIP-183), or where nobody leads whoever is there (KIP-460).

Of partitions that are named each has its answer; when all are meant, only those do whose leader changed or should have.

Version notes: 1 type of election and an error of the whole, which version 0 has with each partition alone; 2 flexible.
"""

from penstock.engine.access import NotAuthorised
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.operator_calls import by_topic, in_time, outcome_fields, outcomes_in_time
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(43, "elect_leaders", 0, 2)
_PREFERRED, _UNCLEAN = range(2)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    kind = request.get("election_type", _PREFERRED)
    code, outcomes = errors.NONE, {}
    named = {(topic.topic, index): None for topic in request.topic_partitions or () for index in topic.partitions}
    try:
        if kind not in (_PREFERRED, _UNCLEAN):
            raise PenstockError(Code.INVALID_REQUEST, f"election type {kind}; known: 0 (preferred), 1 (unclean)")
        if request.topic_partitions is None:
            outcomes = await in_time(
                context, caller, request.timeout, lambda operations: operations.elect(None, unclean=kind == _UNCLEAN)
            )
        else:
            outcomes = await outcomes_in_time(
                context,
                caller,
                request.timeout,
                named,
                lambda operations: operations.elect(list(named), unclean=kind == _UNCLEAN),
            )
    except PenstockError as error:
        code = errors.kafka_code(error)
        if isinstance(error, NotAuthorised):  # version 0 has no other place for it
            outcomes = dict.fromkeys(named, error.kept())
    return {
        "throttle_time": 0,
        "error_code": code,
        "replica_election_results": [
            {
                "topic": topic,
                "partition_result": [{"partition_id": place[1], **outcome_fields(outcomes[place])} for place in places],
            }
            for topic, places in by_topic(outcomes)
        ],
    }
