"""The ledger of one partition: what its groups have done with its messages. A pure state machine.

Each step says what becomes of which offsets as entries (`entries.py`), and applies them (`group.py`); the shard that
runs it keeps them in the log attached to the partition (`coordination/shard.py`). What a consumer got is told at once,
for a lease is a hint; that a message was acknowledged is told when it is kept.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop
from typing import Final, cast

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.coordination.outcome import NOTHING, Outcome, Reply, Token, refused
from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues import entries
from penstock.engine.queues.answers import DeadMessage, DyingMessages, Figures, Leased, Want, Whereabouts
from penstock.engine.queues.entries import Cause, How, Value, entry
from penstock.engine.queues.group import Due, Group
from penstock.engine.queues.leases import ABORTED
from penstock.engine.queues.needed import needed_by
from penstock.engine.queues.settings import OnFull, QueueRules
from penstock.engine.queues.sorting import early
from penstock.engine.queues.sorting.later import Waiting
from penstock.engine.queues.sorting.marks import NORMAL, Marks, Said
from penstock.engine.queues.sorting.sorting import Sorting
from penstock.engine.queues.tally import ACKED, PURGED, TRIMMED, Back, Tally
from penstock.engine.queues.verdicts import (
    LONGEST_LEASE_MS,
    Ack,
    By,
    Change,
    Verdict,
    VerdictKind,
    after_abort,
    bury,
    check_apart,
    give_back,
    judge,
    leased_parts,
    settled_in,
)
from penstock.engine.queues.window import DELAYED, DYING, LEASED, MOST_COUNTED, READY, SETTLED, SHAKEN, Run
from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats
from penstock.storage.log.needs import Needed

MOST_GROUPS: Final = 1_000
_MOST_DUE_LOOKED_AT: Final = 20_000
"""Some milliseconds."""
_MOST_SKIPPED: Final = 10_000_000
"""Offsets in one step; some milliseconds."""
_NO_GROUP: Final = 0
_NEVER: Final = 1 << 62


_BACK: Final = {VerdictKind.NACK: Back.NACK, VerdictKind.RELEASE: Back.RELEASE, VerdictKind.UNREAD: Back.UNREAD}


Rules = Callable[[str], QueueRules]


class LedgerMachine:
    """Args:
    rules: in force for a group.
    durable: groups that are to be there, and whose messages must stay until they are settled.
    new_id: an id no lease ever had.
    chance: at least 0, less than 1, for backoff.
    tally: what steps come to is counted there.
    made: groups that were made as queues.
    """

    def __init__(
        self,
        rules: Rules,
        durable: Callable[[], Collection[str]],
        new_id: Callable[[], int],
        chance: Callable[[], float],
        tally: Tally | None = None,
        made: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._rules = rules
        self._durable = durable
        self._new_id = new_id
        self._chance = chance
        self._tally = tally or Tally(Stats())
        self._groups: dict[str, Group] = {}
        self._by_number: dict[int, Group] = {}
        self._next_number = _NO_GROUP + 1
        self._deadlines: Deadlines[tuple[int, int]] = Deadlines()
        self._due: list[Due] = []
        self.sorting = Sorting(made)
        self.epoch = -1
        """Of the leader whose word is the last here."""
        self.has_begun = False
        """Whether this broker has begun to lead with it."""
        self.stirred: set[str] = set()
        """Groups in which something may be ready, or there is room for leases, since this was last emptied."""

    @property
    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    # --- groups

    def open(self, now: int, to: Token, name: str, start: int, state_epoch: int = 0) -> Outcome:
        """Make a group known, from an offset on; nothing if it is.

        Args:
            state_epoch: see `entries.Opened`.
        """
        if name in self._groups:
            return Outcome(replies=(Reply(to, None),))
        if len(self._groups) >= MOST_GROUPS:
            error = PenstockError(
                Code.LIMIT_EXCEEDED,
                f"{len(self._groups)} groups read this topic as queues already, which is the most",
                help="delete one that is not needed any more",
            )
            return refused(to, error)
        value = entries.Opened(name, start, start, False, state_epoch)
        made = self._make(self._next_number, value)
        return Outcome((entry(made.number, value),), (Reply(to, None),))

    def restart(self, now: int, to: Token, name: str, start: int) -> Outcome:
        """Have a group begin anew."""
        return self._about(to, name, lambda group: [entries.Moved(start, is_anew=True)])

    def alter(self, now: int, to: Token, name: str, start: int, state_epoch: int) -> Outcome:
        """Have a share group begin anew, or for the first time, as its coordinator has decided in an epoch.

        That it has begun by the same word already is well, and what has been done since stays. A word that came late,
        as a coordinator that is none any more may send one, is refused.
        """
        group = self._groups.get(name)
        if group is None:
            return self.open(now, to, name, start, state_epoch)
        if group.state_epoch == state_epoch:
            return Outcome(replies=(Reply(to, None),))
        if group.state_epoch > state_epoch:
            return refused(to, _overtaken(group, state_epoch))
        return self._about(to, name, lambda group: [entries.Moved(start, True, state_epoch)])

    def forget(self, now: int, to: Token, name: str, state_epoch: int) -> Outcome:
        """Have a share group be unknown, as its coordinator has decided. Replies whether it was known."""
        group = self._groups.get(name)
        if group is None:
            return Outcome(replies=(Reply(to, False),))
        if group.state_epoch > state_epoch:
            return refused(to, _overtaken(group, state_epoch))
        self._delete(group)
        return Outcome((entry(group.number, entries.Deleted()),), (Reply(to, True),))

    def delete(self, now: int, to: Token, name: str) -> Outcome:
        group = self._groups.get(name)
        if group is None:
            return refused(to, _unknown(name))
        self._delete(group)
        return Outcome((entry(group.number, entries.Deleted()),), (Reply(to, None),))

    def purge(self, now: int, to: Token, name: str, before: int) -> Outcome:
        """Have everything below an offset be settled. Replies how many messages were not."""
        group = self._groups.get(name)
        if group is None:
            return refused(to, _unknown(name))
        count, done = self._move(group, before, PURGED)
        return Outcome(tuple(done), (Reply(to, count),))

    def trim(self, before: int) -> Outcome:
        """Records below an offset are gone."""
        done: list[Entry] = []
        for group in self._groups.values():
            done += self._move(group, before, TRIMMED)[1]
        return Outcome(tuple(done))

    def _move(self, group: Group, before: int, how: str) -> tuple[int, list[Entry]]:
        """Have everything below an offset be settled: how many messages were not, and the entries."""
        if before <= group.window.start:
            return 0, []
        count = group.window.unsettled_below(before)
        self._tally.settled(how, count)
        return count, self._apply(group, [entries.Moved(before, is_anew=False)])

    def _about(self, to: Token, name: str, make: Callable[[Group], Sequence[Value]]) -> Outcome:
        group = self._groups.get(name)
        if group is None:
            return refused(to, _unknown(name))
        try:
            values = make(group)
        except PenstockError as error:
            return refused(to, error)
        return Outcome(tuple(self._apply(group, values)), (Reply(to, None),))

    def _apply(self, group: Group, values: Sequence[Value], back: Back | None = None) -> list[Entry]:
        """Have it be so. What comes back was given back by `back`."""
        for value in values:
            group.apply(value)
            self._tally.take(value, back)
            if not isinstance(value, entries.Leased):
                self.stirred.add(group.name)
        return [entry(group.number, value) for value in values]

    def skip(self, name: str, lease_id: int, behind: int, before: int) -> Outcome:
        """There are no records from `behind` up to `before`: what nobody had yet of these offsets is settled.

        Args:
            lease_id: with which that was seen. It must be there still, or the group may have begun anew meanwhile.
        """
        group = self._groups.get(name)
        if group is None or not group.leases.of_id(lease_id) or not behind <= group.window.next < before:
            return NOTHING
        first = group.window.next
        gone = entries.Settled(How.GONE, (Run(first, min(before, first + _MOST_SKIPPED) - 1),))
        return Outcome(tuple(self._apply(group, [gone])))

    # --- leasing

    def lease(self, now: int, want: Want, end: int) -> tuple[Leased, Outcome]:
        """Give a consumer what is ready. Raises PenstockError UNKNOWN_QUEUE.

        Args:
            end: nothing there or beyond.
        """
        group = self._known(want.group)
        self._ripen(now)
        rules = self._rules(group.name)
        leases = group.leases
        if rules.single_active and not group.active.may_have(want.consumer, leases, now, rules.visibility_ms):
            return Leased(0, now, ()), NOTHING
        end = self.sorting.reach(group, rules, end)
        room = min(
            want.most,
            rules.max_unacked - leases.count,
            rules.max_unacked_consumer - leases.held_by(want.consumer),
        )
        can_be_had = room > 0 and end > group.window.start
        runs = tuple(self._pick(now, group, rules, room, end, want.lane)) if can_be_had else ()
        if not runs:
            return Leased(0, now, ()), NOTHING
        visibility_ms = rules.visibility_ms if want.visibility_ms is None else want.visibility_ms
        deadline = now + min(visibility_ms, LONGEST_LEASE_MS)
        lease_id = self._new_id()
        value = entries.Leased(lease_id, want.consumer, now, deadline, want.bound, False, runs)
        kept = self._apply(group, [value])
        ranges = tuple(part for run in runs for part in group.window.counted(run.first, run.last))
        return Leased(lease_id, deadline, ranges), Outcome(tuple(kept))

    def _pick(self, now: int, group: Group, rules: QueueRules, most: int, end: int, lane: int | None) -> list[Run]:
        tries_left = self._tries_left(group, rules)
        if group.picker is not None:
            return group.picker.pick(now, most, end, tries_left, lane)
        if lane not in (None, NORMAL):
            return []
        return group.pick(most, end, tries_left)

    def is_tired(self, name: str) -> bool:
        """Whether the last one who wanted something of a group got too little, as there was so much to look at."""
        group = self._groups.get(name)
        return group is not None and group.picker is not None and group.picker.is_tired

    def looked(self, now: int, last: int, said: Sequence[Said], published_ms: int) -> None:
        """The records up to an offset were looked at, the last of which was published by then; see `Marks.take`."""
        self.sorting.take(last, said, published_ms, now)
        self.stirred.update(self._groups)

    def look_from(self, offset: int, new_from: int = 0) -> Marks:
        """Have the records be looked at, from an offset on, in place of what was known of them."""
        marks = Marks(offset, new_from)
        self.sorting.begin(marks, [(group, self._rules(group.name)) for group in self.groups])
        return marks

    def _tries_left(self, group: Group, rules: QueueRules) -> Callable[[int], int]:
        def tries_left(offset: int) -> int:
            deliveries, attempts = group.window.counts_of(offset)
            return rules.limit - (deliveries if rules.by_deliveries else attempts)

        return tries_left

    # --- verdicts

    def settle(self, now: int, to: Token, name: str, by: By, changes: Sequence[Change]) -> Outcome:
        """Pass verdicts on what is leased: on all of it, or on none."""
        try:
            group = self._known(name)
            check_apart(changes)
            parts = [leased_parts(group, by, change) for change in changes]
        except PenstockError as error:
            return refused(to, error)
        alike: dict[Verdict, list[Run]] = {}
        for change, runs in zip(changes, parts, strict=True):
            if runs:
                alike.setdefault(change.verdict, []).extend(runs)
        rules = self._rules(name)
        done: list[Entry] = []
        for verdict, runs in alike.items():
            values = judge(now, group, rules, verdict, runs, self._chance)
            done += self._apply(group, values, _BACK.get(verdict.kind))
        return Outcome(tuple(done), (Reply(to, None),))

    def settle_in(self, now: int, to: Token, name: str, producer_id: int, acks: Sequence[Ack]) -> Outcome:
        """Have it be acknowledged if a producer's transaction commits: all of it, or nothing; see `pending.py`.

        The entry is to be appended as a batch of that transaction.
        """
        return self._about(to, name, lambda group: settled_in(group, producer_id, acks))

    def overflow(self, now: int, name: str, excess: int, end: int) -> Outcome:
        """Settle or bury the oldest messages nobody has, as there are too many. Raises PenstockError UNKNOWN_QUEUE."""
        group = self._known(name)
        rules = self._rules(name)
        done: list[Entry] = []
        while excess > 0 and (runs := self._pick_to_drop(now, group, excess, end)):
            if rules.on_full is OnFull.DEAD_LETTER:
                values = bury(rules, Cause.OVERFLOW, How.OVERFLOWED, 0, "", runs)
            else:
                values = [entries.Settled(How.OVERFLOWED, tuple(runs))]
            done += self._apply(group, values)
            excess -= sum(run.size for run in runs)
        return Outcome(tuple(done))

    def _pick_to_drop(self, now: int, group: Group, most: int, end: int) -> list[Run]:
        if group.picker is not None:
            end = min(end, self.sorting.end)
            return group.picker.pick(now, most, end, lambda offset: MOST_COUNTED, is_lowest=True)
        return group.pick(most, end, lambda offset: MOST_COUNTED)

    def redrive(self, now: int, to: Token, name: str, queue: str, wanted: Sequence[Run], end: int) -> Outcome:
        """Have dead letters that nobody has go back to the queue they are from. Replies how many.

        Args:
            name: the group that reads the topic of dead letters.
            queue: the name of the queue.
            wanted: offsets of the letters.
        """
        group = self._groups.get(name)
        if group is None:
            return refused(to, _unknown(name))
        runs = [part for run in wanted for part in group.ready_in(run.first, min(run.last, end - 1))]
        values: list[Value] = [entries.Dying(Cause.REDRIVEN, 0, queue, False, tuple(runs))] if runs else []
        return Outcome(tuple(self._apply(group, values)), (Reply(to, sum(run.size for run in runs)),))

    def cancel(self, now: int, to: Token, name: str, wanted: Sequence[Waiting]) -> Outcome:
        """Settle messages that are not due yet. Replies how many."""
        return self._early(now, to, name, wanted, lambda runs: early.cancel(runs))

    def deliver_now(self, now: int, to: Token, name: str, wanted: Sequence[Waiting]) -> Outcome:
        """Have messages be ready that are not due yet. Replies how many."""
        return self._early(now, to, name, wanted, lambda runs: early.deliver_now(now, runs))

    def _early(
        self,
        now: int,
        to: Token,
        name: str,
        wanted: Sequence[Waiting],
        make: Callable[[Sequence[Run]], Sequence[Value]],
    ) -> Outcome:
        group = self._groups.get(name)
        if group is None:
            return refused(to, _unknown(name))
        self.sorting.sort_in(group, self._rules(name))
        runs = early.still_waiting(now, self.sorting, group, wanted)
        done = self._apply(group, make(runs))
        if group.picker is not None:
            group.picker.early(runs)
        return Outcome(tuple(done), (Reply(to, sum(run.size for run in runs)),))

    def leave(self, now: int, to: Token, name: str, consumer: str, *, graceful: bool) -> Outcome:
        """End all leases of a consumer: it gives back what it has, or was lost with it. Replies how many messages."""
        try:
            group = self._known(name)
        except PenstockError as error:
            return refused(to, error)
        rules = self._rules(group.name)
        done: list[Entry] = []
        count = 0
        if group.active.left(consumer):
            self.stirred.add(group.name)
        for lease in group.leases.of_consumer(consumer):
            runs = list(group.left_of(lease.slot, lease.runs))
            count += sum(run.size for run in runs)
            is_shaken = not graceful and lease.count > 1
            values = give_back(now, group, rules, runs, self._chance, None, is_free=graceful, is_shaken=is_shaken)
            done += self._apply(group, values, Back.RELEASE if graceful else Back.LOST)
        return Outcome(tuple(done), (Reply(to, count),))

    # --- burials

    @property
    def is_any_dying(self) -> bool:
        return any(group.dying or group.burial is not None for group in self._groups.values())

    def dying(self, most: int) -> "list[DyingMessages]":
        """What has to be buried next: of each group the burial that was begun, or some that wait."""
        found = []
        for group in self._groups.values():
            if group.burial is not None:
                found.append(DyingMessages(group.name, group.burial, group.burial.runs))
            elif group.dying:
                found.append(DyingMessages(group.name, None, group.first_dying(most)))
        return found

    def bury(self, now: int, to: Token, name: str, burial: entries.Burying) -> Outcome:
        """Note what is about to be written to dead letters."""

        def make(group: Group) -> list[Value]:
            if group.burial is not None or not group.are_dying(burial.runs):
                raise PenstockError(Code.INVALID_REQUEST, f"messages of group {name!r} are not dying any more")
            return [burial]

        return self._about(to, name, make)

    def buried(self, now: int, to: Token, name: str, burial: entries.Burying) -> Outcome:
        """It is there."""

        def make(group: Group) -> list[Value]:
            there = tuple(run for run in burial.runs if run.first >= 0)
            return [entries.Settled(How.BURIED, there)] if group.burial == burial else []

        return self._about(to, name, make)

    def forget_burial(self, now: int, to: Token, name: str) -> Outcome:
        """What was noted cannot be written any more, and was not."""

        def make(group: Group) -> list[Value]:
            return [] if group.burial is None else [group.burial._replace(runs=())]

        return self._about(to, name, make)

    def dead(self, name: str, offset: int) -> DeadMessage | None:
        """What is known of a dying message."""
        group = self._groups.get(name)
        if group is None:
            return None
        why = group.why(offset)
        if why is None:
            return None
        deliveries, attempts = group.window.counts_of(offset)
        return DeadMessage(why.cause, why.reason, deliveries, attempts)

    def last_burial(self, name: str) -> entries.Burying | None:
        group = self._groups.get(name)
        return None if group is None else group.last_burial

    # --- time

    def next_deadline(self) -> int | None:
        times = self._deadlines.next(), self._due[0].at if self._due else None, self.sorting.next_deadline()
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: int) -> Outcome:
        """End the leases whose time is up, and let be had what was delayed until now."""
        done: list[Entry] = []
        while (key := self._deadlines.pop_due(now)) is not None:
            group = self._by_number.get(key[0])
            lease = group.leases.in_slot(key[1]) if group is not None else None
            if group is None or lease is None:
                continue
            rules = self._rules(group.name)
            if lease.producer == ABORTED:
                done += self._apply(group, after_abort(now, group, rules, lease, self._chance), Back.RELEASE)
                continue
            runs = list(group.left_of(lease.slot, lease.runs))
            values = give_back(now, group, rules, runs, self._chance, None, is_free=False, is_shaken=lease.count > 1)
            done += self._apply(group, values, Back.OVERDUE)
        self._ripen(now)
        return Outcome(tuple(done))

    def _ripen(self, now: int) -> None:
        while self._due and self._due[0].at <= now:
            due = heappop(self._due)
            group = self._by_number.get(due.group)
            if group is not None and group.ripen(due):
                self.stirred.add(group.name)
        self.stirred.update(self.sorting.fall_due(now, self.groups))

    # --- leading

    def led(self, now: int, epoch: int, data_end: int) -> Outcome:
        """The first step of a machine that was loaded.

        Args:
            data_end: where the records end of the epoch whose leader had the last word here, `epoch` of this machine.
                Whoever led since may have died before that was kept.
        """
        self.has_begun = True
        value = entries.Led(epoch, now, data_end if epoch > self.epoch else _NEVER, ends_bound=True)
        if epoch <= self.epoch and not any(lease.is_bound for group in self.groups for lease in group.leases):
            return NOTHING
        self._led(value)
        return Outcome((entry(_NO_GROUP, value),))

    def _led(self, value: entries.Led) -> None:
        self.epoch = max(self.epoch, value.epoch)
        for group in self._groups.values():
            group.led(value.at, value.data_end, ends_bound=value.ends_bound)
        if any(due.since > value.at for due in self._due):
            self._due[:] = [
                due._replace(at=due.at - max(due.since - value.at, 0), since=min(due.since, value.at))
                for due in self._due
            ]
            heapify(self._due)

    def floor(self) -> int | None:
        """The lowest offset that a durable group has not settled; all of them, until it is known here."""
        groups = [self._groups.get(name) for name in self._durable()]
        return min([0 if group is None else group.window.start for group in groups], default=None)

    def needed(self, first: int, last: int) -> Needed:
        """What of a range is not settled by some durable group; all of it, until each is known here.

        Offsets without a record count as well.
        """
        groups = [self._groups.get(name) for name in self._durable()]
        windows = [group.window for group in groups if group is not None]
        if len(windows) < len(groups):
            return Needed((Run(first, last),), last)
        return needed_by(windows, first, last)

    # --- looking

    def figures(self, name: str, end: int) -> Figures:
        """Raises PenstockError UNKNOWN_QUEUE."""
        group = self._known(name)
        self.sorting.sort_in(group, self._rules(name))
        window = group.window
        counts = window.counts
        waiting = 0 if group.picker is None else group.picker.waiting(end)
        return Figures(
            name,
            window.start,
            window.next,
            max(counts[READY] + counts[SHAKEN] + max(end - window.next, 0) - waiting, 0),
            counts[LEASED],
            counts[DELAYED] + waiting,
            counts[DYING],
            counts[SETTLED],
            group.leases.pending,
        )

    def whereabouts(self, name: str, offset: int) -> Whereabouts:
        """Raises PenstockError UNKNOWN_QUEUE."""
        group = self._known(name)
        state = group.window.state_of(offset)
        if state == SHAKEN:
            state = READY
        deliveries, attempts = group.window.counts_of(offset)
        lease = group.leases.in_slot(group.window.slot_of(offset)) if state == LEASED else None
        if lease is None:
            return Whereabouts(state, deliveries, attempts)
        return Whereabouts(state, deliveries, attempts, lease.consumer, lease.deadline, lease.is_pending)

    def due_times(self, name: str, first: int, last: int) -> dict[int, int]:
        """When those of a range are ready again that wait for it; nothing where very many wait.

        Raises PenstockError UNKNOWN_QUEUE.
        """
        group = self._known(name)
        found: dict[int, int] = {}
        if not group.window.counts[DELAYED] or len(self._due) > _MOST_DUE_LOOKED_AT:
            return found
        for due in self._due:
            if due.group == group.number and due.first <= last and due.last >= first:
                for run in group.window.runs_in(max(first, due.first), min(last, due.last), DELAYED):
                    found |= dict.fromkeys(range(run.first, run.last + 1), due.at)
        return found

    # --- keeping

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        (number,), value = entry.key, cast(Value, entry.value)
        if isinstance(value, entries.Led):
            self._led(value)
            return
        group = self._by_number.get(number)
        if isinstance(value, entries.Opened):
            if group is None and value.is_saved and value.name in self._groups:
                return
            if group is None:
                group = self._make(number, value)
            group.replay(value)
        elif group is not None and isinstance(value, entries.Deleted):
            self._delete(group)
        elif group is not None:
            if isinstance(value, entries.Leased) and not value.is_saved:
                self._ripen(value.began)  # whoever leased it had seen what was due
            group.replay(value)

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """What was acknowledged in a transaction is so, or is as it was; see `pending.py`."""
        for group in self._groups.values():
            if count := group.decide(producer_id, committed=committed):
                self.stirred.add(group.name)
                if self.has_begun:
                    self._tally.settled(ACKED, count)

    def dump(self) -> Iterable[tuple[Entry, int | None]]:
        return [(each, None) for piece in self.saved() for each in piece]

    def saved(self) -> Iterator[list[Entry]]:
        """The state as entries, in pieces; see `Group.saved`."""
        yield [entry(_NO_GROUP, entries.Led(self.epoch, _NEVER, _NEVER, ends_bound=False))]
        for group in list(self._groups.values()):
            if self._groups.get(group.name) is group:
                for values in group.saved():
                    if self._groups.get(group.name) is not group:
                        break  # it was deleted meanwhile, and what is behind that word would bring it back
                    yield [entry(group.number, value) for value in values]

    # --- inside

    def _make(self, number: int, value: entries.Opened) -> Group:
        group = Group(number, value.name, value.start, self._deadlines, self._due)
        group.state_epoch = value.state_epoch
        self._groups[value.name] = self._by_number[number] = group
        self._next_number = max(self._next_number, number + 1)
        return group

    def _delete(self, group: Group) -> None:
        group.leases.clear()
        group.forget_due(0)
        group.sort(None)
        del self._groups[group.name], self._by_number[group.number]

    def _known(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise _unknown(name)
        return group


def _unknown(name: str) -> PenstockError:
    return PenstockError(Code.UNKNOWN_QUEUE, f"group {name!r} does not read this topic as a queue")


def _overtaken(group: Group, state_epoch: int) -> PenstockError:
    return PenstockError(
        Code.COORDINATOR_FENCED,
        f"group {group.name!r} began anew in epoch {group.state_epoch} here; this comes late, from epoch {state_epoch}",
    )
