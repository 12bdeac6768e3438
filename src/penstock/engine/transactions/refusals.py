"""Why a transaction's coordinator says no, in words that name the id, the producer and the epoch."""

from penstock.engine.transactions.requests import AddPartitions, EndRequest, InitRequest, Request, TransactionLimits
from penstock.engine.transactions.transaction import ProducerIdentity, TopicPartition, Transaction
from penstock.errors import Code, PenstockError


def check_id(transactional_id: str, limits: TransactionLimits) -> None:
    """Raises PenstockError INVALID_REQUEST."""
    if not 0 < len(transactional_id.encode()) <= limits.id_bytes:
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"transactional id {transactional_id[:60]!r} is not 1 to {limits.id_bytes} bytes long",
        )


def check_init(request: InitRequest, limits: TransactionLimits) -> None:
    """Raises PenstockError INVALID_TRANSACTION_TIMEOUT, INVALID_REQUEST."""
    if not 0 < request.timeout_ms <= limits.timeout_ms:
        raise PenstockError(
            Code.INVALID_TRANSACTION_TIMEOUT,
            f"transactional id {request.transactional_id!r} asks for a time-out of {request.timeout_ms} ms; "
            f"1 to {limits.timeout_ms} are allowed",
        )
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"transactional id {request.transactional_id!r} comes with producer {request.producer_id} "
            f"in epoch {request.producer_epoch}; both or neither must be given",
        )


def check_current(transaction: Transaction, claimed: ProducerIdentity) -> None:
    """Raises PenstockError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    if claimed.producer_id != transaction.identity.producer_id:
        raise PenstockError(
            Code.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {transaction.transactional_id!r} belongs to producer "
            f"{transaction.identity.producer_id}, not to {claimed.producer_id}",
        )
    if not transaction.belongs_to(claimed):
        raise fenced(transaction, claimed)


def fenced(transaction: Transaction, claimed: ProducerIdentity) -> PenstockError:
    return PenstockError(
        Code.PRODUCER_FENCED,
        f"producer {claimed.producer_id} in epoch {claimed.producer_epoch} was fenced: transactional id "
        f"{transaction.transactional_id!r} is at producer {transaction.identity.producer_id} "
        f"in epoch {transaction.identity.producer_epoch}",
    )


def unknown(request: Request) -> PenstockError:
    return PenstockError(
        Code.INVALID_PRODUCER_ID_MAPPING,
        f"transactional id {request.transactional_id!r} is unknown, or was not used for too long: "
        f"producer {request.producer_id} has to begin again",
    )


def wrong_state(transaction: Transaction, request: EndRequest) -> PenstockError:
    return PenstockError(
        Code.INVALID_TRANSACTION_STATE,
        f"the transaction of {transaction.transactional_id!r}, producer {transaction.producer_id} in epoch "
        f"{transaction.producer_epoch}, is {transaction.state.shown} and cannot "
        f"{'commit' if request.committed else 'abort'}",
    )


def not_in_transaction(transaction: Transaction, partition: TopicPartition) -> PenstockError:
    topic, index = partition
    return PenstockError(
        Code.TRANSACTION_ABORTABLE,
        f"{topic}-{index} is not in the transaction of {transaction.transactional_id!r}, producer "
        f"{transaction.producer_id} in epoch {transaction.producer_epoch}, which is {transaction.state.shown}",
        help="abort it",
    )


def concurrent(transactional_id: str, why: str) -> PenstockError:
    return PenstockError(
        Code.CONCURRENT_TRANSACTIONS, f"the transaction of {transactional_id!r} {why}", help="try again"
    )


def too_many_ids(request: InitRequest, limits: TransactionLimits) -> PenstockError:
    return PenstockError(
        Code.LIMIT_EXCEEDED,
        f"transactional id {request.transactional_id!r} would be one more than the "
        f"{limits.transactional_ids} a shard keeps",
        help="use the same transactional ids again after a restart",
    )


def too_many_partitions(transaction: Transaction, request: AddPartitions, limits: TransactionLimits) -> PenstockError:
    return PenstockError(
        Code.LIMIT_EXCEEDED,
        f"the transaction of {transaction.transactional_id!r} has {len(transaction.partitions)} partitions; with "
        f"the {len(request.partitions)} asked for it would have more than {limits.partitions}",
        help="commit more often",
    )
