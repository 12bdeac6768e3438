"""ConsumerGroupHeartbeat 0-1 (KIP-848): a member joins, stays in or leaves a group the broker divides partitions in.

A member names itself since version 1; in version 0 it may leave that to the broker. An answer has partitions only
when they are not what the member knows.
"""

from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(68, "consumer_group_heartbeat", 0, 1)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    owned = request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout,
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=request.get("subscribed_topic_regex"),
        server_assignor=request.server_assignor,
        topic_partitions=(
            None if owned is None else tuple([TopicPartitions(topic.topic_id, topic.partitions) for topic in owned])
        ),
        client_id=caller.client_id,
        client_host=caller.host,
    )
    try:
        _check(heartbeat, version)
        result = await caller.acting.groups.consumer_heartbeat(heartbeat)
    except PenstockError as error:
        return {
            "throttle_time": 0,
            "error_code": errors.kafka_code(error),
            "error_message": errors.describe(error),
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
    return {
        "throttle_time": 0,
        "error_code": errors.NONE,
        "error_message": None,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": None
        if result.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in result.assignment
            ]
        },
    }


def _check(heartbeat: ConsumerHeartbeat, version: int) -> None:
    if not heartbeat.group_id:
        raise PenstockError(Code.INVALID_REQUEST, "the group id is empty; name the group")
    if version >= 1 and not heartbeat.member_id:
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"a member of group {heartbeat.group_id!r} has no id; since version 1 it makes up its own",
        )
