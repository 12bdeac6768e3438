"""EndTxn 0-5: commit or abort.

From 5 on the producer's epoch rises with every end (KIP-890), so that nothing late from one transaction can end, or get
into, the next; the answer carries the producer id and the epoch to go on with.
"""

from penstock.engine.transactions.requests import EndRequest
from penstock.engine.transactions.transaction import BUMPED_AT_END
from penstock.errors import PenstockError
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(26, "end_txn", 0, 5)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    asked = EndRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        BUMPED_AT_END if version >= 5 else 0,
    )
    code, producer_id, epoch = errors.NONE, -1, -1
    try:
        producer_id, epoch = await caller.acting.transactions.end(asked)
    except PenstockError as error:
        code = transaction_errors.kafka_code(error, version, fenced_since=2, abortable_since=4)
    return {"throttle_time": 0, "error_code": code, "producer_id": producer_id, "producer_epoch": epoch}
