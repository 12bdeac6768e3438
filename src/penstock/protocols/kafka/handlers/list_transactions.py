"""ListTransactions 0-2: transactional ids by state, producer, duration (1+) and a regular expression (2+)."""

from penstock.engine.coordination.expressions import Expression
from penstock.engine.transactions.transaction import STATE_NAMES
from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(66, "list_transactions", 0, 2, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    code, found = errors.NONE, []
    pattern = request.get("transactional_id_pattern")
    try:
        if pattern:
            Expression(pattern)  # a bad one is refused also while there is nothing to hold it against
        found = await caller.acting.transactions.list(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            request.get("duration_filter", -1),
            pattern,
        )
    except PenstockError as error:
        code = errors.kafka_code(error)
    answer = LongAnswer(context, API, version, "transaction_states")
    return {
        "throttle_time": 0,
        "error_code": code,
        "unknown_state_filters": [name for name in dict.fromkeys(request.state_filters) if name not in STATE_NAMES],
        "transaction_states": [
            await answer.row(
                {
                    "transactional_id": listing.transactional_id,
                    "producer_id": listing.producer_id,
                    "transaction_state": listing.state,
                }
            )
            for listing in found
        ],
    }
