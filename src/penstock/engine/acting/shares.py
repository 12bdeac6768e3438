"""Where share groups stand, as one subject may see and change it: the group comes first, then the topics."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.engine.access import Kind, NotAuthorised, Operation
from penstock.engine.queues.share_ledgers import Standing
from penstock.engine.queues.share_offsets import Spot
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts
    from penstock.engine.engine import Engine


class ActingShares:
    """All verbs raise PenstockError, first of all `NotAuthorised` for the group. Of topics it is told of each."""

    __slots__ = ("_engine", "_rights")

    def __init__(self, engine: "Engine", rights: "Verdicts") -> None:
        self._engine = engine
        self._rights = rights

    async def describe(
        self, group: str, spots: Collection[Spot] | None
    ) -> tuple[dict[Spot, Standing], dict[str, NotAuthorised]]:
        """Where a group stands, and the topics that must not be seen. Asked for all, those are left out."""
        self._rights.check(Operation.DESCRIBE, Kind.GROUP, group)
        is_all = spots is None
        asked = await self._engine.share_offsets.given(group) if spots is None else spots
        hidden = self._refused((name for name, _ in asked), Operation.DESCRIBE)
        shown = [spot for spot in asked if spot[0] not in hidden]
        found = await self._engine.share_offsets.describe(group, shown)
        return found, {} if is_all else hidden

    async def alter(self, group: str, offsets: Mapping[Spot, int]) -> dict[Spot, PenstockError | None]:
        """See `ShareOffsets.alter`."""
        self._rights.check(Operation.READ, Kind.GROUP, group)
        hidden = self._refused((name for name, _ in offsets), Operation.READ)
        allowed = {spot: offset for spot, offset in offsets.items() if spot[0] not in hidden}
        refused: dict[Spot, PenstockError | None] = {spot: hidden[spot[0]] for spot in offsets if spot[0] in hidden}
        return {**refused, **await self._engine.share_offsets.alter(group, allowed)}

    async def delete(self, group: str, names: Collection[str]) -> dict[str, PenstockError | None]:
        """See `ShareOffsets.delete`."""
        self._rights.check(Operation.DELETE, Kind.GROUP, group)
        hidden = self._refused(names, Operation.READ)
        allowed = [name for name in names if name not in hidden]
        return {**hidden, **await self._engine.share_offsets.delete(group, allowed)}

    def _refused(self, names: Iterable[str], operation: Operation) -> dict[str, NotAuthorised]:
        rights = self._rights
        asked = dict.fromkeys(names)
        return {
            name: rights.refuse(operation, Kind.TOPIC, name)
            for name in asked
            if not rights.may(operation, Kind.TOPIC, name)
        }
