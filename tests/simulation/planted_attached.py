"""Bugs planted in what is attached to partitions; see `planted.py`."""

from typing import Any

from penstock.cluster.replication.in_sync import InSync
from penstock.engine.coordination.shard import Shard
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from tests.simulation.planted import Planted, _instead


def _counted_without_attached(self: InSync, partition: Partition) -> Any:
    return [(partition.leadership, partition.high_watermark)]


_use_state = Partition.use_state


def _use_state_alone(self: Partition, state: PartitionState) -> None:
    attached, self.attached = self.attached, ()
    try:
        _use_state(self, state)
    finally:
        self.attached = attached


PLANTED_ATTACHED: dict[str, Planted] = {
    "attached_not_counted": Planted(
        "a follower comes into sync, and stays there, by what it has of the data alone",
        _instead(InSync, "_counted", _counted_without_attached),
    ),
    "attached_keeps_its_in_sync_set": Planted(
        "who has come into sync or left it counts for the data alone",
        _instead(Partition, "use_state", _use_state_alone),
    ),
    "needs_nothing_while_loading": Planted(
        "retention takes a counter that is not loaded yet for one that needs nothing",
        _instead(Shard, "_ask_floor", lambda self: self._floor(self._machine) if self._machine is not None else None),
    ),
}
