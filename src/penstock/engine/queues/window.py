"""The offsets of one group in one partition: how far each has come, and how often it was tried.

    start                      next                        end of the partition
      |  touched: in chunks      |  never given out: ready     |
    --+--------------------------+-----------------------------+--

What lies below `start` is settled, what lies from `next` on was never leased. In between each offset has a state, two
counters and the slot of its lease, in chunks of 1,024; a chunk that is settled throughout is kept as None. All changes
are made to ranges of bytes, so what they cost is not the number of offsets.
"""

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

READY: Final = 0
LEASED: Final = 1
DELAYED: Final = 2
DYING: Final = 3
"""Will be a dead letter, and is not yet."""
SETTLED: Final = 4
SHAKEN: Final = 5
"""Ready, and its consumer was lost with it."""
STATES: Final = (READY, LEASED, DELAYED, DYING, SETTLED, SHAKEN)

CHUNK: Final = 1024
_SHIFT: Final = 10
_INSIDE: Final = CHUNK - 1
MOST_COUNTED: Final = 255
"""Counters stay there."""
_PLUS_ONE: Final = bytes(min(count + 1, MOST_COUNTED) for count in range(256))
_MINUS_ONE: Final = bytes(max(count - 1, 0) for count in range(256))
_SETTLED_BYTE: Final = bytes([SETTLED])
_BYTE: Final = tuple(bytes([value]) for value in range(256))


class Run(NamedTuple):
    """Neighbours that are alike. Both ends belong to it."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Counted(NamedTuple):
    """Neighbours that were tried as often as each other."""

    first: int
    last: int
    deliveries: int
    attempts: int


class Chunk:
    __slots__ = ("attempts", "deliveries", "slots", "states", "unsettled")

    def __init__(self) -> None:
        self.states = bytearray(CHUNK)
        self.deliveries = bytearray(CHUNK)
        self.attempts = bytearray(CHUNK)
        self.slots = array("I", bytes(4 * CHUNK))
        self.unsettled = CHUNK


_FRESH: Final = Chunk()
"""What every chunk is in which nothing was touched yet; whoever changes anything in it makes one of its own."""


class Window:
    """Attributes:
    counts: how many offsets from `start` to `next` are in each state.
    """

    __slots__ = ("_chunks", "_is_partial", "counts", "next", "start")

    def __init__(self, start: int) -> None:
        self._chunks: dict[int, Chunk | None] = {}
        self.counts = [0] * len(STATES)
        self._is_partial = False
        self._begin(start)

    def _begin(self, start: int) -> None:
        self.start = self.next = start
        self._chunks.clear()
        self.counts = [0] * len(STATES)

    # --- looking

    def first_again(self, first: int, last: int) -> Run | None:
        """What of a touched range can be had again first; it may go on beyond the range, to the end of its chunk.

        If its consumer was lost with it, only as far as all was tried as often.
        """
        for chunk, begin, end, base in self._parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is None:
                continue
            found = [
                at for at in (chunk.states.find(READY, begin, end), chunk.states.find(SHAKEN, begin, end)) if at >= 0
            ]
            if not found:
                continue
            at = min(found)
            until = _alike(chunk.states, at, min(self.next - base, CHUNK))
            if chunk.states[at] == SHAKEN:
                until = _alike(chunk.attempts, at, _alike(chunk.deliveries, at, until))
            return Run(base + at, base + until - 1)
        return None

    def state_of(self, offset: int) -> int:
        if offset < self.start:
            return SETTLED
        if offset >= self.next:
            return READY
        chunk = self._chunks.get(offset >> _SHIFT)
        return SETTLED if chunk is None else chunk.states[offset & _INSIDE]

    def counts_of(self, offset: int) -> tuple[int, int]:
        """Deliveries and attempts; none for what is settled with all around it."""
        chunk = self._chunks.get(offset >> _SHIFT)
        if chunk is None:
            return 0, 0
        return chunk.deliveries[offset & _INSIDE], chunk.attempts[offset & _INSIDE]

    def slot_of(self, offset: int) -> int:
        chunk = self._chunks.get(offset >> _SHIFT)
        return -1 if chunk is None else chunk.slots[offset & _INSIDE]

    def runs_in(self, first: int, last: int, state: int) -> Iterator[Run]:
        """Where the touched offsets of a range are in a state; a run ends with its chunk."""
        byte = _BYTE[state]
        for chunk, begin, end, base in self._parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is None:
                if state == SETTLED:
                    yield Run(base + begin, base + end - 1)
                continue
            at = chunk.states.find(byte, begin, end)
            while at >= 0:
                rest = chunk.states[at:end]
                until = at + len(rest) - len(rest.lstrip(byte))
                yield Run(base + at, base + until - 1)
                at = chunk.states.find(byte, until, end)

    def unsettled_in(self, first: int, last: int) -> Iterator[Run]:
        """Where the offsets of a range are not settled, touched or not; a run ends with its chunk."""
        for chunk, begin, end, base in self._parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is None:
                continue
            states, at = chunk.states, begin
            while at < end:
                rest = states[at:end]
                at += len(rest) - len(rest.lstrip(_SETTLED_BYTE))
                if at == end:
                    break
                until = states.find(_SETTLED_BYTE, at, end)
                until = end if until < 0 else until
                yield Run(base + at, base + until - 1)
                at = until
        if last >= max(first, self.next):
            yield Run(max(first, self.next), last)

    def leased_in(self, first: int, last: int) -> Iterator[tuple[Run, int]]:
        """Where the touched offsets of a range are leased, and in which slot."""
        if first == last:
            if self.start <= first < self.next and self.state_of(first) == LEASED:
                yield Run(first, first), self.slot_of(first)
            return
        for run in self.runs_in(first, last, LEASED):
            chunk = self._chunks[run.first >> _SHIFT]
            assert chunk is not None
            base = run.first & ~_INSIDE
            at, end = run.first - base, run.last - base + 1
            slots = chunk.slots
            while at < end:
                slot = slots[at]
                until = end
                if slots[at:end] != array("I", [slot]) * (end - at):
                    until = next(each for each in range(at, end) if slots[each] != slot)
                yield Run(base + at, base + until - 1), slot
                at = until

    def counted(self, first: int, last: int) -> Iterator[Counted]:
        """A touched range in parts that were tried as often; neighbouring chunks are joined."""
        open_: Counted | None = None
        for part in self._counted_parts(first, last):
            if open_ is not None and open_.last + 1 == part.first and open_[2:] == part[2:]:
                open_ = Counted(open_.first, part.last, part.deliveries, part.attempts)
                continue
            if open_ is not None:
                yield open_
            open_ = part
        if open_ is not None:
            yield open_

    def _counted_parts(self, first: int, last: int) -> Iterator[Counted]:
        for chunk, begin, end, base in self._parts(first, last):
            assert chunk is not None
            at = begin
            while at < end:
                deliveries, attempts = chunk.deliveries[at], chunk.attempts[at]
                alike = _alike(chunk.deliveries, at, end)
                until = min(alike, _alike(chunk.attempts, at, alike))
                yield Counted(base + at, base + until - 1, deliveries, attempts)
                at = until

    def chunks(self) -> Iterator[tuple[int, Chunk | None]]:
        """All there are, by the offset each begins with."""
        for index in list(self._chunks):
            if index in self._chunks:
                yield index << _SHIFT, self._chunks[index]

    def tried(self, first: int, last: int) -> Iterator[int]:
        """What of a range was given out and may be again, or is out."""
        for chunk, begin, end, base in self._parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is None or chunk is _FRESH:
                continue
            for at in range(begin, end):
                state = chunk.states[at]
                if state not in (SETTLED, DYING) and (state != READY or chunk.deliveries[at]):
                    yield base + at

    def unsettled_below(self, offset: int) -> int:
        """How many there are, touched or not."""
        count = max(offset - self.next, 0)
        for chunk, begin, end, _ in self._parts(self.start, min(offset, self.next) - 1):
            if chunk is not None:
                count += end - begin - chunk.states.count(SETTLED, begin, end)
        return count

    # --- changing

    def take_new(self, last: int) -> None:
        """Offsets up to `last` begin to be touched: they are ready, like before, and looked after here."""
        for index in range(self.next >> _SHIFT, (last >> _SHIFT) + 1):
            if index not in self._chunks:
                self._chunks[index] = _FRESH
                if self._is_partial and (index << _SHIFT) < self.next:  # what is missing is settled until it is given
                    chunk, count = self._own(index), self.next & _INSIDE
                    chunk.states[:count] = _SETTLED_BYTE * count
                    chunk.unsettled -= count
        self.counts[READY] += last + 1 - self.next
        self.next = last + 1

    def settle_new(self, last: int) -> None:
        """Offsets up to `last` are settled before anybody had them; there may be millions."""
        if self._is_partial:
            return self._settle_new(last)
        inside = range((self.next + _INSIDE) >> _SHIFT, (last + 1) >> _SHIFT)
        if not inside:
            return self._settle_new(last)
        if self.next & _INSIDE:
            self._settle_new((inside.start << _SHIFT) - 1)
        if self.start == self.next:
            self.start = inside.stop << _SHIFT
        else:
            self._chunks.update(dict.fromkeys(inside))
            self.counts[SETTLED] += len(inside) * CHUNK
        self.next = inside.stop << _SHIFT
        if self.next <= last:
            self._settle_new(last)
        return None

    def _settle_new(self, last: int) -> None:
        first = self.next
        self.take_new(last)
        self.set(first, last, SETTLED)

    def set(self, first: int, last: int, state: int) -> None:
        """Touched offsets from `start` on come into a state, whatever they were in before."""
        if first == last:
            self._set_one(first, state)
            return
        counts = self.counts
        first = max(first, self.start)
        touches_start = False
        for chunk, begin, end, base in self._own_parts(first, min(last, self.next - 1)):
            if chunk is None:
                continue  # what is settled stays it
            before, size = chunk.states[begin:end], end - begin
            settled = before.count(SETTLED)
            for each in STATES:
                if each != SETTLED:
                    counts[each] -= before.count(each)
            counts[SETTLED] -= settled
            counts[state] += size
            chunk.states[begin:end] = _BYTE[state] * size
            chunk.unsettled += settled - (size if state == SETTLED else 0)
            if not chunk.unsettled:
                self._chunks[base >> _SHIFT] = None
            touches_start = touches_start or base + begin == self.start
        if touches_start and state == SETTLED:
            self._move_start()

    def _set_one(self, offset: int, state: int) -> None:
        """The same for one offset, as messages that are not alike come and go one by one."""
        if not self.start <= offset < self.next:
            return
        chunk = self._chunks.get(offset >> _SHIFT)
        if chunk is _FRESH:
            chunk = self._own(offset >> _SHIFT)
        if chunk is None:
            return
        at = offset & _INSIDE
        before = chunk.states[at]
        if before == state:
            return
        self.counts[before] -= 1
        self.counts[state] += 1
        chunk.states[at] = state
        if before == SETTLED:
            chunk.unsettled += 1
        elif state == SETTLED:
            chunk.unsettled -= 1
            if not chunk.unsettled:
                self._chunks[offset >> _SHIFT] = None
            if offset == self.start:
                self._move_start()

    def lease(self, first: int, last: int, slot: int) -> None:
        """Touched offsets are given out once more."""
        self.set(first, last, LEASED)
        if first == last:
            chunk, at = self._chunks.get(first >> _SHIFT), first & _INSIDE
            if chunk is not None and self.start <= first < self.next:
                chunk.deliveries[at] = min(chunk.deliveries[at] + 1, MOST_COUNTED)
                chunk.slots[at] = slot
            return
        for chunk, begin, end, _ in self._own_parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is None:
                continue
            chunk.deliveries[begin:end] = chunk.deliveries[begin:end].translate(_PLUS_ONE)
            chunk.slots[begin:end] = array("I", [slot]) * (end - begin)

    def reslot(self, first: int, last: int, slot: int) -> None:
        for chunk, begin, end, _ in self._own_parts(first, last):
            if chunk is not None:
                chunk.slots[begin:end] = array("I", [slot]) * (end - begin)

    def failed(self, first: int, last: int) -> None:
        """One more attempt at touched offsets has failed."""
        for chunk, begin, end, _ in self._own_parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is not None:
                chunk.attempts[begin:end] = chunk.attempts[begin:end].translate(_PLUS_ONE)

    def unread(self, first: int, last: int) -> None:
        """Nobody has seen what was leased; it is as if it had not been."""
        for chunk, begin, end, _ in self._own_parts(max(first, self.start), min(last, self.next - 1)):
            if chunk is not None:
                chunk.deliveries[begin:end] = chunk.deliveries[begin:end].translate(_MINUS_ONE)

    def move_to(self, start: int) -> None:
        """Everything below is settled, leased or not."""
        if start <= self.start:
            return
        if start >= self.next:
            self._begin(start)
            return
        for chunk, begin, end, _ in self._parts(self.start, start - 1):
            if chunk is None:
                self.counts[SETTLED] -= end - begin
            else:
                for each in STATES:
                    self.counts[each] -= chunk.states[begin:end].count(each)
        self._let_go(start)
        self._move_start()

    def cut(self, end: int) -> None:
        """Forget everything from `end` on, as if it had never been there."""
        if self.next <= end:
            return
        if self.start >= end:
            self._begin(end)
            return
        for chunk, begin, until, base in self._parts(end, self.next - 1):
            if chunk is None:
                self.counts[SETTLED] -= until - begin
                if begin:  # settled as a whole, and its first part still is
                    chunk = self._chunks[base >> _SHIFT] = Chunk()
                    chunk.states[:begin] = _SETTLED_BYTE * begin
                    chunk.unsettled -= begin
                else:
                    self._chunks.pop(base >> _SHIFT, None)
                continue
            for each in STATES:
                self.counts[each] -= chunk.states[begin:until].count(each)
            if not begin:
                self._chunks.pop(base >> _SHIFT, None)
                continue
            chunk.unsettled += chunk.states[begin:until].count(SETTLED)
            size = until - begin
            chunk.states[begin:until] = chunk.deliveries[begin:until] = chunk.attempts[begin:until] = bytes(size)
        self.next = end

    # --- from what was saved

    def begin_restoring(self, start: int, following: int) -> None:
        """What is there is forgotten. Chunks that are not given until `end_restoring` are settled throughout.

        Changes may come in between: each chunk is as it was when it was saved, and what came before that is in it.
        """
        self._begin(start)
        self.next = following
        self._is_partial = True

    def restore(self, base: int, states: bytes, deliveries: bytes, attempts: bytes) -> None:
        """One chunk; whose lease it is in is told behind it."""
        chunk = self._chunks[base >> _SHIFT] = Chunk()
        chunk.states[:], chunk.deliveries[:], chunk.attempts[:] = states, deliveries, attempts
        chunk.unsettled = CHUNK - states.count(SETTLED)
        if not chunk.unsettled:
            self._chunks[base >> _SHIFT] = None

    def end_restoring(self) -> None:
        self._is_partial = False
        for index in [each for each in self._chunks if each < self.start >> _SHIFT]:
            del self._chunks[index]
        counts = self.counts = [0] * len(STATES)
        for chunk, begin, end, _ in self._parts(self.start, self.next - 1):
            if chunk is None:
                counts[SETTLED] += end - begin
            else:
                for each in STATES:
                    counts[each] += chunk.states.count(each, begin, end)
        self._move_start()

    # --- inside

    def _parts(self, first: int, last: int) -> Iterator[tuple[Chunk | None, int, int, int]]:
        """Each chunk of a range: where in it the range begins and ends, and the chunk's first offset."""
        while first <= last:
            base = first & ~_INSIDE
            end = min(last - base + 1, CHUNK)
            yield self._chunks.get(base >> _SHIFT), first - base, end, base
            first = base + CHUNK

    def _own_parts(self, first: int, last: int) -> Iterator[tuple[Chunk | None, int, int, int]]:
        """The same, to be changed."""
        for chunk, begin, end, base in self._parts(first, last):
            yield (self._own(base >> _SHIFT) if chunk is _FRESH else chunk), begin, end, base

    def _own(self, index: int) -> Chunk:
        """A chunk in which something is to be touched for the first time."""
        chunk = self._chunks[index] = Chunk()
        return chunk

    def _move_start(self) -> None:
        if self._is_partial:
            return  # what is missing may be anything
        start = self.start
        while start < self.next:
            chunk = self._chunks.get(start >> _SHIFT)
            base = start & ~_INSIDE
            if chunk is None:
                start = base + CHUNK
                continue
            rest = chunk.states[start - base :]
            settled = len(rest) - len(rest.lstrip(_SETTLED_BYTE))
            start += settled
            if settled < len(rest):
                break
        start = min(start, self.next)
        self.counts[SETTLED] -= start - self.start
        self._let_go(start)

    def _let_go(self, start: int) -> None:
        for index in range(self.start >> _SHIFT, start >> _SHIFT):
            self._chunks.pop(index, None)
        self.start = start


def _alike(values: bytearray, at: int, end: int) -> int:
    """How far values go on as at `at`."""
    rest = values[at:end]
    return at + len(rest) - len(rest.lstrip(_BYTE[values[at]]))
