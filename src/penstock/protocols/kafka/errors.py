"""Our errors as Kafka's codes: a total table, plus the codes handlers use by name."""

from typing import Final

from penstock.errors import Code, PenstockError

NONE: Final = 0
COORDINATOR_NOT_AVAILABLE: Final = 15
INVALID_REQUIRED_ACKS: Final = 21
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
UNSUPPORTED_VERSION: Final = 35
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
KAFKA_STORAGE_ERROR: Final = 56
UNKNOWN_TOPIC_ID: Final = 100
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115

KAFKA_CODES: Final[dict[Code, int]] = {
    Code.UNKNOWN_TOPIC: 3,  # UNKNOWN_TOPIC_OR_PARTITION
    Code.UNKNOWN_TOPIC_ID: UNKNOWN_TOPIC_ID,
    Code.TOPIC_EXISTS: 36,
    Code.INVALID_TOPIC: 17,  # INVALID_TOPIC_EXCEPTION
    Code.INVALID_PARTITIONS: 37,
    Code.INVALID_REPLICATION: 38,
    Code.INVALID_ASSIGNMENT: 39,  # INVALID_REPLICA_ASSIGNMENT
    Code.INVALID_CONFIG: 40,
    Code.INVALID_REQUEST: INVALID_REQUEST,
    Code.INVALID_TIMESTAMP: 32,
    Code.UNSUPPORTED_VERSION: UNSUPPORTED_VERSION,
    Code.UNSUPPORTED_CODEC: 76,  # UNSUPPORTED_COMPRESSION_TYPE
    Code.CORRUPT_BATCH: 2,  # CORRUPT_MESSAGE
    Code.INVALID_BATCH: 87,  # INVALID_RECORD
    Code.BATCH_TOO_LARGE: 10,  # MESSAGE_TOO_LARGE
    Code.OUT_OF_ORDER_SEQUENCE: 45,
    Code.INVALID_PRODUCER_EPOCH: 47,
    Code.OFFSET_OUT_OF_RANGE: 1,
    Code.FENCED_LEADER_EPOCH: 74,
    Code.UNKNOWN_LEADER_EPOCH: 75,  # UNKNOWN_LEADER_EPOCH
    Code.CORRUPT_LOG: KAFKA_STORAGE_ERROR,
    Code.STORAGE_FULL: KAFKA_STORAGE_ERROR,
    Code.STORAGE_FAILED: KAFKA_STORAGE_ERROR,
    Code.NOT_AVAILABLE: 5,  # LEADER_NOT_AVAILABLE
    Code.LIMIT_EXCEEDED: POLICY_VIOLATION,
    Code.NOT_ALLOWED: POLICY_VIOLATION,
}

_LONGEST_TEXT = 500  # a peer's own values are quoted in it, once per partition


def kafka_code(error: PenstockError) -> int:
    return KAFKA_CODES[error.code]


def describe(error: PenstockError) -> str:
    """The text for a client: what is wrong, and the way out if there is one."""
    text = f"{error}; {error.help}" if error.help else str(error)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
