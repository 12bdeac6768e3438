"""A transaction's control requests, apart from the records: whoever begins it may lend its producer id and epoch to
others.

No client library lends them. Requests are those of the protocol before KIP-890's second half, in which partitions are
added by name and the end does not raise the epoch: so all who share the transaction have one epoch from its beginning
to its end, and beginning the next one, which raises it, shuts out whoever is late.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.cluster import TRANSACTION, Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, check

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was begun, and with it the right to write in it, until the next one of the same id begins."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int


def identify(cluster: Cluster, *, patience_s: float = 120.0) -> tuple[int, int]:
    """A producer id and its epoch for batches outside of transactions."""
    answer = _retry(
        lambda: cluster.ask(
            "init_producer_id", transactional_id=None, transaction_timeout=0, producer_id=-1, producer_epoch=-1
        ),
        _own_code,
        "a new producer id",
        patience_s,
        cluster.refresh,
    )
    return answer.producer_id, answer.producer_epoch


def begin(cluster: Cluster, transactional_id: str, *, timeout_ms: int, patience_s: float = 120.0) -> OpenTransaction:
    """Begin: whatever is open under the id is aborted, whoever held it before is shut out."""
    answer = _ask(
        cluster,
        transactional_id,
        patience_s,
        lambda connection: connection.call(
            "init_producer_id",
            transactional_id=transactional_id,
            transaction_timeout=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        ),
        _own_code,
    )
    return OpenTransaction(transactional_id, answer.producer_id, answer.producer_epoch, timeout_ms)


def add_partitions(
    cluster: Cluster, transaction: OpenTransaction, partitions: Iterable[tuple[str, int]], *, patience_s: float = 120.0
) -> None:
    """Make partitions part of the transaction; to be called before the first batch for each."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    _ask(
        cluster,
        transaction.transactional_id,
        patience_s,
        lambda connection: connection.call(
            "add_partitions_to_txn",
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": numbers} for topic, numbers in by_topic.items()],
        ),
        _worst_code,
    )


def end(cluster: Cluster, transaction: OpenTransaction, *, commit: bool, patience_s: float = 120.0) -> None:
    """Commit or abort. A repeat of an end that was heard but not answered is answered like the first.

    Raises:
        Refused: the transaction is not ours any more, or was ended the other way.
    """
    _ask(
        cluster,
        transaction.transactional_id,
        patience_s,
        lambda connection: connection.call(
            "end_txn",
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            committed=commit,
        ),
        _own_code,
    )


def shut_out(cluster: Cluster, transaction: OpenTransaction, *, patience_s: float = 30.0) -> None:
    """Abort the transaction, and let nobody who shares it write any more (KIP-360).

    A transaction that was committed stays so.

    Raises:
        Refused: a newer one has shut it out already.
    """
    _ask(
        cluster,
        transaction.transactional_id,
        patience_s,
        lambda connection: connection.call(
            "init_producer_id",
            transactional_id=transaction.transactional_id,
            transaction_timeout=transaction.timeout_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
        ),
        _own_code,
    )


def _ask(
    cluster: Cluster,
    transactional_id: str,
    patience_s: float,
    ask: "Callable[[Connection], Message]",
    code_of: "Callable[[Message], int]",
) -> "Message":
    """Ask the id's coordinator until it answers with something that does not pass."""
    return _retry(
        lambda: ask(cluster.coordinator(TRANSACTION, transactional_id)),
        code_of,
        f"transactional id {transactional_id!r}",
        patience_s,
        lambda: cluster.forget_coordinator(TRANSACTION, transactional_id),
    )


def _retry(
    ask: "Callable[[], Message]",
    code_of: "Callable[[Message], int]",
    what: str,
    patience_s: float,
    between: Callable[[], None],
) -> "Message":
    deadline = time.monotonic() + patience_s
    while True:
        try:
            answer = ask()
            check(code_of(answer), what)
            return answer
        except ClientError as error:
            if not error.retriable:
                raise
            if time.monotonic() >= deadline:
                raise ClientError(f"{what}: still not to be had after {patience_s:g} s: {error}") from error
        between()
        time.sleep(_RETRY_S)


def _own_code(answer: "Message") -> int:
    return int(answer.error_code)


def _worst_code(answer: "Message") -> int:
    """Any code, but OPERATION_NOT_ATTEMPTED (55) only where no other says why."""
    codes = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    ]
    return int(min(codes, key=lambda code: code == 55, default=0))
