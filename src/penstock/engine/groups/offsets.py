"""How far groups have read: committed offsets, and those that wait for the end of their transaction.

A plain commit counts at once. A transactional one is kept with its producer until the marker of the transaction is in
the same log: a commit marker makes it count, an abort marker drops it. Of a plain and a transactional commit the one
whose record came later in the log wins, not the one whose marker did; so every kept offset remembers its position.
Positions are log offsets while a log is replayed and are counted on from there; only their order matters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from penstock.engine.coordination.schemas import Entry, Kind, OffsetValue
from penstock.errors import Code, PenstockError

Spot = tuple[str, int]
"""A topic's name and a partition's number."""
Results = Mapping[Spot, PenstockError | None]

NO_OFFSET = OffsetValue(-1, -1, "", -1)
"""What a partition without a commit is answered with."""
MAX_METADATA_CHARS = 4096  # Kafka's offset.metadata.max.bytes, which counts characters there as well
MAX_OFFSETS_PER_GROUP = 100_000  # ten times the partitions of a broker; a group's offsets are told in one go


class NewOffset(NamedTuple):
    """What a client commits for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitRequest(NamedTuple):
    group_id: str
    member_id: str
    generation: int
    """Of a classic group, or the member's epoch in a consumer group; -1 without membership."""
    group_instance_id: str | None
    offsets: Mapping[Spot, NewOffset]
    knows_epochs: bool = True
    """Whether the client can be told of member epochs, and of missing groups (OffsetCommit 9+)."""


class TransactionalCommit(NamedTuple):
    group_id: str
    producer_id: int
    producer_epoch: int
    member_id: str
    generation: int
    group_instance_id: str | None
    offsets: Mapping[Spot, NewOffset]


class FetchRequest(NamedTuple):
    group_id: str
    partitions: tuple[Spot, ...] | None
    """None for all that have a commit."""
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


FetchedOffsets = Mapping[Spot, OffsetValue | PenstockError]


class _Kept(NamedTuple):
    value: OffsetValue
    position: int


class Offsets:
    """The offsets of all groups of one shard."""

    __slots__ = ("_committed", "_max_metadata_chars", "_max_per_group", "_open", "_pending", "_position")

    def __init__(
        self, *, max_metadata_chars: int = MAX_METADATA_CHARS, max_per_group: int = MAX_OFFSETS_PER_GROUP
    ) -> None:
        self._max_metadata_chars = max_metadata_chars
        self._max_per_group = max_per_group
        self._committed: dict[str, dict[Spot, _Kept]] = {}
        self._pending: dict[int, dict[str, dict[Spot, _Kept]]] = {}
        """By producer id, then by group."""
        self._open: dict[str, dict[int, None]] = {}
        """Producers with pending offsets, by group."""
        self._position = -1

    # --- looking

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._open

    def groups(self) -> Iterator[str]:
        yield from self._committed
        yield from (group_id for group_id in self._open if group_id not in self._committed)

    @property
    def group_count(self) -> int:
        """At least the number of groups with offsets; one with committed and pending ones counts twice."""
        return len(self._committed) + len(self._open)

    def count(self, group_id: str) -> int:
        """Committed and pending offsets of a group."""
        return len(self._committed.get(group_id, ())) + sum(len(spots) for spots in self._pending_of(group_id))

    def is_pending(self, group_id: str, spot: Spot) -> bool:
        return any(spot in spots for spots in self._pending_of(group_id))

    def fetch(self, group_id: str, spots: Iterable[Spot] | None, *, require_stable: bool) -> FetchedOffsets:
        committed = self._committed.get(group_id, {})
        fetched: dict[Spot, OffsetValue | PenstockError] = {}
        for spot in committed if spots is None else spots:
            kept = committed.get(spot)
            if require_stable and self.is_pending(group_id, spot):
                fetched[spot] = PenstockError(
                    Code.UNSTABLE_OFFSET,
                    f"a transaction that commits offsets of {spot[0]}-{spot[1]} for group {group_id!r} is not over yet",
                    help="retry",
                )
            else:
                fetched[spot] = kept.value if kept else NO_OFFSET
        return fetched

    # --- changes

    def commit(
        self, group_id: str, offsets: Mapping[Spot, NewOffset], now: int, producer_id: int | None = None
    ) -> tuple[Results, list[Entry]]:
        """Keep offsets; with a producer id, until its transaction ends. Each partition has a result of its own."""
        results: dict[Spot, PenstockError | None] = {}
        entries = []
        room = self._max_per_group - self.count(group_id)
        kept = self._committed if producer_id is None else self._pending.get(producer_id, {})
        known = kept.get(group_id, {})
        for spot, new in offsets.items():
            is_new = spot not in known
            results[spot] = self._refusal(group_id, spot, new.metadata, full=is_new and room <= 0)
            if results[spot] is None:
                room -= is_new
                value = OffsetValue(new.offset, new.leader_epoch, new.metadata, now)
                entries.append(Entry(Kind.OFFSET, (group_id, *spot), value))
        for entry in entries:
            self.replay(entry, self._position + 1, producer_id)
        return results, entries

    def _refusal(self, group_id: str, spot: Spot, metadata: str, *, full: bool) -> PenstockError | None:
        topic, partition = spot
        if len(metadata) > self._max_metadata_chars:
            return PenstockError(
                Code.OFFSET_METADATA_TOO_LARGE,
                f"{len(metadata)} characters of metadata with the offset of {topic}-{partition} for group "
                f"{group_id!r}; allowed: {self._max_metadata_chars}",
            )
        if full:
            return PenstockError(
                Code.LIMIT_EXCEEDED,
                f"group {group_id!r} has {self._max_per_group} offsets already; none is added for {topic}-{partition}",
                help="delete offsets it does not need, or use another group",
            )
        return None

    def delete(self, group_id: str, spots: Iterable[Spot]) -> list[Entry]:
        """Forget offsets, pending ones too."""
        known = self._committed.get(group_id, {})
        wanted = dict.fromkeys(spot for spot in spots if spot in known or self.is_pending(group_id, spot))
        entries = [Entry(Kind.OFFSET, (group_id, *spot), None) for spot in wanted]
        for entry in entries:
            self.replay(entry, self._position + 1)
        return entries

    def delete_some(self, group_id: str, at_most: int) -> list[Entry]:
        """Forget so many of a group's offsets; nothing when nothing is left."""
        return self.delete(group_id, list(islice(dict.fromkeys(self._held(group_id)), at_most)))

    def delete_of_topic(self, group_id: str, topic: str, at_most: int) -> list[Entry]:
        """Forget so many of those a group has for one topic; nothing when nothing is left."""
        held = dict.fromkeys(spot for spot in self._held(group_id) if spot[0] == topic)
        return self.delete(group_id, list(islice(held, at_most)))

    def committed_spots(self, group_id: str) -> list[Spot]:
        return list(self._committed.get(group_id, ()))

    def expired(
        self, group_id: str, spots: Iterable[Spot], is_expired: Callable[[str, OffsetValue], bool]
    ) -> list[Spot]:
        """Those `is_expired` says it of, by topic and value, that no transaction may renew."""
        committed = self._committed.get(group_id, {})
        return [
            spot
            for spot in spots
            if (kept := committed.get(spot)) is not None
            and is_expired(spot[0], kept.value)
            and not self.is_pending(group_id, spot)
        ]

    def end(self, producer_id: int, *, committed: bool) -> list[str]:
        """The marker of a producer's transaction is in the log. Returns the groups it had offsets for."""
        pending = self._pending.pop(producer_id, {})
        for group_id, spots in pending.items():
            self._close(group_id, producer_id)
            if not committed:
                continue
            known = self._committed.setdefault(group_id, {})
            for spot, kept in spots.items():
                if spot not in known or kept.position > known[spot].position:
                    known[spot] = kept
        return list(pending)

    # --- records

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None = None) -> None:
        """Apply one record; `producer_id` is that of a transactional batch."""
        group_id, topic, partition = entry.key
        spot = (topic, partition)
        self._position = max(self._position + 1, log_offset)
        if entry.value is None:
            self._forget(group_id, spot)
            return
        kept = _Kept(entry.value, self._position)
        if producer_id is None:
            self._committed.setdefault(group_id, {})[spot] = kept
        else:
            self._pending.setdefault(producer_id, {}).setdefault(group_id, {})[spot] = kept
            self._open.setdefault(group_id, {})[producer_id] = None

    def dump(self) -> Iterator[tuple[Entry, int | None]]:
        """All that is kept now, to be taken at leisure: changes made meanwhile are not in it.

        What is kept for one partition comes in the order of the log, which decides who wins when transactions end.
        """
        committed = {group_id: spots.copy() for group_id, spots in self._committed.items()}
        pending = {
            group_id: [(producer_id, self._pending[producer_id][group_id].copy()) for producer_id in producers]
            for group_id, producers in self._open.items()
        }
        return _rows(committed, pending)

    def _forget(self, group_id: str, spot: Spot) -> None:
        committed = self._committed.get(group_id)
        if committed is not None:
            committed.pop(spot, None)
            if not committed:
                del self._committed[group_id]
        for producer_id in list(self._open.get(group_id, ())):
            groups = self._pending[producer_id]
            groups[group_id].pop(spot, None)
            if not groups[group_id]:
                del groups[group_id]
                self._close(group_id, producer_id)
                if not groups:
                    del self._pending[producer_id]

    def _close(self, group_id: str, producer_id: int) -> None:
        producers = self._open[group_id]
        del producers[producer_id]
        if not producers:
            del self._open[group_id]

    def _held(self, group_id: str) -> Iterator[Spot]:
        """What there are offsets of; with committed and pending ones more than once."""
        return chain(self._committed.get(group_id, ()), *self._pending_of(group_id))

    def _pending_of(self, group_id: str) -> Iterator[dict[Spot, _Kept]]:
        return (self._pending[producer_id][group_id] for producer_id in self._open.get(group_id, ()))


def _rows(
    committed: Mapping[str, Mapping[Spot, _Kept]], pending: Mapping[str, list[tuple[int, dict[Spot, _Kept]]]]
) -> Iterator[tuple[Entry, int | None]]:
    for group_id in dict.fromkeys((*committed, *pending)):
        unsettled: dict[Spot, list[tuple[_Kept, int | None]]] = {}
        for producer_id, spots in pending.get(group_id, ()):
            for spot, kept in spots.items():
                unsettled.setdefault(spot, []).append((kept, producer_id))
        for spot, kept in committed.get(group_id, {}).items():
            if spot in unsettled:
                unsettled[spot].append((kept, None))
            else:
                yield Entry(Kind.OFFSET, (group_id, *spot), kept.value), None
        for spot, several in unsettled.items():
            for kept, producer in sorted(several, key=lambda each: each[0].position):
                yield Entry(Kind.OFFSET, (group_id, *spot), kept.value), producer
