"""Of one group: which messages are next, where they are not all alike.

It looks after what can be given out, and the ledger after what was: the picker hears of each change and never makes
one. Whatever it forgets with this process it finds out again from the marks and the ledger.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.engine.queues.settings import QueueRules
from penstock.engine.queues.sorting.delayed import Ripening
from penstock.engine.queues.sorting.keys import Keys
from penstock.engine.queues.sorting.lanes import LANES_COUNT, Lanes
from penstock.engine.queues.sorting.marks import Marks
from penstock.engine.queues.sorting.place import Place, Taken
from penstock.engine.queues.sorting.tenants import Tenants, TurnOf
from penstock.engine.queues.window import LEASED, SETTLED, SHAKEN, Run, Window

_ALL: Final = 1 << 62
_STRANDS_AT_ONCE: Final = 1000
"""Looked at for figures before others have their turn: about a millisecond."""
TriesLeft = Callable[[int], int]


class LaneFigures(NamedTuple):
    """How one lane stands in one partition, and since the broker leads it what came in, due or not, and was leased."""

    ready: int
    leased: int
    arrived: int
    delivered: int


class Picker:
    """Of one group in one partition.

    Args:
        window: what the group has done with each offset; the marks know of all of them that were touched.
        ripening: if every message has to wait.
    """

    def __init__(self, marks: Marks, window: Window, rules: QueueRules, ripening: Ripening | None = None) -> None:
        self._marks = marks
        self._window = window
        self._rules = rules
        self._places: dict[int, Place] = {}
        self._lanes = Lanes(rules.lanes)
        self._tenants = Tenants(dict(rules.tenant_weights), marks.tenants)
        self._turns = [TurnOf(self._tenants) for _ in range(LANES_COUNT)]
        self._keys = Keys() if rules.is_fifo else None
        self._again: set[int] = set()
        """What the pick under way took of what came back, and may meet once more: nobody has it yet."""
        self._ripening = ripening
        self._early: set[int] = set()
        self.is_tired = False
        """Whether the last pick stopped though there may be more."""
        self._leased = [0] * LANES_COUNT
        self._delivered = [0] * LANES_COUNT
        marks.readers.append(self)
        self._begin()

    def close(self) -> None:
        self._marks.readers.remove(self)

    def _begin(self) -> None:
        """Find out where the group is."""
        window, last = self._window, self._window.next - 1
        for strand in range(len(self._marks.strands)):
            self._wake(strand)
        for run in window.runs_in(window.start, last, LEASED):
            self.leased(run)
        self._delivered = [0] * LANES_COUNT
        for run in window.runs_in(window.start, last, SHAKEN):
            self.returned(run)
        if self._keys is not None:
            for offset in window.tried(window.start, last):
                if slot := self._marks.slot_at(offset):
                    self._keys.take(slot, offset)

    # --- picking

    def pick(
        self, now: int, most: int, end: int, tries_left: TriesLeft, lane: int | None = None, *, is_lowest: bool = False
    ) -> list[Run]:
        """What is given out next, in the order of its offsets.

        Args:
            end: nothing there or beyond.
            lane: only of this one.
            is_lowest: of the lowest lane that has anything, as it is to go.
        """
        taken: list[Run] = []
        given: list[tuple[int, int]] = []
        stuck: list[int] = []
        room, self.is_tired = most, False
        self._again.clear()
        while room > 0:
            turn = self._next_lane(now, lane, is_lowest=is_lowest)
            if turn is None:
                break
            at, share = turn
            count, is_over = self._pick_in(at, min(room, share), end, tries_left, taken, given, stuck)
            self._lanes.served(now, at, count)
            room -= count
            if is_over:
                break
        for strand in stuck:
            self._wake(strand)
        for tenant, count in given:
            self._tenants.less(tenant, count)
            if is_lowest:  # it is nobody's
                self._lighter(tenant)
        return _in_order(taken)

    def _next_lane(self, now: int, lane: int | None, *, is_lowest: bool) -> tuple[int, int] | None:
        waiting = [len(turn) > 0 for turn in self._turns]
        if lane is not None:
            return (lane, _ALL) if waiting[lane] else None
        if is_lowest:
            return next(((at, _ALL) for at in reversed(range(LANES_COUNT)) if waiting[at]), None)
        return self._lanes.next(now, waiting)

    def _pick_in(
        self,
        lane: int,
        most: int,
        end: int,
        tries_left: TriesLeft,
        taken: list[Run],
        given: list[tuple[int, int]],
        stuck: list[int],
    ) -> tuple[int, bool]:
        """Of one lane; how many, and whether nothing may be added to it."""
        turn, count = self._turns[lane], 0
        while count < most and (strand := turn.first()) is not None:
            share = most - count if len(turn) == 1 else 1
            before = len(taken)
            found, is_over = self._take(strand, share, end, tries_left, taken)
            if found.size:
                tenant = self._marks.strands[strand].tenant
                self._tenants.more(tenant, found.size)
                given.append((tenant, found.size))
                turn.took(strand, found.size)
            if found.size < share and not is_over:
                turn.remove(strand)
                if found.is_stuck:
                    stuck.append(strand)
            count += found.size
            if is_over:
                return count, before > 0 or found.size > 0
        return count, False

    def _take(self, strand: int, most: int, end: int, tries_left: TriesLeft, taken: list[Run]) -> tuple[Taken, bool]:
        """Of one strand; and whether what was taken goes alone."""
        place, window = self._place(strand), self._window
        count = 0
        while count < most:
            run = place.pop_again(window, end)
            if run is None:
                break
            if run.first in self._again:
                if run.size > 1:
                    place.come_back(run.first + 1, run.last)
                continue
            if self._keys is not None and not self._may(run.first):
                if run.size > 1:
                    place.come_back(run.first + 1, run.last)
                continue
            if window.state_of(run.first) == SHAKEN:
                if taken:
                    place.come_back(*run)
                    return Taken(count, is_stuck=True), True
                share = 1 if self._keys is not None or tries_left(run.first) <= 1 else max(1, run.size // 2)
                self._take_part(place, run, min(share, most - count), taken)
                return Taken(taken[-1].size), True
            share = 1 if self._keys is not None or self._again else min(run.size, most - count)
            self._take_part(place, run, share, taken)
            count += share
        may = None if self._keys is None and not self._again else self._may
        if count < most:
            count += place.take_fallen(self._marks, window, most - count, end, may, taken)
        if count == most:
            return Taken(count), False
        if self._keys is not None and self._keys.is_crowded:
            return Taken(count, is_stuck=True), False
        ripe_end = end if self._ripening is None else min(end, self._ripening.end)
        found = place.take(self._marks, window, most - count, ripe_end, may, taken)
        self.is_tired |= found.is_tired
        is_stuck = found.is_stuck or place.again_count > 0
        return Taken(count + found.size, is_stuck), False

    def _take_part(self, place: Place, run: Run, share: int, taken: list[Run]) -> None:
        taken.append(Run(run.first, run.first + share - 1))
        self._again.update(range(run.first, run.first + share))
        if share < run.size:
            place.come_back(run.first + share, run.last)

    def _may(self, offset: int) -> bool:
        """Whether it was not taken already, and its key is free; it waits aside otherwise."""
        if offset in self._again:
            return False
        slot = self._marks.slot_at(offset)
        return not slot or self._keys is None or self._keys.take(slot, offset)

    # --- hearing

    def arrived(self, strands: Iterable[int]) -> None:
        """There is more in these."""
        for strand in strands:
            self._wake(strand)

    def fallen_due(self, offsets: Iterable[int]) -> None:
        if self._early:
            self._early.difference_update(offsets)

    def fallen_passed(self, strand: int) -> int:
        return self._place(strand).fallen

    def fallen_forgotten(self, strand: int, count: int) -> None:
        self._place(strand).fallen -= count

    def early(self, runs: Iterable[Run]) -> None:
        """These were not due yet, and do not wait any more."""
        for run in runs:
            self._early.update(range(run.first, run.last + 1))

    def leased(self, run: Run) -> None:
        """It was given out, for the first time or again."""
        for first, last, strand in self._marks.strands_in(*run):
            lane, tenant = self._marks.strands[strand]
            count = last + 1 - first
            self._tenants.more(tenant, count)
            self._leased[lane] += count
            self._delivered[lane] += count

    def left(self, run: Run) -> None:
        """It is not leased any more."""
        for first, last, strand in self._marks.strands_in(*run):
            lane, tenant = self._marks.strands[strand]
            self._tenants.less(tenant, last + 1 - first)
            self._leased[lane] -= last + 1 - first
            self._lighter(tenant)

    def returned(self, run: Run) -> None:
        """It can be had again."""
        for first, last, strand in self._marks.strands_in(*run):
            self._place(strand).come_back(first, last)
            self._wake(strand)

    def settled(self, run: Run) -> None:
        if self._keys is None:
            return
        for offset in range(run.first, run.last + 1):
            if slot := self._marks.slot_at(offset):
                self._free(self._keys, slot, offset)

    def moved(self) -> None:
        """Everything below the window's start is settled."""
        if self._keys is not None:
            for slot, offset in self._keys.owned_below(self._window.start):
                self._free(self._keys, slot, offset)

    def _free(self, keys: Keys, slot: int, offset: int) -> None:
        """A key is free of a message; the next one that is still there has it now."""
        following = keys.settled(slot, offset)
        while following is not None:
            if self._window.state_of(following) != SETTLED:
                self.returned(Run(following, following))
                return
            following = keys.settled(slot, following)

    # --- looking

    def waiting(self, end: int) -> int:
        """How many messages are not due yet, below an offset."""
        own = max(self._marks.waiting_from(self._window.start) - len(self._early), 0)
        return own + self.held(end)

    def held(self, end: int) -> int:
        """Of them, those that wait because every message of the queue does."""
        if self._ripening is None:
            return 0
        unripe = max(self._ripening.end, self._window.start)
        return max(end - unripe - self._marks.own_from(unripe), 0)

    @property
    def tenants(self) -> int:
        """How many have anything waiting."""
        strands = self._marks.strands
        return len({strands[strand].tenant for turn in self._turns for strand in turn.strands})

    def figures(self) -> Iterator[Sequence[LaneFigures] | None]:
        """How it stands in each lane, at the end; None between two pieces of work, for others to have their turn."""
        marks = self._marks
        done = [0] * LANES_COUNT
        for strand in range(len(marks.strands)):
            if strand % _STRANDS_AT_ONCE == _STRANDS_AT_ONCE - 1:
                yield None
            place = self._place(strand)
            place.catch_up(marks, self._window.start)
            done[marks.strands[strand].lane] += place.passed - place.again_count
        yield [
            LaneFigures(
                max(marks.lane_counts[lane] - done[lane], 0),
                self._leased[lane],
                marks.arrived[lane],
                self._delivered[lane],
            )
            for lane in range(LANES_COUNT)
        ]

    # --- inside

    def _place(self, strand: int) -> Place:
        place = self._places.get(strand)
        if place is None:
            place = self._places[strand] = Place(strand)
        return place

    def _lighter(self, tenant: int) -> None:
        for turn in self._turns:
            turn.lighter(tenant)

    def _wake(self, strand: int) -> None:
        lane, tenant = self._marks.strands[strand]
        self._turns[lane].add(strand, tenant)


def _in_order(taken: list[Run]) -> list[Run]:
    """As few ranges as say the same."""
    runs: list[Run] = []
    for run in sorted(taken):
        if runs and runs[-1].last + 1 == run.first:
            runs[-1] = Run(runs[-1].first, run.last)
        else:
            runs.append(run)
    return runs
