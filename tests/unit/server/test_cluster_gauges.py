"""Each gauge of a cluster counts what it says, out of partitions in all kinds of states."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.hand_clock import HandClock

from penstock.cluster.image import Image
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topic_config import make_config
from penstock.engine.topics import Topic, Topics
from penstock.observe.meanings import CLUSTER_GAUGES, REPLICATION_GAUGES
from penstock.ports.metadata import Change
from penstock.server.cluster_gauges import cluster_gauges

ME = 1
CONFIG = make_config({"min.insync.replicas": "2"}, {})
WHOLE = PartitionState((1, 2, 3), (1, 2, 3), ME, 7, revision=1)


class GaugedBroker:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.topic = Topic("orders", UUID(int=1), CONFIG, [])
        topics = Topics()
        topics.add(self.topic)
        self.engine: Any = SimpleNamespace(node_id=ME, clock=self.clock, topics=topics)
        self.image = Image()
        self.node: Any = SimpleNamespace(
            image=self.image,
            membership=SimpleNamespace(left_s=lambda: 3.0, incarnation=5),
            watcher=SimpleNamespace(confirmed_at=self.clock.now - 10),
            roles=SimpleNamespace(set_aside={(UUID(int=9), 0)}),
            controller=SimpleNamespace(epoch=0),
        )

    def add(self, state: PartitionState, *, end: int = 100) -> Partition:
        index = len(self.topic.partitions)
        partition = Partition("orders", UUID(int=1), index, state, CONFIG, self.clock, ME)
        if ME in state.replicas:
            log: Any = SimpleNamespace(end_offset=end, visible_end=end, log_start=10, first_unstable=-1)
            partition.log = log
        if state.leader == ME:
            partition.lead(state)
        self.topic.partitions.append(partition)
        return partition

    def gauges(self) -> dict[str, float]:
        return cluster_gauges(self.engine, self.node, 4.0)


def test_every_gauge_has_a_meaning() -> None:
    assert set(GaugedBroker().gauges()) == {meaning.field for meaning in (*REPLICATION_GAUGES, *CLUSTER_GAUGES)}


def test_a_whole_partition_counts_as_led_and_nothing_else() -> None:
    world = GaugedBroker()
    for broker_id in (2, 3):
        partition = world.topic.partitions[0] if world.topic.partitions else world.add(WHOLE)
        partition.leadership.fetched(broker_id, 100, 1, 100, world.clock.now)
    gauges = world.gauges()
    assert {name: value for name, value in gauges.items() if value} == {
        "leaders": 1,
        "replicas": 1,
        "mending": 1,
        "incarnation": 5,
        "lease_s": 3.0,
        "lease_ttl_s": 4.0,
        "store_answers": True,
        "store_age_s": 10.0,
    }


def test_replicas_in_sync_are_compared_with_what_acknowledging_needs() -> None:
    world = GaugedBroker()
    world.add(WHOLE)
    world.add(replace(WHOLE, isr=(1, 2)))
    world.add(replace(WHOLE, isr=(1,), elr=(2, 3)))
    gauges = world.gauges()
    assert (gauges["under_replicated"], gauges["at_min_isr"], gauges["under_min_isr"]) == (2, 1, 1)
    assert (gauges["elr_members"], gauges["last_members"]) == (2, 0)


def test_partitions_of_others_count_for_the_cluster() -> None:
    world = GaugedBroker()
    world.add(replace(WHOLE, leader=NOBODY, isr=(), last=(2,)))
    world.add(PartitionState((2, 3), (2, 3), 2, 1))
    world.add(PartitionState((2, 3, 4), (2, 3), 2, 1, target=(4, 3), origin=(2, 3)))
    world.add(PartitionState((1, 2, 3), (2, 3), 2, 1, target=(1, 2), origin=(2, 3)))
    gauges = world.gauges()
    assert (gauges["leaders"], gauges["replicas"], gauges["leaderless"], gauges["last_members"]) == (0, 2, 1, 1)
    assert (gauges["moving"], gauges["moving_here"]) == (2, 1)


def test_a_leader_that_is_not_the_preferred_one() -> None:
    world = GaugedBroker()
    world.add(replace(WHOLE, replicas=(2, 1, 3)))
    assert world.gauges()["not_preferred"] == 1


def test_lag_is_that_of_the_furthest_follower() -> None:
    world = GaugedBroker()
    partition = world.add(WHOLE)
    partition.leadership.fetched(2, 100, 1, 100, world.clock.now)
    world.clock.now += 5
    partition.leadership.fetched(2, 100, 1, 100, world.clock.now)
    partition.leadership.fetched(3, 60, 1, 100, world.clock.now)
    gauges = world.gauges()
    assert (gauges["lag_records"], gauges["lag_s"], gauges["lagging"]) == (40, 5.0, 1)


def test_a_follower_that_was_not_heard_of_may_lack_everything() -> None:
    world = GaugedBroker()
    world.add(WHOLE)
    assert world.gauges()["lag_records"] == 90


def test_a_replica_that_a_move_adds_is_missed_by_nobody() -> None:
    world = GaugedBroker()
    moving = PartitionState((4, 2, 1), (1, 2), ME, 7, target=(4, 2), origin=(1, 2))
    partition = world.add(moving)
    world.clock.now += 60
    partition.leadership.fetched(2, 100, 1, 100, world.clock.now)
    gauges = world.gauges()
    assert (gauges["under_replicated"], gauges["lag_records"], gauges["lag_s"], gauges["lagging"]) == (0, 0, 0, 0)


def test_a_replica_that_a_move_takes_back_is_missed_by_nobody() -> None:
    world = GaugedBroker()
    taken_back = PartitionState((1, 2, 4), (1, 2), ME, 7, target=(1, 2), origin=(1, 2))
    world.add(taken_back).leadership.fetched(2, 100, 1, 100, world.clock.now)
    assert (world.gauges()["under_replicated"], world.gauges()["lag_records"]) == (0, 0)


def test_a_replica_that_was_there_before_the_move_is_missed() -> None:
    world = GaugedBroker()
    partition = world.add(PartitionState((4, 2, 1), (1, 4), ME, 7, target=(4, 2), origin=(1, 2)))
    partition.leadership.fetched(4, 70, 1, 100, world.clock.now)
    gauges = world.gauges()
    assert gauges["under_replicated"] == 1
    assert gauges["lag_records"] == 90


def test_damage() -> None:
    world = GaugedBroker()
    world.add(WHOLE).is_damaged = True
    assert world.gauges()["damaged"] == 1


def test_settings_of_this_broker() -> None:
    world = GaugedBroker()
    drained = b'{"penstock.cordon": "drained", "follower.replication.throttled.rate": "5000"}'
    world.image.apply(
        [
            Change("members/1", b'{"incarnation": 5}', 1),
            Change("members/2", b'{"incarnation": 1}', 2),
            Change("configs/1", drained, 3),
            Change("controller", b'{"id": 2, "incarnation": 1}', 4),
        ]
    )
    gauges = world.gauges()
    assert (gauges["cordoned"], gauges["drained"], gauges["throttle_bytes"]) == (True, True, 5000)
    assert (gauges["members"], gauges["brokers"], gauges["controller_epoch"]) == (2, 0, 4)


def test_a_store_is_up_while_the_lease_holds_or_it_was_just_read() -> None:
    world = GaugedBroker()
    world.node.membership.left_s = lambda: 0.0
    assert not world.gauges()["store_answers"]
    world.node.watcher.confirmed_at = world.clock.now - 1
    assert world.gauges()["store_answers"]
