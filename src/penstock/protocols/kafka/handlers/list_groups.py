"""ListGroups 0-5: the groups of this broker.

Version notes: 4+ may ask for some states only, 5+ for some types ("classic", "consumer", "share").
"""

from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(16, "list_groups", 0, 5, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    states = frozenset(request.get("states_filter", ()))
    types = frozenset(request.get("types_filter", ()))
    code, listed = errors.NONE, []
    try:
        listed = await caller.acting.groups.list(states, types)
    except PenstockError as error:
        code = errors.kafka_code(error)
    answer = LongAnswer(context, API, version, "groups")
    groups = [
        await answer.row(
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
        )
        for group in listed
    ]
    return {"throttle_time": 0, "error_code": code, "groups": groups}
