"""ListPartitionReassignments 0: partitions on their way to other brokers (KIP-455). `replicas` are old and new ones."""

from penstock.cluster.operations import Place
from penstock.engine.access import Operation
from penstock.engine.partition_state import PartitionState
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.operator_calls import by_topic
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(46, "list_partition_reassignments", 0, 0, reads=True)


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if not caller.acting.rights.may_cluster(Operation.DESCRIBE):
        code = errors.CLUSTER_AUTHORIZATION_FAILED
        return {"throttle_time": 0, "error_code": code, "error_message": None, "topics": []}
    moving = _moving(context)
    if request.topics is not None:
        asked = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
        moving = {place: state for place, state in moving.items() if place in asked}
    return {
        "throttle_time": 0,
        "error_code": errors.NONE,
        "error_message": None,
        "topics": [
            {"name": topic, "partitions": [_fields(place[1], moving[place]) for place in places]}
            for topic, places in by_topic(moving)
        ],
    }


def _moving(context: Context) -> dict[Place, PartitionState]:
    if context.operations is None:
        return {}
    return {(topic.name, index): state for topic, index, state in context.operations.moving()}


def _fields(index: int, state: PartitionState) -> Fields:
    return {
        "partition_index": index,
        "replicas": list(state.replicas),
        "adding_replicas": [replica for replica in state.target if replica not in state.origin],
        "removing_replicas": [replica for replica in state.replicas if replica not in state.target],
    }
