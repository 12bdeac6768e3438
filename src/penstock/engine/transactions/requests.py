"""What is asked of the transactional ids of a shard, what they answer, and within which limits."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.engine.coordination.schemas import NamedPartitions
from penstock.engine.transactions.transaction import NONE, TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Args:
    transactional_ids: in one shard. Clients that make up an id per run leave one behind each time, for a week.
    partitions: in one transaction. All are in each of its records: so many with a long-named topic each are a megabyte.
    id_bytes: of a transactional id; it is the key of every record, and kept in memory.
    timeout_ms: the longest a client may ask for; readers of committed records wait as long for a producer that died.
    expiration_ms: an id nobody used for so long is forgotten.
    waiting_ms: how long a caller waits for a transaction to end; less than clients wait for an answer.
    """

    transactional_ids: int = 10_000
    partitions: int = 4_000
    id_bytes: int = 1_024
    timeout_ms: int = 15 * 60_000
    expiration_ms: int = 7 * 24 * 3_600_000
    waiting_ms: int = 10_000


class InitRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    producer_id: int = NONE
    producer_epoch: int = NONE
    new_producer_id: int = NONE
    """An id never given out, to be used if one is needed; see `needs_producer_id`."""


class AddPartitions(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False


class EndRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    client_transaction_version: int = 0
    new_producer_id: int = NONE


Request = InitRequest | AddPartitions | EndRequest


class MarkersDue(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    partitions: tuple[NamedPartitions, ...]
    bumped: bool = False
    """Whether the epoch is one that nothing of the transaction was written with (KIP-890)."""


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    """-1 if it has not begun."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[NamedPartitions, ...]


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
