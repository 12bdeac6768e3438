"""Settings as Kafka's admin APIs speak of them: resources, sources, types, and the entries of a topic and a broker."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.engine.topic_config import SETTINGS, Setting, TopicConfig
from penstock.engine.topics import Topic, check_name
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Context

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32

TOPIC_SOURCE: Final = 1
BROKER_SOURCE: Final = 4
DEFAULT_SOURCE: Final = 5

TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


class Synonym(NamedTuple):
    """One of the places a value may come from; the first that has one wins."""

    name: str
    value: str
    source: int


class Entry(NamedTuple):
    name: str
    value: str
    source: int
    kind: str
    documentation: str
    synonyms: list[Synonym]


def topic_entries(context: Context, config: TopicConfig, replicas: int) -> Iterator[Entry]:
    """Every setting of a topic, with where its value comes from.

    Not set, `min.insync.replicas` is told as it acts with so many replicas: tools compare it with those in sync.
    """
    given = config.given
    for name, setting in SETTINGS.items():
        synonyms = [Synonym(name, given[name], TOPIC_SOURCE)] if name in given else []
        synonyms += _broker_synonyms(context, setting)
        if name == "min.insync.replicas" and config.min_insync_is_default:
            synonyms = [Synonym(setting.broker_name, str(config.least_in_sync(replicas)), DEFAULT_SOURCE)]
        yield Entry(name, synonyms[0].value, synonyms[0].source, setting.kind, setting.documentation, synonyms)


def broker_entries(context: Context) -> Iterator[Entry]:
    """The broker's own settings, then its defaults for topics, all under Kafka's names."""
    for own in context.broker_settings:
        source = DEFAULT_SOURCE if own.is_default else BROKER_SOURCE
        yield Entry(own.name, own.value, source, own.kind, own.documentation, [Synonym(own.name, own.value, source)])
    for setting in SETTINGS.values():
        synonyms = _broker_synonyms(context, setting)
        first = synonyms[0]
        yield Entry(first.name, first.value, first.source, setting.kind, setting.documentation, synonyms)


def _broker_synonyms(context: Context, setting: Setting) -> list[Synonym]:
    synonyms = [Synonym(setting.broker_name, setting.default, DEFAULT_SOURCE)]
    default = context.engine.topic_defaults.get(setting.name)
    return synonyms if default is None else [Synonym(setting.broker_name, default, BROKER_SOURCE), *synonyms]


def find_topic(context: Context, name: str) -> Topic:
    """Raises PenstockError INVALID_TOPIC or UNKNOWN_TOPIC."""
    topic = context.engine.topics.get(name)
    if topic is None:
        check_name(name)
        raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {name!r} is unknown")
    return topic


def check_broker(context: Context, name: str) -> None:
    """Raises PenstockError when a broker resource names another broker."""
    if name != str(context.node_id):
        raise PenstockError(Code.INVALID_REQUEST, f"broker {name!r} is not here; this is broker {context.node_id}")


def unknown_type(resource_type: int) -> PenstockError:
    return PenstockError(
        Code.INVALID_REQUEST, f"config resource type {resource_type}; known here: {TOPIC} (topic), {BROKER} (broker)"
    )
