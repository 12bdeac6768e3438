"""Which leaders this broker follows for what, and how it stops to lead or to follow."""

from collections.abc import Callable

from penstock.cluster.replication.following import Following
from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.storage.log.log import Log


class Standing:
    """Args:
    following: what this broker follows of another, made when first needed; None if that broker is not there now.
    """

    def __init__(self, engine: Engine, following: Callable[[int], Following | None]) -> None:
        self._engine = engine
        self._following = following
        self._followed: dict[Partition, Following] = {}

    def stand_down(self, partition: Partition, state: PartitionState) -> Log | None:
        """Neither lead nor follow; the log, if there is one."""
        for each in partition.together:
            following = self._followed.pop(each, None)
            if following is not None:
                following.remove(each)
        if partition.led is not None:
            self._engine.stats.leaderships_lost += 1
        partition.follow(state)
        return partition.log

    def is_followed(self, partition: Partition, state: PartitionState) -> bool:
        """Whether it is followed already, in the epoch of `state`."""
        return partition in self._followed and partition.leader_epoch == state.leader_epoch

    def follow(self, partition: Partition) -> None:
        """With what is attached to it; what is followed already stays as it is."""
        following = self._following(partition.state.leader)
        if following is None:
            return
        for each in partition.together:
            if each.log is not None and each.offline is None and self._followed.get(each) is not following:
                self._followed[each] = following
                following.add(each)

    def must_follow(self, partition: Partition) -> bool:
        """Whether its leader is to be followed and is not, at where it listens now; another is followed no more."""
        followed = self._followed.get(partition)
        leader = partition.state.leader
        wanted = self._following(leader) if leader != NOBODY else None
        if followed is wanted:
            return False
        for each in partition.together:
            before = self._followed.pop(each, None)
            if before is not None:
                before.remove(each)
        return wanted is not None and leader != self._engine.node_id

    def follow_nothing(self) -> None:
        for partition, following in self._followed.items():
            following.remove(partition)
        self._followed = {}
