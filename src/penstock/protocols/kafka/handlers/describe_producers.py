"""DescribeProducers 0: who has written to a partition lately, with epoch and last sequence."""

from penstock.errors import PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(61, "describe_producers", 0, 0)
_NONE = -1


def handle(context: Context, request: Message, version: int) -> Fields:
    topics = [
        {"name": topic.name, "partitions": [_describe(context, topic.name, at) for at in topic.partition_indexes]}
        for topic in request.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _describe(context: Context, name: str, index: int) -> Fields:
    code, text, active = errors.NONE, None, []
    try:
        producers = context.engine.topics.partition(name, index).opened().state.producers
        active = [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.batches[-1].last_sequence if producer.batches else _NONE,
                "last_timestamp": producer.seen_ms,
                "coordinator_epoch": _NONE,
                "current_txn_start_offset": _NONE,
            }
            for producer_id, producer in producers.items()
        ]
    except PenstockError as error:
        code, text = errors.kafka_code(error), errors.describe(error)
    return {"partition_index": index, "error_code": code, "error_message": text, "active_producers": active}
