"""Where partitions that exist should go: away from a broker, to another one, to chosen ones.

Pure: from a picture of the cluster to a list of moves. Each keeps the number of replicas, puts no two of them on one
broker, gives nothing to brokers that take nothing (cordoned, drained or gone), spreads over racks as `placement` does,
and copies no byte that need not be copied: replicas that may stay do, in their order, so the preferred leader too.
`rebalancing` is about plans that make brokers more alike.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.cluster.placement import extend
from penstock.errors import Code, PenstockError

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Broker:
    """
    Attributes:
        takes: whether it may get replicas and lead.
        disk_bytes: the size of its disk, and what is used of it by anybody; 0 if unknown.
        cpu: cores that it keeps busy; 0 if nobody has measured.
    """

    rack: str | None = None
    takes: bool = True
    disk_bytes: int = 0
    used_bytes: int = 0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """A partition: who holds it, the one that should lead first, and how many bytes each replica has.

    `lead_cpu`: cores that leading it keeps busy, more than following does; 0 if it may not be led by others for that.
    """

    replicas: tuple[int, ...]
    size_bytes: int = 0
    lead_cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture of the cluster. Partitions that are on their way are no part of it: they are left alone."""

    brokers: Mapping[int, Broker]
    partitions: Mapping[Place, Held]

    def takers(self) -> dict[int, str | None]:
        """Brokers that may get replicas, with their racks."""
        return {broker_id: broker.rack for broker_id, broker in self.brokers.items() if broker.takes}

    def after(self, moves: Iterable["Move"]) -> "Layout":
        brokers, partitions = dict(self.brokers), dict(self.partitions)
        for move in moves:
            held = partitions[move.place]
            for broker_id, more in ((move.old[0], -held.lead_cpu), (move.new[0], held.lead_cpu)):
                if broker_id in brokers:
                    brokers[broker_id] = replace(brokers[broker_id], cpu=brokers[broker_id].cpu + more)
            partitions[move.place] = replace(held, replicas=move.new, size_bytes=move.size_bytes)
        return Layout(brokers, partitions)

    def rack_of(self, broker_id: int) -> str | None:
        broker = self.brokers.get(broker_id)
        return broker.rack if broker is not None else None

    def loads(self) -> dict[int, "Load"]:
        """What each broker has, also those that are gone and still hold something."""
        replicas, leaders, sizes = Counter[int](), Counter[int](), Counter[int]()
        for held in self.partitions.values():
            leaders[held.replicas[0]] += 1
            for replica in held.replicas:
                replicas[replica] += 1
                sizes[replica] += held.size_bytes
        cpu = {broker_id: broker.cpu for broker_id, broker in self.brokers.items()}
        return {
            each: Load(replicas[each], leaders[each], sizes[each], cpu.get(each, 0.0))
            for each in sorted({*self.brokers, *replicas})
        }


class Load(NamedTuple):
    """What a broker has. `leaders` are those it should lead: where it is the first replica."""

    replicas: int
    leaders: int
    size_bytes: int
    cpu: float


class Move(NamedTuple):
    """A partition, who holds it and who shall."""

    topic: str
    partition: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    size_bytes: int = 0

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.new if replica not in self.old)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.old if replica not in self.new)

    @property
    def copied_bytes(self) -> int:
        """What goes over the network for it."""
        return self.size_bytes * len(self.adding)


def evacuate(layout: Layout, broker_id: int) -> list[Move]:
    """Everything that a broker holds goes to others.

    Raises:
        PenstockError: INVALID_REPLICATION: a partition would need more brokers than there are.
    """
    takers = {each: rack for each, rack in layout.takers().items() if each != broker_id}
    choice = _Choice(layout, takers)
    return [
        choice.move(place, tuple(replica for replica in held.replicas if replica != broker_id))
        for place, held in _of(layout, broker_id)
    ]


def substitute(layout: Layout, old: int, new: int) -> list[Move]:
    """Everything of one broker goes to another one, in the same places; what that one has already, to anybody else.

    Raises:
        PenstockError: INVALID_ASSIGNMENT: the new one takes nothing; INVALID_REPLICATION: see `evacuate`.
    """
    if old == new:
        raise PenstockError(Code.INVALID_ASSIGNMENT, f"broker {old} cannot replace itself", help="name another one")
    takers = {each: rack for each, rack in layout.takers().items() if each != old}
    if new not in takers:
        raise _not_taking(layout, [new])
    choice = _Choice(layout, takers)
    moves = []
    for place, held in _of(layout, old):
        if new not in held.replicas:
            replicas = tuple(new if replica == old else replica for replica in held.replicas)
            moves.append(choice.note(place, held, replicas))
        else:
            moves.append(choice.move(place, tuple(replica for replica in held.replicas if replica != old)))
    return moves


def to_brokers(layout: Layout, places: Iterable[Place], broker_ids: Sequence[int]) -> list[Move]:
    """Partitions go to some brokers and no others; those that are there already stay.

    Raises:
        PenstockError: INVALID_ASSIGNMENT: one of them is unknown, or takes nothing and would have to;
            INVALID_REPLICATION: they are fewer than a partition has replicas.
    """
    if any(each not in layout.brokers for each in broker_ids):
        raise _not_taking(layout, broker_ids)
    takers = layout.takers()
    chosen = {each: takers[each] for each in broker_ids if each in takers}
    choice = _Choice(layout, chosen)
    moves = []
    for place in places:
        held = layout.partitions[place]
        staying = tuple(replica for replica in held.replicas if replica in broker_ids)
        if len(staying) == len(held.replicas):
            continue
        if len(set(broker_ids)) < len(held.replicas):
            raise _named_too_few(place, len(held.replicas), len(set(broker_ids)))
        if len({*staying, *chosen}) < len(held.replicas):
            raise _not_taking(layout, [each for each in broker_ids if each not in takers])
        moves.append(choice.move(place, staying))
    return moves


def replace_all(
    layout: Layout, targets: Mapping[Place, Sequence[int]], old: Mapping[Place, Sequence[int]] | None = None
) -> list[Move]:
    """Moves as somebody wrote them down; those that change nothing are left out.

    Args:
        old: who held partitions when it was written down, for those of which that is known.

    Raises:
        PenstockError: UNKNOWN_TOPIC; INVALID_ASSIGNMENT: also for a partition that others hold by now than it says.
    """
    known = old or {}
    moves = []
    for place, target in targets.items():
        name, held = f"{place[0]}-{place[1]}", layout.partitions.get(place)
        if held is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"{name} is unknown, or is being moved already")
        if not target or len(set(target)) < len(target):
            raise PenstockError(Code.INVALID_ASSIGNMENT, f"{name}: {list(target)} names no broker, or one twice")
        fresh = [replica for replica in target if replica not in held.replicas]
        if unfit := [each for each in fresh if each not in layout.takers()]:
            raise _not_taking(layout, unfit)
        if tuple(target) == held.replicas:
            continue
        if place in known and tuple(known[place]) != held.replicas:
            raise PenstockError(
                Code.INVALID_ASSIGNMENT,
                f"{name} is on {_listed(held.replicas)} by now, and was on {_listed(known[place])} when it was planned",
                help="make the plan anew",
            )
        moves.append(Move(*place, held.replicas, tuple(target), held.size_bytes))
    return moves


class _Choice:
    """Who gets what, one partition after the other; what was given before counts for the next."""

    def __init__(self, layout: Layout, takers: Mapping[int, str | None]) -> None:
        self._layout = layout
        self._takers = takers
        loads = layout.loads()
        # One more for each replica: empty partitions shall not all go to the same broker.
        self._weights = Counter({each: load.size_bytes + load.replicas for each, load in loads.items()})
        self._leaders = Counter({each: load.leaders for each, load in loads.items()})

    def move(self, place: Place, staying: tuple[int, ...]) -> Move:
        """To those that stay and as many others as are missing."""
        held = self._layout.partitions[place]
        missing = len(held.replicas) - len(staying)
        others = len(self._takers.keys() - set(staying))
        if missing > others:
            raise _too_few(place, len(held.replicas), len(staying) + others)
        racks = {**{each: self._layout.rack_of(each) for each in staying}, **self._takers}
        if staying:
            replicas = extend(staying, racks, len(held.replicas), self._weights)
        else:
            first = min(racks, key=lambda each: (self._weights[each], each))
            replicas = extend((first,), racks, len(held.replicas), self._weights)
        if held.replicas[0] not in staying:
            replicas = self._led_by_the_least_busy(replicas)
        return self.note(place, held, replicas)

    def note(self, place: Place, held: Held, replicas: tuple[int, ...]) -> Move:
        move = Move(*place, held.replicas, replicas, held.size_bytes)
        for broker_id in move.adding:
            self._weights[broker_id] += held.size_bytes + 1
        for broker_id in move.removing:
            self._weights[broker_id] -= held.size_bytes + 1
        self._leaders[held.replicas[0]] -= 1
        self._leaders[replicas[0]] += 1
        return move

    def _led_by_the_least_busy(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        willing = [each for each in replicas if each in self._takers] or list(replicas)
        first = min(willing, key=lambda each: (self._leaders[each], replicas.index(each)))
        return (first, *(each for each in replicas if each != first))


def _of(layout: Layout, broker_id: int) -> list[tuple[Place, Held]]:
    """What a broker holds, largest first: what is left for the end evens out what came before."""
    found = [(place, held) for place, held in layout.partitions.items() if broker_id in held.replicas]
    return sorted(found, key=lambda each: (-each[1].size_bytes, each[0]))


def _too_few(place: Place, needed: int, there: int) -> PenstockError:
    return PenstockError(
        Code.INVALID_REPLICATION,
        f"{place[0]}-{place[1]} has {needed} replicas, and only {there} brokers may hold it",
        help="start another broker, or uncordon one",
    )


def _named_too_few(place: Place, needed: int, named: int) -> PenstockError:
    return PenstockError(
        Code.INVALID_REPLICATION,
        f"{place[0]}-{place[1]} has {needed} replicas, and {named} brokers are named for it",
        help=f"name at least {needed}",
    )


def _not_taking(layout: Layout, broker_ids: Collection[int]) -> PenstockError:
    known = [each for each in broker_ids if each in layout.brokers]
    unknown = [each for each in broker_ids if each not in layout.brokers]
    if unknown:
        there = f"there are {_listed(sorted(layout.brokers))}"
        takers = layout.takers()
        if len(takers) < len(layout.brokers):
            there += f", of which {_listed(sorted(takers)) or 'none'} take replicas"
        return PenstockError(Code.INVALID_ASSIGNMENT, f"broker {_listed(unknown)} is unknown", help=there)
    return PenstockError(
        Code.INVALID_ASSIGNMENT,
        f"broker {_listed(known)} takes no replicas: cordoned, drained or not running",
        help="see 'penstock cluster brokers'; 'penstock cluster uncordon ID' lets it take them again",
    )


def _listed(broker_ids: Iterable[int]) -> str:
    return ", ".join(map(str, broker_ids))
