"""IncrementalAlterConfigs 0-1: set, delete, append to and subtract from single settings of a topic (KIP-339)."""

from collections.abc import Mapping

from penstock.engine.topic_config import SETTINGS, split_list
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.config_changes import alter_resources
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(44, "incremental_alter_configs", 0, 1)
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


async def handle(context: Context, request: Message, version: int) -> Fields:
    return await alter_resources(
        context, request, lambda resource: lambda given: _change(given, resource, context.engine.topic_defaults)
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
            changed[name] = _combine(changed, name, operation, config.value, defaults)
        else:
            raise PenstockError(Code.INVALID_REQUEST, f"operation {operation} on setting {name}; known: 0 to 3")
    return changed


def _combine(given: Mapping[str, str], name: str, operation: int, value: str, defaults: Mapping[str, str]) -> str:
    """A list with some words more, or some less; it begins as what acts now."""
    setting = SETTINGS.get(name)
    if setting is None or setting.kind != "list":
        raise PenstockError(Code.INVALID_CONFIG, f"topic setting {name!r} is no list; set it as a whole")
    words = split_list(given.get(name, defaults.get(name, setting.default)))
    asked = split_list(value)
    if operation == _APPEND:
        words += [word for word in asked if word not in words]
    else:
        words = [word for word in words if word not in asked]
    return ",".join(words)
