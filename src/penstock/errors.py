"""Every error a caller can be told about: one tree, each with a stable code, whether a retry may help, and a way out.

A protocol's `errors.py` maps each `Code` to its own words; a test fails when one is missing.
"""

from enum import StrEnum
from typing import Self


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
    INVALID_DURABILITY = "invalid_durability"
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
    NOT_LEADER = "not_leader"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = "not_enough_replicas_after_append"
    OFFSET_NOT_AVAILABLE = "offset_not_available"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"
    LIMIT_EXCEEDED = "limit_exceeded"
    NOT_ALLOWED = "not_allowed"
    NOT_AUTHENTICATED = "not_authenticated"
    NOT_AUTHORISED = "not_authorised"
    # --- users, roles, keys
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    UNACCEPTABLE_CREDENTIAL = "unacceptable_credential"
    # --- operators
    NO_REASSIGNMENT = "no_reassignment"
    ELECTION_NOT_NEEDED = "election_not_needed"
    PREFERRED_LEADER_NOT_AVAILABLE = "preferred_leader_not_available"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "eligible_leaders_not_available"
    UNKNOWN_BROKER = "unknown_broker"
    # --- coordinators
    COORDINATOR_LOADING = "coordinator_loading"
    COORDINATOR_NOT_AVAILABLE = "coordinator_not_available"
    NOT_COORDINATOR = "not_coordinator"
    # --- groups
    INVALID_GROUP_ID = "invalid_group_id"
    GROUP_NOT_FOUND = "group_not_found"
    NON_EMPTY_GROUP = "non_empty_group"
    GROUP_FULL = "group_full"
    GROUP_SUBSCRIBED_TO_TOPIC = "group_subscribed_to_topic"
    UNKNOWN_MEMBER = "unknown_member"
    MEMBER_ID_REQUIRED = "member_id_required"
    FENCED_INSTANCE = "fenced_instance"
    UNRELEASED_INSTANCE = "unreleased_instance"
    ILLEGAL_GENERATION = "illegal_generation"
    FENCED_MEMBER_EPOCH = "fenced_member_epoch"
    STALE_MEMBER_EPOCH = "stale_member_epoch"
    REBALANCE_IN_PROGRESS = "rebalance_in_progress"
    INCONSISTENT_PROTOCOL = "inconsistent_protocol"
    INVALID_SESSION_TIMEOUT = "invalid_session_timeout"
    UNSUPPORTED_ASSIGNOR = "unsupported_assignor"
    INVALID_REGEX = "invalid_regex"
    OFFSET_METADATA_TOO_LARGE = "offset_metadata_too_large"
    UNSTABLE_OFFSET = "unstable_offset"
    # --- queues
    INVALID_QUEUE = "invalid_queue"
    UNKNOWN_QUEUE = "unknown_queue"
    STALE_RECEIPT = "stale_receipt"
    QUEUE_FULL = "queue_full"
    INVALID_SCHEDULE = "invalid_schedule"
    # --- transactions
    TRANSACTIONAL_ID_NOT_FOUND = "transactional_id_not_found"
    INVALID_PRODUCER_ID_MAPPING = "invalid_producer_id_mapping"
    INVALID_TRANSACTION_STATE = "invalid_transaction_state"
    INVALID_TRANSACTION_TIMEOUT = "invalid_transaction_timeout"
    CONCURRENT_TRANSACTIONS = "concurrent_transactions"
    PRODUCER_FENCED = "producer_fenced"
    COORDINATOR_FENCED = "coordinator_fenced"
    TRANSACTION_ABORTABLE = "transaction_abortable"


_RETRIABLE = {
    Code.UNKNOWN_TOPIC,
    Code.UNKNOWN_TOPIC_ID,
    Code.CORRUPT_BATCH,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
    Code.STORAGE_FULL,
    Code.NOT_AVAILABLE,
    Code.NOT_LEADER,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.OFFSET_NOT_AVAILABLE,
    Code.TIMED_OUT,
    Code.COORDINATOR_LOADING,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.UNSTABLE_OFFSET,
    Code.CONCURRENT_TRANSACTIONS,
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

    def kept(self) -> Self:
        """Itself, for who keeps it as a value: without the frames it was raised through.

        Those hold what was being worked on, a batch perhaps, and soon the error too: nothing of it would go by itself.
        """
        return self.with_traceback(None)

    def again(self) -> Self:
        """Its like, to be raised by who keeps this one and would be held by it."""
        made = self.__class__.__new__(self.__class__, *self.args)
        made.__dict__.update(self.__dict__)
        return made


class StartupError(Exception):
    """The broker cannot or must not start; the text names the thing and the way out."""


class WrongSettings(StartupError):
    """The same, and another try does not mend it: somebody has to change what the broker was told."""
