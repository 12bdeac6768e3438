"""What both ways of altering configs share: one answer per resource, nothing altered twice in one request."""

from collections import Counter
from collections.abc import Callable, Mapping

from penstock.cluster import broker_settings
from penstock.engine.access import Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.configs import BROKER, GROUP, REFUSALS, TOPIC, check_broker, find_topic, unknown_type
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.messages import Message

Alter = Callable[[Mapping[str, str]], Mapping[str, str]]


async def alter_resources(
    context: Context, caller: Caller, request: Message, make_alter: Callable[[Message], Alter]
) -> Fields:
    """Alter every resource of a request; `make_alter` gives the change that one of them asks for."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        code, text = errors.NONE, None
        try:
            _check(resource, named)
            await _alter(context, caller, resource, make_alter(resource), validate_only=request.validate_only)
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
    """Raises PenstockError for a resource or a setting that is named twice."""
    kind, name = resource.resource_type, resource.resource_name
    if named[kind, name] > 1:
        raise PenstockError(Code.INVALID_REQUEST, f"resource {name!r} is named twice in one request")
    twice = [key for key, times in Counter(config.name for config in resource.configs).items() if times > 1]
    if twice:
        raise PenstockError(Code.INVALID_REQUEST, f"setting {twice[0]} of {name!r} is named twice in one request")


async def _alter(context: Context, caller: Caller, resource: Message, alter: Alter, *, validate_only: bool) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        topic = find_topic(caller, name, Operation.ALTER_CONFIGS)
        await caller.acting.topics.alter(topic, alter, validate_only=validate_only)
    elif kind == BROKER:
        caller.acting.rights.check_cluster(Operation.ALTER_CONFIGS)
        await _alter_broker(context, resource, alter, validate_only=validate_only)
    elif kind == GROUP:
        await caller.acting.groups.alter_settings(name, alter, validate_only=validate_only)
    else:
        raise unknown_type(caller, resource, Operation.ALTER_CONFIGS)


async def _alter_broker(context: Context, resource: Message, alter: Alter, *, validate_only: bool) -> None:
    """Of one broker, there or not, or of all of them if it has no name. Any broker can be asked."""
    fixed = [config.name for config in resource.configs if config.name not in broker_settings.NAMES]
    known = {REFUSALS, *(own.name for own in context.broker_settings)}
    if strange := [name for name in fixed if name not in known]:
        raise broker_settings.unknown(strange[0])
    if context.operations is None or fixed:
        names = fixed or [config.name for config in resource.configs]
        raise PenstockError(
            Code.INVALID_REQUEST,
            f"a broker reads its settings when it starts: {', '.join(names)}",
            help="set it in the broker's file, environment or flags and restart it, or set it for a topic",
        )
    broker_id = check_broker(context, resource.resource_name) if resource.resource_name else None
    await context.operations.alter_settings(broker_id, alter, validate_only=validate_only)
