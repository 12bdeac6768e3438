"""One group's state in one partition, and how each entry of the ledger changes it.

Steps make entries and apply them; a restart reads them and applies them. There is no other way to change a group, so
what is read is what was. Which ranges are ready or due is kept in heaps that say where to look; the window says what
is true.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.queues import entries
from penstock.engine.queues.entries import Value
from penstock.engine.queues.leases import ABORTED, Lease, Leases
from penstock.engine.queues.pending import Pending
from penstock.engine.queues.single_active import ActiveConsumer
from penstock.engine.queues.sorting.picker import Picker
from penstock.engine.queues.window import DELAYED, DYING, READY, SETTLED, SHAKEN, Run, Window


class Due(NamedTuple):
    """Offsets that are delayed, since when and until when."""

    at: int
    since: int
    group: int
    first: int
    last: int
    is_shaken: bool


class Deathbed(NamedTuple):
    """Why offsets are dying."""

    cause: entries.Cause
    reason: str


class Group:
    """Args:
    number: by which the ledger calls it.
    deadlines: of all leases of the ledger.
    due: a heap of all that is delayed in the ledger.
    """

    def __init__(
        self, number: int, name: str, start: int, deadlines: Deadlines[tuple[int, int]], due: list[Due]
    ) -> None:
        self.number = number
        self.name = name
        self.state_epoch = 0
        """Of a share group; see `entries.Opened`."""
        self.window = Window(start)
        self.leases = Leases(number, deadlines)
        self.pending = Pending()
        self.dying: dict[int, Deathbed] = {}
        """By the offset, longest first."""
        self.burial: entries.Burying | None = None
        """What is being written to dead letters; one at a time."""
        self.burial_why: Deathbed | None = None
        """Of all in it, also of those that were purged since."""
        self.last_burial: entries.Burying | None = None
        """What was written before, if it was written since the ledger was loaded."""
        self._ready: list[tuple[int, int]] = []
        """Ranges in which something came back: first and last."""
        self._is_restoring = False
        self.is_new = True
        """Whether nothing was said of it yet."""
        self._due = due
        self.active = ActiveConsumer()
        self.picker: Picker | None = None
        """Where messages are not all alike: it says which is next, and hears of each change."""

    # --- picking

    def pick(self, most: int, end: int, tries_left: Callable[[int], int]) -> list[Run]:
        """What would be leased next: what came back first, then what nobody had yet. Nothing is changed but hints.

        Messages whose consumer was lost with all of them are given out in halves, and each by itself when it is its
        last chance: one of them may be what it was lost by.

        Args:
            end: nothing there or beyond.
            tries_left: how often an offset may still be given out.
        """
        picked: list[Run] = []
        room, behind = most, self.window.start
        while room and self._ready and self._ready[0][0] < end:
            first, last = heappop(self._ready)
            run = self.window.first_again(max(first, behind), min(last, end - 1))
            if run is None:
                if last >= end:
                    heappush(self._ready, (end, last))
                continue
            is_shaken = self.window.state_of(run.first) == SHAKEN
            if is_shaken and picked:
                heappush(self._ready, (run.first, last))
                return picked
            share = run.size
            if is_shaken:
                share = 1 if tries_left(run.first) <= 1 else max(1, run.size // 2)
            share = min(room, share, end - run.first)
            picked.append(Run(run.first, run.first + share - 1))
            room -= share
            behind = run.first + share
            if behind <= max(last, run.last):
                heappush(self._ready, (behind, max(last, run.last)))
            if is_shaken:
                return picked
        fresh = min(room, end - self.window.next)
        if fresh > 0:
            picked.append(Run(self.window.next, self.window.next + fresh - 1))
        return picked

    def ready_in(self, first: int, last: int) -> Iterator[Run]:
        """What of a range nobody has, and is not delayed either."""
        for state in (READY, SHAKEN):
            yield from self.window.runs_in(first, last, state)
        if last >= max(first, self.window.next):
            yield Run(max(first, self.window.next), last)

    # --- applying

    def replay(self, value: Value) -> None:
        """Take in an entry that was read. What was saved says nothing new of a group known from its beginning."""
        if isinstance(value, entries.Opened) and value.is_saved and self.is_new:
            self._is_restoring = True
        if self._is_restoring or not (_is_saved(value) or isinstance(value, entries.Opened)):
            self.apply(value)
        self.is_new = False

    def apply(self, value: Value) -> None:
        """Take in an entry, made or read."""
        match value:
            case entries.Leased():
                self._leased(value)
            case entries.Settled() | entries.SettledIn():
                self._settled(value)
            case entries.Returned():
                self._returned(value)
            case entries.Renewed():
                self._renewed(value)
            case entries.Dying():
                self._dying(value)
            case entries.Burying():
                self._burying(value)
            case entries.Moved():
                self._moved(value)
            case entries.ChunkSaved():
                self.window.restore(value.base, value.states, value.deliveries, value.attempts)
            case entries.Opened():
                if value.is_saved:
                    self.window.begin_restoring(value.start, value.next)
            case entries.Restored():
                self._restored()
            case _:
                raise AssertionError(f"{value} is not about one group")

    def _leased(self, value: entries.Leased) -> None:
        window = self.window
        if not value.is_saved:
            for run in value.runs:
                self._depart(run)
        lease = self.leases.add(
            value.lease_id, value.consumer, value.began, value.deadline, value.runs, is_bound=value.is_bound
        )
        for run in value.runs:
            if value.is_saved:
                window.reslot(run.first, run.last, lease.slot)
            else:
                window.lease(run.first, run.last, lease.slot)
                if self.picker is not None:
                    self.picker.leased(run)

    def _settled(self, value: entries.Settled | entries.SettledIn) -> None:
        if isinstance(value, entries.SettledIn):
            self._settled_in(value)
            return
        for run in value.runs:
            self._leave(run, SETTLED)
        if value.how is entries.How.BURIED:
            self.last_burial, self.burial = self.burial, None
            for run in value.runs:
                for offset in range(run.first, run.last + 1):
                    self.dying.pop(offset, None)

    def _settled_in(self, value: entries.SettledIn) -> None:
        if value.producer_id != ABORTED:
            self.pending.add(value.producer_id, value.runs)
        by_slot: dict[int, list[Run]] = {}
        for run in value.runs:
            for part, slot in self.window.leased_in(run.first, run.last):
                by_slot.setdefault(slot, []).append(part)
        for slot, parts in by_slot.items():
            lease = self.leases.in_slot(slot)
            if lease is not None:  # a saved state says whose they are behind this
                self.leases.hold(self._apart(lease, parts), value.producer_id)

    def decide(self, producer_id: int, *, committed: bool) -> int:
        """A producer's transaction has ended; returns how many messages are acknowledged by that."""
        count = 0
        for run in self.pending.take(producer_id):
            for part, slot in list(self.window.leased_in(run.first, run.last)):
                lease = self.leases.in_slot(slot)
                if committed:
                    count += part.size
                elif lease is not None and lease.producer == producer_id:
                    self.leases.hold(lease, ABORTED)
            if committed:
                self._leave(run, SETTLED)
        return count

    def _burying(self, value: entries.Burying) -> None:
        self.burial = value if value.runs else None
        offsets = (offset for run in value.runs for offset in range(run.first, run.last + 1))
        self.burial_why = next((self.dying[offset] for offset in offsets if offset in self.dying), None)
        if self.burial is None:  # what its producer sent last is not where it was sent
            self.last_burial = None

    def _leave(self, run: Run, state: int) -> None:
        """Offsets come into another state, and out of the leases they are in."""
        if state == SETTLED and run.first == self.window.next and run.last >= self.window.next:
            self.window.settle_new(run.last)
        else:
            self._depart(run)
            self.window.set(run.first, run.last, state)
        if self.picker is not None and state in (SETTLED, DYING):
            self.picker.settled(run)

    def _depart(self, run: Run) -> None:
        """Offsets are touched, and come out of the leases they are in."""
        window, picker = self.window, self.picker
        if run.last >= window.next:
            if run.first > window.next and picker is None:
                heappush(self._ready, (window.next, run.first - 1))
            window.take_new(run.last)
        for part, slot in window.leased_in(run.first, run.last):
            self.leases.less(slot, part.size)
            if picker is not None:
                picker.left(part)

    def come_back(self, run: Run) -> None:
        """It can be had again."""
        if self.picker is None:
            heappush(self._ready, (run.first, run.last))
        else:
            self.picker.returned(run)

    def sort(self, picker: Picker | None) -> None:
        """Let messages be picked in another way from now on."""
        if self.picker is not None:
            self.picker.close()
        self.picker = picker
        self._find_ready()

    def _find_ready(self) -> None:
        self._ready.clear()
        if self.picker is None:
            window, first, last = self.window, self.window.start, self.window.next - 1
            again = [*window.runs_in(first, last, READY), *window.runs_in(first, last, SHAKEN)]
            self._ready = [(run.first, run.last) for run in sorted(again)]

    def _returned(self, value: entries.Returned) -> None:
        for run in value.runs:
            if not value.is_saved:
                self._leave(run, DELAYED if value.due else SHAKEN if value.is_shaken else READY)
            if value.attempts:
                self.window.failed(run.first, run.last)
            if value.is_unread:
                self.window.unread(run.first, run.last)
            if value.due:
                heappush(self._due, Due(value.due, value.at, self.number, run.first, run.last, value.is_shaken))
            else:
                self.come_back(run)

    def _renewed(self, value: entries.Renewed) -> None:
        slots = {slot for run in value.runs for _, slot in self.window.leased_in(run.first, run.last)}
        for lease in self.leases.of_id(value.lease_id).copy():
            if lease.slot not in slots:
                continue
            parts = [
                part
                for run in value.runs
                for part, slot in self.window.leased_in(run.first, run.last)
                if slot == lease.slot
            ]
            self.leases.renew(self._apart(lease, parts), value.deadline)

    def _apart(self, lease: Lease, parts: Sequence[Run]) -> Lease:
        """Some of what a lease has, under the same id, in a slot of its own; the lease itself if that is all."""
        if sum(part.size for part in parts) == lease.count:
            return lease
        split = self.leases.add(
            lease.lease_id, lease.consumer, lease.began, lease.deadline, parts, is_bound=lease.is_bound
        )
        self.leases.hold(split, lease.producer)
        for part in parts:
            self.window.reslot(part.first, part.last, split.slot)
        self.leases.less(lease.slot, split.count)
        return split

    def _dying(self, value: entries.Dying) -> None:
        for run in value.runs:
            if not value.is_saved:
                self._leave(run, DYING)
            if value.attempts:
                self.window.failed(run.first, run.last)
            why = Deathbed(value.cause, value.reason)
            self.dying.update(dict.fromkeys(range(run.first, run.last + 1), why))

    def _moved(self, value: entries.Moved) -> None:
        if value.is_anew:
            self.state_epoch = max(self.state_epoch, value.state_epoch)
            self.leases.clear()
            self.pending.clear()
            self._ready.clear()
            self.dying.clear()
            self.burial = self.last_burial = None
            self.forget_due(0)
            self.sort(None)
            self.window = Window(value.start)
            return
        if self.picker is not None:
            for part, _ in self.window.leased_in(self.window.start, value.start - 1):
                self.picker.left(part)
        self.window.move_to(value.start)
        self._recount()
        if self.picker is not None:
            self.picker.moved()

    def led(self, now: int, data_end: int, *, ends_bound: bool) -> None:
        """A broker begins to lead: what lies beyond the data is void, bound leases are over, and its clock is right."""
        for lease in self.leases:
            if (ahead := lease.began - now) > 0:  # by a clock that was ahead of this one
                lease.began -= ahead
                self.leases.shift(lease, lease.deadline - ahead)
        if data_end < self.window.next:
            self.window.cut(data_end)
            self.pending.cut(data_end)
            self.forget_due(data_end)
            self._ready = [(first, min(last, data_end - 1)) for first, last in self._ready if first < data_end]
            heapify(self._ready)
            self._lose_buried(data_end)
            self._recount()
        for lease in self.leases:
            if ends_bound and lease.is_bound:
                for run in self.left_of(lease.slot, lease.runs):
                    self.window.set(run.first, run.last, READY)
                    heappush(self._ready, (run.first, run.last))
                self.leases.less(lease.slot, lease.count)

    def _lose_buried(self, data_end: int) -> None:
        """Messages from there on are none of those that are being buried; as many letters must be written still.

        The batch is known by its numbers, and may be there already.
        """
        if self.burial is None:
            return
        left = tuple(Run(run.first, min(run.last, data_end - 1)) for run in self.burial.runs if run.first < data_end)
        lost = self.burial.size - sum(run.size for run in left)
        if not any(run.first >= 0 for run in left):
            self.burial = self.last_burial = None
        elif lost:
            self.burial = self.burial._replace(runs=(*left, Run(-lost, -1)))

    def ripen(self, due: Due) -> bool:
        """What was delayed until now is ready. Whether anything was."""
        found = False
        for run in self.window.runs_in(due.first, due.last, DELAYED):
            self.window.set(run.first, run.last, SHAKEN if due.is_shaken else READY)
            self.come_back(run)
            found = True
        return found

    def forget_due(self, offset: int) -> None:
        """Nothing from an offset on is waited for; the same offset may be another message's soon."""
        kept = [
            due if due.group != self.number else due._replace(last=min(due.last, offset - 1))
            for due in self._due
            if due.group != self.number or due.first < offset
        ]
        if kept != self._due:
            self._due[:] = kept
            heapify(self._due)

    def left_of(self, slot: int, runs: Sequence[Run]) -> Iterator[Run]:
        """What a lease still has of what it was given."""
        for run in runs:
            for part, found in list(self.window.leased_in(run.first, run.last)):
                if found == slot:
                    yield part

    def _recount(self) -> None:
        """Leases have lost offsets that are not here any more."""
        for lease in self.leases:
            self.leases.set_count(lease, sum(part.size for part in self.left_of(lease.slot, lease.runs)))
        for offset in [each for each in self.dying if self.window.state_of(each) != DYING]:
            del self.dying[offset]

    def why(self, offset: int) -> Deathbed | None:
        """Of a message that dies, or is being buried though it was purged meanwhile."""
        found = self.dying.get(offset)
        if found is not None or self.burial is None:
            return found
        return self.burial_why if any(first <= offset <= last for first, last in self.burial.runs) else None

    def are_dying(self, runs: Iterable[Run]) -> bool:
        return all(offset in self.dying for run in runs for offset in range(run.first, run.last + 1))

    def first_dying(self, most: int) -> list[Run]:
        """Those that wait longest, and others for the same reason, at most so many."""
        first = next(iter(self.dying.values()))
        alike = (offset for offset, why in self.dying.items() if why == first)
        return joined(islice(alike, most))

    # --- saving

    def saved(self) -> Iterator[list[Value]]:
        """The state as entries, in pieces; what is in one is written in one go. The state may go on between two.

        No entry says that something delayed has become ready. So what waits is told first of all: a chunk that has it
        as delayed comes behind. So is what is pending, as a marker may come before the leases do.
        """
        window = self.window
        opened = entries.Opened(self.name, window.start, window.next, True, self.state_epoch)
        yield [opened, *self._saved_due(), *self._saved_pending()]
        for base, chunk in window.chunks():
            if self.window is not window:  # it began anew
                yield from self.saved()
                return
            if chunk is not None:
                yield [entries.ChunkSaved(base, bytes(chunk.states), bytes(chunk.deliveries), bytes(chunk.attempts))]
        yield [*self._saved_leases(), *self._saved_pending(), *self._saved_dying(), entries.Restored()]

    def _saved_leases(self) -> Iterator[Value]:
        for lease in self.leases:
            runs = tuple(self.left_of(lease.slot, lease.runs))
            if runs:
                yield entries.Leased(
                    lease.lease_id, lease.consumer, lease.began, lease.deadline, lease.is_bound, True, runs
                )

    def _saved_pending(self) -> Iterator[Value]:
        by_producer: dict[int, list[Run]] = {}
        for lease in self.leases:
            if lease.producer is not None:
                by_producer.setdefault(lease.producer, []).extend(self.left_of(lease.slot, lease.runs))
        for producer_id, runs in by_producer.items():
            yield entries.SettledIn(producer_id, True, tuple(runs))

    def _saved_due(self) -> Iterator[Value]:
        alike: dict[tuple[int, int, bool], dict[Run, None]] = {}
        for due in self._due:
            if due.group == self.number:
                runs = alike.setdefault((due.since, due.at, due.is_shaken), {})
                runs.update(dict.fromkeys(self.window.runs_in(due.first, due.last, DELAYED)))
        for (since, at, is_shaken), runs in alike.items():
            if runs:
                yield entries.Returned(0, since, at, is_shaken, False, True, tuple(runs))

    def _saved_dying(self) -> Iterator[Value]:
        by_cause: dict[Deathbed, list[int]] = {}
        for offset, why in self.dying.items():
            by_cause.setdefault(why, []).append(offset)
        for why, offsets in by_cause.items():
            yield entries.Dying(why.cause, 0, why.reason, True, tuple(joined(offsets)))
        if self.burial is not None:
            yield self.burial

    def _restored(self) -> None:
        """Everything that was saved is there."""
        window = self.window
        window.end_restoring()
        self._recount()
        known = {lease.slot for lease in self.leases}
        first, last = window.start, window.next - 1
        for part, slot in list(window.leased_in(first, last)):
            if slot not in known:  # its lease was over before it was saved
                window.set(part.first, part.last, READY)
        self._find_ready()
        self._is_restoring = False


def _is_saved(value: Value) -> bool:
    return isinstance(value, entries.ChunkSaved | entries.Restored) or getattr(value, "is_saved", False)


def joined(offsets: Iterable[int]) -> list[Run]:
    """Offsets as ranges."""
    runs: list[Run] = []
    for offset in sorted(offsets):
        if runs and runs[-1].last + 1 == offset:
            runs[-1] = Run(runs[-1].first, offset)
        else:
            runs.append(Run(offset, offset))
    return runs
