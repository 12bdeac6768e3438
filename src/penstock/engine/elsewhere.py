"""Read through any broker: what another broker leads is asked of it, and what is led here is given to others.

A `Cursor` asks here when its partition is led elsewhere. Who leads gives whole batches below its high watermark, as
they are in its log, or waits for some; it decides whether who reads may, and where the partition begins and ends.

A question names the newest leader epoch that who asks has heard of. A broker that is still in an earlier one has been
replaced without knowing it: its log may end below what was read from its successor, and it would say so in good faith.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from penstock.engine import offset_lookup
from penstock.engine.access import Access, Kind, Operation, Resource, Subject
from penstock.engine.looking import Found, look_until, until_moved
from penstock.engine.partition import Partition
from penstock.engine.topics import Topics
from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk, File
from penstock.storage.log.segment import FileSlice
from penstock.storage.log.transactions import AbortedTransaction

LONGEST_WAIT_S: Final = 10.0
"""Of a question at the leader. What a cursor that is gone has asked waits on there."""
MOST_BYTES: Final = 1 << 20
"""Of an answer, unless its first batch is larger."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_PASSING: Final = frozenset(
    {
        Code.NOT_LEADER,
        Code.NOT_AVAILABLE,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC,  # known here, so it will be there
        Code.UNKNOWN_TOPIC_ID,
    }
)


AtTime = offset_lookup.Found


class Ends(NamedTuple):
    """Where a partition begins and ends, as its leader knows.

    Attributes:
        high_watermark: the offset behind what is committed; -1 if the leader is new and does not know all of it yet.
        stable_offset: where committed readers stop; likewise.
        at_time: the first record at or after a time that was asked for, if there is one.
    """

    leader_epoch: int
    log_start: int
    high_watermark: int
    stable_offset: int
    at_time: AtTime | None = None


class WantedRecords(NamedTuple):
    """A question for what comes next in a partition."""

    topic_id: UUID
    partition_index: int
    least_epoch: int
    """The newest leader epoch that who asks knows of."""
    offset: int
    max_bytes: int
    wait_s: float
    committed: bool
    subject: Subject


class WantedEnds(NamedTuple):
    """A question for where a partition begins and ends."""

    topic_id: UUID
    partition_index: int
    least_epoch: int
    timestamp: int | None
    """Find the first record at or after it, too."""
    committed: bool
    subject: Subject


class Taken(NamedTuple):
    """What a leader gives others of what it leads."""

    ends: Ends
    found: Found


class Given(NamedTuple):
    """The same where it has arrived."""

    ends: Ends
    batches: bytes
    aborted: Sequence[AbortedTransaction]


class OtherReaders(Protocol):
    """How others are asked; all raise PenstockError, NOT_AVAILABLE if there was no answer."""

    async def read(self, broker_id: int, wanted: WantedRecords) -> Given:
        """As its `Elsewhere.give`."""
        ...

    async def ends(self, broker_id: int, wanted: WantedEnds) -> Ends:
        """As its `Elsewhere.give_ends`."""
        ...


class NobodyElse:
    """A broker on its own has no others."""

    async def read(self, broker_id: int, wanted: WantedRecords) -> Given:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")

    async def ends(self, broker_id: int, wanted: WantedEnds) -> Ends:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")


class Elsewhere:
    """Of one broker.

    Attributes:
        other_brokers: replaced by those of a cluster, before the start.
    """

    def __init__(self, topics: Topics, access: Access, disk: Disk) -> None:
        self._topics = topics
        self._access = access
        self.disk = disk
        """For what is better done in a thread."""
        self.other_brokers: OtherReaders = NobodyElse()

    def check_known(self, partition: Partition) -> None:
        """Raises PenstockError UNKNOWN_TOPIC for one of a topic that is gone."""
        topic = self._topics.get_by_id(partition.topic_id)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {partition.topic!r} was deleted")

    # --- for others

    async def give(self, wanted: WantedRecords) -> Taken:
        """What comes next in a partition that is led here, or nothing when there was nothing for so long.

        Raises:
            PenstockError: NOT_LEADER, OFFSET_OUT_OF_RANGE, CORRUPT_LOG, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC,
                NOT_AUTHORISED.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(wanted.wait_s, 0), LONGEST_WAIT_S)
        while True:
            partition = self._led(wanted)
            max_bytes = min(max(wanted.max_bytes, 1), MOST_BYTES)
            found = await look_until(partition, wanted.offset, max_bytes, committed=wanted.committed)
            left_s = deadline - loop.time()
            if found.data is not None or left_s <= 0:
                return Taken(ends_of(partition), found)
            await until_moved(partition, left_s)

    async def give_ends(self, wanted: WantedEnds) -> Ends:
        """Where a partition that is led here begins and ends.

        Raises:
            PenstockError: as `give`; OFFSET_NOT_AVAILABLE while a new leader does not know.
        """
        return await self._ends_here(self._led(wanted), wanted.timestamp, committed=wanted.committed)

    def _led(self, wanted: WantedRecords | WantedEnds) -> Partition:
        partition = self._topics.partition_by_id(wanted.topic_id, wanted.partition_index)
        takes = Operation.READ if isinstance(wanted, WantedRecords) else Operation.DESCRIBE  # as where it is led
        self._access.check(wanted.subject, takes, Resource(Kind.TOPIC, partition.topic))
        partition.check_epoch(-1)
        if partition.leader_epoch < wanted.least_epoch:
            raise PenstockError(
                Code.NOT_LEADER,
                f"{partition.name} is led here in epoch {partition.leader_epoch}; who reads knows of "
                f"{wanted.least_epoch}, in which another broker may lead",
            )
        return partition

    # --- of others

    async def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        wait_s: float,
        *,
        committed: bool,
        subject: Subject,
        least_epoch: int = -1,
    ) -> Given:
        """What comes next in a partition that another broker leads.

        Args:
            least_epoch: in which it has been read before.

        Raises:
            PenstockError: as `give`; NOT_AVAILABLE.
        """
        leader, epoch = self._leader(partition)
        epoch = max(epoch, least_epoch)
        wanted = WantedRecords(
            partition.topic_id, partition.index, epoch, offset, max_bytes, wait_s, committed, subject
        )
        return await self.other_brokers.read(leader, wanted)

    async def ends(self, partition: Partition, timestamp: int | None, *, committed: bool, subject: Subject) -> Ends:
        """Where a partition begins and ends, whoever leads it. Raises PenstockError, as `give_ends`; NOT_AVAILABLE."""
        if not partition.is_elsewhere:
            return await self._ends_here(partition, timestamp, committed=committed)
        leader, epoch = self._leader(partition)
        wanted = WantedEnds(partition.topic_id, partition.index, epoch, timestamp, committed, subject)
        return await self.other_brokers.ends(leader, wanted)

    def _leader(self, partition: Partition) -> tuple[int, int]:
        if not partition.is_elsewhere:
            partition.leading()
            raise PenstockError(Code.NOT_LEADER, f"{partition.name} is led here by now")
        return partition.state.leader, partition.leader_epoch

    async def _ends_here(self, partition: Partition, timestamp: int | None, *, committed: bool) -> Ends:
        log = partition.leading()
        if not partition.is_settled:
            raise partition.not_settled()
        at_time, ends = None, ends_of(partition)
        if timestamp is not None:
            limit = ends.stable_offset if committed else ends.high_watermark
            try:
                at_time = await self.disk.run(offset_lookup.find_by_time, log, timestamp, limit)
            except OSError as error:  # retention was quicker, perhaps
                raise PenstockError(Code.STORAGE_FAILED, f"{partition.name} cannot be searched: {error}") from error
        return ends._replace(at_time=at_time)


def ends_of(partition: Partition) -> Ends:
    """Of a partition that is led here. Raises PenstockError NOT_LEADER."""
    return Ends(partition.leader_epoch, partition.log_start, *partition.shown_ends)


class Search:
    """A reader's patience with a partition that nobody gives it.

    Somebody else leads, or will, or is not reached: that passes. What says that it will not is raised at once.
    """

    def __init__(self, partition: Partition, patience_s: float) -> None:
        self._partition = partition
        self._patience_s = patience_s
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def succeeded(self) -> None:
        self._since, self._pause_s = None, _FIRST_PAUSE_S

    async def failed(self, error: PenstockError) -> None:
        """Wait a moment, or until another broker leads. Raises PenstockError: there is no point in another try."""
        if error.code not in _PASSING or self._partition.elsewhere is None:
            raise error
        self._partition.elsewhere.check_known(self._partition)
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        left_s = self._since + self._patience_s - now
        if left_s <= 0:
            raise error
        await until_moved(self._partition, min(self._pause_s, left_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


class ReceivedBatches:
    """Whole batches in memory that came from another broker; a `File`, to be read as those on the disk are."""

    def __init__(self, content: bytes, path: str) -> None:
        self.content = content
        self.path = path

    def as_slice(self) -> FileSlice:
        file: File = self
        return FileSlice(file, 0, len(self.content))

    def fileno(self) -> int:
        raise OSError(f"{self.path} is in memory; a peer is sent its content")

    def size(self) -> int:
        return len(self.content)

    def read_at(self, size: int, position: int) -> bytes:
        return self.content[position : position + size]

    def resident(self, size: int, position: int) -> bool:
        return True

    def write_at(self, data: object, position: int) -> None:
        raise OSError(f"{self.path} is for reading only")

    def truncate(self, size: int) -> None:
        raise OSError(f"{self.path} is for reading only")

    def forget_cached(self, position: int, size: int = 0) -> None:
        return None

    def close(self) -> None:
        return None
