"""Reads every sealed segment again now and then, so that rot is found before somebody needs what it took.

A leader's readers would find it when they come to it; of what followers hold, nobody reads anything.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable

from crc32c import crc32c

from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.card import BLOCK_BYTES
from penstock.storage.log.log import Log
from penstock.storage.log.segment import Segment

log_ = get_logger("storage")
_STRETCH_BLOCKS = 16
_REST_S = 1.0
_FIRST = 24
"""The first round begins after this part of the time between rounds: a start has other things to read."""


class Scrubber:
    """Runs until cancelled.

    Args:
        every_s: a round begins so long after the one before.
        bytes_per_second: what it may read.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        stats: Stats,
        logs: Callable[[], Iterable[tuple[Log, int]]],
        every_s: float,
        bytes_per_second: int,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._stats = stats
        self._logs = logs
        self._every_s = every_s
        self._bytes_per_second = bytes_per_second

    async def run(self) -> None:
        await asyncio.sleep(self._every_s / _FIRST)
        while True:
            next_round = self._clock.monotonic() + self._every_s
            for log, _ in list(self._logs()):
                await self._scrub(log)
            await asyncio.sleep(max(_REST_S, next_round - self._clock.monotonic()))

    async def _scrub(self, log: Log) -> None:
        for segment in list(log.segments):
            if log.closed or log.damage is not None:
                return
            if segment.sealed and segment.size:
                await self._check(log, segment)

    async def _check(self, log: Log, segment: Segment) -> None:
        position = 0
        while position < segment.size and _is_there(log, segment):
            began = self._clock.monotonic()
            try:
                size = await self._disk.run(_check_stretch, self._disk, segment, position)
            except FileNotFoundError:
                damage = segment.damaged(0, "is missing")
            except DamagedFile as error:
                damage = segment.damaged(0, f"has no good card ({error})")
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                damage = segment.damaged(position, "cannot be read")
            except PenstockError as error:
                damage = error
            else:
                self._stats.scrubbed_bytes += size
                position += size
                await asyncio.sleep(max(0.0, size / self._bytes_per_second - (self._clock.monotonic() - began)))
                continue
            if _is_there(log, segment):  # neither retention nor compaction has taken it meanwhile
                self._stats.corrupt_blocks += 1
                log.damage = damage
                log_.error("rot found in a segment", log=log.name, error=str(damage))
            return


def _is_there(log: Log, segment: Segment) -> bool:
    return not log.closed and segment in log.segments


def _check_stretch(disk: Disk, segment: Segment, position: int) -> int:
    """Compare some blocks with the card; how many bytes. What was not in memory is not kept there. Blocking."""
    card = segment.card or segment.load_card(disk)
    file = segment.file or disk.open(segment.path)
    size = min(_STRETCH_BLOCKS * BLOCK_BYTES, card.size - position)
    was_resident = segment.is_in_memory(file, position, size)
    data = memoryview(file.read_at(size, position))
    for at in range(0, size, BLOCK_BYTES):
        if crc32c(data[at : at + BLOCK_BYTES]) != card.sums[(position + at) // BLOCK_BYTES]:
            raise segment.damaged(position + at, "does not match its checksum")
    if not was_resident:
        file.forget_cached(position, size)
    return size
