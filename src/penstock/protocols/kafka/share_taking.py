"""One share consumer's way to the records of a partition: what is ready is leased, and the batches that hold it found.

What was leased and does not fit the answer is given back as if it had not been; what nobody could be given is settled
at once. `batch_optimized` leases a batch to its end when it was begun.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.engine.acting.acting import Acting
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Want
from penstock.engine.queues.verdicts import Change, Holder, Verdict, VerdictKind
from penstock.engine.reading import READY_BYTES, look, warm
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import share_layout
from penstock.protocols.kafka.share_layout import Part, Range, Sorted, Stretch
from penstock.protocols.kafka.share_sessions import Place, ShareSession

_MOST_TRIES: Final = 8
"""How often bytes may leave memory between being fetched and being looked at."""
_NEAR: Final = 1000
"""Offsets between two ranges for which nobody looks anew: reading on is cheaper."""
_MOST_LOOKS: Final = 64
"""For what was leased at once; what comes back piece by piece is scattered."""
_GONE: Final = Verdict(VerdictKind.GONE)
_EXPIRED: Final = Verdict(VerdictKind.EXPIRE)
_UNREAD: Final = Verdict(VerdictKind.UNREAD)


class Taken(NamedTuple):
    """What a consumer gets of one partition.

    Attributes:
        size: bytes of the batches.
        is_full: more was ready than fits.
    """

    parts: list[Part]
    size: int
    is_full: bool = False


class Taking:
    """What one request takes for the member of a session.

    Args:
        whole_batches: give the last batch whole, and so more records than asked for.
    """

    __slots__ = ("_acting", "_committed", "_holder", "_session", "_whole_batches")

    def __init__(self, acting: Acting, session: ShareSession, *, whole_batches: bool) -> None:
        self._acting = acting
        self._session = session
        self._holder = Holder(session.membership.member)
        self._whole_batches = whole_batches
        self._committed = acting.groups.config(session.membership.group).reads_committed

    async def is_ready(self, partition: Partition) -> bool:
        """Whether the group could be given anything there; it begins there, if it has not yet. Raises PenstockError."""
        queues, group = self._acting.queues, self._session.membership.group
        try:
            figures = await queues.figures(partition, group)
        except PenstockError as error:
            if error.code is not Code.UNKNOWN_QUEUE:
                raise
            await queues.open_shared(partition, group)
            figures = await queues.figures(partition, group)
        return figures.ready > 0 or figures.next < self._limit(partition)

    def _limit(self, partition: Partition) -> int:
        """What lies there or beyond is for nobody yet."""
        return partition.stable_offset if self._committed else partition.high_watermark

    async def take(self, place: Place, partition: Partition, most: int, max_bytes: int, *, at_least_one: bool) -> Taken:
        """Some of what is ready, at once. Nothing waits but for the disk.

        Args:
            at_least_one: take a first batch larger than `max_bytes`, too.

        Raises:
            PenstockError, OSError: nothing was taken.
        """
        while True:
            leased = await self._lease(place, partition, most)
            if not leased:
                return Taken([], 0)
            found = await self._find(partition, leased, max_bytes, at_least_one=at_least_one)
            if found.parts or found.unread:
                break
            await asyncio.sleep(0)  # there was nothing that anybody could be given, perhaps for long
        parts = found.parts
        is_begun = not found.unread and leased[-1].deliveries == 1 and _count(leased) >= most
        if self._whole_batches and is_begun and leased[-1].last < parts[-1].batch.last:
            parts += await self._rest_of(place, partition, parts[-1], max_bytes - _size(parts))
        return Taken(parts, _size(parts), bool(found.unread))

    async def _rest_of(self, place: Place, partition: Partition, part: Part, max_bytes: int) -> list[Part]:
        """The end of a batch, or whatever else is ready by now."""
        more = await self._lease(place, partition, part.batch.last - part.last)
        if not more:
            return []
        known = Stretch(part.first, part.batch.last + 1, [part.batch])
        return (await self._find(partition, more, max_bytes, known)).parts

    async def _lease(self, place: Place, partition: Partition, most: int) -> list[Range]:
        session = self._session
        if session.is_over:
            return []
        group, member = session.membership
        session.held[place] = None
        want = Want(group, member, most, bound=True)
        leased = await self._acting.queues.lease(partition, want, committed=self._committed)
        return [Range(each.first, each.last, each.deliveries) for each in leased.ranges]

    async def _find(
        self,
        partition: Partition,
        leased: Sequence[Range],
        max_bytes: int,
        known: Stretch | None = None,
        *,
        at_least_one: bool = False,
    ) -> Sorted:
        """What was leased; what is not to be sent is settled or given back."""
        try:
            if known is not None and known.start <= leased[0].first and leased[-1].last < known.end:
                stretches = [known]
            else:
                stretches = await self._look(partition, leased, max_bytes, at_least_one=at_least_one)
            found = share_layout.sort_out(leased, stretches)
            over = await self._find_expired(partition, found.parts)
        except (PenstockError, OSError):
            self._settle(partition, ((first, last) for first, last, _ in leased), _UNREAD)
            raise
        self._settle(partition, found.nothing, _GONE)
        self._settle(partition, found.unread, _UNREAD)
        self._settle(partition, over, _EXPIRED)
        return found._replace(parts=share_layout.without(found.parts, over)) if over else found

    async def _find_expired(self, partition: Partition, parts: Iterable[Part]) -> list[tuple[int, int]]:
        asked = [(part.batch.place, part.first, part.last) for part in parts]
        found = await self._acting.queues.find_expired(partition, self._session.membership.group, asked)
        return [(first, last) for first, last in found]

    def _settle(self, partition: Partition, parts: Iterable[tuple[int, int]], verdict: Verdict) -> None:
        changes = [Change(first, last, verdict) for first, last in parts]
        if changes:
            with suppress(PenstockError):  # another broker leads by now
                self._acting.queues.settle_soon(partition, self._session.membership.group, self._holder, changes)

    # --- bytes

    async def _look(
        self, partition: Partition, leased: Sequence[Range], max_bytes: int, *, at_least_one: bool
    ) -> list[Stretch]:
        """The batches that hold what was leased, as far as they fit."""
        stretches: list[Stretch] = []
        left = max_bytes
        for first, last in _neighbourhoods(leased):
            while first <= last:
                stretch = await self._look_at(partition, first, last, left, at_least_one=at_least_one)
                stretches.append(stretch)
                left -= stretch.size
                at_least_one = at_least_one and not stretch.has_any
                if stretch.end == first or len(stretches) == _MOST_LOOKS:
                    return stretches  # no more fits
                first = stretch.end
        return stretches

    async def _look_at(self, partition: Partition, first: int, last: int, left: int, *, at_least_one: bool) -> Stretch:
        """From one offset towards another; of no length if the first batch there does not fit."""
        warmed, max_bytes = False, left
        for _ in range(_MOST_TRIES):
            at = max(first, partition.log_start)  # what lay below was deleted
            limit = self._limit(partition)
            if at >= limit:
                return Stretch(first, at, ())
            found = look(partition, at, max_bytes, committed=self._committed, at_least_one=True, warmed=warmed)
            if found.data is not None:
                fits = found.data.size if at_least_one else left
                return share_layout.find_stretch(found.data, found.aborted, first, last, fits, partition.name)
            if not found.is_cold:
                return Stretch(first, limit, ())  # there is no batch any more
            warmed, max_bytes = True, min(left, READY_BYTES)
            await warm(partition, at, max_bytes)
        raise PenstockError(Code.NOT_AVAILABLE, f"{partition.name} cannot be read at {first} now; try again")


def _neighbourhoods(leased: Iterable[Range]) -> list[tuple[int, int]]:
    """First and last offsets of ranges that are near each other."""
    found: list[tuple[int, int]] = []
    for first, last, _ in leased:
        if found and first - found[-1][1] <= _NEAR:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def _count(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last, _ in ranges)


def _size(parts: Iterable[Part]) -> int:
    return sum({part.batch.first: part.batch.place.size for part in parts}.values())
