"""The ledger's machine beside a plain model, step by step, through crashes, other leaders and saved states.

After each step the machine has answered and holds what the model does, and so does one that is made anew from what was
kept: from the log, from a state saved in the log, or from a snapshot and the log behind it.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.message_log import reading
from tests.property.ledger_messages import MessageSteps, message_steps
from tests.property.ledger_model import CHANCE, Held, QueueModel
from tests.property.ledger_rules import DURABLE, RULES
from tests.property.ledger_shown import each_of, offsets_of, ranges_of, show_dump, show_model

from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues import entries
from penstock.engine.queues.answers import Leased, Want
from penstock.engine.queues.entries import LedgerCodec
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.verdicts import Ack, By, Change, Holder, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import CHUNK, DELAYED, DYING, LEASED, READY, SETTLED, Run
from penstock.errors import Code, PenstockError
from penstock.storage.log.epochs import LeaderEpochs

HOUR_MS = 3_600_000
BEGIN_MS = 1_800_000_000_000
TO = "asked"
STARTS = (0, CHUNK - 5, CHUNK, 2 * CHUNK - 1)
VERDICTS = st.builds(
    Verdict,
    st.sampled_from(VerdictKind) | st.sampled_from([VerdictKind.ACK, VerdictKind.NACK, VerdictKind.RENEW]),
    st.sampled_from([None, None, -1, 0, 1, 1000, 30_000, 13 * HOUR_MS, 1 << 70]),
    st.sampled_from(["", "broken"]),
)
GROUPS = st.runner().flatmap(lambda world: st.sampled_from(world.likely_groups()))
CONSUMERS = st.sampled_from(["anna", "bert"])
PRODUCERS = st.sampled_from([70, 80])
CODEC = LedgerCodec()


class Ended(NamedTuple):
    """A marker in the log."""

    producer: int
    committed: bool


Kept = Sequence[Entry | Ended]


def step(name: str, /, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A call of the world below."""
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


SHARES = st.integers(1, 12)
"""Of twelve."""
PASSING_MS = st.sampled_from([1, 999, 1000, 5000, 10_000, 30_000, 5 * HOUR_MS, 20 * HOUR_MS])
ROUNDS = st.lists(st.tuples(CONSUMERS, SHARES, VERDICTS, SHARES, st.sampled_from([0, 0, 1, 1000, 40_000])), max_size=4)
LEASING = {"name": GROUPS, "consumer": CONSUMERS, "share": SHARES, "bound": st.booleans()}
WORK = step("work", name=GROUPS, rounds=ROUNDS, by_name=st.booleans())
LEASE = step("lease", **LEASING, visibility_ms=st.sampled_from([None, None, 1000, 20 * HOUR_MS]))
SETTLE = step(
    "settle_what_is_leased",
    name=GROUPS,
    which=st.integers(0, 5),
    low=st.integers(0, 11),
    share=SHARES,
    verdicts=st.lists(VERDICTS, min_size=1, max_size=3),
    by_name=st.booleans(),
)
STEPS = st.one_of(
    *[WORK] * 6,
    *[LEASE] * 3,
    *[SETTLE] * 4,
    *[step("settle_what_was_leased_once", which=st.integers(0, 7), low=st.integers(0, 11), verdict=VERDICTS)] * 2,
    step(
        "settle_anything",
        name=GROUPS,
        by=st.builds(Holder, CONSUMERS) | st.builds(Receipt, st.integers(0, 10)),
        ranges=st.lists(st.tuples(st.integers(-3, 12), st.integers(-1, 6), VERDICTS), max_size=4),
        again=st.none() | VERDICTS,
    ),
    *[step("leave", name=GROUPS, consumer=CONSUMERS, graceful=st.booleans())] * 2,
    *[step("bury", name=GROUPS, most=st.integers(1, 6), is_forgotten=st.booleans())] * 2,
    *[
        step(
            "acknowledge_in_a_transaction",
            name=GROUPS,
            which=st.integers(0, 5),
            low=st.integers(0, 11),
            share=SHARES,
            producer=PRODUCERS,
            wrong=st.sampled_from([0] * 8 + [1, 5]),
        )
    ]
    * 3,
    *[step("end_a_transaction", producer=PRODUCERS, committed=st.booleans(), is_late=st.booleans())] * 3,
    step("bury_what_is_not_dying", name=GROUPS, low=st.integers(0, 10)),
    step("overflow", name=st.sampled_from(["drop", "bulk"]), excess=st.integers(0, 12)),
    step("redrive", name=GROUPS, low=st.integers(-2, 15), size=st.integers(1, 6)),
    *[step("pass_time", passed_ms=PASSING_MS, is_late=st.booleans())] * 3,
    step("send", count=st.integers(1, 20)),
    step("purge", name=GROUPS, beyond=st.integers(-3, 20)),
    step("trim", beyond=st.integers(0, 10)),
    step("open", name=st.sampled_from(sorted(RULES)), start=st.sampled_from(STARTS)),
    step("restart", name=GROUPS, start=st.sampled_from(STARTS)),
    step("delete", name=GROUPS),
    *[step("all_is_safe")] * 2,
    *[step("crash", lost=st.integers(0, 6))] * 2,
    *[
        step(
            "another_leader",
            lost=st.integers(0, 6),
            cut=st.integers(0, 12),
            behind_ms=st.sampled_from([0, 0, 500, 20_000]),
        )
    ]
    * 2,
    *[step("save", count=st.integers(1, 6), passed_ms=st.sampled_from([0, 0, 1000, 40_000]))] * 3,
    step("take_snapshot"),
    *[step(name, **given) for name, given in message_steps(GROUPS, CONSUMERS)],
)


def make_burying(runs: Sequence[Run]) -> entries.Burying:
    return entries.Burying(UUID(int=1), 0, 7, 0, tuple(runs))


class Snapshot(NamedTuple):
    """The state at a place in the log, outside of it."""

    offset: int
    entries: list[Entry]


class Moment(NamedTuple):
    """Where the log ended, and what was true then."""

    log_end: int
    epoch: int
    queues: dict[str, QueueModel]


class LedgerWorld(MessageSteps, RuleBasedStateMachine):
    """Takes steps with both, and keeps what the machine says is to be kept."""

    most = 12
    """Messages at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN_MS
        self.end = 0
        self.next_id = 1
        self.epoch = -1
        """Of the leader who had the last word in the ledger."""
        self.data_epochs = LeaderEpochs()
        """Of the messages' log."""
        self.last_epoch = 0
        self.queues: dict[str, QueueModel] = {}
        self.log: list[Entry | Ended] = []
        self.log_start = 0
        self.snapshot: Snapshot | None = None
        self.past: list[Moment] = []
        """After each step, since everything was safe the last time."""
        self.saving: Iterator[list[Entry]] | None = None
        self.saving_from = 0
        self.given: list[tuple[str, int, list[int]]] = []
        """All leases that anybody was ever told."""
        self.machine = self.make_machine()
        self.lead(0)

    # --- keeping

    def make_machine(self, kept: Kept = ()) -> LedgerMachine:
        machine = LedgerMachine(RULES.__getitem__, lambda: DURABLE, lambda: self.next_id, lambda: CHANCE)
        for each in kept:
            if isinstance(each, Ended):
                machine.marker(each.producer, committed=each.committed)
            else:
                machine.replay(each, -1, None, self.now)
        return machine

    def dump(self, machine: LedgerMachine) -> list[Entry]:
        return [entry for entry, _ in machine.dump()]

    def kept(self) -> Kept:
        """What the next leader reads."""
        if self.snapshot is None or self.snapshot.offset < self.log_start:
            return self.log[self.log_start :]
        return [*self.snapshot.entries, *self.log[self.snapshot.offset :]]

    def keep(self, records: Sequence[Entry]) -> None:
        for entry in records:
            key, value = CODEC.encode(entry)
            decoded = CODEC.decode(key, value)
            assert decoded == entry
            self.log.append(decoded)
        self.past.append(Moment(len(self.log), self.epoch, self.copies(self.queues)))

    def copies(self, queues: dict[str, QueueModel]) -> dict[str, QueueModel]:
        return {name: queue.copy() for name, queue in queues.items()}

    def told(self, outcome: Outcome) -> Any:
        """Keep what comes of a step, and return what it answers."""
        self.keep(outcome.records)
        (reply,) = outcome.replies
        assert reply.to == TO
        if isinstance(reply.answer, PenstockError):
            assert not outcome.records
            return reply.answer.code
        return reply.answer

    def lead(self, epoch: int) -> None:
        """What a broker does first with a machine it has loaded."""
        self.data_epochs.note(epoch, self.end)
        data_end = max(self.data_epochs.end_of(self.epoch, self.end)[1], 0)
        is_told = epoch > self.epoch or any(held.is_bound for queue in self.queues.values() for held in queue.parts())
        for queue in self.queues.values():
            if epoch > self.epoch:
                queue.cut(data_end)
            if is_told:
                queue.led(self.now)
        self.epoch = max(self.epoch, epoch)
        self.keep(self.machine.led(self.now, epoch, data_end).records)
        self.tick()

    def likely_groups(self) -> list[str]:
        """Mostly those that are known."""
        return [*sorted(self.queues) * 5, "drop"]

    def queue(self, name: str) -> QueueModel | None:
        return self.queues.get(name)

    @rule(step=STEPS)
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        """One of the steps below."""
        name, given = step
        getattr(self, name)(**given)

    # --- groups and messages

    @initialize(
        name=st.sampled_from([*sorted(RULES), "slow", "steady"]),
        start=st.sampled_from(STARTS),
        count=st.integers(0, 40),
    )
    def begin(self, name: str, start: int, count: int) -> None:
        self.end += start + count
        self.open(name, start)

    def open(self, name: str, start: int) -> None:
        if len(self.queues) < 3:
            self.queues.setdefault(name, QueueModel(RULES[name], start))
        elif name not in self.queues:
            return
        assert self.told(self.machine.open(self.now, TO, name, start)) is None

    def send(self, count: int) -> None:
        self.end += count

    def lease(self, name: str, consumer: str, share: int, visibility_ms: int | None, *, bound: bool) -> None:
        want = Want(name, consumer, max(1, self.most * share // 12), visibility_ms, bound)
        if self.queue(name) is None:
            with pytest.raises(PenstockError) as refused:
                self.machine.lease(self.now, want, self.end)
            assert refused.value.code is Code.UNKNOWN_QUEUE
            return
        again = self.make_machine(self.kept())
        _, expected = self.give(want)
        same, _ = again.lease(self.now, want, self.end)
        assert [each for counted in same.ranges for each in each_of(counted)] == expected

    def give(self, want: Want) -> tuple[Leased, list[tuple[int, int, int]]]:
        """Offsets with their counters."""
        name, queue = want.group, self.queues[want.group]
        self.ripen()
        expected = queue.lease(self.now, want, self.end, self.next_id)
        leased, outcome = self.machine.lease(self.now, want, self.end)
        assert [each for counted in leased.ranges for each in each_of(counted)] == expected
        assert len(outcome.records) == bool(expected)
        if expected:
            offsets = [offset for offset, _, _ in expected]
            held = queue.messages[offsets[0]].held
            assert held is not None
            assert (leased.lease_id, leased.deadline) == (self.next_id, held.deadline)
            for each in self.queues.values():
                each.note_ripe()
            self.given.append((name, self.next_id, offsets))
            self.next_id += 1
        self.keep(outcome.records)
        return leased, expected

    def ripen(self) -> None:
        for queue in self.queues.values():
            queue.ripen(self.now)

    def overflow(self, name: str, excess: int) -> None:
        queue = self.queue(name)
        if queue is not None:
            queue.overflow(excess, self.end)
            self.keep(self.machine.overflow(self.now, name, excess, self.end).records)

    def work(self, name: str, rounds: list[tuple[str, int, Verdict, int, int]], *, by_name: bool) -> None:
        """Again and again messages come, are leased, and settled as far as there is time."""
        for consumer, leased, verdict, settled, passed_ms in rounds:
            queue = self.queue(name)
            if queue is not None:
                self.end = max(self.end, queue.next + self.most // 2)
            self.lease(name, consumer, leased, None, bound=False)
            self.settle_what_is_leased(name, -1, 0, settled, [verdict], by_name=by_name)
            if passed_ms:
                self.pass_time(passed_ms, is_late=False)

    # --- verdicts

    def settle(self, name: str, by: By, changes: Sequence[Change]) -> None:
        queue = self.queue(name)
        expected = Code.UNKNOWN_QUEUE if queue is None else queue.settle(self.now, by, changes)
        assert self.told(self.machine.settle(self.now, TO, name, by, changes)) == expected

    def settle_what_is_leased(
        self, name: str, which: int, low: int, share: int, verdicts: list[Verdict], *, by_name: bool
    ) -> None:
        queue = self.queue(name)
        parts = {} if queue is None else queue.parts()
        if not parts:
            return
        held = sorted(parts, key=str)[which % len(parts)]
        mine = sorted(offset for other in parts for offset in parts[other] if _is_alike(held, other, by_name=by_name))
        at = low * len(mine) // 12
        chosen = mine[at : at + max(1, len(mine) * share // 12)]
        size = -(-len(chosen) // len(verdicts))
        pieces = [chosen[begin : begin + size] for begin in range(0, len(chosen), size)]
        changes = [
            Change(first, last, verdict)
            for piece, verdict in zip(pieces, verdicts, strict=False)
            for first, last in ranges_of(piece)
        ]
        self.settle(name, Holder(held.consumer) if by_name else Receipt(held.lease_id), changes)

    def settle_what_was_leased_once(self, which: int, low: int, verdict: Verdict) -> None:
        """By its receipt, all of it or one message."""
        if self.given:
            name, lease_id, offsets = self.given[-1 - which % len(self.given)]
            chosen = offsets if low < 4 else [offsets[low * len(offsets) // 12]]
            self.settle(name, Receipt(lease_id), [Change(*each, verdict) for each in ranges_of(chosen)])

    # --- transactions

    def acknowledge_in_a_transaction(
        self, name: str, which: int, low: int, share: int, producer: int, wrong: int
    ) -> None:
        """Some of what is leased; a part of it is by a receipt that is not its own, or twice, perhaps."""
        queue = self.queue(name)
        parts = {} if queue is None else queue.parts()
        if queue is None or not parts:
            return
        held = sorted(parts, key=str)[which % len(parts)]
        mine = sorted(offset for other in parts for offset in parts[other] if other.lease_id == held.lease_id)
        at = low * len(mine) // 12
        chosen = mine[at : at + max(1, len(mine) * share // 12)]
        acks = [Ack(*each, held.lease_id) for each in ranges_of(chosen)]
        if wrong == 1:
            acks.append(acks[0])
        elif wrong:
            acks[-1] = acks[-1]._replace(last=acks[-1].last + wrong)
        expected = queue.settle_in(producer, acks)
        assert self.told(self.machine.settle_in(self.now, TO, name, producer, acks)) == expected

    def end_a_transaction(self, producer: int, *, committed: bool, is_late: bool) -> None:
        """Its marker comes; what follows is for the next tick."""
        for queue in self.queues.values():
            queue.decide(producer, committed=committed)
        self.log.append(Ended(producer, committed))
        self.machine.marker(producer, committed=committed)
        self.keep(())
        if not is_late:
            self.tick()

    def settle_anything(self, name: str, by: By, ranges: list[tuple[int, int, Verdict]], again: Verdict | None) -> None:
        """And the first range twice, perhaps."""
        queue = self.queue(name)
        base = 0 if queue is None else queue.start
        changes = [Change(base + low, base + low + more, verdict) for low, more, verdict in ranges]
        changes += [each._replace(verdict=again) for each in changes[:1] if again is not None]
        self.settle(name, by, changes)

    def leave(self, name: str, consumer: str, *, graceful: bool) -> None:
        queue = self.queue(name)
        expected = Code.UNKNOWN_QUEUE if queue is None else queue.leave(self.now, consumer, graceful=graceful)
        assert self.told(self.machine.leave(self.now, TO, name, consumer, graceful=graceful)) == expected

    # --- dead letters

    def bury(self, name: str, most: int, *, is_forgotten: bool) -> None:
        """Take the next step of a burial."""
        found = [each for each in self.machine.dying(most) if each.group == name]
        queue = self.queue(name)
        if queue is None or not (queue.in_state(DYING) or queue.burial):
            assert not found
            return
        ((_, begun, runs),) = found
        chosen = offsets_of(runs)
        if queue.burial:
            assert begun is not None
            assert offsets_of(begun.runs) == chosen == queue.burial
            if is_forgotten:
                queue.burial = ()
                assert self.told(self.machine.forget_burial(self.now, TO, name)) is None
            else:
                queue.buried()
                assert self.told(self.machine.buried(self.now, TO, name, begun)) is None
            return
        assert begun is None
        alike = [each for each in queue.in_state(DYING) if queue.messages[each][-2:] == queue.messages[chosen[0]][-2:]]
        assert len(chosen) == min(most, len(alike))
        for offset in chosen:
            state, deliveries, attempts, *_, cause, reason = queue.messages[offset]
            assert state == DYING
            assert self.machine.dead(name, offset) == (cause, reason, deliveries, attempts)
        queue.burial = chosen
        assert self.told(self.machine.bury(self.now, TO, name, make_burying(runs))) is None

    def bury_what_is_not_dying(self, name: str, low: int) -> None:
        queue = self.queue(name)
        if queue is not None and queue.start + low not in queue.in_state(DYING):
            burying = make_burying([Run(queue.start + low, queue.start + low)])
            assert self.told(self.machine.bury(self.now, TO, name, burying)) is Code.INVALID_REQUEST

    def redrive(self, name: str, low: int, size: int) -> None:
        queue = self.queue(name)
        first = max(0, low + (0 if queue is None else queue.start))
        offsets = range(first, min(first + size, self.end))
        expected = Code.UNKNOWN_QUEUE if queue is None else queue.redrive(offsets, "orders")
        wanted = [Run(first, first + size - 1)]
        assert self.told(self.machine.redrive(self.now, TO, name, "orders", wanted, self.end)) == expected

    # --- time and place

    def pass_time(self, passed_ms: int, *, is_late: bool) -> None:
        self.now += passed_ms
        if not is_late:
            self.tick()

    def tick(self) -> None:
        for queue in self.queues.values():
            queue.tick(self.now)
        self.keep(self.machine.tick(self.now).records)

    def purge(self, name: str, beyond: int) -> None:
        queue = self.queue(name)
        before = max(0, (0 if queue is None else queue.start) + beyond)
        expected = Code.UNKNOWN_QUEUE if queue is None else queue.purge(before)
        self.end = max(self.end, before)
        self.purged = self.told(self.machine.purge(self.now, TO, name, before))
        assert self.purged == expected

    def trim(self, beyond: int) -> None:
        before = min([queue.start for queue in self.queues.values()], default=0) + beyond
        for queue in self.queues.values():
            if before > queue.start:
                queue.purge(before)
        self.end = max(self.end, before)
        self.keep(self.machine.trim(before).records)

    def restart(self, name: str, start: int) -> None:
        queue = self.queue(name)
        if queue is not None:
            queue.restart(start)
        expected = Code.UNKNOWN_QUEUE if queue is None else None
        assert self.told(self.machine.restart(self.now, TO, name, start)) == expected

    def delete(self, name: str) -> None:
        if len(self.queues) < 2:
            return
        expected = None if self.queues.pop(name, None) else Code.UNKNOWN_QUEUE
        assert self.told(self.machine.delete(self.now, TO, name)) == expected

    # --- crashes

    def all_is_safe(self) -> None:
        """Answers have gone out."""
        self.past = self.past[-1:]

    def crash(self, lost: int) -> None:
        """The broker comes back in the same epoch, with what was kept."""
        self.load(lost)
        self.lead(self.data_epochs.latest)

    def another_leader(self, lost: int, cut: int, behind_ms: int) -> None:
        """Another broker leads. Some messages may be others there, and its clock behind."""
        self.load(lost)
        nexts = [queue.next for queue in self.queues.values()]
        self.end = max(0, min([self.end, *(each - cut for each in nexts if cut)]))
        if not any(queue.ripe() for moment in self.past for queue in moment.queues.values()):
            self.now -= behind_ms  # or what is ready may have to wait once more
        self.data_epochs.cut_to(self.end)
        self.last_epoch += 1
        self.lead(self.last_epoch)

    def load(self, lost: int) -> None:
        del self.past[max(1, len(self.past) - lost) :]
        log_end, self.epoch, queues = self.past[-1]
        del self.log[log_end:]
        self.queues = self.copies(queues)
        self.saving = None
        self.machine = self.make_machine(self.kept())

    # --- saving

    def save(self, count: int, passed_ms: int) -> None:
        """Write some pieces of the state; when all are there, nothing before the first is read any more."""
        if self.saving is None:
            self.saving, self.saving_from = self.machine.saved(), len(self.log)
        for _ in range(count):
            piece = next(self.saving, None)
            if piece is None:
                self.saving, self.log_start = None, self.saving_from
                self.all_is_safe()
                return
            self.keep(piece)
            if passed_ms:
                self.pass_time(passed_ms, is_late=False)

    def save_all(self) -> None:
        """As it is now; what was begun before comes first."""
        for _ in range(1 if self.saving is None else 2):
            self.save(1, 0)
            while self.saving is not None:
                self.save(6, 0)

    def take_snapshot(self) -> None:
        """As a broker does that stops: outside of the log."""
        self.all_is_safe()
        self.snapshot = Snapshot(len(self.log), self.dump(self.machine))

    # --- what is always so

    @invariant()
    def the_machine_holds_what_the_model_does(self) -> None:
        expected = show_model(self.queues, self.epoch, self.now)
        dump = self.dump(self.machine)
        assert show_dump(dump, self.now) == expected
        assert show_dump(self.dump(self.make_machine(dump)), self.now) == expected
        assert show_dump(self.dump(self.make_machine(self.kept())), self.now) == expected
        starts = [self.queues[name].start if name in self.queues else 0 for name in DURABLE]
        assert self.machine.floor() == min(starts)

    @invariant()
    def counts_agree(self) -> None:
        for name, queue in self.queues.items():
            figures = self.machine.figures(name, self.end)
            assert (figures.start, figures.next) == (queue.start, queue.next)
            assert figures.ready == len(queue.in_state(READY)) + max(0, self.end - queue.next)
            assert figures.leased == len(queue.in_state(LEASED))
            assert figures.delayed == len(queue.in_state(DELAYED))
            assert figures.dying == len(queue.in_state(DYING))
            assert figures.settled_beyond == len(queue.in_state(SETTLED))
            pending = [len(offsets) for held, offsets in queue.parts().items() if held.is_pending]
            assert figures.in_transactions == sum(pending)

    @invariant()
    def deadlines_are_not_missed(self) -> None:
        deadlines = [at for queue in self.queues.values() for at in queue.deadlines()]
        if deadlines:
            earliest = self.machine.next_deadline()
            assert earliest is not None
            assert earliest <= min(deadlines)

    def teardown(self) -> None:
        """In the end everybody gets everything that is left."""
        end = self.end
        for producer in (70, 80):
            self.end_a_transaction(producer, committed=producer == 70, is_late=False)
        for name, queue in self.queues.items():
            self.end = min(end, queue.next + 20)  # it takes the longer the more messages nobody had yet
            left = -1
            while queue.next < self.end or queue.in_state(READY) or queue.deadlines():
                assert left != (left := self.unsettled(queue)), "nobody gets what is left"
                for _ in range(2):  # it may come back, and be delayed
                    self.now += 8 * 24 * HOUR_MS
                    self.tick()
                self.lease(name, "last", 12, None, bound=False)
                leased = queue.in_state(LEASED)
                acks = [Change(*each, Verdict(VerdictKind.ACK)) for each in (ranges_of(leased) if leased else ())]
                self.settle(name, Holder("last"), acks)

    def unsettled(self, queue: QueueModel) -> int:
        return self.end - queue.start - len(queue.in_state(SETTLED)) - len(queue.in_state(DYING))


def _is_alike(held: Held, other: Held, *, by_name: bool) -> bool:
    return held.consumer == other.consumer if by_name else held.lease_id == other.lease_id


class BulkyWorld(LedgerWorld):
    """The same with more messages at a time than a chunk has."""

    most = 1500

    def send(self, count: int) -> None:
        self.end += 200 * count

    def teardown(self) -> None:
        """Hundreds that come one by one, each at its last chance, take too long."""


def run(world: type[LedgerWorld], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
            phases=[Phase.generate, *([] if os.environ.get("NO_SHRINK") else [Phase.shrink])],
        ),
    )


@pytest.fixture(autouse=True)
def _reading() -> Iterator[None]:
    with reading():
        yield


def test_few_messages() -> None:
    run(LedgerWorld, 200, 40)


def test_many_messages() -> None:
    run(BulkyWorld, 20, 25)
