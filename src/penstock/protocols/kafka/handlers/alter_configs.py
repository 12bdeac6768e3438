"""AlterConfigs 0-2: replace all settings of a topic or group, or all that were changed of a broker while it ran.

What is not named falls back to its default.

Kafka's own tools have moved to IncrementalAlterConfigs; older clients still send this one.
"""

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.config_changes import alter_resources
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(33, "alter_configs", 0, 2)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    return await alter_resources(context, caller, request, lambda resource: lambda given: _replace(resource))


def _replace(resource: Message) -> dict[str, str]:
    for config in resource.configs:
        if config.value is None:
            raise PenstockError(Code.INVALID_REQUEST, f"setting {config.name} has no value; leave it out to unset it")
    return {config.name: config.value for config in resource.configs}
