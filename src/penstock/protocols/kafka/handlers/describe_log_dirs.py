"""DescribeLogDirs 1-5: the one data directory, its space, and the bytes each partition takes there.

Version notes: 3 top-level error; 4 total and usable bytes; 5 cordoned directories, which there are none of.
"""

from collections.abc import Iterable

from penstock.engine.partition import Partition
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.messages import Message

API = Api(35, "describe_log_dirs", 1, 5, reads=True)


async def handle(context: Context, request: Message, version: int) -> Fields:
    space = await context.engine.disk_space()
    await context.engine.turns.next()  # all who asked may hear of the disk at the same time
    answer = LongAnswer(context, API, version, "results", "topics", "partitions")
    topics = []
    for name, partitions in _asked(context, request):
        rows = [await answer.row(_fields(partition)) for partition in partitions if partition.log is not None]
        topics.append({"name": name, "partitions": rows})
    result = {
        "error_code": errors.NONE,
        "log_dir": space.path,
        "topics": topics,
        "total_bytes": space.total_bytes,
        "usable_bytes": space.usable_bytes,
        "is_cordoned": False,
    }
    return {"throttle_time": 0, "error_code": errors.NONE, "results": [result]}


def _asked(context: Context, request: Message) -> Iterable[tuple[str, list[Partition]]]:
    if request.topics is None:
        return [(topic.name, topic.partitions) for topic in context.engine.topics]
    asked: dict[str, dict[int, None]] = {}
    for wanted in request.topics:
        asked.setdefault(wanted.topic, {}).update(dict.fromkeys(wanted.partitions))
    found = []
    for name, indexes in asked.items():
        topic = context.engine.topics.get(name)
        if topic is not None:
            found.append((name, [topic.partitions[at] for at in indexes if 0 <= at < len(topic.partitions)]))
    return found


def _fields(partition: Partition) -> Fields:
    return {
        "partition_index": partition.index,
        "partition_size": partition.opened().size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }
