"""The broker's own settings under the names Kafka's tools know, for DescribeConfigs."""

from collections.abc import Mapping

from penstock.engine.groups.group_config import broker_values
from penstock.protocols.kafka.handlers import BrokerSetting
from penstock.server.config import Address, Config


def describe(config: Config, kafka: Mapping[str, tuple[Address, Address]], connections: int) -> list[BrokerSetting]:
    """What this broker runs with.

    Args:
        kafka: of each listener for Kafka clients the address it has bound, and the one clients are told.
        connections: how many of clients it holds at once, as far as its descriptors allow what is set.
    """
    default = Config()
    bound = _format_listeners({name: each[0] for name, each in kafka.items()})
    advertised = _format_listeners({name: each[1] for name, each in kafka.items()})
    standard = _format_listeners({"kafka": default.listeners.kafka})
    in_cluster = bool(config.cluster.store)
    rows: list[tuple[str, object, object, str, str]] = [
        ("advertised.listeners", advertised, bound, "list", "The address clients are told."),
        (
            "auto.create.topics.enable",
            config.topics.auto_create,
            default.topics.auto_create,
            "boolean",
            "Whether a topic is created when a client first asks for it.",
        ),
        ("broker.id", config.node.id, default.node.id, "int", "This broker's id."),
        (
            "default.replication.factor",
            config.cluster.replication if in_cluster else 1,
            default.cluster.replication if in_cluster else 1,
            "int",
            "Replicas of a topic whose creator does not say; fewer if there are fewer brokers.",
        ),
        ("delete.topic.enable", True, True, "boolean", "Whether topics can be deleted."),
        (
            "group.consumer.heartbeat.interval.ms",
            config.groups.consumer_heartbeat_interval_ms,
            default.groups.consumer_heartbeat_interval_ms,
            "int",
            "How often members of groups with the consumer protocol report.",
        ),
        (
            "group.consumer.session.timeout.ms",
            config.groups.consumer_session_timeout_ms,
            default.groups.consumer_session_timeout_ms,
            "int",
            "A member of a group with the consumer protocol that is silent for this long counts as dead.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            config.groups.initial_rebalance_delay_ms,
            default.groups.initial_rebalance_delay_ms,
            "int",
            "How long an empty classic group waits for more members after the first has joined.",
        ),
        (
            "group.max.session.timeout.ms",
            config.groups.max_session_timeout_ms,
            default.groups.max_session_timeout_ms,
            "int",
            "The longest session time-out a member of a classic group may ask for.",
        ),
        (
            "group.max.size",
            config.groups.max_size,
            default.groups.max_size,
            "int",
            "Members one group may have.",
        ),
        (
            "group.min.session.timeout.ms",
            config.groups.min_session_timeout_ms,
            default.groups.min_session_timeout_ms,
            "int",
            "The shortest session time-out a member of a classic group may ask for.",
        ),
        ("listeners", bound, standard, "list", "Where Kafka clients connect."),
        ("log.dirs", config.data_dir.absolute(), default.data_dir.absolute(), "string", "Where records are kept."),
        (
            "log.retention.check.interval.ms",
            config.storage.upkeep_ms,
            default.storage.upkeep_ms,
            "long",
            "How often logs are checked for retention.",
        ),
        (
            "max.connections",
            connections,
            default.limits.max_connections,
            "int",
            "Client connections open at once.",
        ),
        ("node.id", config.node.id, default.node.id, "int", "This broker's id."),
        (
            "num.partitions",
            config.defaults.partitions,
            default.defaults.partitions,
            "int",
            "Partitions of a topic whose creator does not say.",
        ),
        (
            "offsets.retention.minutes",
            config.groups.offsets_retention_ms // 60_000,
            default.groups.offsets_retention_ms // 60_000,
            "int",
            "How long committed offsets are kept when their group has no members, rounded down.",
        ),
        (
            "offsets.topic.num.partitions",
            config.topics.internal_partitions,
            default.topics.internal_partitions,
            "int",
            "Partitions of the topic of committed offsets, when it is created.",
        ),
        (
            "socket.request.max.bytes",
            config.limits.max_request_bytes,
            default.limits.max_request_bytes,
            "int",
            "The largest request a client may send.",
        ),
        (
            "transaction.max.timeout.ms",
            config.transactions.max_timeout_ms,
            default.transactions.max_timeout_ms,
            "int",
            "The longest transaction time-out a producer may ask for.",
        ),
        (
            "transaction.state.log.num.partitions",
            config.topics.internal_partitions,
            default.topics.internal_partitions,
            "int",
            "Partitions of the topic of transactions, when it is created.",
        ),
        (
            "transactional.id.expiration.ms",
            config.transactions.id_expiration_ms,
            default.transactions.id_expiration_ms,
            "int",
            "A transactional id that is not used for this long is forgotten.",
        ),
    ]
    settings = [
        BrokerSetting(name, _format(value), kind, value == usual, documentation)
        for name, value, usual, kind, documentation in rows
    ]
    of_groups = [BrokerSetting(name, value, kind, True, told) for name, value, kind, told in broker_values()]
    return sorted((*settings, *of_groups))


def _format_listeners(addresses: Mapping[str, Address]) -> str:
    """As Kafka writes them: a listener that has no name of its own has that of its security protocol."""
    return ",".join(
        f"{'PLAINTEXT' if name == 'kafka' else name.upper()}://{address}" for name, address in addresses.items()
    )


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
