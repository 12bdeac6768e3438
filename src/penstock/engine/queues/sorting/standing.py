"""How a queue stands in a partition beyond its plain figures: lanes, what is not due yet, who waits, what is unseen."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.engine.partition import Partition
from penstock.engine.queues.group import Group
from penstock.engine.queues.sorting.picker import LaneFigures
from penstock.engine.queues.sorting.sorting import Sorting
from penstock.turns import Turns


class Standing(NamedTuple):
    """Attributes:
    lanes: from the highest to the lowest; nothing where no message says which it is of, and no rule asks.
    arrived: by lane, what has come into the partition since this broker leads it.
    not_due: messages that wait for their time, by their own word or as all of the queue do.
    held: of these, as all of the queue do.
    tenants: that have anything waiting, about.
    counted_by: what has counted that; another one has begun at 0.
    unseen: records that are committed and were not looked at yet: nobody gets them before.
    """

    lanes: Sequence[LaneFigures] = ()
    arrived: Sequence[int] = ()
    not_due: int = 0
    held: int = 0
    tenants: int = 0
    unseen: int = 0
    counted_by: object = None


async def stand(sorting: Sorting, group: Group, partition: Partition, turns: Turns) -> Standing:
    """Of a queue that was made as one. It may go on meanwhile, where there are very many tenants."""
    marks, picker = sorting.marks, group.picker
    unseen = max(partition.high_watermark - max(sorting.end, group.window.start), 0)
    arrived = () if marks is None else tuple(marks.arrived)
    if picker is None:
        return Standing(arrived=arrived, unseen=unseen, counted_by=sorting)
    lanes: Sequence[LaneFigures] = ()
    for found in picker.figures():
        if found is None:
            await turns.next()
        else:
            lanes = found
    end = partition.stable_offset
    return Standing(lanes, arrived, picker.waiting(end), picker.held(end), picker.tenants, unseen, sorting)
