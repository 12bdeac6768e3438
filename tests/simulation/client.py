"""A client's way to the brokers: whom to ask, by metadata that may be old, and what an answer means."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.errors import PenstockError
from penstock.ports.metadata import MetadataUnavailable
from tests.simulation.cluster import Line, SimulatedBroker

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
ANSWER_S = 2.0
UNANSWERED = (TimeoutError, ConnectionError, MetadataUnavailable)
"""What was asked may have been done, or not, or may yet be."""


class Leader(NamedTuple):
    node_id: int
    epoch: int


class Client:
    """One client. What it asks of one broker arrives there in order.

    Attributes:
        now_ms: its own clock, which never jumps.
    """

    def __init__(self, world: "World", random: Random) -> None:
        self.world = world
        self.random = random
        self._lines: dict[int, Line] = {}
        self._leaders: dict[tuple[str, int], Leader] = {}

    @property
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.world.loop.time() * 1000)

    async def ask(
        self, node_id: int, work: Callable[[SimulatedBroker], Awaitable[T]], timeout_s: float = ANSWER_S
    ) -> T:
        """See `SimulatedCluster.call`."""
        line = self._lines.setdefault(node_id, Line())
        return await self.world.cluster.call(node_id, work, timeout_s, line)

    async def ask_any(self, work: Callable[[SimulatedBroker], Awaitable[T]], timeout_s: float = ANSWER_S) -> T:
        return await self.ask(self.random.choice(self.world.cluster.ids), work, timeout_s)

    async def leader_of(self, topic: str, index: int) -> Leader | None:
        """Who leads, by what one broker told, now or earlier; None if there is no answer or nobody does."""
        known = self._leaders.get((topic, index))
        if known is None:
            try:
                known = await self.ask_any(lambda broker: _leader(broker, topic, index), 1.0)
            except (*UNANSWERED, PenstockError):
                return None
            if known.node_id not in self.world.cluster.ids:
                return None
            self._leaders[topic, index] = known
        return known

    def forget_leader(self, topic: str, index: int) -> None:
        """It was not that one, or it does not answer."""
        self._leaders.pop((topic, index), None)


async def _leader(broker: SimulatedBroker, topic: str, index: int) -> Leader:
    state = broker.engine.topics.partition(topic, index).state
    return Leader(state.leader, state.leader_epoch)
