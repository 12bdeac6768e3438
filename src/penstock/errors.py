"""Every error a caller can be told about: one tree, each with a stable code, whether a retry may help, and a way out.

A protocol's `errors.py` maps each `Code` to its own words; a test fails when one is missing.
"""

from enum import StrEnum


class Code(StrEnum):
    UNKNOWN_TOPIC = "unknown_topic"
    UNKNOWN_TOPIC_ID = "unknown_topic_id"
    TOPIC_EXISTS = "topic_exists"
    INVALID_TOPIC = "invalid_topic"
    INVALID_PARTITIONS = "invalid_partitions"
    INVALID_REPLICATION = "invalid_replication"
    INVALID_ASSIGNMENT = "invalid_assignment"
    INVALID_CONFIG = "invalid_config"
    INVALID_REQUEST = "invalid_request"
    INVALID_TIMESTAMP = "invalid_timestamp"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNSUPPORTED_CODEC = "unsupported_codec"
    CORRUPT_BATCH = "corrupt_batch"
    INVALID_BATCH = "invalid_batch"
    BATCH_TOO_LARGE = "batch_too_large"
    OUT_OF_ORDER_SEQUENCE = "out_of_order_sequence"
    INVALID_PRODUCER_EPOCH = "invalid_producer_epoch"
    OFFSET_OUT_OF_RANGE = "offset_out_of_range"
    FENCED_LEADER_EPOCH = "fenced_leader_epoch"
    UNKNOWN_LEADER_EPOCH = "unknown_leader_epoch"
    CORRUPT_LOG = "corrupt_log"
    STORAGE_FULL = "storage_full"
    STORAGE_FAILED = "storage_failed"
    NOT_AVAILABLE = "not_available"
    LIMIT_EXCEEDED = "limit_exceeded"
    NOT_ALLOWED = "not_allowed"


_RETRIABLE = {
    Code.UNKNOWN_TOPIC,
    Code.UNKNOWN_TOPIC_ID,
    Code.CORRUPT_BATCH,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.STORAGE_FULL,
    Code.NOT_AVAILABLE,
}


class PenstockError(Exception):
    """Base of what the engine raises at a caller. `str(error)` names the thing and the value."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        help: str = "",  # noqa: A002 - the word users see
        records: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.help = help
        self.records = records
        """Which records of a batch are at fault, counted from 0, where that is known."""

    @property
    def retriable(self) -> bool:
        return self.code in _RETRIABLE


class StartupError(Exception):
    """The broker cannot or must not start; the text names the thing and the way out."""
