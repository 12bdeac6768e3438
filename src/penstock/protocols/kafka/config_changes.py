"""What both ways of altering configs share: one answer per resource, nothing altered twice in one request."""

from collections import Counter
from collections.abc import Callable, Mapping

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.configs import BROKER, TOPIC, find_topic, unknown_type
from penstock.protocols.kafka.handlers import Context, Fields
from penstock.protocols.kafka.messages import Message

Alter = Callable[[Mapping[str, str]], Mapping[str, str]]


async def alter_resources(context: Context, request: Message, make_alter: Callable[[Message], Alter]) -> Fields:
    """Alter every resource of a request; `make_alter` gives the change that one of them asks for."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        code, text = errors.NONE, None
        try:
            _check(resource, named)
            topic = find_topic(context, resource.resource_name)
            await context.engine.alter_topic(topic, make_alter(resource), validate_only=request.validate_only)
        except PenstockError as error:
            code, text = errors.kafka_code(error), errors.describe(error)
        responses.append(
            {
                "error_code": code,
                "error_message": text,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"throttle_time": 0, "responses": responses}


def _check(resource: Message, named: Mapping[tuple[int, str], int]) -> None:
    """Raises PenstockError for a resource that is named twice or cannot be altered."""
    kind, name = resource.resource_type, resource.resource_name
    if named[kind, name] > 1:
        raise PenstockError(Code.INVALID_REQUEST, f"resource {name!r} is named twice in one request")
    twice = [key for key, times in Counter(config.name for config in resource.configs).items() if times > 1]
    if twice:
        raise PenstockError(Code.INVALID_REQUEST, f"setting {twice[0]} of {name!r} is named twice in one request")
    if kind == BROKER:
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"a broker reads its settings when it starts: {', '.join(config.name for config in resource.configs)}",
            help="set it in the broker's file, environment or flags and restart it, or set it for a topic",
        )
    if kind != TOPIC:
        raise unknown_type(kind)
