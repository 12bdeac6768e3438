"""Whether moves end as they should: when all hold a partition who shall, but for who held it before and is away.

Away is who was not there in one of the images that the controller may have decided by. Its write expects the partition
as it was last changed, so its image is at least as new as that; what has come between then and the write it need not
have heard of. Nothing hangs on that moment: enough for acknowledging are in sync, and files go when all are.
"""

from collections.abc import Callable

from penstock.engine.partition_state import PartitionState


class Moves:
    """Args:
    is_live: whether a broker is there, by the store's own word as of now.
    """

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        self._is_live = is_live
        self._moving: dict[str, PartitionState] = {}
        self._live: set[int] = set()
        self._came_at: dict[int, int] = {}
        """The revision with which each broker was there again."""

    def broker_changed(self, broker_id: int, revision: int) -> None:
        """It may have come or gone."""
        if not self._is_live(broker_id):
            self._live.discard(broker_id)
        elif broker_id not in self._live:
            self._live.add(broker_id)
            self._came_at[broker_id] = revision

    def partition_changed(self, key: str, state: PartitionState) -> str | None:
        """What is wrong about the end of a move; one that is taken back may end sooner."""
        before = self._moving.pop(key, None)
        if state.target:
            self._moving[key] = state
        elif before is not None:
            lacking = set(before.target) - set(state.isr) if set(before.target) != set(before.origin) else set()
            if not state.isr or any(each not in before.origin or self._was_there(each, before) for each in lacking):
                return f"{key[-6:]} has moved to {list(before.target)}, in sync are {list(state.isr)} of them"
        return None

    def _was_there(self, broker_id: int, since: PartitionState) -> bool:
        """All the time since a state was written."""
        return broker_id in self._live and self._came_at[broker_id] <= since.revision
