"""DescribeTopicPartitions 0: topics with their partitions, a page at a time (KIP-966).

Topics come in the order of their names. A page holds at most as many partitions as the client or we allow; the cursor
names the partition the next page begins with.
"""

from penstock.engine.access import Operation
from penstock.engine.topic_names import check_name
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import authorized_operations
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.topic_fields import describe_topic
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(75, "describe_topic_partitions", 0, 0, reads=True)
_LARGEST_PAGE = 2000
_NOT_ASKED_FOR = authorized_operations.NOT_ASKED_FOR


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    cursor = request.cursor
    first_name, first_index = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    asked = {topic.name for topic in request.topics} or {topic.name for topic in caller.acting.topics.visible()}
    if first_index < 0 or (first_name and request.topics and first_name not in asked):
        refused = [_missing(name, errors.INVALID_REQUEST) for name in sorted(asked)]
        return {"throttle_time": 0, "topics": refused, "next_cursor": None}
    room = min(max(request.response_partition_limit, 1), _LARGEST_PAGE)
    topics: list[Fields] = []
    answer = LongAnswer(context, API, version, "topics", "partitions")
    next_cursor = None
    for name in sorted(name for name in asked if name >= first_name):
        begin = first_index if name == first_name else 0
        try:
            topic = caller.acting.topics.get(name, Operation.DESCRIBE)
        except PenstockError as error:
            topics.append(_missing(name, errors.kafka_code(error)))
            continue
        if topic is None:
            missing = _missing(name, _why_missing(name))
            topics.append({**missing, "topic_authorized_operations": authorized_operations.of_topic(caller, name)})
            continue
        if room == 0:
            next_cursor = {"topic_name": name, "partition_index": begin}
            break
        end = min(len(topic.partitions), begin + room)
        operations = authorized_operations.of_topic(caller, name)
        topics.append(await describe_topic(context, topic, topic.partitions[begin:end], operations, answer))
        room -= max(end - begin, 0)
        if end < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": end}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": next_cursor}


def _why_missing(name: str) -> int:
    try:
        check_name(name)
    except PenstockError as error:
        return errors.kafka_code(error)
    return errors.KAFKA_CODES[Code.UNKNOWN_TOPIC]


def _missing(name: str, code: int) -> Fields:
    return {"error_code": code, "name": name, "partitions": [], "topic_authorized_operations": _NOT_ASKED_FOR}
