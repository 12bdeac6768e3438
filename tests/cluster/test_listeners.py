"""A second Kafka listener in a cluster: its clients are told the addresses of the same listener on every broker."""

import json
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.conformance.wire import Wire
from tests.peers.ports import free_port

from .penstock_cluster import PenstockCluster

_TIMEOUT_S = 60.0


def _told(bootstrap: str) -> dict[int, str]:
    """Asked by hand: a client that has heard of all brokers may ask any of them."""
    with Wire(bootstrap) as wire:
        brokers = wire.call("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=1).brokers
    return {int(broker.broker_id): f"{broker.host}:{int(broker.port)}" for broker in brokers}


def test_clients_stay_on_the_listener_they_came_to(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path) as cluster:
        outside = {}
        for node_id in (1, 2):  # the third has none: its clients are sent to the listener that all have
            outside[node_id] = f"127.0.0.1:{free_port()}"
            listener = {"name": "outside", "protocol": "kafka", "address": outside[node_id]}
            node = cluster.nodes[node_id]
            node.environment = {**node.environment, "PENSTOCK_LISTENERS": json.dumps([listener])}
        cluster.start()
        cluster.create_topic("t", 6, {})
        inside = {node_id: node.bootstrap for node_id, node in cluster.nodes.items()}
        assert _told(inside[3]) == _told(inside[1]) == inside
        assert _told(outside[1]) == _told(outside[2]) == {**outside, 3: inside[3]}
        producer = Producer({"bootstrap.servers": outside[1], "log_level": 2})
        for partition in range(6):
            producer.produce("t", b"hello", partition=partition)
        assert producer.flush(_TIMEOUT_S) == 0
        consumer = Consumer(
            {"bootstrap.servers": outside[2], "group.id": "g", "auto.offset.reset": "earliest", "log_level": 2}
        )
        consumer.subscribe(["t"])
        assert len(consumer.consume(6, _TIMEOUT_S)) == 6
        consumer.close()
