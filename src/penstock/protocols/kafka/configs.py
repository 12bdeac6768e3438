"""Settings as Kafka's admin APIs speak of them: resources, sources, types; the entries of topics, brokers and groups.

A value comes from the first place that has one: set for the topic or the group, set at run time for the broker, set so
for all brokers, the broker's file, the built-in default.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock.cluster import broker_settings
from penstock.cluster.image import CORDON
from penstock.engine.access import Operation
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.groups.group_config import GROUP_SETTINGS, GroupSetting
from penstock.engine.topic_config import SETTINGS, Setting
from penstock.engine.topic_names import check_name
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import BrokerSetting, Caller, Context
from penstock.protocols.kafka_wire.messages import Message

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32

TOPIC_SOURCE: Final = 1
DYNAMIC_BROKER_SOURCE: Final = 2
DYNAMIC_DEFAULT_SOURCE: Final = 3
BROKER_SOURCE: Final = 4
DEFAULT_SOURCE: Final = 5
GROUP_SOURCE: Final = 8

TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_UNLIMITED: Final = str((1 << 63) - 1)  # what Kafka's brokers say of a rate that nobody has set


class Synonym(NamedTuple):
    """One of the places a value may come from; the first that has one wins."""

    name: str
    value: str
    source: int


class Entry(NamedTuple):
    name: str
    value: str | None
    source: int
    kind: str
    documentation: str
    synonyms: list[Synonym]
    read_only: bool = False


REFUSALS: Final = "penstock.refusals"
_REFUSALS_MEANING: Final = "Brokers that are not taken for ones of this cluster, as far as this broker knows."


class _Own(NamedTuple):
    """A setting of brokers that is no default of topics, and can be changed at run time."""

    name: str
    default: str | None
    kind: str
    documentation: str


_CHANGEABLE: Final = (
    _Own(
        CORDON,
        None,
        "string",
        "cordoned: the broker gets no new replicas; drained: it leads nothing either. Not set, it does both.",
    ),
    _Own(
        broker_settings.THROTTLE,
        _UNLIMITED,
        "long",
        "Bytes a second the broker copies of partitions that move to it.",
    ),
    *(
        _Own(name, _UNLIMITED, "long", "Accepted and kept for Kafka's tools; it has no effect.")
        for name in broker_settings.WITHOUT_EFFECT
    ),
)


def topic_entries(context: Context, topic: Topic, replicas: int) -> Iterator[Entry]:
    """Every setting of a topic, with where its value comes from.

    Not set, `min.insync.replicas` is told as it acts with so many replicas: tools compare it with those in sync.
    """
    config = topic.config
    given = config.given
    for name, setting in SETTINGS.items():
        synonyms = [Synonym(name, given[name], TOPIC_SOURCE)] if name in given else []
        brokers = _broker_synonyms(context, setting)
        if name != "min.insync.replicas":
            synonyms += brokers[-1:] if topic.name in INTERNAL_TOPICS else brokers  # see `internal_settings`
        elif not config.min_insync_is_default:
            synonyms += brokers
        else:
            synonyms = [Synonym(setting.broker_name, str(config.least_in_sync(replicas)), DEFAULT_SOURCE)]
        value, source = _acting(synonyms, setting.default)
        yield Entry(name, value, source, setting.kind, setting.documentation, synonyms)


def group_entries(context: Context, given: Mapping[str, str]) -> Iterator[Entry]:
    """Every setting of a group for which this is set, with where its value comes from."""
    of_broker = {own.name: own for own in context.broker_settings}
    for name, setting in GROUP_SETTINGS.items():
        synonyms = [Synonym(name, given[name], GROUP_SOURCE)] if name in given else []
        synonyms += _defaults_of_groups(setting, of_broker.get(setting.broker_name))
        value, source = _acting(synonyms, setting.default)
        yield Entry(name, value, source, setting.kind, setting.documentation, synonyms)


def _defaults_of_groups(setting: GroupSetting, own: BrokerSetting | None) -> list[Synonym]:
    """Where the value of a group comes from for which nothing is set."""
    built_in = Synonym(setting.broker_name or setting.name, setting.default, DEFAULT_SOURCE)
    return [built_in] if own is None or own.is_default else [Synonym(own.name, own.value, BROKER_SOURCE), built_in]


def broker_entries(context: Context) -> Iterator[Entry]:
    """The broker's own settings, then what can be changed at run time, its defaults for topics last."""
    for own in context.broker_settings:
        source = DEFAULT_SOURCE if own.is_default else BROKER_SOURCE
        synonyms = [Synonym(own.name, own.value, source)]
        yield Entry(own.name, own.value, source, own.kind, own.documentation, synonyms, read_only=True)
    if context.image is not None:
        told = "; ".join(context.refusals()) or None
        yield Entry(REFUSALS, told, DEFAULT_SOURCE, "string", _REFUSALS_MEANING, [], read_only=True)
        yield from changeable_entries(context, context.node_id)
    for setting in SETTINGS.values():
        if setting.broker_name:
            synonyms = _broker_synonyms(context, setting)
            value, source = _acting(synonyms, setting.default)
            read_only = context.image is None
            yield Entry(
                setting.broker_name, value, source, setting.kind, setting.documentation, synonyms, read_only=read_only
            )


def default_entries(context: Context) -> Iterator[Entry]:
    """What is set at run time for all brokers, and nothing else, as Kafka does."""
    if context.image is None:
        return
    kinds = {own.name: (own.kind, own.documentation) for own in _CHANGEABLE}
    kinds |= {setting.broker_name: (setting.kind, setting.documentation) for setting in SETTINGS.values()}
    for name, value in sorted(context.image.configs.get(None, {}).items()):
        kind, documentation = kinds[name]
        synonyms = [Synonym(name, value, DYNAMIC_DEFAULT_SOURCE)]
        yield Entry(name, value, DYNAMIC_DEFAULT_SOURCE, kind, documentation, synonyms)


def changeable_entries(context: Context, broker_id: int) -> Iterator[Entry]:
    """What can be changed of a broker while it runs, and every broker of the cluster knows of it, there or not."""
    for own in _CHANGEABLE:
        synonyms = _set_at_run_time(context, broker_id, own.name)
        if own.default is not None:
            synonyms.append(Synonym(own.name, own.default, DEFAULT_SOURCE))
        value, source = _acting(synonyms, own.default)
        yield Entry(own.name, value, source, own.kind, own.documentation, synonyms)


def _acting(synonyms: Iterable[Synonym], default: str | None) -> tuple[str | None, int]:
    """The value that counts and where it comes from."""
    return next(((first.value, first.source) for first in synonyms), (default, DEFAULT_SOURCE))


def _set_at_run_time(context: Context, broker_id: int, name: str) -> list[Synonym]:
    if context.image is None:
        return []
    places = ((broker_id, DYNAMIC_BROKER_SOURCE), (None, DYNAMIC_DEFAULT_SOURCE))
    configs = context.image.configs
    return [Synonym(name, configs[place][name], source) for place, source in places if name in configs.get(place, {})]


def _broker_synonyms(context: Context, setting: Setting) -> list[Synonym]:
    """Where a topic's default may come from; some settings have none but the built-in one, under no name."""
    name = setting.broker_name
    if not name:
        return []
    in_file = context.topic_defaults if context.file_defaults is None else context.file_defaults
    synonyms = _set_at_run_time(context, context.node_id, name)
    if setting.name in in_file:
        synonyms.append(Synonym(name, in_file[setting.name], BROKER_SOURCE))
    return [*synonyms, Synonym(name, setting.default, DEFAULT_SOURCE)]


def find_topic(caller: Caller, name: str, operation: Operation) -> Topic:
    """Raises PenstockError NOT_AUTHORISED, INVALID_TOPIC or UNKNOWN_TOPIC."""
    topic = caller.acting.topics.get(name, operation)
    if topic is None:
        check_name(name)
        raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {name!r} is unknown")
    return topic


def check_broker(context: Context, name: str) -> int:
    """Whose broker resource it is. Raises PenstockError when it names no broker of this cluster."""
    known = [context.node_id] if context.image is None else sorted({context.node_id, *context.image.members})
    found = next((broker_id for broker_id in known if str(broker_id) == name), None)
    if found is None:
        others = "" if context.image is None else f"; there are {', '.join(map(str, known))}"
        raise PenstockError(
            Code.INVALID_REQUEST, f"broker {name!r} is not here; this is broker {context.node_id}{others}"
        )
    return found


def unknown_type(caller: Caller, resource: Message, operation: Operation) -> PenstockError:
    """For a type that has no settings here. Raises NOT_AUTHORISED to who might not, if it had."""
    caller.acting.rights.check_cluster(operation)
    return PenstockError(
        Code.INVALID_REQUEST,
        f"config resource type {resource.resource_type}; "
        f"known here: {TOPIC} (topic), {BROKER} (broker), {GROUP} (group)",
    )
