"""AddOffsetsToTxn 0-4: a group's offsets become part of a transaction."""

from penstock.errors import PenstockError
from penstock.protocols.kafka import errors, transaction_errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(25, "add_offsets_to_txn", 0, 4)


async def handle(context: Context, request: Message, version: int) -> Fields:
    code = errors.NONE
    try:
        await context.engine.transactions.add_offsets(
            request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    except PenstockError as error:
        code = transaction_errors.kafka_code(error, version, fenced_since=2, abortable_since=4)
    return {"throttle_time": 0, "error_code": code}
