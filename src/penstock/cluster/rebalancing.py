"""Plans that make brokers more alike, by the bytes they hold, how full their disks are, what they lead, or their CPU.

Bytes and disks: one replica after the other goes from a fuller broker to an emptier one, where the emptier one stays
below what the fuller one had. So no step makes the fullest broker fuller, and every step brings the end nearer. It
ends when all are within a tenth of what would be even, or nothing more can be gained. A move never brings replicas into
fewer racks, and followers go rather than preferred leaders.

Leaders: the order of replicas changes, which copies nothing. Where two brokers share no partition, others pass the
leadership on between them.

CPU: as with leaders nothing is copied. A partition is led by another replica where that one stays below what the
leader had.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from typing import Final, Literal, NamedTuple

from penstock.cluster.plans import Layout, Move, Place

By = Literal["bytes", "leaders", "disk", "cpu"]
KINDS: Final[tuple[By, ...]] = ("bytes", "leaders", "disk", "cpu")
COPIES_NOTHING: Final = frozenset({"leaders", "cpu"})
_TOLERANCE: Final = Fraction(1, 10)
_MOST_STEPS: Final = 10_000
_NOISE_CPU: Final = 0.02  # of a core: two idle brokers differ by so much


def balance(layout: Layout, by: By = "bytes") -> list[Move]:
    """Moves after which brokers are more alike; none if they are alike enough."""
    if by == "cpu":
        after = _even_cpu(layout)
    else:
        after = _even_leaders(layout) if by == "leaders" else _Levels(layout, by).run()
    return [
        Move(*place, held.replicas, after[place], held.size_bytes)
        for place, held in sorted(layout.partitions.items())
        if after[place] != held.replicas
    ]


def levels(layout: Layout, by: By) -> dict[int, float]:
    """How much each broker that takes replicas has of what is balanced: bytes, leaders, a share of its disk, cores."""
    loads = layout.loads()
    if by == "cpu":
        return {each: loads[each].cpu for each in sorted(layout.takers())}
    if by == "leaders":
        return {each: float(loads[each].leaders) for each in sorted(layout.takers())}
    measured = _Levels(layout, by)
    return {each: float(measured.level(each)) for each in sorted(measured.brokers)}


class _Step(NamedTuple):
    place: Place
    source: int
    target: int


class _Levels:
    """How full brokers are, while replicas are handed round."""

    def __init__(self, layout: Layout, by: By) -> None:
        self._layout = layout
        self._replicas = {place: held.replicas for place, held in layout.partitions.items()}
        known = [each for each in layout.takers() if by == "bytes" or layout.brokers[each].disk_bytes]
        self.brokers = known
        loads = layout.loads()
        if by == "bytes":
            self._used = {each: loads[each].size_bytes for each in known}
        else:
            self._used = {each: layout.brokers[each].used_bytes for each in known}
        self._room = {each: 1 if by == "bytes" else layout.brokers[each].disk_bytes for each in known}
        self._held: dict[int, set[Place]] = {each: set() for each in known}
        for place, replicas in self._replicas.items():
            for replica in replicas:
                if replica in self._held:
                    self._held[replica].add(place)

    def level(self, broker_id: int) -> Fraction:
        return Fraction(self._used[broker_id], self._room[broker_id])

    def run(self) -> dict[Place, tuple[int, ...]]:
        if sum(self._room.values()):
            mean = Fraction(sum(self._used.values()), sum(self._room.values()))
            for _ in range(_MOST_STEPS):
                step = next(self._steps(mean), None)
                if step is None:
                    break
                self._take(step)
        return self._replicas

    def _steps(self, mean: Fraction) -> Iterator[_Step]:
        """The best of each pair of brokers that are too far apart, the fullest and the emptiest first."""
        order = sorted(self.brokers, key=lambda each: (self.level(each), each))
        for source in reversed(order):
            for target in order:
                if self.level(target) >= self.level(source):
                    break
                is_far = self.level(source) > mean * (1 + _TOLERANCE) or self.level(target) < mean * (1 - _TOLERANCE)
                step = self._best(source, target, mean) if is_far else None
                if step is not None:
                    yield step

    def _best(self, source: int, target: int, mean: Fraction) -> _Step | None:
        """What brings both as near to the mean as one replica can, and no further if that is possible."""
        wanted = min((self.level(source) - mean) * self._room[source], (mean - self.level(target)) * self._room[target])
        limit = self.level(source)

        def worth(place: Place) -> tuple[bool, int, bool, Place]:
            size = self._layout.partitions[place].size_bytes
            fits = size <= wanted
            return (not fits, -size if fits else size, self._replicas[place][0] == source, place)

        able = [
            place
            for place in self._held[source]
            if self._gains(place, target, limit) and self._keeps_racks(place, source, target)
        ]
        return _Step(min(able, key=worth), source, target) if able else None

    def _gains(self, place: Place, target: int, limit: Fraction) -> bool:
        size = self._layout.partitions[place].size_bytes
        if not size or target in self._replicas[place]:
            return False
        return Fraction(self._used[target] + size, self._room[target]) < limit

    def _keeps_racks(self, place: Place, source: int, target: int) -> bool:
        before = self._replicas[place]
        after = [target if replica == source else replica for replica in before]
        return self._racks(after) >= self._racks(before)

    def _racks(self, replicas: Sequence[int]) -> int:
        return len({self._layout.rack_of(each) or each for each in replicas})

    def _take(self, step: _Step) -> None:
        place, source, target = step
        size = self._layout.partitions[place].size_bytes
        self._replicas[place] = tuple(target if each == source else each for each in self._replicas[place])
        self._used[source] -= size
        self._used[target] += size
        self._held[source].discard(place)
        self._held[target].add(place)


def _even_leaders(layout: Layout) -> dict[Place, tuple[int, ...]]:
    """Orders of replicas with leaders spread as evenly as who holds what allows."""
    replicas = {place: held.replicas for place, held in layout.partitions.items()}
    leads = Counter(dict.fromkeys(layout.takers(), 0))
    leads.update(each[0] for each in replicas.values() if each[0] in layout.takers())
    while (chain := _chain(replicas, leads)) is not None:
        for place, heir in chain:
            leads[replicas[place][0]] -= 1
            leads[heir] += 1
            replicas[place] = (heir, *(each for each in replicas[place] if each != heir))
    return replicas


def _chain(replicas: dict[Place, tuple[int, ...]], leads: Counter[int]) -> list[tuple[Place, int]] | None:
    """Partitions and who leads them instead, so that one of the busiest leads one less and an idler one, one more."""
    led: dict[int, list[Place]] = {each: [] for each in leads}
    for place, order in sorted(replicas.items()):
        if order[0] in led:
            led[order[0]].append(place)
    for start in sorted(leads, key=lambda each: (-leads[each], each)):
        found = _way(start, led, replicas, {each for each in leads if leads[each] + 1 < leads[start]})
        if found is not None:
            return found
    return None


def _way(
    start: int,
    led: dict[int, list[Place]],
    replicas: dict[Place, tuple[int, ...]],
    idle: Collection[int],
) -> list[tuple[Place, int]] | None:
    came: dict[int, tuple[Place, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        giver = waiting.popleft()
        for place in led[giver]:
            for heir in replicas[place][1:]:
                if heir not in led or heir in came:
                    continue
                came[heir] = (place, giver)
                if heir in idle:
                    return _trace(came, heir)
                waiting.append(heir)
    return None


def _trace(came: dict[int, tuple[Place, int] | None], end: int) -> list[tuple[Place, int]]:
    chain, at = [], end
    while (step := came[at]) is not None:
        chain.append((step[0], at))
        at = step[1]
    return chain


def _even_cpu(layout: Layout) -> dict[Place, tuple[int, ...]]:
    """Orders of replicas with the work of leading spread, from busier brokers to idler ones."""
    replicas = {place: held.replicas for place, held in layout.partitions.items()}
    cpu = {each: layout.brokers[each].cpu for each in layout.takers()}
    mean = sum(cpu.values()) / max(len(cpu), 1)
    for _ in range(_MOST_STEPS):
        step = min(_relief(layout, replicas, cpu, mean), default=None)
        if step is None:
            break
        _, place, heir = step
        cost, order = layout.partitions[place].lead_cpu, replicas[place]
        cpu[order[0]] -= cost
        cpu[heir] += cost
        replicas[place] = (heir, *(each for each in order if each != heir))
    return replicas


def _relief(
    layout: Layout, replicas: dict[Place, tuple[int, ...]], cpu: dict[int, float], mean: float
) -> Iterator[tuple[tuple[float, float], Place, int]]:
    """Who could lead what instead: of the busiest broker first, and what leaves both as alike as possible."""
    for place, order in replicas.items():
        source, cost = order[0], layout.partitions[place].lead_cpu
        if cost <= 0 or source not in cpu:
            continue
        for heir in order[1:]:
            if heir not in cpu or cpu[heir] + cost >= cpu[source] or cpu[source] - cpu[heir] < _NOISE_CPU:
                continue
            if cpu[source] > mean * (1 + _TOLERANCE) or cpu[heir] < mean * (1 - _TOLERANCE):
                yield (-cpu[source], max(cpu[source] - cost, cpu[heir] + cost)), place, heir
