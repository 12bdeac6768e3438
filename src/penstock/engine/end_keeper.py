"""Keeps the durable ends of all logs in the metadata's directory, a few seconds behind, so that an old copy is known.

For a broker on its own. In a cluster logs are taken back by their leaders, and epochs and the in-sync set tell an old
copy from the present one.
"""

import asyncio
from math import inf
from uuid import UUID

from penstock.engine.partition import Partition
from penstock.engine.topics import Topics
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk, is_shortage
from penstock.storage.checked_file import DamagedFile
from penstock.storage.kept_ends import end_of, load_ends, save_ends
from penstock.storage.log.commit import Committer

log_ = get_logger("engine")
_LOOKS = 10
"""So often it looks whether anything has changed, within the time it may be behind."""


class EndKeeper:
    """Does nothing before `load`, so that a broker in a cluster may have one.

    Args:
        directory: where the file is.
        behind_s: what is kept is this much behind what is durable, at most; after a roll, a tenth of it.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        stats: Stats,
        committer: Committer,
        topics: Topics,
        directory: str,
        behind_s: float,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._stats = stats
        self._committer = committer
        self._topics = topics
        self._directory = directory
        self._behind_s = behind_s
        self._kept: dict[UUID, list[int]] = {}
        self._rounds = -1
        """Sync rounds up to the last save: without a further one nothing more is durable."""
        self._rolled = 0
        self._saved_at = -inf
        self._writing = asyncio.Lock()
        self._loaded = False

    async def load(self) -> None:
        """Read what was kept. A damaged file is said and replaced: it guards records, and holds none."""
        try:
            self._kept = await self._disk.run(load_ends, self._disk, self._directory)
        except DamagedFile as error:
            log_.error(
                "the kept ends of logs are damaged; this start cannot tell whether a log is an old copy",
                error=str(error),
                help="the file is written anew; look after the disk, and at partitions that were put back by hand",
            )
        self._loaded = True

    def end_of(self, partition: Partition) -> int:
        """The log of a partition was durable up to here, at least."""
        return end_of(self._kept, partition.topic_id, partition.index)

    async def run(self) -> None:
        """Keep saving, until cancelled; after all logs were opened. Raises OSError unless space ran out."""
        look_s = self._behind_s / _LOOKS
        while True:
            late = self._clock.monotonic() - self._saved_at > self._behind_s - 2 * look_s
            if self._committer.rounds != self._rounds and (late or self._stats.segments_rolled != self._rolled):
                await self._save()
            await asyncio.sleep(look_s)

    async def close(self) -> None:
        """Save a last time; everything is durable, and nothing is appended any more."""
        if self._loaded:
            await self._save()

    async def _save(self) -> None:
        async with self._writing:
            rounds, rolled, now = self._committer.rounds, self._stats.segments_rolled, self._clock.monotonic()
            ends = self._ends()
            self._rolled, self._saved_at = rolled, now
            try:
                if ends != self._kept:
                    await self._disk.run(save_ends, self._disk, self._directory, ends)
            except OSError as error:
                if not is_shortage(error):
                    raise
                log_.warning("cannot note where logs end", directory=self._directory, error=str(error))
                return
            self._kept, self._rounds = ends, rounds

    def _ends(self) -> dict[UUID, list[int]]:
        """Of every partition there is; of one that is offline, what was kept before."""
        return {
            topic.topic_id: [
                partition.log.durable_end if partition.log is not None else self.end_of(partition)
                for partition in topic.partitions
            ]
            for data in self._topics
            for topic in data.with_attached
        }
