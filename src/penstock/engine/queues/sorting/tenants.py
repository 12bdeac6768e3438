"""Whose turn it is among the tenants of a lane: who has the fewest messages out, for its weight.

What a tenant has out is known when it gives back or acknowledges, so nothing has to be guessed in advance; and who has
little comes first, however much others have waiting. Among those who have equally much out it goes in turns, in shares
of their weights.
"""

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush

_SPARE = 64


class Tenants:
    """Of one group in one partition.

    Args:
        weights: by name; 1 for all others.
        names: of tenants, by their numbers; it may grow.
    """

    def __init__(self, weights: Mapping[str, float], names: list[str]) -> None:
        self._weights = weights
        self._names = names
        self.out: dict[int, int] = {}
        """Messages that are leased, by tenant."""

    def weight(self, tenant: int) -> float:
        return self._weights.get(self._names[tenant], 1.0) if self._weights else 1.0

    def load(self, tenant: int) -> float:
        return self.out.get(tenant, 0) / self.weight(tenant)

    def more(self, tenant: int, count: int) -> None:
        self.out[tenant] = self.out.get(tenant, 0) + count

    def less(self, tenant: int, count: int) -> None:
        left = self.out.get(tenant, 0) - count
        if left > 0:
            self.out[tenant] = left
        else:
            self.out.pop(tenant, None)


class TurnOf:
    """The strands of one lane in which something waits, the one whose turn it is first.

    A strand's load may have changed since it was put in: what has more is looked at again when it comes up, and what
    has less is put in once more (`lighter`).
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._waiting: dict[int, int] = {}
        """The tenant of each strand."""
        self._strands: dict[int, int] = {}
        """The strand of each tenant."""
        self._heap: list[tuple[float, float, int]] = []
        self._served: dict[int, float] = {}
        """What each tenant was given, for its weight, as if all had begun together."""
        self._clock = 0.0
        """Of whose turn it was last."""

    @property
    def strands(self) -> Collection[int]:
        return self._waiting.keys()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, strand: int, tenant: int) -> None:
        if strand not in self._waiting:
            if len(self._waiting) == 1:  # nobody has looked after who was alone
                for alone, of in self._waiting.items():
                    self._push(alone, of)
            self._waiting[strand] = tenant
            self._strands[tenant] = strand
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._clock)
            self._push(strand, tenant)

    def lighter(self, tenant: int) -> None:
        """It has fewer messages out than before, in this lane or another."""
        if len(self._waiting) > 1 and (strand := self._strands.get(tenant)) is not None:
            self._push(strand, tenant)

    def remove(self, strand: int) -> None:
        tenant = self._waiting.pop(strand, None)
        if tenant is not None:
            del self._strands[tenant]
        if not self._waiting:
            self._heap.clear()
            self._served.clear()
            self._clock = 0.0

    def first(self) -> int | None:
        """The strand whose turn it is. It has it until it `took`, or is removed."""
        heap = self._heap
        while heap:
            load, served, strand = heap[0]
            tenant = self._waiting.get(strand)
            if tenant is None:
                heappop(heap)
                continue
            now = self._tenants.load(tenant), self._served[tenant]
            if now <= (load, served):
                return strand
            heappop(heap)
            heappush(heap, (*now, strand))
        return None

    def took(self, strand: int, count: int) -> None:
        """It had its turn."""
        tenant = self._waiting.get(strand)
        if tenant is not None:
            self._clock = self._served[tenant]
            self._served[tenant] += count / self._tenants.weight(tenant)

    def _push(self, strand: int, tenant: int) -> None:
        heappush(self._heap, (self._tenants.load(tenant), self._served[tenant], strand))
        if len(self._heap) > 4 * len(self._waiting) + _SPARE:
            self._heap = [(self._tenants.load(of), self._served[of], each) for each, of in self._waiting.items()]
            heapify(self._heap)
