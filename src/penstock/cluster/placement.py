"""Which brokers hold a new partition.

Leaders go round all brokers, so that each leads as many as the others. Followers go first to the racks that have the
fewest replicas of the partition; then to those who have stood least often in that place behind the same leader, so that
what a broker led, when it dies, is spread over all others; then to those who have the fewest replicas of the topic.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import Code, PenstockError


def place(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication: int,
    load: Mapping[int, int],
    start: int = 0,
) -> list[tuple[int, ...]]:
    """Replicas of each new partition, the one that should lead first.

    Args:
        brokers: those that may be chosen, with their racks; one of no rack counts as a rack of its own.
        load: how many replicas each has now, which decides between equals.
        start: any number, which decides between equals of equal load: random, or how many partitions there are.

    Raises:
        PenstockError: INVALID_REPLICATION: there are not as many brokers, or the number makes no sense.
    """
    _check(replication, len(brokers))
    order = _ordered(brokers, load, start)
    leaders = [order[index % len(order)] for index in range(partitions)]
    chosen = _Chosen(order, brokers, load, Counter(leaders))
    return [chosen.complete((leader,), replication) for leader in leaders]


def extend(
    replicas: Sequence[int],
    brokers: Mapping[int, str | None],
    replication: int,
    load: Mapping[int, int],
    racks: Mapping[int, str | None] | None = None,
) -> tuple[int, ...]:
    """Replicas of a partition with others appended, up to `replication` of them or as many as there are brokers.

    Args:
        racks: of those among `replicas` that are none of `brokers`.
    """
    order = _ordered(brokers, load, 0)
    return _Chosen(order, {**(racks or {}), **brokers}, load, Counter()).complete(tuple(replicas), replication)


def _check(replication: int, brokers: int) -> None:
    if replication > brokers:
        raise PenstockError(
            Code.INVALID_REPLICATION,
            f"{replication} replicas of each partition are asked for, and {brokers} brokers are there",
            help=f"ask for {brokers} at most, or start more brokers" if brokers else "start a broker",
        )
    if replication < 1:
        raise PenstockError(
            Code.INVALID_REPLICATION, f"{replication} replicas of each partition are asked for; it needs at least 1"
        )


def _ordered(brokers: Iterable[int], load: Mapping[int, int], start: int) -> list[int]:
    """Brokers by their load; equals begin at `start`."""
    by_id = sorted(brokers)
    at = start % len(by_id) if by_id else 0
    return sorted(by_id[at:] + by_id[:at], key=lambda broker_id: load.get(broker_id, 0))


class _Chosen:
    """What has been chosen so far for one topic.

    Args:
        replicas: how many each broker has of this topic, leaders that are yet to come included.
    """

    def __init__(
        self, order: list[int], racks: Mapping[int, str | None], load: Mapping[int, int], replicas: Counter[int]
    ) -> None:
        self._order = order
        self._at = {broker_id: at for at, broker_id in enumerate(order)}
        self._racks = racks
        self._load = load
        self._replicas = replicas
        self._lines: Counter[tuple[int, int, int]] = Counter()
        """How often a broker comes at a place behind a leader."""

    def complete(self, replicas: tuple[int, ...], replication: int) -> tuple[int, ...]:
        while len(replicas) < replication:
            free = [broker_id for broker_id in self._order if broker_id not in replicas]
            if not free:
                break
            chosen = self._next(replicas, free)
            self._replicas[chosen] += 1
            self._lines[replicas[0], len(replicas), chosen] += 1
            replicas = (*replicas, chosen)
        return replicas

    def _next(self, replicas: tuple[int, ...], free: Iterable[int]) -> int:
        leader, place = replicas[0], len(replicas)
        leader_at = self._at.get(leader, 0)
        racks: Counter[str | None] = Counter(self._racks.get(replica) for replica in replicas)
        del racks[None]

        def cost(broker_id: int) -> tuple[int, ...]:
            return (
                racks[self._racks[broker_id]],
                self._lines[leader, place, broker_id],
                self._replicas[broker_id],
                self._load.get(broker_id, 0),
                (self._at[broker_id] - leader_at) % len(self._order),
            )

        return min(free, key=cost)
