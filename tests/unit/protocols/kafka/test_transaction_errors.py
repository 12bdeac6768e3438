"""What clients of transactions are told: only what they know, and retry where that is of use."""

import pytest

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.transaction_errors import kafka_code
from penstock.protocols.kafka_wire import errors

INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, INVALID_TXN_STATE, ABORTABLE = 47, 90, 48, 120


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (Code.PRODUCER_FENCED, 1, INVALID_PRODUCER_EPOCH),
        (Code.PRODUCER_FENCED, 2, PRODUCER_FENCED),
        (Code.TRANSACTION_ABORTABLE, 3, INVALID_TXN_STATE),
        (Code.TRANSACTION_ABORTABLE, 4, ABORTABLE),
        (Code.NOT_AVAILABLE, 4, errors.COORDINATOR_NOT_AVAILABLE),
        (Code.NOT_LEADER, 4, errors.COORDINATOR_NOT_AVAILABLE),
        (Code.COORDINATOR_LOADING, 4, 14),
    ],
)
def test_each_error_in_the_words_of_the_version(code: Code, version: int, told: int) -> None:
    assert kafka_code(PenstockError(code, "why"), version, fenced_since=2, abortable_since=4) == told
