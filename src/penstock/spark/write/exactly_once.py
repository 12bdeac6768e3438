"""One transaction shared by a driver and its tasks, so that all rows of a batch are written, once, or none.

The driver begins it and lends it out; tasks write in it, in turns where they share a partition; the driver checks that
just the rows of those tasks are in it that Spark counts, writes the mark of the micro-batch and commits. Whatever goes
wrong before that leaves an open transaction, which the next one of the same id aborts. A micro-batch that Spark repeats
although it was committed is known by its mark.
"""

import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, Refused
from penstock.client.settings import Settings
from penstock.client.transaction import OpenTransaction, begin, end, shut_out
from penstock.spark.errors import SourceError
from penstock.spark.write.marks import Entry, Mark, MarksLog, open_book
from penstock.spark.write.turns import Claim, TopicPartition, Turns

_SHUT_OUT: Final = frozenset({47, 48, 49, 90})  # an epoch or a state that is not the transaction's any more
_BAD_TIMEOUT: Final = 50
_NOTHING_OPEN: Final = 48  # nobody has written yet, or it was committed


@dataclass(frozen=True, slots=True)
class Loan:
    """What tasks get from the driver: the transaction, where its turns begin, and the last marks, by query."""

    transaction: OpenTransaction
    position: int
    marks: Mapping[str, Mark]


class Task(NamedTuple):
    """An attempt of a task, as Spark counts them."""

    number: int
    attempt: int


def lend(settings: Settings, transactional_id: str, *, timeout_ms: int) -> Loan:
    """On the driver: begin a transaction; whoever wrote under the id before is shut out."""
    with Cluster(settings) as cluster, explained():
        log = MarksLog(cluster)
        log.create()
        transaction = begin(cluster, transactional_id, timeout_ms=timeout_ms)
        book = open_book(settings)
        book.catch_up(log)  # after `begin`: until then a transaction of the id may still be about to commit
        return Loan(transaction, book.position, dict(book.marks.get(transactional_id, {})))


class TurnTaker:
    """A task's part: asks for a turn, waits for it, says when it is over."""

    def __init__(self, cluster: Cluster, loan: Loan, task: Task, *, patience_s: float) -> None:
        self._log = MarksLog(cluster)
        self._loan = loan
        self._task = task
        self._patience_s = patience_s
        self._turns = Turns()
        self._entries = follow_turns(self._log, loan, self._turns, patience_s=patience_s)
        self.claims: list[str] = []

    def take(self, counts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Wait for the turn to write so many records; returns each partition's first sequence number.

        Raises:
            SourceError: the batch was committed or given up, or an earlier turn does not end.
        """
        name = uuid.uuid4().hex
        by_topic: dict[str, dict[str, int]] = {}
        for (topic, partition), count in counts.items():
            by_topic.setdefault(topic, {})[str(partition)] = count
        self.claims.append(name)
        task = self._task
        self._append("claim", {"name": name, "task": task.number, "attempt": task.attempt, "counts": by_topic})
        since = time.monotonic()
        while not self._turns.is_due(name):
            if self._turns.sealed:
                raise SourceError(f"task {task.number} came too late: its batch was committed or given up without it")
            if self._turns.has_rival(task.number, task.attempt):
                raise SourceError(f"task {task.number} was tried again after it had written; its batch is written anew")
            if next(self._entries):
                since = time.monotonic()  # entries of other queries do not count
            elif time.monotonic() - since > self._patience_s:
                raise SourceError(
                    f"task {task.number} waited {self._patience_s:g} s for another task to write; that one is dead or "
                    "slow. The batch is written anew; kafka.delivery.timeout.ms sets how long to wait"
                )
        return self._turns.first_sequences(name)

    def finish(self) -> None:
        """The rows of the last turn are in the topics."""
        self._append("done", {"name": self.claims[-1]})

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        transaction = self._loan.transaction
        self._log.append(kind, transaction.transactional_id, {**_stamp(transaction), **body})

    def close(self) -> None:
        self._entries.close()


def commit(settings: Settings, loan: Loan, claims: set[str], mark: Mark | None, *, patience_s: float) -> None:
    """On the driver: commit what the claims name, if nothing else was written.

    Raises:
        SourceError: a task that Spark does not count wrote rows as well, and the transaction is aborted; or it is not
            this driver's any more.
    """
    transaction = loan.transaction
    with Cluster(settings) as cluster, explained():
        log = MarksLog(cluster)
        log.append("seal", transaction.transactional_id, _stamp(transaction))
        turns = Turns()
        entries = follow_turns(log, loan, turns, patience_s=patience_s)
        while not turns.sealed:
            next(entries)
        entries.close()
        if set(turns.claims) != claims or not claims <= turns.done:
            with suppress(ClientError):
                give_up(cluster, transaction)
            raise SourceError(
                f"{len(set(turns.claims) ^ claims)} turns were taken by tasks that Spark does not count, so the batch "
                "was given up. It is written anew when the query starts again; switch spark.speculation off"
            )
        if mark is not None:
            log.append_mark(transaction, mark)
        end(cluster, transaction, commit=True)


def abort(settings: Settings, loan: Loan) -> None:
    """On the driver: give the transaction up, if it is open and still this driver's; readers need not wait for it."""
    with suppress(ClientError), Cluster(settings) as cluster:
        give_up(cluster, loan.transaction)


def give_up(cluster: Cluster, transaction: OpenTransaction) -> None:
    """Abort the transaction and shut out whoever shares it; first the former, which a newer run's is safe from.

    Kafka does not compare epochs when it shuts out while a transaction is open.
    """
    try:
        end(cluster, transaction, commit=False)
    except Refused as error:
        if error.code != _NOTHING_OPEN:
            raise
    shut_out(cluster, transaction)


def settle(settings: Settings, loan: Loan) -> None:
    """Wait until readers see what was committed; it is committed whether or not somebody can be asked."""
    with suppress(ClientError), Cluster(settings) as cluster:
        shut_out(cluster, loan.transaction)


def follow_turns(log: MarksLog, loan: Loan, turns: Turns, *, patience_s: float) -> Generator[bool, None, None]:
    """Bring `turns` forward entry by entry, for ever; yields whether the entry was one of them.

    Raises `SourceError` when another transaction of the id has begun.
    """
    for entry in log.follow(loan.position, patience_s=patience_s):
        yield _step(turns, entry, loan.transaction)


def _step(turns: Turns, entry: Entry, transaction: OpenTransaction) -> bool:
    if entry.transactional_id != transaction.transactional_id or entry.kind == "mark":
        return False
    body = entry.body
    if body["producer"] != transaction.producer_id or body["epoch"] < transaction.epoch:
        return False  # of a run before this one
    if body["epoch"] > transaction.epoch:
        raise SourceError(f"transactional id {transaction.transactional_id!r}: {_TAKEN_OVER}")
    match entry.kind:
        case "claim":
            counts = {
                (topic, int(number)): count
                for topic, numbers in body["counts"].items()
                for number, count in numbers.items()
            }
            turns.claim(body["name"], Claim(body["task"], body["attempt"], counts))
        case "done":
            turns.finish(body["name"])
        case "seal":
            turns.seal()
    return True


def _stamp(transaction: OpenTransaction) -> dict[str, int]:
    return {"producer": transaction.producer_id, "epoch": transaction.epoch}


_TAKEN_OVER: Final = (
    "another run of this query has begun, or another query has the same checkpointLocation or transactional.id; or the "
    "batch took longer than kafka.transaction.timeout.ms. What was not committed is written anew when it starts again"
)


@contextmanager
def explained() -> Generator[None, None, None]:
    """Say what a refusal means to the query."""
    try:
        yield
    except Refused as error:
        if error.code in _SHUT_OUT:
            raise SourceError(f"{error}: {_TAKEN_OVER}") from error
        if error.code == _BAD_TIMEOUT:
            raise SourceError(
                f"{error}: kafka.transaction.timeout.ms is longer than brokers allow (transaction.max.timeout.ms)"
            ) from error
        raise
