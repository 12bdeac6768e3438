"""OffsetForLeaderEpoch 2-4: where a leader epoch ended, so that a consumer can tell a truncation (KIP-320)."""

from penstock.engine.access import Operation
from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(23, "offset_for_leader_epoch", 2, 4, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    answer = LongAnswer(context, API, version, "topics", "partitions")
    topics = [
        {
            "topic": topic.topic,
            "partitions": [await answer.row(_answer(caller, topic.topic, wanted)) for wanted in topic.partitions],
        }
        for topic in request.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _answer(caller: Caller, topic: str, wanted: Message) -> Fields:
    code, epoch, end = errors.NONE, -1, -1
    try:
        partition = caller.acting.topics.partition(topic, wanted.partition, Operation.DESCRIBE)
        partition.check_epoch(wanted.current_leader_epoch)
        epoch, end = partition.end_of_epoch(wanted.leader_epoch)
    except PenstockError as error:
        code = errors.kafka_code(error)
    return {"error_code": code, "partition": wanted.partition, "leader_epoch": epoch, "end_offset": end}
