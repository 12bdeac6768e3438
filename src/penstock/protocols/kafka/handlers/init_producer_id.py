"""InitProducerId 0-5: an id for an idempotent producer, never given out before.

A producer that names the id it has (3+) gets a new one all the same: without a transactional id there is
nothing to tell its owner by. Transactional ids are refused: there are no transactions yet.
"""

from penstock.errors import PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(22, "init_producer_id", 0, 5)


async def handle(context: Context, request: Message, version: int) -> Fields:
    if request.transactional_id is not None:
        return _fields(errors.UNSUPPORTED_VERSION, -1, -1)
    try:
        return _fields(errors.NONE, await context.engine.producer_ids.take(), 0)
    except PenstockError as error:
        return _fields(errors.kafka_code(error), -1, -1)


def _fields(code: int, producer_id: int, epoch: int) -> Fields:
    return {"throttle_time": 0, "error_code": code, "producer_id": producer_id, "producer_epoch": epoch}
