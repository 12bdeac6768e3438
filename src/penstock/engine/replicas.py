"""The logs of this broker's replicas: made, opened, shortened, closed. Who leads them is decided elsewhere."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from uuid import UUID

from penstock.engine.caretaker import Caretaker
from penstock.engine.coordination.snapshot import FILE_NAME as SNAPSHOT
from penstock.engine.partition import Partition
from penstock.engine.topic_config import TopicConfig
from penstock.engine.topics import Topics
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import is_shortage
from penstock.storage.checked_file import save_all
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.adoption import IncomingSegment
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.log import Log, Shelf
from penstock.storage.log.producers import Producers
from penstock.storage.log.recovery import Recovered, recover
from penstock.storage.log.upkeep import Upkeep

log_ = get_logger("engine")
OPENED_AT_ONCE = 256
_PAUSE_S = 1.0


class Replicas:
    def __init__(self, shelf: Shelf, upkeep: Upkeep, directory: DataDirectory, topics: Topics, upkeep_ms: int) -> None:
        self._shelf = shelf
        self._upkeep = upkeep
        self._directory = directory
        self._topics = topics
        self.caretaker = Caretaker(upkeep, shelf.clock, self.open_logs, upkeep_ms)
        self._emptying = asyncio.Lock()
        self._empties_later = False
        self._copies = count(1)

    def open_logs(self) -> list[tuple[Log, int]]:
        """Every log that is open, and up to where it is settled."""
        return [
            (partition.log, partition.log.settled_end)
            for partition in self._topics.all_partitions()
            if partition.log is not None
        ]

    # --- opening

    def make(
        self,
        topic: str,
        topic_id: UUID,
        indexes: Sequence[int],
        config: TopicConfig,
        leader_epoch: int | None,
        stopping: Callable[[], bool],
    ) -> list[Recovered]:
        """Directories and empty logs, some hundred to a sync round. Blocking.

        Args:
            leader_epoch: begun at once by who leads them from the start, if that is this broker.
        """
        made: list[Recovered] = []
        for at in range(0, len(indexes), OPENED_AT_ONCE):
            if stopping():
                raise PenstockError(Code.NOT_AVAILABLE, f"the broker stops; topic {topic!r} stays as it was")
            states = {}
            for path in self._directory.create_partitions(topic, topic_id, indexes[at : at + OPENED_AT_ONCE]):
                recovered = recover(self._shelf.disk, path, config.log, self._shelf.clock.now_ms())
                if leader_epoch is not None:
                    recovered.state.epochs.note(leader_epoch, 0)
                states[f"{path}/state"] = recovered.state.encode()
                made.append(recovered)
            save_all(self._shelf.disk, states)
        return made

    async def recover(
        self, partitions: Sequence[Partition], known_ends: Mapping[str, int]
    ) -> list[Recovered | PenstockError]:
        """Recover the logs of some hundred partitions at most: one thread hop and one sync round.

        Args:
            known_ends: up to where each log is known to have been durable, by partition.
        """
        found = await self._shelf.disk.run(self._recover, partitions, known_ends)
        for partition, recovered in zip(partitions, found, strict=True):
            if isinstance(recovered, PenstockError):
                partition.offline, partition.is_damaged = recovered, True
                log_.error("partition is offline", partition=partition.name, error=str(recovered), help=recovered.help)
        return found

    def _recover(
        self, partitions: Iterable[Partition], known_ends: Mapping[str, int]
    ) -> list[Recovered | PenstockError]:
        found: list[Recovered | PenstockError] = []
        for partition in partitions:
            path = self._directory.log_path(partition.topic, partition.index)
            try:
                if not self._shelf.disk.exists(f"{path}/partition.meta"):
                    raise PenstockError(
                        Code.CORRUPT_LOG, f"{path} is missing", help="restore it from a replica or backup"
                    )
                known_end = known_ends.get(partition.name)
                now_ms = self._shelf.clock.now_ms()
                found.append(recover(self._shelf.disk, path, partition.config.log, now_ms, known_end))
            except PenstockError as error:
                found.append(error)
        return found

    def open(self, partition: Partition, recovered: Recovered) -> Log:
        """A log of what recovery found."""
        for note in recovered.notes:
            log_.warning("recovery", partition=partition.name, note=note)
        stats = self._shelf.stats
        stats.recovered_bytes += recovered.scanned_bytes
        stats.cut_bytes += recovered.cut_bytes
        path = self._directory.log_path(partition.topic, partition.index)
        log = Log(partition.name, path, partition.config.log, self._shelf, recovered.state, recovered.segments)
        log.on_rolled = self.caretaker.call
        if log.unsealed:
            self.caretaker.call(log)
        return log

    async def begin_epochs(self, logs: Iterable[tuple[Log, int]]) -> None:
        await self._upkeep.begin_epochs(logs)

    # --- following

    async def forget_empty_epochs(self, log: Log) -> None:
        """Epochs in which this broker led and wrote nothing must not stand in the way of what a leader sends."""
        before = log.state.epochs.entries
        log.state.epochs.cut_to(log.end_offset)
        if log.state.epochs.entries != before:
            log.state_changes += 1  # so it is not forgotten when there is no room for it now
        if log.must_save:
            await self.save_state(log)

    async def save_state(self, log: Log) -> None:
        async with log.tending:
            if not log.closed:  # or another log has its place by now
                await self._upkeep.save_state(log)

    async def take_back(self, partition: Partition, offset: int) -> bool:
        """End the log at `offset`, where its history parts from the leader's; False if there was no room to."""
        log = partition.opened()
        if offset >= log.end_offset:
            try:
                await self.forget_empty_epochs(log)
            except OSError as error:
                if not is_shortage(error):
                    raise
                return False
            return True
        log_.info(
            "takes back what its leader does not have", partition=partition.name, offset=offset, end=log.end_offset
        )
        partition.log = None
        recovered, is_done = await self._upkeep.take_back(log, offset, self._shelf.clock.now_ms(), (SNAPSHOT,))
        if is_done:
            self._shelf.stats.truncated_records += log.end_offset - offset
        self._reopen(partition, recovered)
        return is_done

    async def begin_anew(self, partition: Partition, offset: int) -> bool:
        """Empty the log and let it begin at `offset`, where the leader's does; False if there was no room to."""
        log = partition.opened()
        log_.warning("begins anew where its leader begins", partition=partition.name, offset=offset, end=log.end_offset)
        partition.log = None
        recovered, is_done = await self._upkeep.begin_anew(log, offset, self._shelf.clock.now_ms(), (SNAPSHOT,))
        self._reopen(partition, recovered)
        return is_done

    def _reopen(self, partition: Partition, recovered: Recovered) -> None:
        log = self.open(partition, recovered)
        log.follows = True
        partition.hold(log, partition.high_watermark)

    # --- copying whole segments

    async def begin_copy(self, log: Log, base: int, card: bytes) -> IncomingSegment:
        """Take in a segment of the leader, by its card. Raises `DamagedFile`, OSError."""
        disk = self._shelf.disk
        return await disk.run(IncomingSegment, disk, log.directory, next(self._copies), base, card)

    async def add_to_copy(self, copy: IncomingSegment, data: bytes, position: int) -> int:
        """Check and write a range of it; see `IncomingSegment.add`."""
        return await self._shelf.disk.run(copy.add, data, position)

    async def complete_copy(self, log: Log, copy: IncomingSegment) -> None:
        """All of it is there, and the log ends where it begins. Raises `DamagedFile`, OSError."""
        epochs, producers = LeaderEpochs(log.state.epochs.entries), Producers.restore(log.state.producers.dump())
        await self._shelf.disk.run(copy.complete, epochs, producers, self._shelf.clock.now_ms())

    async def adopt(self, partition: Partition, copy: IncomingSegment) -> bool:
        """Let the log go on with a complete copy; False if there was no room to.

        The log stays the partition's while it is closed, so that nobody opens another on the same files.
        """
        recovered, adopted = await self._upkeep.adopt(partition.opened(), copy, self._shelf.clock.now_ms())
        self._reopen(partition, recovered)
        return adopted

    async def drop_copy(self, copy: IncomingSegment) -> None:
        await self._shelf.disk.run(copy.drop)

    async def move_start(self, log: Log, offset: int) -> None:
        """Let the log begin at `offset`, as its leader's does; it must not lie above the end."""
        if offset > log.log_start:
            await self._upkeep.delete_records(log, offset)

    # --- closing

    async def close(self, partition: Partition, why: PenstockError) -> None:
        """Let go of a replica's log; its files stay."""
        log = partition.log
        partition.led, partition.log, partition.offline = None, None, why
        if log is not None:
            log.closed = True
            await self._upkeep.quiesce(log)
        partition.waiters.abandon(why)

    async def empty_removed(self) -> None:
        """Delete what is out of sight; a moment later, if a shortage is in the way: nothing waits for it."""
        async with self._emptying:
            try:
                await self._shelf.disk.run(self._directory.empty_removed)
            except OSError as error:
                if not is_shortage(error):
                    raise
                log_.limited("removed").error("removed logs are deleted later", error=str(error))
                if not self._empties_later:
                    self._empties_later = True
                    self._shelf.tasks.spawn(self._empty_later(), "delete removed logs")

    async def _empty_later(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        self._empties_later = False
        await self.empty_removed()
