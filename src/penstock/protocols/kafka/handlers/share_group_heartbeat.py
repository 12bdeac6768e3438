"""ShareGroupHeartbeat 1 (KIP-932): a member joins, stays in or leaves a group whose members take from the same
partitions.

Members name themselves. An answer has partitions only when the member cannot know them already. Version 0, of Kafka's
early access, is not spoken by anybody any more.
"""

from penstock.engine.groups.share_requests import ShareHeartbeat
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(76, "share_group_heartbeat", 1, 1)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topic_names=request.subscribed_topic_names,
        client_id=caller.client_id,
        client_host=caller.host,
    )
    try:
        if not heartbeat.group_id.strip():
            raise PenstockError(Code.INVALID_REQUEST, "the group id is empty; name the group")
        result = await caller.acting.groups.share_heartbeat(heartbeat)
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
