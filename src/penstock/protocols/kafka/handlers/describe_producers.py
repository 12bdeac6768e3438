"""DescribeProducers 0: who has written to a partition lately, with epoch, last sequence and open transaction."""

from penstock.engine.access import Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(61, "describe_producers", 0, 0, reads=True)
_NONE = -1
_MOST_PRODUCERS = 20_000  # in one answer: a tenth of a second, for which all others wait


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics, room, answer = [], _MOST_PRODUCERS, LongAnswer(context, API, version, "topics", "partitions")
    for name, indexes in asked.items():
        rows = []
        for index in indexes:
            described = _describe(caller, name, index, room)
            room -= len(described["active_producers"])
            rows.append(await answer.row(described))
        topics.append({"name": name, "partitions": rows})
    return {"throttle_time": 0, "topics": topics}


def _describe(caller: Caller, name: str, index: int, room: int) -> Fields:
    code, text, active = errors.NONE, None, []
    try:
        partition = caller.acting.topics.partition(name, index, Operation.READ)
        if (count := partition.producer_count) > room:
            raise PenstockError(
                Code.LIMIT_EXCEEDED, f"{name}-{index} has {count} producers; ask for fewer partitions at once"
            )
        active = [
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.batches[-1].last_sequence if producer.batches else _NONE,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": transaction_start,
            }
            for producer_id, producer, transaction_start in partition.known_producers()
        ]
    except PenstockError as error:
        code, text = errors.kafka_code(error), errors.describe(error)
    return {"partition_index": index, "error_code": code, "error_message": text, "active_producers": active}
