"""AddOffsetsToTxn 0-4: a group's offsets become part of a transaction."""

from penstock.errors import PenstockError
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(25, "add_offsets_to_txn", 0, 4)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    code = errors.NONE
    try:
        await caller.acting.transactions.add_offsets(
            request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    except PenstockError as error:
        code = transaction_errors.kafka_code(error, version, fenced_since=2, abortable_since=4)
    return {"throttle_time": 0, "error_code": code}
