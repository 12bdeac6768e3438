"""What is true of a broker's part in its cluster at a scrape, in one pass over the partitions it knows of."""

from dataclasses import asdict, dataclass

from penstock.cluster.broker_settings import THROTTLE
from penstock.cluster.node import ClusterNode
from penstock.engine.engine import Engine
from penstock.engine.leadership import UNKNOWN
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY

_BEHIND_S = 2.0
"""From here on a follower counts as lagging; one that has everything asks again within half a second."""


@dataclass(slots=True)
class _Tally:
    """What adds up over partitions; the names are those of `observe.meanings`."""

    leaders: int = 0
    not_preferred: int = 0
    replicas: int = 0
    under_replicated: int = 0
    at_min_isr: int = 0
    under_min_isr: int = 0
    leaderless: int = 0
    elr_members: int = 0
    last_members: int = 0
    lag_records: int = 0
    lag_s: float = 0.0
    lagging: int = 0
    moving: int = 0
    moving_here: int = 0
    damaged: int = 0

    def add(self, partition: Partition, node_id: int, now: float) -> None:
        state = partition.state
        self.leaderless += state.leader == NOBODY
        self.elr_members += len(state.elr)
        self.last_members += len(state.last)
        self.replicas += partition.log is not None
        self.damaged += partition.is_damaged
        if state.target:
            self.moving += 1
            self.moving_here += partition.is_moving_here
        if partition.led is not None:
            self.leaders += 1
            self.not_preferred += state.replicas[0] != node_id
            self.under_min_isr += not partition.leadership.enough
            if len(state.replicas) > 1:
                self._add_followers(partition, node_id, now)

    def _add_followers(self, partition: Partition, node_id: int, now: float) -> None:
        state, leadership, log = partition.state, partition.leadership, partition.opened()
        expected = state.origin or state.replicas  # who is only being added by a move is missed by nobody
        self.under_replicated += any(replica not in state.isr for replica in expected)
        least = partition.config.least_in_sync(state.width)
        self.at_min_isr += len(state.isr) == least < state.width and leadership.enough
        for replica in {*expected, *state.isr}:
            follower = leadership.follower(replica) if replica != node_id else None
            if follower is None:
                continue
            has = follower.end if follower.end != UNKNOWN else log.log_start
            self.lag_records = max(self.lag_records, log.end_offset - has)
            behind_s = now - follower.caught_up_at
            self.lag_s = max(self.lag_s, behind_s)
            self.lagging += behind_s > _BEHIND_S


def cluster_gauges(engine: Engine, node: ClusterNode, lease_ttl_s: float) -> dict[str, float]:
    """By the names of `observe.meanings`: what this broker knows of itself and of the cluster."""
    me, image, now = engine.node_id, node.image, engine.clock.monotonic()
    tally = _Tally()
    for topic in engine.topics:
        for partition in topic.partitions:
            tally.add(partition, me, now)
    lease_s, store_age_s = node.membership.left_s(), now - node.watcher.confirmed_at
    rate = image.config(me, THROTTLE)
    return {
        **asdict(tally),
        "mending": len(node.roles.set_aside),
        "throttle_bytes": int(rate) if rate is not None else 0,
        "members": len(image.members),
        "brokers": len(image.brokers),
        "is_controller": node.controller.epoch > 0,
        "controller_epoch": image.controller.revision if image.controller is not None else 0,
        "incarnation": node.membership.incarnation,
        "admitted": image.is_live(me),
        "cordoned": me in image.cordoned(),
        "drained": me in image.drained(),
        "lease_s": lease_s,
        "lease_ttl_s": lease_ttl_s,
        "store_answers": lease_s > 0 or store_age_s < lease_ttl_s,
        "store_age_s": store_age_s,
    }
