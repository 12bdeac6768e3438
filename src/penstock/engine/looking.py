"""Look: what is in a partition of this broker's from an offset on, and the wait until there may be more.

`look` runs on the event loop and touches memory only; when bytes have to come from the disk first it finds `COLD`, and
`warm` fetches them in a thread. Doors that send file ranges of many partitions use the two as they are.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.storage.log import reading as storage_reading
from penstock.storage.log.segment import FileSlice, NotReady
from penstock.storage.log.transactions import AbortedTransaction

READY_BYTES: Final = storage_reading.READY_BYTES
Slice = FileSlice
"""Whole batches in a file, ready to be sent."""
_MOST_TRIES: Final = 8
"""How often bytes may leave memory between being fetched and being read."""


class Found(NamedTuple):
    """What a look has found: a slice, nothing, or that the disk is needed first.

    `aborted` are the aborted transactions with records in the slice, for who reads committed records only.
    """

    data: Slice | None
    aborted: Sequence[AbortedTransaction] = ()
    is_cold: bool = False


_NOTHING: Final = Found(None)
COLD: Final = Found(None, is_cold=True)


def look(
    partition: Partition,
    offset: int,
    max_bytes: int,
    *,
    committed: bool,
    at_least_one: bool,
    warmed: bool = False,
    as_replica: bool = False,
) -> Found:
    """What is there from `offset` on, without waiting.

    Args:
        committed: stop in front of the first transaction that is not decided.
        at_least_one: give a first batch larger than `max_bytes` whole.
        warmed: `warm` has been called for this look.
        as_replica: everything there is, committed or not, also what is about to be removed.

    Raises:
        PenstockError: NOT_LEADER, OFFSET_OUT_OF_RANGE, CORRUPT_LOG.
    """
    try:
        if as_replica:
            data = partition.replica_read(offset, max_bytes, at_least_one=at_least_one, warmed=warmed)
        else:
            data = partition.read(offset, max_bytes, committed=committed, at_least_one=at_least_one, warmed=warmed)
        if data is None:
            return _NOTHING
        return Found(data, partition.aborted_in(offset, data) if committed else ())
    except NotReady:
        return COLD


async def warm(partition: Partition, offset: int, max_bytes: int) -> None:
    """Fetch from the disk what a look at `offset` lacked. Raises PenstockError, OSError."""
    await storage_reading.warm(partition.leading(), offset, max_bytes)


async def look_until(partition: Partition, offset: int, max_bytes: int, *, committed: bool) -> Found:
    """The same, with what the disk is needed for; a first batch that is larger than wanted is given whole.

    Raises:
        PenstockError: as `look`; NOT_AVAILABLE.
    """
    warmed = False
    for _ in range(_MOST_TRIES):
        found = look(partition, offset, max_bytes, committed=committed, at_least_one=True, warmed=warmed)
        if not found.is_cold:
            return found
        warmed, max_bytes = True, min(max_bytes, READY_BYTES)
        await warm(partition, offset, max_bytes)
    raise PenstockError(Code.NOT_AVAILABLE, f"{partition.name} cannot be read at {offset} now; try again")


async def until_moved(partition: Partition, wait_s: float) -> None:
    """Return when a look may find something else, or another broker leads, or the time is up."""
    moved = asyncio.Event()
    partition.watch(moved.set)
    try:
        async with asyncio.timeout(wait_s):
            await moved.wait()
    except TimeoutError:
        return
    finally:
        partition.unwatch(moved.set)
