"""DescribeTransactions 0: state, producer and partitions of transactional ids."""

from penstock.errors import PenstockError
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(65, "describe_transactions", 0, 0, reads=True)
_ROW_BYTES, _TOPIC_BYTES = 50, 10


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked, room = dict.fromkeys(request.transactional_ids), AnswerRoom()
    return {
        "throttle_time": 0,
        "transaction_states": [await _describe(context, caller, transactional_id, room) for transactional_id in asked],
    }


async def _describe(context: Context, caller: Caller, transactional_id: str, room: AnswerRoom) -> Fields:
    await context.turns.next()
    try:
        found = await caller.acting.transactions.describe(transactional_id)
        size = sum(len(topic) + 4 * len(indexes) + _TOPIC_BYTES for topic, indexes in found.partitions)
        room.take(f"transactional id {transactional_id!r}", size + _ROW_BYTES)
    except PenstockError as error:
        return {
            "error_code": errors.kafka_code(error),
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    return {
        "error_code": errors.NONE,
        "transactional_id": transactional_id,
        "transaction_state": found.state,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [{"topic": topic, "partitions": list(indexes)} for topic, indexes in found.partitions],
    }
