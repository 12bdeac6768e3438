"""What Kafka's tools are told of a broker's settings is what the broker does."""

from dataclasses import replace

import pytest

from penstock.protocols.kafka.handlers import BrokerSetting
from penstock.server.config import Address, Cluster, Config
from penstock.server.kafka_names import describe

HERE = Address("127.0.0.1", 9092)


def told(config: Config, name: str, connections: int = 10_000) -> BrokerSetting:
    (found,) = [each for each in describe(config, {"kafka": (HERE, HERE)}, connections) if each.name == name]
    return found


@pytest.mark.parametrize(
    ("cluster", "value", "is_default"),
    [
        (Cluster(), "1", True),
        (Cluster(replication=2), "1", True),
        (Cluster(store="embedded"), "3", True),
        (Cluster(store="embedded", replication=2), "2", False),
    ],
)
def test_replicas_of_a_new_topic(cluster: Cluster, value: str, is_default: bool) -> None:
    found = told(replace(Config(), cluster=cluster), "default.replication.factor")
    assert (found.value, found.is_default) == (value, is_default)


def test_connections_are_as_many_as_descriptors_allow() -> None:
    assert (told(Config(), "max.connections").value, told(Config(), "max.connections").is_default) == ("10000", True)
    assert (told(Config(), "max.connections", 256).value, told(Config(), "max.connections", 256).is_default) == (
        "256",
        False,
    )


def test_every_name_is_told_once() -> None:
    names = [each.name for each in describe(Config(), {"kafka": (HERE, HERE)}, 10_000)]
    assert len(set(names)) == len(names)
