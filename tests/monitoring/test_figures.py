"""What brokers say of themselves is so: figures of a real cluster beside what its clients see."""

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.penstock_cluster import PenstockCluster
from tests.conformance.wire import Wire
from tests.monitoring.conftest import QUEUED, tell
from tests.monitoring.prometheus import Prometheus

_MOVED_BYTES = 200_000


def _value(prometheus: Prometheus, expression: str) -> float:
    """Of an expression that adds everything up; -1 while there is nothing."""
    found = prometheus.query(expression)
    return float(found[0]["value"][1]) if found else -1.0


def _becomes(prometheus: Prometheus, expression: str, is_right: Callable[[float], bool]) -> None:
    prometheus.until(
        lambda: is_right(_value(prometheus, expression)),
        f"{expression} is {_value(prometheus, expression)}",
    )


def test_leaders_replicas_and_controller(cluster: PenstockCluster, prometheus: Prometheus) -> None:
    cluster.wait_whole("orders")
    _becomes(
        prometheus, "sum(penstock_replication_leaders) - max(penstock_broker_partitions)", lambda value: value == 0
    )
    _becomes(prometheus, "sum(penstock_cluster_is_controller)", lambda value: value == 1)
    _becomes(prometheus, "sum(penstock_cluster_controller_terms_total)", lambda value: value >= 1)
    _becomes(
        prometheus,
        "max(abs(penstock_replication_leaderships_taken_total - penstock_replication_leaderships_lost_total"
        " - penstock_replication_leaders))",
        lambda value: value == 0,
    )
    _becomes(prometheus, "max(penstock_cluster_members)", lambda value: value == 3)
    _becomes(prometheus, "min(penstock_cluster_admitted)", lambda value: value == 1)
    _becomes(prometheus, "max(penstock_replication_leaderless)", lambda value: value == 0)
    _becomes(prometheus, "sum(penstock_replication_under_replicated)", lambda value: value == 0)
    _becomes(prometheus, "max(penstock_replication_lag_max_records)", lambda value: value == 0)
    _becomes(prometheus, "max(penstock_replication_lag_max_seconds)", lambda value: 0 <= value < 10)
    _becomes(prometheus, "min(penstock_cluster_lease_seconds)", lambda value: 0 < value <= 4)
    _becomes(prometheus, "min(penstock_cluster_store_up)", lambda value: value == 1)
    _becomes(prometheus, "min(penstock_cluster_store_age_seconds)", lambda value: 0 <= value < 60)


def test_lag_of_a_group_is_what_it_has_yet_to_read(cluster: PenstockCluster, prometheus: Prometheus) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    try:
        committed = consumer.committed([TopicPartition("orders", index) for index in range(3)], timeout=60)
        lag = sum(consumer.get_watermark_offsets(at, timeout=60)[1] - at.offset for at in committed if at.offset >= 0)
    finally:
        consumer.close()
    assert lag > 0
    _becomes(prometheus, "sum(penstock_group_lag_records)", lambda value: value == lag)
    _becomes(prometheus, "max(penstock_group_lag_max_records)", lambda value: value == lag)
    _becomes(prometheus, 'sum(penstock_group_groups{state="Empty"})', lambda value: value == 1)
    _becomes(prometheus, 'sum(penstock_group_behind{records="1"})', lambda value: value == 1)
    _becomes(prometheus, "sum(penstock_group_lag_unknown_offsets)", lambda value: value == 0)


def test_a_queue_is_told_by_its_name_and_dead_letters_raise_their_alert(
    cluster: PenstockCluster, prometheus: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = 'topic="jobs", group="jobs"'
    _becomes(prometheus, f'sum(penstock_queue_messages{{{queue}, state="ready"}})', lambda value: value == QUEUED)
    _becomes(prometheus, f"max(penstock_queue_oldest_seconds{{{queue}}})", lambda value: 0 < value < 600)
    tell(cluster, "queue", "receive", "jobs", "--max", "2", "--ack")
    capsys.readouterr()
    tell(cluster, "queue", "receive", "jobs", "--max", "1", "-o", "json")
    receipt = json.loads(capsys.readouterr().out)["receipt"]
    tell(cluster, "queue", "nack", "jobs", receipt, "--reject")
    _becomes(prometheus, f"sum(penstock_queue_messages{{{queue}}})", lambda value: value == QUEUED - 3)
    _becomes(prometheus, "sum(penstock_queue_leased_messages_total)", lambda value: value >= 3)
    _becomes(prometheus, 'sum(penstock_queue_settled_messages_total{how="acked"})', lambda value: value == 2)
    _becomes(prometheus, 'sum(penstock_queue_settled_messages_total{how="buried"})', lambda value: value == 1)
    _becomes(prometheus, 'sum(penstock_queue_dead_letters_total{reason="rejected"})', lambda value: value == 1)
    prometheus.until(lambda: "firing" in prometheus.alerts().get("PenstockDeadLetters", ()), "its alert is raised")


def test_bytes_of_a_move_are_counted_where_they_come_to(cluster: PenstockCluster, prometheus: Prometheus) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("moved", 1, replica_assignment=[[1, 2]])])["moved"].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "none"})
    producer.produce("moved", bytes(_MOVED_BYTES))
    assert producer.flush(60) == 0
    before = _value(prometheus, "sum(penstock_replication_moved_bytes_total)")
    _reassign(cluster, "moved", [1, 3])
    _becomes(
        prometheus,
        "sum(penstock_replication_moved_bytes_total)",
        lambda value: _MOVED_BYTES <= value - max(before, 0) < 2 * _MOVED_BYTES,
    )
    _becomes(prometheus, "max(penstock_replication_moving)", lambda value: value == 0)


def _reassign(cluster: PenstockCluster, topic: str, replicas: list[int]) -> None:
    with Wire(cluster.nodes[1].bootstrap) as wire:
        answer = wire.call(
            "alter_partition_reassignments",
            0,
            timeout=60_000,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}],
        )
    assert not answer.error_code.value and not answer.responses[0].partitions[0].error_code.value
