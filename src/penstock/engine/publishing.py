"""Publish: batches in, what came of each of them out, once they are as safe as their publisher wants them.

The one way in for records, whatever door they come by. A publication takes one batch for each partition, appends it at
once where that can be done, and tells its publisher a single time, when all of them are safe, refused, or out of time:

    in sync?  ->  header, sizes  ->  records looked at  ->  append  ->  safe as wanted
                                            |                 ^
                                            v                 |
                                     waits for its transaction, or is opened in a thread (`opener`)

Hot path. A batch may be a view of memory that is somebody else's as soon as `add` returns: it was written, or copied.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.engine.intake import MOST_BYTES_AT_ONCE, check_records
from penstock.engine.opener import Opener
from penstock.engine.partition import Partition
from penstock.engine.transactions.transaction import ProducerIdentity
from penstock.engine.transactions.transactions import Admissions, Transactions
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.records.batch import Header
from penstock.storage.log.log import Appended as Appended  # for doors, which import no storage

log_ = get_logger("publishing")
_MORE_THAN_HALF: Final = -1
_AS_THE_TOPIC_SAYS: Final = 0
_LONGEST_NUMBER: Final = 5
_LONGEST_NAMED: Final = 40


@dataclass(frozen=True, slots=True)
class Durability:
    """How safe a batch has to be before its publisher is told.

    Attributes:
        waits: until every replica in sync has it, which are never fewer than the topic's least.
        copies: how many replicas have to have it then, besides.
    """

    word: str
    waits: bool
    copies: int = _AS_THE_TOPIC_SAYS

    def copies_of(self, partition: Partition) -> int:
        """How many that are, of this partition."""
        return len(partition.state.replicas) // 2 + 1 if self.copies == _MORE_THAN_HALF else self.copies


NONE: Final = Durability("none", waits=False)
LEADER: Final = Durability("leader", waits=False)
ALL: Final = Durability("all", waits=True)
MAJORITY: Final = Durability("majority", waits=True, copies=_MORE_THAN_HALF)
_WORDS: Final = {each.word: each for each in (NONE, LEADER, ALL, MAJORITY)}


def parse_durability(text: str) -> Durability:
    """none, leader, all, majority, or a number of replicas. Raises PenstockError."""
    known = _WORDS.get(text)
    if known is not None:
        return known
    if len(text) <= _LONGEST_NUMBER and text.isdecimal() and 0 < int(text) < 1 << 15:
        return Durability(str(int(text)), waits=True, copies=int(text))
    raise PenstockError(
        Code.INVALID_DURABILITY,
        f"durability {text[:_LONGEST_NAMED]!r} is unknown",
        help=f"say {', '.join(_WORDS)}, or how many replicas shall have the records",
    )


class InTransaction(NamedTuple):
    """The transaction that transactional batches of a publication belong to.

    `adds`: writing to a partition adds it to the transaction (KIP-890). Otherwise it has been added before, or the
    batch is refused.
    """

    transactional_id: str
    adds: bool


class Published:
    """One batch of a publication, and what came of it: `appended`, or an `error`, or neither yet."""

    __slots__ = ("_publication", "appended", "error", "log_start", "partition")

    def __init__(self, publication: "Publication", partition: Partition | None) -> None:
        self._publication = publication
        self.partition = partition
        """None if it is unknown."""
        self.appended: Appended | None = None
        self.error: PenstockError | None = None
        self.log_start = -1
        """The first offset of the partition, when it was appended."""

    def safe(self, error: PenstockError | None) -> None:
        """Its partition says that the batch is safe, or why that is not known."""
        self._publication.arrived(self, error)


class _Deferred(NamedTuple):
    """A batch that is appended later."""

    published: Published
    partition: Partition
    batch: memoryview
    header: Header
    begins: bool
    """Whether it is a transaction's first batch in the partition, as far as the partition knows."""
    looked_at: bool

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.header.producer_id, self.header.producer_epoch)


class Publishing:
    """The verb of one broker."""

    def __init__(self, opener: Opener, transactions: Transactions) -> None:
        self._opener = opener
        self._transactions = transactions

    def begin(
        self,
        durability: Durability,
        timeout_s: float,
        done: Callable[["Publication"], None],
        transaction: InTransaction | None = None,
        check: Callable[[Partition], None] | None = None,
        *,
        drops: bool = True,
    ) -> "Publication":
        """A publication to add batches to.

        Args:
            timeout_s: for other brokers to have the batches; a broker that is on its own waits for its disk alone.
            done: called once, when everything is told: before `Publication.wait` returns, or later. What it raises is
                logged.
            check: whether a partition may still be written to, asked before a batch that had to wait is appended.
                Raises PenstockError.
            drops: whether duplicates are left out where a queue wants that; not of what brokers move.
        """
        return Publication(self._opener, self._transactions, durability, timeout_s, done, transaction, check, drops)

    @property
    def is_crowded(self) -> bool:
        """Whether so much waits to be opened that publishers should wait for an answer before they send more."""
        return self._opener.is_crowded


class Publication:
    """Some batches that are published together. `add` or `refuse` each of them, then `wait`.

    `batches` has what came of them, in their order, until the publisher was told.
    """

    __slots__ = (
        "_check",
        "_deferred",
        "_done",
        "_drops",
        "_is_over",
        "_opener",
        "_pending",
        "_room",
        "_timeout_s",
        "_timer",
        "_transaction",
        "_transactions",
        "batches",
        "durability",
    )

    def __init__(
        self,
        opener: Opener,
        transactions: Transactions,
        durability: Durability,
        timeout_s: float,
        done: Callable[["Publication"], None],
        transaction: InTransaction | None,
        check: Callable[[Partition], None] | None,
        drops: bool = True,
    ) -> None:
        self._check = check
        self._drops = drops
        self._opener = opener
        self._transactions = transactions
        self.durability = durability
        self._timeout_s = timeout_s
        self._done = done
        self._transaction = transaction
        self.batches: list[Published] = []
        self._deferred: list[_Deferred] = []
        self._pending = 1  # held until everything was added
        self._room = MOST_BYTES_AT_ONCE
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    # --- adding

    def add(self, partition: Partition, batch: memoryview) -> Published:
        """Append a batch now, or have it appended when that may be; one for each partition."""
        published = Published(self, partition)
        self.batches.append(published)
        try:
            if self.durability.waits:
                partition.check_in_sync(self.durability.copies_of(partition))
            header = partition.check(batch)
            looked_at = check_records(partition.config, batch, header, self._room)
            begins = header.is_transactional and not partition.is_in_transaction(header)
            if begins or not looked_at or partition.must_wait(header):
                self._deferred.append(_Deferred(published, partition, batch, header, begins, looked_at))
            else:
                self._appended(published, partition, partition.append_checked(batch, header))
        except PenstockError as error:
            published.error = error.kept()
        self._room -= len(batch)
        return published

    def _appended(self, published: Published, partition: Partition, appended: Appended) -> None:
        published.appended = appended
        published.log_start = partition.log_start
        if self.durability.waits:
            self._pending += 1
            partition.when_safe(appended.last_offset, published.safe)

    def refuse(self, partition: Partition | None, error: PenstockError) -> Published:
        """Note a batch that is not to be tried, in its place among the others."""
        published = Published(self, partition)
        published.error = error.kept()
        self.batches.append(published)
        return published

    # --- waiting

    def wait(self) -> bool:
        """Nothing is added any more. Batches to be appended later are copied before this returns.

        Returns:
            Whether there are any such.
        """
        has_deferred = bool(self._deferred)
        if has_deferred:
            self._append_later()
        if self.durability.waits and self._pending > 1 and self._needs_others():
            self._timer = asyncio.get_running_loop().call_later(max(self._timeout_s, 0.0), self._time_is_up)
        self._one_less()
        return has_deferred

    @property
    def is_over(self) -> bool:
        """Whether its publisher was told."""
        return self._is_over

    def _needs_others(self) -> bool:
        return any(each.partition is not None and each.partition.is_shared for each in self.batches)

    def arrived(self, published: Published, error: PenstockError | None) -> None:
        if self._is_over:
            return
        if error is None and self.durability.copies:
            error = self._lacking(published)
        if error is not None:
            published.error = error
        self._one_less()

    def _lacking(self, published: Published) -> PenstockError | None:
        """Why a batch that all in sync have is not on as many brokers as was wanted: some may have left meanwhile."""
        assert published.partition is not None
        try:
            published.partition.check_in_sync(self.durability.copies_of(published.partition))
        except PenstockError as error:
            return PenstockError(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{error}; the records may stay all the same")
        return None

    def _one_less(self) -> None:
        self._pending -= 1
        if self._pending == 0 and not self._is_over:
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        done, self._done = self._done, _nothing  # which may hold the batches, and each of them holds this
        try:
            done(self)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this publisher only: others are told after it
            log_.limited("bug").exception("publisher could not be told")
        self.batches = []

    def _time_is_up(self) -> None:
        """The publisher waits no longer. What is not safe yet may become so: it has to send it again to know."""
        for each in self.batches:
            if each.error is not None or each.partition is None:
                continue
            if each.appended is None:
                each.error = PenstockError(
                    Code.TIMED_OUT, f"a batch for {each.partition.name} still waits for its turn"
                )
            elif each.partition.high_watermark <= each.appended.last_offset:
                each.error = PenstockError(Code.TIMED_OUT, _not_in_time(each.partition))
        self._finish()

    # --- later

    def _append_later(self) -> None:
        admissions = self._ask_admission()
        for deferred in self._deferred:
            self._pending += 1
            try:
                admission = admissions.get(deferred.identity) if deferred.begins else None
                if deferred.begins and admission is None:
                    raise PenstockError(
                        Code.INVALID_TRANSACTION_STATE, "a transactional batch in a request without a transactional id"
                    )
                self._open(deferred, admission)
            except PenstockError as error:
                self.arrived(deferred.published, error.kept())
        self._deferred = []

    def _ask_admission(self) -> dict[ProducerIdentity, Admissions]:
        """Have the coordinator told of the partitions in which a transaction begins, all of a producer together."""
        if self._transaction is None:
            return {}
        beginning: dict[ProducerIdentity, list[tuple[str, int]]] = {}
        for deferred in self._deferred:
            if deferred.begins:
                place = (deferred.partition.topic, deferred.partition.index)
                beginning.setdefault(deferred.identity, []).append(place)
        transactional_id, adds = self._transaction
        return {
            identity: self._transactions.admission(transactional_id, identity, tuple(places), add=adds)
            for identity, places in beginning.items()
        }

    def _open(self, deferred: _Deferred, admission: Admissions | None) -> None:
        published = deferred.published

        def done(result: Appended | PenstockError) -> None:
            if isinstance(result, PenstockError):
                self.arrived(published, result)
                return
            if self._is_over:
                return
            self._appended(published, deferred.partition, result)
            self._one_less()

        self._opener.append(
            deferred.partition,
            deferred.batch,
            deferred.header,
            done,
            admission,
            looked_at=deferred.looked_at,
            check=self._check,
            drops=self._drops,
        )


def _not_in_time(partition: Partition) -> str:
    state = partition.state
    away = ", ".join(str(each) for each in state.replicas if each not in state.isr) or "none"
    in_sync = ", ".join(map(str, state.isr))
    return f"{partition.name} is not replicated in time (brokers in sync: {in_sync}; not in sync: {away})"


def _nothing(publication: Publication) -> None:
    return None
