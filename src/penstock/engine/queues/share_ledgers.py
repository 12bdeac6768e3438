"""What the coordinator of a share group has to say to the ledgers of its partitions, wherever they are led.

A group's coordinator knows who is in the group and what it was given; what was done there is in the ledger beside each
partition, whose leader may be another broker. An order names the partitions and the group's epoch in which it was
decided, which the coordinator has written down before it gives the order. So an order that comes late, from a broker
that coordinates no more, is refused by who has heard of a later one; and one that came twice is carried out once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from penstock.engine.partition import Partition
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.sharing import within
from penstock.engine.topics import Topics
from penstock.errors import Code, PenstockError

MOST_PLACES: Final = 1_000
"""In one order to another broker."""
UNKNOWN: Final = -1
"""Where a group stands in a partition that it has not begun, as Kafka has it."""
_AT_ONCE: Final = 50
_TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.05
_PASSING: Final = frozenset(
    {Code.NOT_LEADER, Code.NOT_COORDINATOR, Code.COORDINATOR_LOADING, Code.OFFSET_NOT_AVAILABLE}
)
"""Nothing was done, and who leads will be known soon, or ready."""


class Deed(IntEnum):
    """What is to be done."""

    LOOK = 1
    """Nothing but to tell where the group stands."""
    ALTER = 2
    """It begins anew at an offset."""
    FORGET = 3
    """It was never there."""
    EXPEL = 4
    """A member was lost, with all that it has leased."""


class Place(NamedTuple):
    """A partition; and the offset, where one is to begin."""

    topic_id: UUID
    partition: int
    offset: int = UNKNOWN


class Order(NamedTuple):
    """Attributes:
    state_epoch: the group's when that was decided.
    member: who is expelled.
    """

    deed: Deed
    group: str
    state_epoch: int
    member: str
    places: Sequence[Place]


class Standing(NamedTuple):
    """How a group stands in a partition when the order is carried out, or why it was not.

    Attributes:
        start: below it everything is settled; `UNKNOWN` for a group that is not known there.
        lag: messages that are not settled; likewise.
        was_known: of one to be forgotten.
    """

    start: int = UNKNOWN
    lag: int = UNKNOWN
    leader_epoch: int = 0
    was_known: bool = False
    error: PenstockError | None = None


class OtherLeaders(Protocol):
    async def carry_out(self, broker_id: int, order: Order) -> Sequence[Standing]:
        """As `ShareLedgers.carry_out` of another broker. Raises PenstockError, NOT_AVAILABLE if there was no answer."""
        ...


class NobodyElse:
    """A broker on its own leads all partitions."""

    async def carry_out(self, broker_id: int, order: Order) -> Sequence[Standing]:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")


class ShareLedgers:
    """Of one broker.

    Attributes:
        other_leaders: replaced by those of a cluster, before the start.
    """

    def __init__(self, queues: Queues, topics: Topics) -> None:
        self._queues = queues
        self._topics = topics
        self.other_leaders: OtherLeaders = NobodyElse()

    # --- who leads

    async def carry_out(self, order: Order) -> list[Standing]:
        """In the partitions that are led here: one standing for each, in their order."""
        found: list[Standing] = []
        places = iter(order.places)
        while some := list(islice(places, _AT_ONCE)):
            found += await asyncio.gather(*(self._carry_out_at(order, place) for place in some))
        return found

    async def _carry_out_at(self, order: Order, place: Place) -> Standing:
        try:
            partition = self._topics.partition_by_id(place.topic_id, place.partition)
            partition.leading()
            return await _DO[order.deed](self, partition, order, place)
        except PenstockError as error:
            return Standing(error=error.kept())

    async def _look(self, partition: Partition, order: Order, place: Place) -> Standing:
        if not partition.is_settled:
            raise partition.not_settled()
        is_made = self._queues.rulebook.is_known(partition.topic, order.group)
        if not is_made and not self._queues.has_ledger(partition):
            return Standing(leader_epoch=partition.leader_epoch)
        try:
            figures = await self._queues.figures(partition, order.group)
        except PenstockError as error:
            if error.code is not Code.UNKNOWN_QUEUE:
                raise
            return Standing(leader_epoch=partition.leader_epoch)
        start = max(figures.start, partition.log_start)
        lag = max(partition.high_watermark - start - figures.settled_beyond, 0)
        return Standing(start, lag, partition.leader_epoch)

    async def _alter(self, partition: Partition, order: Order, place: Place) -> Standing:
        if not partition.is_settled:
            raise partition.not_settled()
        start = within(partition, place.offset)
        await self._queues.alter_shared(partition, order.group, start, order.state_epoch)
        return Standing(start, UNKNOWN, partition.leader_epoch)

    async def _forget(self, partition: Partition, order: Order, place: Place) -> Standing:
        was_known = await self._queues.forget_shared(partition, order.group, order.state_epoch)
        return Standing(leader_epoch=partition.leader_epoch, was_known=was_known)

    async def _expel(self, partition: Partition, order: Order, place: Place) -> Standing:
        if self._queues.has_ledger(partition):
            try:
                await self._queues.leave(partition, order.group, order.member, graceful=False)
            except PenstockError as error:
                if error.code is not Code.UNKNOWN_QUEUE:
                    raise
        return Standing(leader_epoch=partition.leader_epoch)

    # --- who coordinates

    async def order(self, order: Order) -> dict[Place, Standing]:
        """Have it carried out at every leader, one after the other where somebody else leads by now.

        Nothing is raised: what could not be done is told of each place.
        """
        found: dict[Place, Standing] = {}
        left: Sequence[Place] = tuple(dict.fromkeys(order.places))
        pause_s = _FIRST_PAUSE_S
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(pause_s)
                pause_s *= 2
            by_leader: dict[int | None, list[Place]] = {}
            for place in left:
                by_leader.setdefault(self._leader(place), []).append(place)
            orders = [(leader, order._replace(places=places)) for leader, places in by_leader.items()]
            for told in await asyncio.gather(*(self._have_carried_out(leader, each) for leader, each in orders)):
                found |= told
            left = [place for place in left if (error := found[place].error) and error.code in _PASSING]
            if not left:
                break
        return found

    def _leader(self, place: Place) -> int | None:
        """None for this broker, which is also to say what is wrong with it."""
        try:
            partition = self._topics.partition_by_id(place.topic_id, place.partition)
        except PenstockError:
            return None
        return partition.state.leader if partition.is_elsewhere else None

    async def _have_carried_out(self, leader: int | None, order: Order) -> dict[Place, Standing]:
        if leader is None:
            return dict(zip(order.places, await self.carry_out(order), strict=True))
        found: dict[Place, Standing] = {}
        for first in range(0, len(order.places), MOST_PLACES):
            some = order.places[first : first + MOST_PLACES]
            try:
                standings = await self.other_leaders.carry_out(leader, order._replace(places=some))
            except PenstockError as error:
                standings = [Standing(error=error.kept())] * len(some)
            found.update(zip(some, standings, strict=True))
        return found


_Do = Callable[[ShareLedgers, Partition, Order, Place], Awaitable[Standing]]
_DO: Final[dict[Deed, _Do]] = {
    Deed.LOOK: ShareLedgers._look,
    Deed.ALTER: ShareLedgers._alter,
    Deed.FORGET: ShareLedgers._forget,
    Deed.EXPEL: ShareLedgers._expel,
}
