"""DescribeLogDirs 1-5: the one data directory, its space, and the bytes each partition takes there.

Version notes: 3 top-level error; 4 total and usable bytes; 5 cordoned directories, which there are none of.
"""

from collections.abc import Iterable

from penstock.engine.access import Kind, Operation
from penstock.engine.partition import Partition
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(35, "describe_log_dirs", 1, 5, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if not caller.acting.rights.may_cluster(Operation.DESCRIBE):
        return {"throttle_time": 0, "error_code": errors.CLUSTER_AUTHORIZATION_FAILED, "results": []}
    space = await caller.acting.disk_space()
    await context.turns.next()  # all who asked may hear of the disk at the same time
    answer = LongAnswer(context, API, version, "results", "topics", "partitions")
    topics = []
    for name, partitions in _asked(caller, request):
        rows = [await answer.row(_fields(partition)) for partition in partitions if partition.is_held]
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


def _asked(caller: Caller, request: Message) -> Iterable[tuple[str, list[Partition]]]:
    if request.topics is None:
        return [(topic.name, topic.partitions) for topic in caller.acting.topics.visible()]
    asked: dict[str, dict[int, None]] = {}
    for wanted in request.topics:
        asked.setdefault(wanted.topic, {}).update(dict.fromkeys(wanted.partitions))
    found = []
    for name, indexes in asked.items():
        if not caller.acting.rights.may(Operation.DESCRIBE, Kind.TOPIC, name):
            continue  # as if it were not there, like among all
        topic = caller.acting.topics.get(name, Operation.DESCRIBE)
        if topic is not None:
            found.append((name, [topic.partitions[at] for at in indexes if 0 <= at < len(topic.partitions)]))
    return found


def _fields(partition: Partition) -> Fields:
    return {
        "partition_index": partition.index,
        "partition_size": partition.size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }
