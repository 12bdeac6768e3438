"""The window of a group beside a dict with one entry for each offset, above all around the ends of chunks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.queues.window import (
    CHUNK,
    DELAYED,
    DYING,
    LEASED,
    MOST_COUNTED,
    READY,
    SETTLED,
    SHAKEN,
    STATES,
    Chunk,
    Run,
    Window,
)

PLACES = st.integers(0, 60)
"""Of the offsets where something may go wrong; see `World.place`."""
Chunks = Iterator[tuple[int, Chunk | None]]


@dataclass(frozen=True, slots=True)
class Offset:
    state: int = READY
    deliveries: int = 0
    attempts: int = 0
    slot: int = 0


class World:
    def __init__(self, start: int) -> None:
        self.window = Window(start)
        self.start = start
        self.offsets: dict[int, Offset] = {}
        """From the start to the next, without a gap."""
        self.slots = 0

    @property
    def next(self) -> int:
        return self.start + len(self.offsets)

    def place(self, number: int) -> int:
        """An offset at or near an end: of a chunk, or of what is touched."""
        base = self.start - self.start % CHUNK
        chunks = range(base, max(self.next, base + CHUNK) + CHUNK + 1, CHUNK)
        places = {at + more for at in chunks for more in (-1, 0, 1, 7)}
        places |= {at + more for at in (self.start, self.next) for more in (-1, 0, 1, 3)}
        inside = sorted(at for at in places if at >= max(self.start - 1, 0))
        return inside[number % len(inside)]

    def touched(self, one: int, other: int) -> list[int]:
        """The offsets between two places, as far as they are touched."""
        first, last = sorted((self.place(one), self.place(other)))
        return list(range(max(first, self.start), min(last, self.next - 1) + 1))

    def change(self, offsets: list[int], **changes: int) -> None:
        for offset in offsets:
            self.offsets[offset] = replace(self.offsets[offset], **changes)
        while self.offsets and self.offsets[self.start].state == SETTLED:
            del self.offsets[self.start]
            self.start += 1

    def unsettled(self, one: int, other: int) -> list[int]:
        """The first neighbours in a range that are not settled: what is, stays so."""
        offsets = self.touched(one, other)
        open_ = [offset for offset in offsets if self.offsets[offset].state != SETTLED]
        return [offset for at, offset in enumerate(open_) if offset == open_[0] + at]

    # --- changes

    def take_new(self, to: int, more: int) -> None:
        last = max(self.place(to), self.next + more)
        self.window.take_new(last)
        self.offsets |= {offset: Offset() for offset in range(self.next, last + 1)}

    def settle_new(self, to: int, more: int) -> None:
        last = max(self.place(to), self.next + more)
        self.window.settle_new(last)
        new = list(range(self.next, last + 1))
        self.offsets |= {offset: Offset() for offset in new}
        self.change(new, state=SETTLED)

    def set(self, one: int, other: int, state: int) -> None:
        offsets = self.touched(one, other) if state == SETTLED else self.unsettled(one, other)
        if offsets:
            self.window.set(offsets[0], offsets[-1], state)
            self.change(offsets, state=state)

    def lease(self, one: int, other: int) -> None:
        offsets = self.unsettled(one, other)
        if offsets:
            self.slots += 1
            self.window.lease(offsets[0], offsets[-1], self.slots)
            for offset in offsets:
                deliveries = min(self.offsets[offset].deliveries + 1, MOST_COUNTED)
                self.change([offset], state=LEASED, slot=self.slots, deliveries=deliveries)

    def failed(self, one: int, other: int, times: int, *, is_unread: bool) -> None:
        offsets = self.unsettled(one, other)
        for _ in range(times if offsets else 0):
            self.window.failed(offsets[0], offsets[-1])
        if offsets and is_unread:
            self.window.unread(offsets[0], offsets[-1])
        for offset in offsets:
            attempts = min(self.offsets[offset].attempts + times, MOST_COUNTED)
            deliveries = max(self.offsets[offset].deliveries - is_unread, 0)
            self.change([offset], attempts=attempts, deliveries=deliveries)

    def move_to(self, to: int) -> None:
        self.move(self.place(to), (self.window,))

    def move(self, start: int, windows: Iterable[Window]) -> None:
        for window in windows:
            window.move_to(start)
        if start > self.start:
            self.offsets = {offset: each for offset, each in self.offsets.items() if offset >= start}
            self.start = start
            self.change([])

    def cut(self, at: int) -> None:
        end = self.place(at)
        self.window.cut(end)
        if end < self.next:
            self.offsets = {offset: each for offset, each in self.offsets.items() if offset < end}
            self.start = min(self.start, end)

    # --- saving

    def restore(
        self, written: int, to: int | None, settled: list[tuple[int, int]], moved: int | None, *, is_listed: bool
    ) -> None:
        """A window is made of what is saved of this one; who reads it makes the changes that came in between.

        Slots are told by leases, which come behind.
        """
        again = Window(0)
        again.begin_restoring(self.window.start, self.window.next)
        chunks = self.window.chunks()
        if is_listed:
            self.write(chunks, again, written)
        windows = (self.window, again)
        if to is not None and (last := self.place(to)) >= self.next:
            for window in windows:
                window.take_new(last)
            self.offsets |= {offset: Offset() for offset in range(self.next, last + 1)}
        for one, other in settled:
            offsets = self.touched(one, other)
            if offsets:
                for window in windows:
                    window.set(offsets[0], offsets[-1], SETTLED)
                self.change(offsets, state=SETTLED)
        if moved is not None:
            self.move(self.place(moved), windows)
            if self.start == self.next:
                for window in windows:
                    window.take_new(self.next)
                self.offsets[self.next] = Offset()
        self.write(chunks, again, None)
        again.end_restoring()
        self.window = again
        for offset, each in self.offsets.items():
            if each.state == LEASED:
                self.window.reslot(offset, offset, each.slot)

    def write(self, chunks: Chunks, again: Window, most: int | None) -> None:
        count = 0
        while count != most and (found := next(chunks, None)) is not None:
            base, chunk = found
            if chunk is not None:
                again.restore(base, bytes(chunk.states), bytes(chunk.deliveries), bytes(chunk.attempts))
            count += 1

    # --- what is always so

    def it_is_as_the_dict_says(self) -> None:
        window = self.window
        assert (window.start, window.next) == (self.start, self.next)
        states = [each.state for each in self.offsets.values()]
        assert window.counts == [states.count(state) for state in STATES]
        assert [window.state_of(offset) for offset in self.offsets] == states
        for offset, each in self.offsets.items():
            if each.state != SETTLED:
                assert window.counts_of(offset) == (each.deliveries, each.attempts)
            if each.state == LEASED:
                assert window.slot_of(offset) == each.slot
        assert window.state_of(self.start - 1) == SETTLED
        assert window.state_of(self.next) == READY

    def settled_chunks_take_no_room(self) -> None:
        chunks = dict(self.window.chunks())
        assert all(self.start - CHUNK < base < self.next for base in chunks)
        for base, chunk in chunks.items():
            whole = base >= self.start and all(
                offset in self.offsets and self.offsets[offset].state == SETTLED for offset in range(base, base + CHUNK)
            )
            assert (chunk is None) == whole

    def look(self, one: int, other: int) -> None:
        first, last = sorted((self.place(one), self.place(other)))
        offsets = [offset for offset in range(first, last + 1) if offset in self.offsets]
        for state in STATES:
            runs = list(self.window.runs_in(first, last, state))
            assert _offsets(runs) == [offset for offset in offsets if self.offsets[offset].state == state]
        leased = [(offset, slot) for run, slot in self.window.leased_in(first, last) for offset in _offsets([run])]
        assert leased == [
            (offset, self.offsets[offset].slot) for offset in offsets if self.offsets[offset].state == LEASED
        ]
        assert _offsets(list(self.window.unsettled_in(first, last))) == [
            offset for offset in range(first, last + 1) if self.window.state_of(offset) != SETTLED
        ]
        assert self.window.unsettled_below(last) == max(0, last - self.next) + sum(
            each.state != SETTLED for offset, each in self.offsets.items() if offset < last
        )
        self.look_for_the_first(first, last)
        self.look_at_counters(self.unsettled(one, other))

    def look_for_the_first(self, first: int, last: int) -> None:
        again = [
            offset
            for offset in range(max(first, self.start), min(last + 1, self.next))
            if self.offsets[offset].state in (READY, SHAKEN)
        ]
        found = self.window.first_again(first, last)
        if not again:
            assert found is None
            return
        assert found is not None
        end = again[0] + 1
        like = self.offsets[again[0]]
        while end % CHUNK and end in self.offsets and _are_alike(like, self.offsets[end]):
            end += 1
        assert found == Run(again[0], end - 1)

    def look_at_counters(self, offsets: list[int]) -> None:
        def counters(offset: int) -> tuple[int, int]:
            return self.offsets[offset].deliveries, self.offsets[offset].attempts

        groups = [(found, list(group)) for found, group in groupby(offsets, counters)]
        expected = [(group[0], group[-1], *found) for found, group in groups]
        assert not offsets or list(self.window.counted(offsets[0], offsets[-1])) == expected


def _are_alike(one: Offset, other: Offset) -> bool:
    if one.state == SHAKEN:
        return (one.state, one.deliveries, one.attempts) == (other.state, other.deliveries, other.attempts)
    return one.state == other.state


def _offsets(runs: list[Run]) -> list[int]:
    return [offset for run in runs for offset in range(run.first, run.last + 1)]


def _step(name: str, /, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


TOUCH = _step("take_new", to=PLACES, more=st.integers(0, 5))
SKIP = _step("settle_new", to=PLACES, more=st.integers(0, 3 * CHUNK))
SETTLE = _step("set", one=PLACES, other=PLACES, state=st.just(SETTLED))
SET = _step("set", one=PLACES, other=PLACES, state=st.sampled_from([READY, DELAYED, DYING, SHAKEN]))
LEASE = _step("lease", one=PLACES, other=PLACES)
FAIL = _step("failed", one=PLACES, other=PLACES, times=st.sampled_from([1, 1, 1, 300]), is_unread=st.booleans())
MOVE = _step("move_to", to=PLACES)
CUT = _step("cut", at=PLACES)
RESTORE = _step(
    "restore",
    written=st.integers(0, 3),
    to=st.none() | PLACES,
    settled=st.lists(st.tuples(PLACES, PLACES), max_size=2),
    moved=st.none() | PLACES,
    is_listed=st.booleans(),
)
LOOK = _step("look", one=PLACES, other=PLACES)
STEPS = st.lists(
    st.one_of(
        TOUCH, TOUCH, SKIP, SETTLE, SETTLE, SETTLE, SET, LEASE, LEASE, FAIL, MOVE, CUT, RESTORE, RESTORE, LOOK, LOOK
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=400, derandomize=True, database=None)
@given(st.sampled_from([0, 5, CHUNK - 2, CHUNK, 3 * CHUNK + 1]), STEPS)
def test_window(start: int, steps: list[tuple[str, dict[str, Any]]]) -> None:
    world = World(start)
    for name, given_ in steps:
        getattr(world, name)(**given_)
        world.it_is_as_the_dict_says()
        world.settled_chunks_take_no_room()
