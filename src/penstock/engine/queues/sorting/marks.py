"""What the records of a partition say of themselves, by offset: lane, tenant, key, and from when on they may be had.

It covers offsets from `begin` to `end`; what lies beyond is leased to nobody yet. As long as nothing says anything
there is nothing here but these two numbers.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from penstock.engine.queues.headers import LANES
from penstock.engine.queues.sorting.block import INSIDE, PLAIN, SHIFT, SIZE, Block, Positions, everywhere
from penstock.engine.queues.sorting.later import Later

LANE_NAMES: Final = tuple(LANES)
"""From the highest to the lowest."""
LANE_OF_PRIORITY: Final = tuple(
    next(at for at, least in enumerate(LANES.values()) if priority >= least) for priority in range(10)
)
NORMAL: Final = LANE_OF_PRIORITY[4]
NOBODY: Final = 0
"""The tenant of what names none."""
MOST_STRANDS: Final = 1 << 16
MOST_TENANTS: Final = MOST_STRANDS // len(LANE_NAMES) - 1
"""In one partition, since this broker leads it; all others share with one of these, by their name's hash."""
_FEW_FALLEN: Final = 4096
_MOST_FALLEN: Final = 20_000
"""At a time; a few milliseconds."""


class Strand(NamedTuple):
    lane: int
    tenant: int


class Said(NamedTuple):
    """What one record says; None for what it does not say.

    Attributes:
        due_ms: not before then.
    """

    offset: int
    priority: int | None = None
    tenant: str | None = None
    key: bytes | None = None
    due_ms: int | None = None


class Reader(Protocol):
    """One group that is told of what there is."""

    def arrived(self, strands: Iterable[int]) -> None:
        """There is more in these."""
        ...

    def fallen_due(self, offsets: Iterable[int]) -> None:
        """Their time has come."""
        ...

    def fallen_passed(self, strand: int) -> int:
        """How many of `Marks.fallen` it needs no more."""
        ...

    def fallen_forgotten(self, strand: int, count: int) -> None:
        """So many are not there any more."""
        ...


class Marks:
    """Args:
    begin: the first offset.
    new_from: what came before has arrived earlier, and was counted then if anybody did.
    """

    def __init__(self, begin: int, new_from: int = 0) -> None:
        self.begin = self.end = self.first = begin
        self.is_plain = True
        """Whether no record says anything."""
        self.later = Later()
        self.strands = [Strand(NORMAL, NOBODY)]
        self.tenants = [""]
        self.readers: list[Reader] = []
        self.fallen: list[array[int]] = [array("Q")]
        """Of each strand, what was not due and is now, in the order in which it fell due."""
        self.lane_counts = [0] * len(LANE_NAMES)
        """What there was of each lane that was due, since this began."""
        self.arrived = [0] * len(LANE_NAMES)
        """What has come in by lane, due or not."""
        self._new_from = new_from
        self._blocks: dict[int, Block] = {}
        self._homes: list[array[int]] = [array("Q")]
        """Of each strand but the plain one: in which blocks it is."""
        self._by_strand = {self.strands[PLAIN]: PLAIN}
        self._by_tenant = {"": NOBODY}

    # --- adding

    def take(self, last: int, said: Sequence[Said], now: int) -> None:
        """Offsets up to `last` are known from now on, and what these of them say; all others say nothing."""
        touched: set[int] = set()
        for each in said:
            if each.offset < self.end:
                continue
            self._take_plain(each.offset - 1, touched)
            self._take_one(each, now, touched)
        self._take_plain(last, touched)
        for reader in self.readers:
            reader.arrived(touched)

    def _take_plain(self, last: int, touched: set[int]) -> None:
        if last < self.end:
            return
        touched.add(PLAIN)
        self.lane_counts[NORMAL] += last + 1 - self.end
        self.arrived[NORMAL] += max(last + 1 - max(self.end, self._new_from), 0)
        while self.end <= last:
            block = self._blocks.get(self.end >> SHIFT)
            until = min(last + 1, (self.end | INSIDE) + 1)
            if block is not None:
                block.add_plain(until - self.end)
            self.end = until

    def _take_one(self, said: Said, now: int, touched: set[int]) -> None:
        self.is_plain = False
        number = said.offset >> SHIFT
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block(said.offset & INSIDE)
        strand, due_ms = self._strand_of(said), said.due_ms
        if said.offset >= self._new_from:
            self.arrived[self.strands[strand].lane] += 1
        if block.add(strand, is_later=due_ms is not None) and strand != PLAIN:
            self._homes[strand].append(number)
        if said.key is not None:
            block.set_slot(said.offset & INSIDE, slot_of(said.key))
        self.end = said.offset + 1
        block.own += due_ms is not None
        if due_ms is not None and due_ms > now:
            self.later.add(due_ms, said.offset)
            block.waiting += 1
            return
        if due_ms is not None:
            self.fallen[strand].append(said.offset)
        self.lane_counts[self.strands[strand].lane] += 1
        touched.add(strand)

    def _strand_of(self, said: Said) -> int:
        if said.priority is None and said.tenant is None:
            return PLAIN
        lane = NORMAL if said.priority is None else LANE_OF_PRIORITY[said.priority]
        strand = Strand(lane, self._tenant_of(said.tenant or ""))
        known = self._by_strand.get(strand)
        if known is None:
            known = self._by_strand[strand] = len(self.strands)
            self.strands.append(strand)
            self.fallen.append(array("Q"))
            self._homes.append(array("Q"))
        return known

    def _tenant_of(self, name: str) -> int:
        known = self._by_tenant.get(name)
        if known is None:
            if len(self.tenants) > MOST_TENANTS:
                return 1 + crc32(name.encode()) % MOST_TENANTS
            known = self._by_tenant[name] = len(self.tenants)
            self.tenants.append(name)
        return known

    # --- time

    def next_due(self) -> int | None:
        return self.later.next_due()

    def fall_due(self, now: int) -> bool:
        """What was not due until now is; whether there was any. Not all at once, where it is very much."""
        offsets = self.later.pop_due(now, _MOST_FALLEN)
        touched: set[int] = set()
        for offset in offsets:
            if offset < self.begin:
                continue  # settled by all who could have it
            self._blocks[offset >> SHIFT].waiting -= 1
            strand = self.strand_at(offset)
            self.fallen[strand].append(offset)
            self.lane_counts[self.strands[strand].lane] += 1
            touched.add(strand)
        for reader in self.readers:
            reader.fallen_due(offsets)
            reader.arrived(touched)
        return bool(touched)

    # --- looking

    def waiting_from(self, offset: int) -> int:
        """How many are not due yet, from an offset on; of those just below it some may count, too."""
        if not self.later.count:
            return 0
        return sum(block.waiting for number, block in self._blocks.items() if number >= offset >> SHIFT)

    def own_from(self, offset: int) -> int:
        """How many have a time of their own, come or not; likewise."""
        return sum(block.own for number, block in self._blocks.items() if number >= offset >> SHIFT)

    def strand_at(self, offset: int) -> int:
        block = self._blocks.get(offset >> SHIFT)
        return PLAIN if block is None else block.which(offset & INSIDE)

    def slot_at(self, offset: int) -> int:
        """The hash of its key, if keys are in order here; 0 for none."""
        block = self._blocks.get(offset >> SHIFT)
        return 0 if block is None or block.slots is None else block.slots[offset & INSIDE]

    def strands_in(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """A range in parts of one strand: first, last and strand."""
        if first == last:
            yield first, last, self.strand_at(first)
            return
        while first <= last:
            until = min(last, first | INSIDE)
            block = self._blocks.get(first >> SHIFT)
            which = None if block is None else block.which_in(first & INSIDE, (until & INSIDE) + 1)
            if which is None:
                yield first, until, PLAIN
            else:
                begin = 0
                for at in range(1, len(which) + 1):
                    if at == len(which) or which[at] != which[begin]:
                        yield first + begin, first + at - 1, which[begin]
                        begin = at
            first = until + 1

    def positions(self, number: int, strand: int) -> Positions:
        """Where a strand is in a block."""
        block = self._blocks.get(number)
        if block is not None:
            return block.positions(strand)
        if strand != PLAIN:
            return everywhere(0)
        return everywhere(min(max(self.end - (number << SHIFT), 0), SIZE))

    def next_home(self, strand: int, number: int) -> int:
        """The first block behind this one in which a strand is, or may be; -1 if there is none yet."""
        if strand == PLAIN:
            return number + 1 if (number + 1) << SHIFT < self.end else -1
        homes = self._homes[strand]
        at = bisect_right(homes, number)
        return homes[at] if at < len(homes) else -1

    # --- letting go

    def trim(self, before: int) -> None:
        """Nobody needs what lies below an offset."""
        if before >> SHIFT <= self.begin >> SHIFT:
            self.begin = max(self.begin, min(before, self.end))
            return
        self.begin = min(before, self.end)
        for number in [each for each in self._blocks if each < self.begin >> SHIFT]:
            del self._blocks[number]

    def forget_fallen(self) -> None:
        """Forget what all readers have passed of what had a time of its own."""
        for strand, fallen in enumerate(self.fallen):
            if len(fallen) < _FEW_FALLEN:
                continue
            passed = min((reader.fallen_passed(strand) for reader in self.readers), default=0)
            if passed >= len(fallen) // 2:
                del fallen[:passed]
                for reader in self.readers:
                    reader.fallen_forgotten(strand, passed)


def slot_of(key: bytes) -> int:
    """Keys of the same number wait for each other; 0 is for none."""
    return crc32(key) or 1
