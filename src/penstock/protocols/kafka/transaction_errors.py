"""Errors of transactions in the words that clients know there.

Those too old for an error get one that they handle in the same way. And none of them expects to hear of leaders: to
librdkafka a coordinator that cannot say yet is worth another try, a missing leader the end of the transaction.
"""

from typing import Final

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka_wire import errors

_INVALID_PRODUCER_EPOCH: Final = errors.KAFKA_CODES[Code.INVALID_PRODUCER_EPOCH]
_INVALID_TRANSACTION_STATE: Final = errors.KAFKA_CODES[Code.INVALID_TRANSACTION_STATE]


def kafka_code(error: PenstockError, version: int, *, fenced_since: int, abortable_since: int) -> int:
    """Args:
    fenced_since: the version of the API from which a client knows PRODUCER_FENCED.
    abortable_since: the same for TRANSACTION_ABORTABLE (KIP-890).
    """
    if error.code is Code.PRODUCER_FENCED and version < fenced_since:
        return _INVALID_PRODUCER_EPOCH
    if error.code is Code.TRANSACTION_ABORTABLE and version < abortable_since:
        return _INVALID_TRANSACTION_STATE
    if error.code in (Code.NOT_AVAILABLE, Code.NOT_LEADER):
        return errors.COORDINATOR_NOT_AVAILABLE
    return errors.kafka_code(error)
