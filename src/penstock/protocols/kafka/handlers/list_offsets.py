"""ListOffsets 1-11: offsets by time and by name.

Specials: -1 latest (last stable offset when read_committed), -2 earliest, -3 largest timestamp (7+), -4
earliest local (8+), -5 latest tiered (9+), -6 earliest pending upload (11+). Without a tier, -4 is the earliest
and -5 and -6 find nothing. By time: the first record at or after it; none is offset -1.
"""

from penstock.engine.access import Operation
from penstock.engine.partition import Partition
from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(2, "list_offsets", 1, 11, reads=True)
LATEST, EARLIEST, LARGEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_OLDEST_VERSION = {LARGEST_TIME: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    committed = request.get("isolation_level", 0) == 1
    topics, answer = [], LongAnswer(context, API, version, "topics", "partitions")
    for topic in request.topics:
        partitions = [
            await answer.row(await _answer(caller, topic.name, wanted, committed, version))
            for wanted in topic.partitions
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


async def _answer(caller: Caller, topic: str, wanted: Message, committed: bool, version: int) -> Fields:
    index = wanted.partition_index
    try:
        partition = caller.acting.topics.partition(topic, index, Operation.DESCRIBE)
        partition.check_epoch(wanted.get("current_leader_epoch", -1))
        offset, timestamp, epoch = await _find(caller, partition, wanted.timestamp, committed, version)
    except PenstockError as error:
        return _fields(index, errors.kafka_code(error), -1, -1, -1)
    except OSError:  # retention may have been quicker; the client asks again
        return _fields(index, errors.KAFKA_STORAGE_ERROR, -1, -1, -1)
    except UnsupportedSpecialError:
        return _fields(index, errors.UNSUPPORTED_VERSION, -1, -1, -1)
    return _fields(index, errors.NONE, offset, timestamp, epoch)


class UnsupportedSpecialError(Exception):
    """A special timestamp this version does not have."""


async def _find(
    caller: Caller, partition: Partition, timestamp: int, committed: bool, version: int
) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch), each -1 where there is none."""
    log_start = partition.log_start
    is_settled = partition.is_settled  # as a search finds it: what is committed meanwhile is not searched
    if timestamp == LATEST:
        if not is_settled:
            raise partition.not_settled()
        return partition.stable_offset if committed else partition.high_watermark, -1, partition.leader_epoch
    if timestamp < 0 and timestamp != EARLIEST:
        if timestamp not in _OLDEST_VERSION or version < _OLDEST_VERSION[timestamp]:
            raise UnsupportedSpecialError
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
            return -1, -1, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log_start, -1, partition.epoch_at(log_start)
    if timestamp == LARGEST_TIME:
        if not is_settled:
            raise partition.not_settled()
        found = await caller.acting.topics.find_largest_time(partition)
    else:
        found = await caller.acting.topics.find_offset_by_time(partition, timestamp, committed=committed)
    if found is None and not is_settled:
        raise partition.not_settled()
    return (found.offset, found.timestamp, found.leader_epoch) if found else (-1, -1, -1)


def _fields(index: int, code: int, offset: int, timestamp: int, epoch: int) -> Fields:
    return {
        "partition_index": index,
        "error_code": code,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": epoch,
    }
