"""DescribeConfigs 1-4: every setting of topics, groups and this broker, with value, source, type and documentation.

Of another broker only what is set at run time is known here. The name "" stands for all brokers. How much a broker has
to do (see `load`) is told to who asks for it by name.

Version notes: 1 synonyms; 3 types and documentation; 4 flexible.

Not here: broker loggers. Client metrics have no settings, so theirs is an empty list.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from penstock.engine.access import Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import load
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    TYPES,
    Entry,
    broker_entries,
    changeable_entries,
    check_broker,
    default_entries,
    find_topic,
    group_entries,
    topic_entries,
    unknown_type,
)
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message, element_of, encode, schema_of

API = Api(32, "describe_configs", 1, 4, reads=True)
_MOST_RESOURCES = 5000
_AT_ONCE = 4  # some 2 ms of encoding


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    schema = element_of(schema_of(API.name, version, "response"), "results")
    results, room = [], AnswerRoom()
    asked = {(each.resource_type, each.resource_name, each.configuration_keys): each for each in request.resources}
    for at, resource in enumerate(asked.values()):
        if at % _AT_ONCE == 0:
            await context.turns.next()  # thousands of topics take seconds, for which nobody else should wait
        try:
            if at >= _MOST_RESOURCES:
                raise PenstockError(Code.LIMIT_EXCEEDED, f"ask for at most {_MOST_RESOURCES} resources at once")
            configs = [_fields(entry, request) for entry in _entries(context, caller, resource, version)]
            result = encode(schema, _result(resource, errors.NONE, None, configs))
            room.take(f"resource {resource.resource_name!r}", len(result))
        except PenstockError as error:
            result = encode(schema, _result(resource, errors.kafka_code(error), errors.describe(error), []))
        results.append(result)
    return {"throttle_time": 0, "results": results}


def _result(resource: Message, code: int, text: str | None, configs: list[Fields]) -> Fields:
    return {
        "error_code": code,
        "error_message": text,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": configs,
    }


def _entries(context: Context, caller: Caller, resource: Message, version: int) -> list[Entry]:
    name, asked = resource.resource_name, resource.configuration_keys
    found: Iterable[Entry]
    if resource.resource_type == TOPIC:
        topic = find_topic(caller, name, Operation.DESCRIBE_CONFIGS)
        found = topic_entries(context, topic, topic.partitions[0].state.width)
    elif resource.resource_type == BROKER:
        caller.acting.rights.check_cluster(Operation.DESCRIBE_CONFIGS)
        found = _broker_entries(context, name)
        if load.NAME in (asked or ()) and name == str(context.node_id) and version >= load.SINCE_VERSION:
            found = chain(found, [load.load_entry(caller.acting.topics.visible())])
    elif resource.resource_type == GROUP:
        found = group_entries(context, _group_settings(caller, name))
    elif resource.resource_type == CLIENT_METRICS:
        caller.acting.rights.check_cluster(Operation.DESCRIBE_CONFIGS)
        return []
    else:
        raise unknown_type(caller, resource, Operation.DESCRIBE_CONFIGS)
    return [entry for entry in found if not asked or entry.name in asked]


def _group_settings(caller: Caller, group_id: str) -> Mapping[str, str]:
    given = caller.acting.groups.settings(group_id)
    if not group_id:
        raise PenstockError(Code.INVALID_REQUEST, "a group without a name has no settings", help="name the group")
    return given


def _broker_entries(context: Context, name: str) -> Iterator[Entry]:
    if not name:
        return default_entries(context)
    broker_id = check_broker(context, name)
    return broker_entries(context) if broker_id == context.node_id else changeable_entries(context, broker_id)


def _fields(entry: Entry, request: Message) -> Fields:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": False,
        "synonyms": [each._asdict() for each in entry.synonyms] if request.include_synonyms else [],
        "config_type": TYPES[entry.kind],
        "documentation": entry.documentation if request.get("include_documentation") else None,
    }
