"""WriteTxnMarkers 1-2: end a transaction in the partitions named.

This is how a coordinator reaches a partition of another broker. From anybody else it is a tool that ends a transaction
which hangs (`kafka-transactions.sh abort`): at the partition's leader it may abort one that is open there, in the epoch
the partition knows, and nothing else. Which coordinator epoch and version of transactions it names does not matter.

That takes ALTER on the cluster.
"""

from collections.abc import Awaitable, Callable

from penstock.engine.transactions.transaction import BUMPED_AT_END
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(27, "write_txn_markers", 1, 2)
Write = Callable[[Caller, Message, str, int], Awaitable[None]]


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    write = _write if caller.is_broker else _abort
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, **await _result(write, caller, marker, topic.name, index)}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


async def _result(write: Write, caller: Caller, marker: Message, topic: str, index: int) -> Fields:
    """What became of it; to a broker with the word for it (`broker_words`)."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return {"error_code": errors.INVALID_REQUEST}  # one of nobody ends nothing, and is a batch no reader expects
    try:
        await write(caller, marker, topic, index)
    except PenstockError as error:
        word = broker_words.word_of(error) if write is _write else ""
        return {"error_code": errors.kafka_code(error), "word": word}
    return {"error_code": errors.NONE}


async def _write(caller: Caller, marker: Message, topic: str, index: int) -> None:
    await caller.acting.transactions.write_marker(
        topic,
        index,
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        bumped=marker.get("transaction_version", 0) >= BUMPED_AT_END,
    )


async def _abort(caller: Caller, marker: Message, topic: str, index: int) -> None:
    if marker.transaction_result:
        raise PenstockError(Code.NOT_ALLOWED, f"a transaction in {topic}-{index} is committed by its coordinator only")
    await caller.acting.transactions.abort_open(topic, index, marker.producer_id, marker.producer_epoch)
