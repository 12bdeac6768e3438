"""What requests to change the cluster share: who carries them out, how long they may take, one answer per partition."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import TypeVar

from penstock.cluster.operations import Operations, Outcomes, Place
from penstock.engine.access import NotAuthorised, Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors

T = TypeVar("T")


async def in_time(context: Context, caller: Caller, timeout_ms: int, ask: Callable[[Operations], Awaitable[T]]) -> T:
    """What the cluster answers to who may alter it.

    Raises:
        PenstockError: NOT_AUTHORISED, INVALID_REQUEST on a broker of its own, TIMED_OUT.
    """
    caller.acting.rights.check_cluster(Operation.ALTER)
    if context.operations is None:
        raise alone()
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            return await ask(context.operations)
    except TimeoutError:
        raise PenstockError(
            Code.TIMED_OUT, f"not done within {timeout_ms} ms; it may or may not be", help="look, and ask again"
        ) from None


async def outcomes_in_time(
    context: Context,
    caller: Caller,
    timeout_ms: int,
    places: Iterable[Place],
    ask: Callable[[Operations], Awaitable[Outcomes]],
) -> Outcomes:
    """The same for partitions: what stops the whole is told of each, where clients look for a reason.

    Raises:
        PenstockError: NOT_AUTHORISED, which is told of the whole.
    """
    try:
        return await in_time(context, caller, timeout_ms, ask)
    except NotAuthorised:
        raise
    except PenstockError as error:
        return dict.fromkeys(places, error)


def alone() -> PenstockError:
    return PenstockError(
        Code.INVALID_REQUEST, "this broker runs alone: there is no other one to move to, elect or forget"
    )


def outcome_fields(error: PenstockError | None) -> Fields:
    """How it ended, in the fields most answers have for it."""
    if error is None:
        return {"error_code": errors.NONE, "error_message": None}
    return {"error_code": errors.kafka_code(error), "error_message": errors.describe(error)}


def by_topic(places: Iterable[Place]) -> list[tuple[str, list[Place]]]:
    """Places of the same topic together, as answers have them."""
    return [(topic, list(found)) for topic, found in groupby(sorted(places), key=lambda place: place[0])]
