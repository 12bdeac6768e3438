"""Sealed segments for a follower that is far behind: the verb behind `copy_segment` between brokers.

What is given lies wholly below the high watermark, so it is never taken back. Asking for it says nothing of what the
follower has: only its fetches count.
"""

from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.reading import Slice
from penstock.errors import Code, PenstockError
from penstock.storage.log.card import BLOCK_BYTES
from penstock.storage.log.segment_range import find_segment, keep_open, read_range

__all__ = ["BLOCK_BYTES", "SegmentPart", "check_follower", "read_segment"]


class SegmentPart(NamedTuple):
    """A range of a segment. Without `data` the one asked for is not there, and `base` says where the next begins."""

    base: int
    """-1 if there is none."""
    next_offset: int = -1
    size_bytes: int = -1
    card: bytes = b""
    """Encoded; with the first range only."""
    data: Slice | None = None


def check_follower(partition: Partition, broker_id: int, incarnation: int, leader_epoch: int) -> None:
    """Whether this broker leads in the very epoch the follower names, and it is one. Raises PenstockError."""
    partition.check_replica_epoch(leader_epoch)
    follower = partition.leadership.follower(broker_id)
    if follower is None or incarnation < follower.incarnation:
        raise PenstockError(Code.NOT_ALLOWED, f"broker {broker_id} has no replica of {partition.name}")


async def read_segment(
    partition: Partition, offset: int, position: int, max_bytes: int, least_bytes: int
) -> SegmentPart:
    """A range of the sealed segment that begins at `offset`, in memory and ready to be sent.

    Args:
        least_bytes: how much there has to be from there on, to be worth it.

    Raises:
        PenstockError: NOT_LEADER, CORRUPT_LOG.
        FileNotFoundError: retention was quicker.
    """
    log = partition.leading()
    segment = find_segment(log, offset, partition.high_watermark, least_bytes if position == 0 else 0)
    if segment is None or segment.base != offset:
        return SegmentPart(-1 if segment is None else segment.base)
    found = await log.shelf.disk.run(read_range, log, segment, position, max_bytes)
    keep_open(log, segment, found.data.file)
    return SegmentPart(segment.base, segment.next_offset, segment.size, found.card, found.data)
