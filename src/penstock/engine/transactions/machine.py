"""The transactional ids of one shard of `__transaction_state`: who may do what to a transaction, and when it ends.

A step is told the time and answers with an `Outcome`; a refusal is raised before anything has changed. What is to be
done besides is asked for after every step: `markers_due` names the transactions that were decided, whose markers may be
written once the step's records are durable; `markers_written` reports that all of one transaction's are. From the
decision on only that is left to happen: a crash in between finds the decision in the log and the markers due again.

Where this departs from Kafka:

- A producer that comes while a transaction is ending (init, the first partition of the next transaction, an end with
  the new epoch) waits until it has ended, in the order of arrival. Kafka sends it away with CONCURRENT_TRANSACTIONS,
  to try again in 20 ms or more. After `waiting_ms` it is sent away here as well.
- A commit in the new epoch right after the last end, with nothing written yet, is told to try again. Kafka, whose
  markers take longer, says so too; kafka-clients 4.3 may let a commit overtake its records.
- An init that finds a transaction under way waits for its abort in the same way.
- An end that is asked for again is answered as the first was, also while markers are being written.
- Logs that are attached to partitions (ADR 33) come into a transaction that is under way, and begin none: the group's
  offsets came before them. So what comes late, when it has ended, opens no other one that nobody would end.
- Aborting a transaction that has no partitions (KIP-890) is one record: there are no markers to write.
- Init in the name of an epoch that is over is refused before the transaction under way is aborted, not after; one
  that only repeats the last init leaves the transaction alone.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.coordination.expressions import Expression
from penstock.engine.coordination.outcome import NOTHING, Outcome, Reply, Token
from penstock.engine.coordination.schemas import Entry, Kind
from penstock.engine.transactions import refusals
from penstock.engine.transactions.requests import (
    AddPartitions,
    EndRequest,
    InitRequest,
    MarkersDue,
    Request,
    TransactionDescription,
    TransactionLimits,
    TransactionListing,
)
from penstock.engine.transactions.transaction import (
    BUMPED_AT_END,
    LAST_EPOCH,
    NONE,
    ProducerIdentity,
    State,
    TopicPartition,
    Transaction,
)
from penstock.errors import Code, PenstockError
from penstock.storage.attached_names import split_name

_MOST_PER_TICK = 256  # ids dealt with at once: they become one batch
_MOST_IN_LINE = 64  # waiting for one id: a client has five requests under way, a zombie and its successor ten
_OVERTAKEN_MS = 1_000  # a commit may overtake its records by so much; clients try again every 20 to 100 ms
_NEAR_THE_END = 8  # epochs left, below which callers bring a new producer id in case it is needed


class _Waiter(NamedTuple):
    token: Token
    request: Request
    until: int


_Attempt = tuple[Sequence[Entry], Any]
"""Records, and the answer or _WAITS."""
_WAITS: Final = object()


class TransactionMachine:
    def __init__(self, limits: TransactionLimits | None = None, *, coordinator_epoch: int = 0) -> None:
        self._limits = limits or TransactionLimits()
        self._coordinator_epoch = coordinator_epoch
        self._transactions: dict[str, Transaction] = {}
        self._due: dict[str, None] = {}
        self._waiting: dict[str, deque[_Waiter]] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._patience: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._transactions)

    # --- what clients ask for

    def init(self, now: int, token: Token, request: InitRequest) -> Outcome:
        """A producer begins with a transactional id: it is given an epoch no other has, and others are fenced.

        Reply: ProducerIdentity, perhaps after a transaction under way was aborted.

        Raises:
            PenstockError: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, LIMIT_EXCEEDED,
                CONCURRENT_TRANSACTIONS.
        """
        refusals.check_id(request.transactional_id, self._limits)
        refusals.check_init(request, self._limits)
        return self._submit(now, token, request)

    def add_partitions(self, now: int, token: Token, request: AddPartitions) -> Outcome:
        """Partitions the transaction writes to, offsets of a group being one; the first begins it.

        With `verify_only` nothing is added, only looked up. Reply: each partition with None, or with the
        TRANSACTION_ABORTABLE of one that is not in the transaction.

        Raises:
            PenstockError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, LIMIT_EXCEEDED,
                CONCURRENT_TRANSACTIONS.
        """
        refusals.check_id(request.transactional_id, self._limits)
        return self._submit(now, token, request)

    def end(self, now: int, token: Token, request: EndRequest) -> Outcome:
        """Commit or abort. Reply: the ProducerIdentity to go on with, when the decision is durable.

        Raises:
            PenstockError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TRANSACTION_STATE,
                CONCURRENT_TRANSACTIONS.
        """
        refusals.check_id(request.transactional_id, self._limits)
        return self._submit(now, token, request)

    def check_open(self, transactional_id: str, producer_id: int, producer_epoch: int, place: TopicPartition) -> None:
        """Whether a batch for `place` belongs to the transaction under way, now.

        Raises:
            PenstockError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, TRANSACTION_ABORTABLE.
        """
        request = AddPartitions(transactional_id, producer_id, producer_epoch, (place,), verify_only=True)
        error = self._verified(self._known(request), request)[place]
        if error is not None:
            raise error

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether the next init or end may need a `new_producer_id`. One that lacks it is told to try again."""
        transaction = self._transactions.get(transactional_id)
        return transaction is None or transaction.producer_epoch >= LAST_EPOCH - _NEAR_THE_END

    # --- markers

    def markers_due(self) -> list[MarkersDue]:
        """Transactions decided since this was asked last, or found decided in the log; each is named once."""
        decided = [self._transactions[transactional_id] for transactional_id in self._due]
        self._due.clear()
        return [
            MarkersDue(
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                self._coordinator_epoch,
                transaction.committed,
                transaction.named_partitions(),
                transaction.client_version >= BUMPED_AT_END,
            )
            for transaction in decided
        ]

    def markers_written(self, now: int, transactional_id: str, producer_id: int, producer_epoch: int) -> Outcome:
        """All markers of a transaction are durable: it has ended, and whoever waited for that goes on."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.ending:
            return NOTHING
        if (transaction.producer_id, transaction.producer_epoch) != (producer_id, producer_epoch):
            return NOTHING
        return Outcome((self._put(now, transaction.completed(now)),)) + self._resume(now, transactional_id)

    # --- time

    def next_deadline(self) -> int | None:
        times = (self._deadlines.next(), self._patience.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: int) -> Outcome:
        """Abort what took too long, forget ids nobody uses, send away who waited too long."""
        records, replies = [], []
        due = self._deadlines.take_due(now)
        for transactional_id in due[_MOST_PER_TICK:]:
            self._schedule(now, self._transactions[transactional_id])
        for transactional_id in due[:_MOST_PER_TICK]:
            transaction = self._transactions[transactional_id]
            if transaction.state is State.ONGOING:
                records.append(self._put(now, transaction.prepared(now, committed=False, bump=True)))
            else:
                del self._transactions[transactional_id]
                records.append(Entry(Kind.TRANSACTION, (transactional_id,), None))
        for transactional_id in self._patience.take_due(now):
            line = self._waiting[transactional_id]
            while line and line[0].until <= now:
                waiter = line.popleft()
                replies.append(Reply(waiter.token, refusals.concurrent(transactional_id, "is still ending")))
            self._line_up(transactional_id, line)
        return Outcome(records, replies)

    # --- questions

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Raises PenstockError INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND."""
        refusals.check_id(transactional_id, self._limits)
        found = self._transactions.get(transactional_id)
        if found is None:
            raise PenstockError(
                Code.TRANSACTIONAL_ID_NOT_FOUND, f"no producer has used transactional id {transactional_id!r}"
            )
        return TransactionDescription(
            transactional_id,
            found.state.shown,
            found.timeout_ms,
            found.started_ms,
            found.producer_id,
            found.producer_epoch,
            found.named_partitions(),
        )

    def list(
        self,
        now: int,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Those that fit every filter given; `duration_ms` is what must have passed since the transaction began.

        Raises:
            PenstockError: INVALID_REGEX.
        """
        found: Collection[str] = self._transactions
        if pattern:
            expression = Expression(pattern)
            expression.check_work(len(found), sum(map(len, found)))
            found = expression.matches(found)
        return [
            TransactionListing(transaction.transactional_id, transaction.producer_id, transaction.state.shown)
            for transaction in map(self._transactions.__getitem__, found)
            if (not states or transaction.state.shown in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (duration_ms < 0 or now - transaction.started_ms > duration_ms)
        ]

    # --- the log

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        """Raises PenstockError CORRUPT_LOG."""
        transactional_id = entry.key[0]
        if entry.value is None:
            self._transactions.pop(transactional_id, None)
            self._due.pop(transactional_id, None)
            self._deadlines.set(transactional_id, None)
            return
        try:
            transaction = Transaction.from_entry(entry)
        except ValueError as error:
            raise PenstockError(
                Code.CORRUPT_LOG, f"the record of transactional id {transactional_id!r} cannot be read: {error}"
            ) from None
        self._put(now, transaction)

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """Nothing: records about transactions are not part of any."""

    def dump(self) -> Iterator[tuple[Entry, int | None]]:
        """All there are now, to be taken at leisure: changes made meanwhile are not in it."""
        return ((transaction.entry(), None) for transaction in tuple(self._transactions.values()))

    # --- steps

    def _submit(self, now: int, token: Token, request: Request) -> Outcome:
        records, answer = self._attempt(now, request)
        if answer is not _WAITS:
            return Outcome(records, (Reply(token, answer),))
        line = self._waiting.get(request.transactional_id, deque())
        line.append(_Waiter(token, request, now + self._limits.waiting_ms))
        self._line_up(request.transactional_id, line)
        return Outcome(records)

    def _resume(self, now: int, transactional_id: str) -> Outcome:
        """Those who waited, in order, until one of them begins another end."""
        records: list[Entry] = []
        replies: list[Reply] = []
        line = self._waiting.pop(transactional_id, deque())
        while line and not self._transactions[transactional_id].ending:
            try:
                made, answer = self._attempt(now, line[0].request)
            except PenstockError as error:
                made, answer = (), error
            records += made
            if answer is not _WAITS:
                replies.append(Reply(line.popleft().token, answer))
        self._line_up(transactional_id, line)
        return Outcome(records, replies)

    def _attempt(self, now: int, request: Request) -> _Attempt:
        if isinstance(request, InitRequest):
            return self._init(now, request)
        transaction = self._known(request)
        if isinstance(request, AddPartitions):
            return self._add(now, transaction, request)
        if request.client_transaction_version >= BUMPED_AT_END:
            return self._end_with_bump(now, transaction, request)
        return self._end(now, transaction, request)

    def _known(self, request: Request) -> Transaction:
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None:
            raise refusals.unknown(request)
        return transaction

    def _init(self, now: int, request: InitRequest) -> _Attempt:
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None:
            return self._create(now, request)
        claimed = ProducerIdentity(request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
        repeated = claimed is not None and claimed == transaction.predecessor
        if claimed is not None and not repeated and not transaction.belongs_to(claimed):
            raise refusals.fenced(transaction, claimed)
        if transaction.ending:
            return (), self._in_line(transaction)
        if transaction.state is State.ONGOING:
            if repeated:
                return (), transaction.identity
            return (self._put(now, transaction.prepared(now, committed=False, bump=True)),), _WAITS
        if repeated and transaction.producer_epoch <= LAST_EPOCH:
            identity, previous = transaction.identity, transaction.previous_producer_id
        else:
            identity = self._successor(transaction, request.new_producer_id)
            previous = NONE if claimed is None else transaction.producer_id
        return (self._put(now, transaction.initialized(now, request.timeout_ms, identity, previous)),), identity

    def _create(self, now: int, request: InitRequest) -> _Attempt:
        if len(self._transactions) >= self._limits.transactional_ids:
            raise refusals.too_many_ids(request, self._limits)
        identity = ProducerIdentity(self._spare(request.transactional_id, request.new_producer_id), 0)
        made = Transaction(request.transactional_id, *identity, request.timeout_ms, now)
        return (self._put(now, made),), identity

    def _add(self, now: int, transaction: Transaction, request: AddPartitions) -> _Attempt:
        if request.verify_only:
            return (), self._verified(transaction, request)
        refusals.check_current(transaction, ProducerIdentity(request.producer_id, request.producer_epoch))
        if transaction.ending:
            return (), self._in_line(transaction)
        answer = dict.fromkeys(request.partitions)
        missing = answer.keys() - transaction.partitions
        if transaction.state is not State.ONGOING and any(split_name(name) for name, _ in missing):
            return (), {place: refusals.not_in_transaction(transaction, place) for place in answer}
        if not missing:
            return (), answer
        if len(transaction.partitions) + len(missing) > self._limits.partitions:
            raise refusals.too_many_partitions(transaction, request, self._limits)
        return (self._put(now, transaction.extended(now, missing)),), answer

    def _verified(self, transaction: Transaction, request: AddPartitions) -> dict[TopicPartition, PenstockError | None]:
        refusals.check_current(transaction, ProducerIdentity(request.producer_id, request.producer_epoch))
        if transaction.ending:
            raise refusals.concurrent(transaction.transactional_id, "is ending")
        return {
            partition: None
            if partition in transaction.partitions
            else refusals.not_in_transaction(transaction, partition)
            for partition in request.partitions
        }

    def _end(self, now: int, transaction: Transaction, request: EndRequest) -> _Attempt:
        refusals.check_current(transaction, ProducerIdentity(request.producer_id, request.producer_epoch))
        if transaction.state is State.ONGOING:
            made = transaction.prepared(now, request.committed, bump=False)
            return (self._put(now, made),), made.identity
        if transaction.ended and transaction.committed == request.committed:
            return (), transaction.identity
        raise refusals.wrong_state(transaction, request)

    def _end_with_bump(self, now: int, transaction: Transaction, request: EndRequest) -> _Attempt:
        claimed = ProducerIdentity(request.producer_id, request.producer_epoch)
        bumped = transaction.ended and transaction.client_version >= BUMPED_AT_END
        if bumped and claimed == transaction.predecessor:
            if transaction.committed != request.committed:
                raise refusals.wrong_state(transaction, request)
            if transaction.identity.producer_epoch > LAST_EPOCH:
                raise refusals.fenced(transaction, claimed)  # timed out in its last epoch: only init gives it a new id
            return (), transaction.identity
        refusals.check_current(transaction, claimed)
        if request.committed and (transaction.ending or self._just_ended(now, transaction)):
            raise refusals.concurrent(transaction.transactional_id, "has just ended, and the next has not begun")
        if transaction.ending:
            return (), self._in_line(transaction)
        if transaction.state is not State.ONGOING and request.committed:
            raise refusals.wrong_state(transaction, request)
        spare = self._spare(transaction.transactional_id, request.new_producer_id) if transaction.exhausted else NONE
        made = transaction.prepared(now, request.committed, bump=True, next_producer_id=spare)
        if not transaction.partitions:
            made = made.completed(now)
        return (self._put(now, made),), made.identity

    def _just_ended(self, now: int, transaction: Transaction) -> bool:
        """Java clients may send the next commit before the records it is for, and give up for good at a refusal.

        The end may bear the time of another broker, or of a clock that was set back since: far off is not just now.
        """
        return transaction.ended and abs(now - transaction.updated_ms) < _OVERTAKEN_MS

    def _successor(self, transaction: Transaction, spare: int) -> ProducerIdentity:
        if transaction.exhausted:
            return ProducerIdentity(self._spare(transaction.transactional_id, spare), 0)
        return ProducerIdentity(transaction.producer_id, transaction.producer_epoch + 1)

    def _spare(self, transactional_id: str, producer_id: int) -> int:
        if producer_id == NONE:
            raise refusals.concurrent(transactional_id, "needs a new producer id")
        return producer_id

    def _put(self, now: int, transaction: Transaction) -> Entry:
        transactional_id = transaction.transactional_id
        self._transactions[transactional_id] = transaction
        if transaction.ending:
            self._due[transactional_id] = None
        else:
            self._due.pop(transactional_id, None)
        self._schedule(now, transaction)
        return transaction.entry()

    def _schedule(self, now: int, transaction: Transaction) -> None:
        # A record may carry a later time than now if the clock was set back while the broker was down.
        at = None
        if transaction.state is State.ONGOING:
            at = min(transaction.started_ms, now) + transaction.timeout_ms
        elif not transaction.ending:
            at = min(transaction.updated_ms, now) + self._limits.expiration_ms
        self._deadlines.set(transaction.transactional_id, at)

    def _in_line(self, transaction: Transaction) -> object:
        if len(self._waiting.get(transaction.transactional_id, ())) >= _MOST_IN_LINE:
            raise refusals.concurrent(transaction.transactional_id, f"is ending, and {_MOST_IN_LINE} wait for it")
        return _WAITS

    def _line_up(self, transactional_id: str, line: deque[_Waiter]) -> None:
        if line:
            self._waiting[transactional_id] = line
        else:
            self._waiting.pop(transactional_id, None)
        self._patience.set(transactional_id, line[0].until if line else None)
