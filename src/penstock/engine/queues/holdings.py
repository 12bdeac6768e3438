"""What a queue holds back: how old its oldest message is, and what stays on the disk for its sake alone."""

from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor
from penstock.storage.log.upkeep import held_back_bytes


class Holding(NamedTuple):
    """Attributes:
    oldest_ms: how long ago the oldest message was sent that is not settled; None if all are.
    held_bytes: of segments that retention would let go of.
    """

    oldest_ms: int | None
    held_bytes: int


async def find_holding(partition: Partition, start: int, now_ms: int, *, durable: bool) -> Holding:
    """Of a queue that has settled everything below `start`, in a partition that is led here. Raises PenstockError.

    Args:
        durable: whether retention spares what it has not settled.
    """
    held_bytes = held_back_bytes(partition.leading(), start, now_ms) if durable else 0
    start = max(start, partition.log_start)
    if start >= partition.stable_offset:
        return Holding(None, held_bytes)
    found = await Cursor(partition, start).records(1, 0, 1)
    return Holding(max(now_ms - found[0].timestamp, 0) if found else None, held_bytes)
