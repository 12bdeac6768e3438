"""Producers that share a transactional id, with lost answers, late requests, time-outs and crashes: what always holds.

Every request ever sent may arrive again at any time. Records become durable some time after the step that made them,
and only then are answers given and markers written; a crash in between loses them all, and the line of those who wait.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry
from penstock.engine.transactions.machine import TransactionMachine
from penstock.engine.transactions.requests import AddPartitions, EndRequest, InitRequest, MarkersDue
from penstock.engine.transactions.transaction import LAST_EPOCH, ProducerIdentity, State, Transaction
from penstock.errors import Code, PenstockError

ID = "tx"
EXPECTED = (
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.CONCURRENT_TRANSACTIONS,
    Code.INVALID_TRANSACTION_STATE,
)
ENDING = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


@dataclass
class Client:
    bumps: bool
    identity: ProducerIdentity | None = None


@dataclass
class Sent:
    client: int
    request: Any


@dataclass
class Step:
    """What a step brought, not durable yet."""

    outcome: Outcome
    due: list[MarkersDue]


@dataclass
class History:
    first_epoch: int
    kinds: tuple[bool, bool]
    """Of the two clients, whether the epoch of each rises at every end."""
    now: int = 0
    sent: list[Sent] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    due: list[MarkersDue] = field(default_factory=list)
    waiting: dict[Any, Sent] = field(default_factory=dict)
    over: set[ProducerIdentity] = field(default_factory=set)
    """Identities whose place another producer has taken, and knows it."""
    given: set[ProducerIdentity] = field(default_factory=set)
    decided: dict[ProducerIdentity, MarkersDue] = field(default_factory=dict)
    """By the identity a transaction was written with, for clients whose epoch rises at every end."""
    asked_for: dict[ProducerIdentity, set[int]] = field(default_factory=lambda: defaultdict(set))
    promised: dict[ProducerIdentity, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Partitions by the identity they were asked for under, and those a client was told are in."""
    tokens: Any = field(default_factory=count)
    ids: Any = field(default_factory=lambda: count(100))

    def __post_init__(self) -> None:
        self.clients = [Client(bumps) for bumps in self.kinds]
        self.machine = TransactionMachine()
        if self.first_epoch:
            self.log.append(Transaction(ID, 1, self.first_epoch, 60_000, 0).entry())
            self.machine.replay(self.log[0], 0, None, 0)

    # --- events

    def init(self, client: int, own: bool) -> None:
        identity = self.clients[client].identity if own else None
        self.submit(Sent(client, InitRequest(ID, 60_000, *(identity or (-1, -1)))))

    def add(self, client: int, partition: int) -> None:
        if (identity := self.clients[client].identity) is not None:
            self.submit(Sent(client, AddPartitions(ID, *identity, (("t", partition),))))

    def end(self, client: int, committed: bool) -> None:
        known = self.clients[client]
        if known.identity is not None:
            self.submit(Sent(client, EndRequest(ID, *known.identity, committed, 2 if known.bumps else 0)))

    def again(self, number: int) -> None:
        if self.sent:
            self.submit(self.sent[-min(number, len(self.sent))])

    def submit(self, sent: Sent) -> None:
        request = sent.request
        if not isinstance(request, AddPartitions) and self.machine.needs_producer_id(ID):
            request = request._replace(new_producer_id=next(self.ids))
        self.sent.append(sent)
        token = next(self.tokens)
        before = self.state()
        act: dict[type, Any] = {
            InitRequest: self.machine.init,
            AddPartitions: self.machine.add_partitions,
            EndRequest: self.machine.end,
        }
        self.waiting[token] = sent
        try:
            outcome = act[type(request)](self.now, token, request)
        except PenstockError:
            del self.waiting[token]
            assert self.state() == before, "a refusal changed something"
            return
        claimed = ProducerIdentity(request.producer_id, request.producer_epoch)
        if isinstance(request, AddPartitions):
            self.asked_for[claimed].update(index for _, index in request.partitions)
        assert claimed not in self.over, f"{request} was taken though its place was"
        self.check_end(request, outcome, before)
        self.take(outcome)

    def state(self) -> Entry | None:
        return next((entry for entry, _ in self.machine.dump()), None)

    def check_end(self, request: Any, outcome: Outcome, before: Entry | None) -> None:
        """An end ends what was written under the name it is asked in, nothing else."""
        if isinstance(request, EndRequest) and outcome.records:
            assert before is not None
            ended, made = Transaction.from_entry(before), Transaction.from_entry(outcome.records[0])
            assert ended.identity == (request.producer_id, request.producer_epoch)
            assert made.committed == request.committed
            if ended.state is State.ONGOING:
                assert made.partitions == ended.partitions

    def take(self, outcome: Outcome) -> None:
        self.steps.append(Step(outcome, self.machine.markers_due()))

    def sync(self, lost: bool) -> None:
        for step in self.steps:
            for entry in step.outcome.records:
                self.check_order(entry)
                self.log.append(entry)
            self.due += step.due
            for due in step.due:
                self.check_decision(due)
            for reply in step.outcome.replies:
                self.answer(self.waiting.pop(reply.to), reply.answer, lost)
        self.steps.clear()

    def check_order(self, entry: Entry) -> None:
        """Epochs rise; a new producer id is one never seen."""
        if not self.log or entry.value is None or self.log[-1].value is None:
            return
        old, new = Transaction.from_entry(self.log[-1]), Transaction.from_entry(entry)
        assert new.producer_epoch <= LAST_EPOCH + 1
        if new.producer_id == old.producer_id:
            assert new.producer_epoch >= old.producer_epoch
        else:
            assert new.producer_epoch == 0
            assert all(kept.value is None or kept.value.producer_id != new.producer_id for kept in self.log)
        if old.state is new.state is State.ONGOING:
            assert new.started_ms == old.started_ms
        if old.state in ENDING:
            assert new.committed == old.committed
            assert new.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    def check_decision(self, due: MarkersDue) -> None:
        made = Transaction.from_entry(self.machine_entry(due))
        if made.client_version < 2:
            self.promised.pop(ProducerIdentity(due.producer_id, due.producer_epoch), None)
        else:
            written_as = ProducerIdentity(due.producer_id, due.producer_epoch - 1)
            assert self.decided.setdefault(written_as, due) == due
            assert self.promised[written_as] <= _marked(due) <= self.asked_for[written_as]

    def machine_entry(self, due: MarkersDue) -> Entry:
        """The record that decided it, which is durable before its markers are written."""
        return next(
            entry
            for entry in reversed(self.log)
            if entry.value is not None
            and entry.value.transaction_status in ENDING
            and (entry.value.producer_id, entry.value.producer_epoch) == (due.producer_id, due.producer_epoch)
        )

    def answer(self, sent: Sent, answer: Any, lost: bool) -> None:
        request = sent.request
        if isinstance(answer, PenstockError):
            assert answer.code in EXPECTED
            return
        if isinstance(answer, ProducerIdentity):
            assert answer.producer_epoch <= LAST_EPOCH, "an epoch only markers may have"
            if isinstance(request, InitRequest) and request.producer_id < 0:
                assert answer not in self.given, "two producers have the same name"
                self.over |= self.given
            self.given.add(answer)
            if not lost:
                self.clients[sent.client].identity = answer
        claimed = ProducerIdentity(request.producer_id, request.producer_epoch)
        if isinstance(request, AddPartitions):
            added = {index for _, index in request.partitions}
            self.promised[claimed] |= added
            if claimed in self.decided:
                assert added <= _marked(self.decided[claimed])
        if isinstance(request, EndRequest) and request.client_transaction_version >= 2:
            decided = self.decided.get(claimed)
            if request.committed:
                assert decided is not None and decided.committed
            else:
                assert decided is None or not decided.committed

    def markers(self) -> None:
        for due in self.due:
            self.take(self.machine.markers_written(self.now, due.transactional_id, due.producer_id, due.producer_epoch))
        self.due.clear()

    def wait(self, time_ms: int) -> None:
        self.now += time_ms
        while (deadline := self.machine.next_deadline()) is not None and deadline <= self.now:
            self.take(self.machine.tick(self.now))

    def crash(self) -> None:
        self.steps.clear()
        self.waiting.clear()
        self.due.clear()
        self.machine = TransactionMachine()
        for entry in self.log:
            self.machine.replay(entry, -1, None, self.now)
        self.due = self.machine.markers_due()
        for due in self.due:
            self.check_decision(due)

    # --- the end

    def check_replay(self) -> None:
        kept = [entry for entry, _ in self.machine.dump()]
        for entries in (self.log, kept):
            again = TransactionMachine()
            for entry in entries:
                again.replay(entry, -1, None, self.now)
            assert [entry for entry, _ in again.dump()] == kept
            state = State(kept[0].value.transaction_status) if kept else None
            assert len(again.markers_due()) == (state in ENDING)

    def check_it_comes_to_rest(self) -> None:
        """Time and markers end every transaction and answer everyone who waits."""
        for _ in range(2 * len(self.waiting) + 4):
            self.sync(lost=False)
            self.markers()
            self.wait(60_000)
        self.sync(lost=False)
        assert not self.waiting
        for entry, _ in self.machine.dump():
            assert Transaction.from_entry(entry).state not in (State.ONGOING, *ENDING)


def _marked(due: MarkersDue) -> set[int]:
    return {index for named in due.partitions for index in named.partition_ids}


CLIENT = st.integers(0, 1)
FATES = ["answered", "answered", "answered", "lost", "pending"]
PAUSES_MS = [1, 10_000, 60_000]
FATE = st.sampled_from(FATES)
EVENTS = st.one_of(
    st.tuples(st.just("init"), FATE, CLIENT, st.booleans()),
    st.tuples(st.just("add"), FATE, CLIENT, st.integers(0, 2)),
    st.tuples(st.just("end"), FATE, CLIENT, st.booleans()),
    st.tuples(st.just("again"), FATE, st.integers(1, 8)),
    st.tuples(st.just("markers"), FATE),
    st.tuples(st.just("wait"), FATE, st.sampled_from(PAUSES_MS)),
    st.tuples(st.just("crash"), FATE),
)
FIRST_EPOCHS = [0, LAST_EPOCH - 3, LAST_EPOCH - 1]


def _play(first_epoch: int, kinds: tuple[bool, bool], events: list[tuple[Any, ...]]) -> History:
    history = History(first_epoch, kinds)
    for name, fate, *arguments in (("init", "answered", 1, False), *events):
        getattr(history, name)(*arguments)
        if fate != "pending":
            history.sync(lost=fate == "lost")
    history.sync(lost=False)
    history.check_replay()
    history.check_it_comes_to_rest()
    return history


@settings(max_examples=100, deadline=None)
@given(
    first_epoch=st.sampled_from(FIRST_EPOCHS),
    kinds=st.tuples(st.booleans(), st.booleans()),
    events=st.lists(EVENTS, min_size=10, max_size=30),
)
def test_short_histories(first_epoch: int, kinds: tuple[bool, bool], events: list[tuple[Any, ...]]) -> None:
    _play(first_epoch, kinds, events)


@pytest.mark.parametrize("seed", range(100))
def test_long_histories(seed: int) -> None:
    """Few take-overs and many transactions, which the search above seldom finds."""
    chance = Random(seed)
    events: list[tuple[Any, ...]] = []
    for name in chance.choices(
        ["init", "add", "end", "again", "markers", "wait", "crash"], [2, 9, 8, 5, 8, 1, 1], k=400
    ):
        arguments = {
            "init": (chance.randrange(2), chance.random() < 0.6),
            "add": (chance.randrange(2), chance.randrange(3)),
            "end": (chance.randrange(2), chance.random() < 0.6),
            "again": (chance.randint(1, 12),),
            "wait": (chance.choice(PAUSES_MS),),
        }
        events.append((name, chance.choice(FATES), *arguments.get(name, ())))
    _play(chance.choice(FIRST_EPOCHS), (chance.random() < 0.5, chance.random() < 0.7), events)


@pytest.mark.parametrize("first_epoch", [0, LAST_EPOCH])
def test_a_history_that_reaches_every_state(first_epoch: int) -> None:
    """So that the search above is known to get anywhere."""
    history = History(first_epoch, (True, True))
    history.init(1, own=False)
    history.sync(lost=False)
    for committed in (True, False):
        history.add(1, 0)
        history.end(1, committed)
        history.sync(lost=False)
        history.markers()
        history.sync(lost=False)
    states = {State(entry.value.transaction_status) for entry in history.log}
    assert states == set(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE}
