"""InitProducerId 0-5: an id and epoch for an idempotent or transactional producer.

Without a transactional id every call gets an id never given out before, also one that names the id it has (3+): there
is nothing to tell its owner by. With one, whoever used it before is fenced and its open transaction aborted.
Version notes: 4 tells fenced producers PRODUCER_FENCED, older ones INVALID_PRODUCER_EPOCH.
"""

from penstock.errors import PenstockError
from penstock.protocols.kafka import transaction_errors
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(22, "init_producer_id", 0, 5)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    transactional_id = request.transactional_id
    try:
        if transactional_id is None:
            return _fields(errors.NONE, await caller.acting.transactions.take_producer_id(), 0)
        identity = await caller.acting.transactions.init(
            transactional_id,
            request.transaction_timeout,
            request.get("producer_id", -1),
            request.get("producer_epoch", -1),
        )
    except PenstockError as error:
        return _fields(transaction_errors.kafka_code(error, version, fenced_since=4, abortable_since=6), -1, -1)
    return _fields(errors.NONE, identity.producer_id, identity.producer_epoch)


def _fields(code: int, producer_id: int, epoch: int) -> Fields:
    return {"throttle_time": 0, "error_code": code, "producer_id": producer_id, "producer_epoch": epoch}
