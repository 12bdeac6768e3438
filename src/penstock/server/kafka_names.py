"""The broker's own settings under the names Kafka's tools know, for DescribeConfigs."""

from penstock.protocols.kafka.handlers import BrokerSetting
from penstock.server.config import Address, Config


def describe(config: Config, kafka: Address, advertised: Address) -> list[BrokerSetting]:
    """What this broker runs with; `kafka` is the address it has bound, `advertised` the one clients are told."""
    default = Config()
    rows: list[tuple[str, object, object, str, str]] = [
        ("advertised.listeners", _listener(advertised), _listener(kafka), "list", "The address clients are told."),
        (
            "auto.create.topics.enable",
            config.topics.auto_create,
            default.topics.auto_create,
            "boolean",
            "Whether a topic is created when a client first asks for it.",
        ),
        ("broker.id", config.node.id, default.node.id, "int", "This broker's id."),
        ("default.replication.factor", 1, 1, "int", "Replicas of a new topic."),
        ("delete.topic.enable", True, True, "boolean", "Whether topics can be deleted."),
        ("listeners", _listener(kafka), _listener(default.listeners.kafka), "list", "Where Kafka clients connect."),
        ("log.dirs", config.data_dir.absolute(), default.data_dir.absolute(), "string", "Where records are kept."),
        (
            "log.retention.check.interval.ms",
            config.storage.upkeep_ms,
            default.storage.upkeep_ms,
            "long",
            "How often logs are looked at for retention.",
        ),
        (
            "max.connections",
            config.limits.max_connections,
            default.limits.max_connections,
            "int",
            "Client connections held at once.",
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
            "socket.request.max.bytes",
            config.limits.max_request_bytes,
            default.limits.max_request_bytes,
            "int",
            "The largest request a client may send.",
        ),
    ]
    return [
        BrokerSetting(name, _format(value), kind, value == standard, documentation)
        for name, value, standard, kind, documentation in rows
    ]


def _listener(address: Address) -> str:
    return f"PLAINTEXT://{address}"


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
