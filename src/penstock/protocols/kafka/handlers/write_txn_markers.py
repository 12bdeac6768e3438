"""WriteTxnMarkers 1-2: end a transaction in the partitions named, whatever its coordinator knows of it.

This is how a coordinator reaches a partition of another broker. On a broker without others it comes from tools, which
end a transaction that hangs (`kafka-transactions.sh abort`); in a cluster only brokers may.
"""

from penstock.engine.transactions.transaction import BUMPED_AT_END
from penstock.errors import PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Caller, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(27, "write_txn_markers", 1, 2, told_caller=True)
_CLUSTER_AUTHORIZATION_FAILED = 31


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    may_write = caller.is_broker or not context.cluster
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": index,
                                "error_code": await _write(context, marker, topic.name, index)
                                if may_write
                                else _CLUSTER_AUTHORIZATION_FAILED,
                            }
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


async def _write(context: Context, marker: Message, topic: str, index: int) -> int:
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return errors.INVALID_REQUEST  # a marker of nobody ends nothing, and is a batch no reader expects
    try:
        await context.engine.transactions.write_marker(
            topic,
            index,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            bumped=marker.get("transaction_version", 0) >= BUMPED_AT_END,
        )
    except PenstockError as error:
        return errors.kafka_code(error)
    return errors.NONE
