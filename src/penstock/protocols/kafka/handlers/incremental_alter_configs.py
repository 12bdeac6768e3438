"""IncrementalAlterConfigs 0-1: set, delete, append to, subtract from settings of topics, brokers, groups (KIP-339)."""

from collections.abc import Mapping
from typing import Final

from penstock.engine.topic_config import SETTINGS, Setting, split_list
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.config_changes import alter_resources
from penstock.protocols.kafka.configs import BROKER, GROUP, TOPIC
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(44, "incremental_alter_configs", 0, 1)
_BROKER_SETTINGS = {setting.broker_name: setting for setting in SETTINGS.values() if setting.broker_name}
_SETTINGS_OF: Final[Mapping[int, tuple[str, Mapping[str, Setting]]]] = {
    TOPIC: ("topic", SETTINGS),
    BROKER: ("broker", _BROKER_SETTINGS),
    GROUP: ("group", {}),  # of which none is a list
}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    return await alter_resources(
        context, caller, request, lambda resource: lambda given: _change(given, resource, context.topic_defaults)
    )


def _change(given: Mapping[str, str], resource: Message, defaults: Mapping[str, str]) -> dict[str, str]:
    changed = dict(given)
    for config in resource.configs:
        name, operation = config.name, config.config_operation
        if operation == _DELETE:
            changed.pop(name, None)  # also one that nobody knows: then it is not set
        elif config.value is None:
            raise PenstockError(Code.INVALID_REQUEST, f"setting {name} has no value; operation {_DELETE} unsets it")
        elif operation == _SET:
            changed[name] = config.value
        elif operation in (_APPEND, _SUBTRACT):
            changed[name] = _combine(changed, _list(name, resource.resource_type), config, defaults)
        else:
            raise PenstockError(Code.INVALID_REQUEST, f"operation {operation} on setting {name}; known: 0 to 3")
    return changed


def _list(name: str, kind: int) -> Setting:
    """The setting of kind list that has this name. Raises PenstockError INVALID_CONFIG."""
    owner, settings = _SETTINGS_OF.get(kind, ("", {}))
    found = settings.get(name)
    if found is None or found.kind != "list":
        raise PenstockError(Code.INVALID_CONFIG, f"{owner} setting {name!r} is no list; set it as a whole")
    return found


def _combine(given: Mapping[str, str], setting: Setting, config: Message, defaults: Mapping[str, str]) -> str:
    """A list with some words more, or some less; it begins as what acts now."""
    words = split_list(given.get(config.name, defaults.get(setting.name, setting.default)))
    asked = split_list(config.value)
    if config.config_operation == _APPEND:
        words += [word for word in asked if word not in words]
    else:
        words = [word for word in words if word not in asked]
    return ",".join(words)
