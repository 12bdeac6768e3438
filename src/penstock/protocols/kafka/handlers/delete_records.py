"""DeleteRecords 0-2: move partitions' log start up to an offset, or with -1 to the high watermark."""

import asyncio

from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(21, "delete_records", 0, 2)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    topics, answer = [], LongAnswer(context, API, version, "topics", "partitions")
    for topic in request.topics:
        offsets = {wanted.partition_index: wanted.offset for wanted in topic.partitions}  # the last one counts
        # All at once: each waits for a sync, which one round does for all of them.
        results = await asyncio.gather(*(_delete(caller, topic.name, *each) for each in offsets.items()))
        topics.append({"name": topic.name, "partitions": [await answer.row(result) for result in results]})
    return {"throttle_time": 0, "topics": topics}


async def _delete(caller: Caller, name: str, index: int, offset: int) -> Fields:
    code, low_watermark = errors.NONE, -1
    try:
        low_watermark = await caller.acting.topics.delete_records(name, index, offset)
    except PenstockError as error:
        code = errors.kafka_code(error)
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": code}
