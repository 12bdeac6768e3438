"""Everything this broker follows of one other broker: fetch, append, sync, fetch again.

A fetch says what the follower has: the leader counts it as kept. So the next one leaves only when what the last one
brought is where `acks=all` wants it, and what the log remembers of it is saved. The leader may answer that histories
part: then the end is taken back to that point, by epochs (R1), and only because the leader of this very epoch said
so (R2).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.cluster.replication.copying import Copying, CopySettings
from penstock.cluster.replication.inspection import Inspection
from penstock.cluster.replication.source import FetchedRow, LeaderGone, Position, Source
from penstock.cluster.replication.throttle import Throttle
from penstock.engine.partition import Partition
from penstock.engine.replicas import Replicas
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import is_shortage
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.copied import append_copied
from penstock.storage.log.log import Log

log_ = get_logger("replication")
_PAUSE_S = 0.1
_FULL_PAUSE_S = 2.0
"""Without room. If all other followers have none either, the leader lets this one in again as soon as it asks."""
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class FollowingSettings:
    max_wait_ms: int = 500
    partition_bytes: int = 2 << 20
    answer_bytes: int = 8 << 20
    copying: CopySettings = field(default_factory=CopySettings)


@dataclass(slots=True)
class _News:
    """What an answer brought for one partition, to be finished before the next fetch."""

    log: Log
    end: int
    high_watermark: int
    log_start: int
    diverging: tuple[int, int] | None = None
    begin_at: int = -1


class Following:
    """One leader, one connection, one fetch at a time.

    Args:
        lost: told that nobody listens at the leader's address any more, each time it is found out.
        damaged: told of a replica that cannot be used as it is, with the reason in `offline`.
        full: told of a replica there is no room for.
        lock_of: held while a partition's log is replaced.
    """

    def __init__(
        self,
        broker_id: int,
        source: Source,
        replicas: Replicas,
        clock: Clock,
        stats: Stats,
        fail: Callable[[BaseException], None],
        lost: Callable[[int], Awaitable[None]],
        damaged: Callable[[Partition], None],
        full: Callable[[Partition], None],
        lock_of: Callable[[Partition], asyncio.Lock],
        throttle: Throttle,
        settings: FollowingSettings | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._source = source
        self._replicas = replicas
        self._clock = clock
        self._stats = stats
        self._fail = fail
        self._lost = lost
        self._damaged = damaged
        self._full = full
        self._lock_of = lock_of
        self._throttle = throttle
        self._settings = settings or FollowingSettings()
        self._partitions: dict[Key, Partition] = {}
        self._paused: dict[Key, float] = {}
        self._asked: dict[Key, tuple[Position, Log]] = {}
        self._news: dict[Key, _News] = {}
        self._changed = asyncio.Event()
        self._synced = asyncio.Event()
        self._closed = False
        self._inspection = Inspection(broker_id, stats)
        self._copying = Copying(
            source, replicas, clock, stats, fail, lock_of, throttle, self._changed.set, self._settings.copying
        )

    @property
    def copied_segments(self) -> int:
        return self._copying.segments

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        """Follow from the next fetch on, in the epoch the partition is in."""
        key = _key(partition)
        self._partitions[key] = partition
        self._paused.pop(key, None)
        self._copying.forget(key)
        self._changed.set()

    def remove(self, partition: Partition) -> None:
        key = _key(partition)
        self._partitions.pop(key, None)
        self._paused.pop(key, None)
        self._asked.pop(key, None)
        self._copying.forget(key)
        self._synced.set()  # who waits for it waits in vain

    def close(self) -> None:
        """Have `run` end when what is under way is done."""
        self._closed = True
        self._changed.set()
        self._synced.set()
        self._source.close()

    async def run(self) -> None:
        """Until closed."""
        copies = asyncio.get_running_loop().create_task(self._copying.run())
        copies.add_done_callback(self._copies_ended)
        try:
            await self._fetch()
        finally:
            copies.cancel()
            await asyncio.wait({copies})

    def _copies_ended(self, copies: "asyncio.Task[None]") -> None:
        error = None if copies.cancelled() else copies.exception()
        if error is not None:
            self._fail(error)

    async def _fetch(self) -> None:
        while not self._closed:
            self._changed.clear()
            positions, unsaved = self._positions()
            for log in unsaved:
                await self._save_state(log)
            if unsaved:
                continue
            if not positions:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S if self._paused else None):
                        await self._changed.wait()
                continue
            try:
                await self._source.fetch(
                    positions,
                    self._take,
                    max_wait_ms=self._settings.max_wait_ms if not self._paused else int(_PAUSE_S * 1000),
                    max_bytes=self._settings.answer_bytes,
                )
            except LeaderGone as error:
                log_.limited("gone").info("leader cannot be reached", broker=self.broker_id, error=str(error))
                if error.refused:
                    await self._lost(self.broker_id)
                await asyncio.sleep(_PAUSE_S / 2)
                self._news.clear()
                continue
            self._stats.replica_fetches += 1
            await self._finish()

    # --- asking

    def _positions(self) -> tuple[list[Position], list[Log]]:
        """Where to fetch; and logs that must be saved before they may be spoken of."""
        now = self._clock.monotonic()
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        self._asked = {}
        positions: list[Position] = []
        unsaved: list[Log] = []
        for key, partition in self._partitions.items():
            log = partition.log
            if log is None or log.closed or partition.led is not None or key in self._paused or key in self._copying:
                continue
            if log.must_save:
                unsaved.append(log)
                continue
            if partition.is_moving_here and (wait_s := self._throttle.wait_s()):
                self._paused[key] = now + wait_s
                continue
            offset = log.end_offset
            if log.visible_end < offset:
                self._pause(key)  # appended when it led, and not synced yet: a fetch must speak of all there is
                continue
            last_epoch = log.state.epochs.at(offset - 1) if offset > log.log_start else -1
            position = Position(
                *key, partition.leader_epoch, offset, last_epoch, log.log_start, self._settings.partition_bytes
            )
            self._asked[key] = position, log
            positions.append(position)
        return positions, unsaved

    # --- taking

    def _take(self, row: FetchedRow, code: Code | None) -> None:
        """Append what came for one partition, at once: its bytes are gone afterwards."""
        key = row.topic_id, row.partition_index
        partition = self._partitions.get(key)
        position, log = self._asked.get(key, (None, None))
        if partition is None or position is None or log is None or not _is_current(partition, position, log):
            return  # it got another leader, or none, while the leader was asked
        news = _News(log, log.end_offset, row.high_watermark, row.log_start)
        goes_back = 0 <= row.log_start < position.fetch_offset and log.end_offset == log.log_start
        if code is Code.OFFSET_OUT_OF_RANGE and (row.log_start > position.fetch_offset or goes_back):
            news.begin_at = row.log_start
        elif code is not None:
            log_.limited("refused").info(
                "leader refuses a fetch", partition=partition.name, broker=self.broker_id, code=code.value
            )
            self._pause(key)
            return
        elif row.diverging is not None:
            news.diverging = row.diverging
        elif self._copying.takes(partition, position, log, row):
            return
        elif len(row.records):
            try:
                append_copied(log, row.records, position.leader_epoch)
            except PenstockError as error:
                log_.limited("append").warning("copy failed", partition=partition.name, error=str(error))
                self._pause(key, _FULL_PAUSE_S if error.code is Code.STORAGE_FULL else _PAUSE_S)
                if error.code is Code.STORAGE_FULL:
                    self._full(partition)
            partition.steps += 1
            self._stats.copied_bytes += len(row.records)
            self._inspection.look(partition, row.records, news.end, log.end_offset)
            news.end = log.end_offset
            if partition.is_moving_here:
                self._stats.moved_bytes += len(row.records)
                self._throttle.spend(len(row.records))
        self._news[key] = news

    def _pause(self, key: Key, seconds: float = _PAUSE_S) -> None:
        self._paused[key] = self._clock.monotonic() + seconds

    # --- finishing

    async def _finish(self) -> None:
        """Do what the next fetch must not come before."""
        news, self._news = self._news, {}
        for key, each in news.items():
            partition = self._partitions.get(key)
            if partition is None:
                continue
            if each.diverging is not None or each.begin_at >= 0:
                await self._rewrite(partition, each)
            elif each.log.must_save:
                await self._save_state(each.log)
        while True:
            self._synced.clear()
            if self._closed or not any(self._is_lagging(key, each) for key, each in news.items()):
                break
            await self._synced.wait()
        for key, each in news.items():
            partition = self._partitions.get(key)
            if partition is not None and partition.log is each.log and partition.led is None:
                partition.told_committed(each.high_watermark)
                if each.log_start > each.log.log_start:
                    await self._move_start(each)

    def _is_lagging(self, key: Key, news: _News) -> bool:
        """Whether what came for a partition is still followed, and not where it should be."""
        partition = self._partitions.get(key)
        if partition is None or partition.led is not None or partition.log is not news.log:
            return False
        news.log.on_visible = self._synced.set  # again: another role in between has taken it away
        return news.end > news.log.visible_end

    async def _rewrite(self, partition: Partition, news: _News) -> None:
        async with self._lock_of(partition):
            position, _ = self._asked.get(_key(partition), (None, None))
            if position is None or not _is_current(partition, position, news.log):
                return
            try:
                if news.begin_at >= 0:
                    if news.begin_at < news.log.log_start:  # an empty log goes back: what it once had does not count
                        partition.high_watermark = news.begin_at
                    is_done = await self._replicas.begin_anew(partition, news.begin_at)
                else:
                    assert news.diverging is not None
                    epoch, end = news.diverging
                    own_end = news.log.state.epochs.end_of(epoch, news.log.end_offset)[1]
                    parting = min(end, own_end) if own_end >= 0 else end
                    if parting < partition.high_watermark:
                        if news.log.state.epochs.latest >= partition.state.forced_epoch:
                            self._refuse(partition, parting)
                            return
                        partition.high_watermark = parting
                    if parting >= news.log.end_offset:
                        self._pause(_key(partition))  # nothing goes but epochs; it must not ask the same without end
                    is_done = await self._replicas.take_back(partition, parting)
                if not is_done:
                    log_.limited("room").warning("no room to take back records", partition=partition.name)
                    self._pause(_key(partition), _FULL_PAUSE_S)
            except OSError as error:  # half done: the next start finishes it
                self._fail(error)
            except (PenstockError, DamagedFile) as error:
                partition.offline = PenstockError(Code.CORRUPT_LOG, f"{partition.name}: {error}")
                self.remove(partition)
                self._damaged(partition)

    def _refuse(self, partition: Partition, parting: int) -> None:
        """The leader lacks what was committed: this copy may be the only one left of it, so it stays as it is."""
        partition.offline = PenstockError(
            Code.CORRUPT_LOG,
            f"{partition.name}: broker {self.broker_id} leads with a history that parts at offset {parting} from this "
            f"replica, which knows that everything below {partition.high_watermark} was committed",
            help="nothing was removed here; compare both logs with 'penstock log verify' before one of them goes",
        )
        log_.error("replica is set aside", partition=partition.name, error=str(partition.offline))
        self.remove(partition)

    async def _save_state(self, log: Log) -> None:
        """Nothing may be said of a log before; but a full disk holds up only what is in it."""
        try:
            await self._replicas.save_state(log)
        except OSError as error:
            if not is_shortage(error):
                self._fail(error)
                return
            log_.limited("state").warning("no room to save a log's state", log=log.name, error=str(error))
            for key, partition in self._partitions.items():
                if partition.log is log:
                    self._pause(key, _FULL_PAUSE_S)

    async def _move_start(self, news: _News) -> None:
        try:
            await self._replicas.move_start(news.log, min(news.log_start, news.log.end_offset))
        except PenstockError:
            pass  # closed meanwhile
        except OSError as error:
            if not is_shortage(error):
                self._fail(error)


def _key(partition: Partition) -> Key:
    return partition.topic_id.bytes, partition.index


def _is_current(partition: Partition, position: Position, log: Log) -> bool:
    """Whether an answer is still about the log and the epoch that were asked for."""
    return partition.led is None and partition.log is log and partition.leader_epoch == position.leader_epoch
