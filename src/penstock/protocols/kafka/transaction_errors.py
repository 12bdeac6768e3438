"""Errors of transactions for clients too old to know them: a code they handle in the same way."""

from typing import Final

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors

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
    return errors.kafka_code(error)
