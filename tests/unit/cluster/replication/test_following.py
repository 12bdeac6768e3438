"""What a follower says it has, and what it makes of answers: nothing counts that a power cut could take."""

import asyncio
import errno
import gc
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from tests.simulated_broker import Broker, append, batch_of, read_all, running, wait_for
from tests.simulated_log import contents

from penstock.cluster.replication.following import Following
from penstock.cluster.replication.source import FetchedRow, LeaderGone, Position, SegmentPart, SegmentWanted
from penstock.cluster.replication.throttle import Throttle
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.errors import Code, PenstockError
from penstock.records.batch import BATCH_HEADER, CRC_START, HEADER_BYTES, PREFIX_BYTES, Header, decode_header
from penstock.records.record import encode, iterate
from penstock.storage.log.log import Log
from penstock.storage.log.options import LogOptions
from penstock.storage.log.recovery import recover
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

LEADER, OTHER = 2, 3
EPOCH = 9


class Asked(NamedTuple):
    positions: dict[int, Position]
    """By partition."""
    max_wait_ms: int


class ScriptedLeader:
    """A source that notes what it is asked, and answers when a test says what.

    Whatever it is told must be there after a power cut at that moment.
    """

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.asked: list[Asked] = []
        self.is_waiting = False
        """Somebody asks, and nothing has been said."""
        self.closed = False
        self._answers: asyncio.Queue[Callable[[Callable[[FetchedRow, Code | None], None]], None]] = asyncio.Queue()

    async def fetch(
        self,
        positions: Iterable[Position],
        handle: Callable[[FetchedRow, Code | None], None],
        *,
        max_wait_ms: int,
        max_bytes: int,
    ) -> None:
        asked = {position.partition_index: position for position in positions}
        for index, position in asked.items():
            assert durable_end(self.disk, f"data/logs/t/{index}") >= position.fetch_offset, "told too early"
        self.asked.append(Asked(asked, max_wait_ms))
        self.is_waiting = self._answers.empty()
        answer = await self._answers.get()
        self.is_waiting = False
        answer(handle)

    async def copy_segment(self, wanted: SegmentWanted) -> SegmentPart:
        raise PenstockError(Code.NOT_AVAILABLE, "nothing to copy")

    def close(self) -> None:
        self.closed = True

    def answer(self, *rows: tuple[FetchedRow, Code | None]) -> None:
        """For the fetch that waits, or the next one."""

        def give(handle: Callable[[FetchedRow, Code | None], None]) -> None:
            for row, code in rows:
                buffer = bytearray(row.records)
                handle(row._replace(records=memoryview(buffer)), code)
                buffer[:] = bytes(len(buffer))  # the view dies with the response

        self._say(give)

    def vanish(self, *, refused: bool) -> None:
        def give(_: Callable[[FetchedRow, Code | None], None]) -> None:
            raise LeaderGone("gone", refused=refused)

        self._say(give)

    def _say(self, give: Callable[[Callable[[FetchedRow, Code | None], None]], None]) -> None:
        self.is_waiting = False
        self._answers.put_nowait(give)


def durable_end(disk: FaultyDisk, path: str) -> int:
    """Where a log would end if the power were cut now, and as much were lost as can be."""
    left = FaultyDisk(max_delay_s=0.0)
    left.make_dirs(path)
    for name in disk.list_dir(path):
        try:
            data = disk.read_durable(f"{path}/{name}")
        except FileNotFoundError:
            continue
        left.open(f"{path}/{name}", create=True).write_at(data, 0)
    return recover(left, path, LogOptions(), 0).segments[-1].next_offset


def malformed(batch: bytes) -> bytes:
    """The batch with a byte behind its last record, and a CRC that fits."""
    header = decode_header(memoryview(batch))
    return _made(header._replace(batch_length=header.batch_length + 1), batch[HEADER_BYTES:] + b"\0")


def shortened(batch: bytes) -> bytes:
    """The batch without its middle record of three: the first and the last keep their offsets."""
    first, _, last = iterate(batch[HEADER_BYTES:], 3)
    body = bytearray()
    for each in (first, last):
        encode(body, each.offset_delta, each.timestamp_delta, each.key, each.value, each.headers)
    header = decode_header(memoryview(batch))
    return _made(
        header._replace(record_count=2, batch_length=HEADER_BYTES - PREFIX_BYTES + len(body)),
        bytes(body),
    )


def _made(header: Header, body: bytes) -> bytes:
    out = bytearray(HEADER_BYTES) + body
    BATCH_HEADER.pack_into(out, 0, *header)
    BATCH_HEADER.pack_into(out, 0, *header._replace(crc=crc32c(out[CRC_START:])))
    return bytes(out)


class Scene:
    """A broker that follows two partitions, and the leader it follows."""

    def __init__(self, broker: Broker, disk: FaultyDisk) -> None:
        self.broker = broker
        self.disk = disk
        self.lost: list[int] = []
        self.damaged: list[Partition] = []
        self.full: list[Partition] = []
        self.locks: dict[Partition, asyncio.Lock] = {}
        self.leader = ScriptedLeader(disk)
        self.following, self.task = self.follow_broker(LEADER, self.leader)

    def follow_broker(self, broker_id: int, leader: ScriptedLeader) -> tuple[Following, "asyncio.Task[None]"]:
        async def lost(broker_id: int) -> None:
            self.lost.append(broker_id)

        following = Following(
            broker_id,
            leader,
            self.broker.engine.replicas,
            self.broker.clock,
            self.broker.stats,
            self.broker.failures.append,
            lost,
            self.damaged.append,
            self.full.append,
            lambda partition: self.locks.setdefault(partition, asyncio.Lock()),
            Throttle(self.broker.clock, lambda: None),
        )
        return following, asyncio.get_running_loop().create_task(following.run())

    async def follow(self, index: int = 0, epoch: int = EPOCH, leader: int = LEADER) -> Partition:
        """As whoever decides about roles does it."""
        partition = self.broker.partition("t", index)
        self.following.remove(partition)
        partition.follow(PartitionState((1, LEADER, OTHER), (leader,), leader, epoch))
        await self.broker.engine.replicas.forget_empty_epochs(partition.opened())
        if leader == LEADER:
            self.following.add(partition)
        return partition

    async def follow_both(self) -> tuple[Partition, Partition]:
        """From the same fetch on."""
        one, other = await self.follow(0), await self.follow(1)
        for partition in (one, other):
            self.following.remove(partition)
        await self.until_waiting()
        self.leader.answer()
        for partition in (one, other):
            self.following.add(partition)
        self.leader.asked.clear()
        return one, other

    async def until_waiting(self) -> None:
        await wait_for(lambda: self.leader.is_waiting)

    async def next(self, number: int) -> dict[int, Position]:
        """The positions of a fetch, the first is 0."""
        await wait_for(lambda: len(self.leader.asked) > number)
        return self.leader.asked[number].positions

    async def until_asked_for(self, index: int, offset: int) -> Position:
        """Answer with nothing until a fetch is about this."""
        while True:
            await self.until_waiting()
            position = self.leader.asked[-1].positions.get(index)
            if position is not None and position.fetch_offset == offset:
                return position
            self.leader.answer()

    def batch(self, base_offset: int, epoch: int = EPOCH, count: int = 1) -> bytes:
        values = [b"%d" % offset for offset in range(base_offset, base_offset + count)]
        return bytes(batch_of(values, self.broker.clock, base_offset=base_offset, leader_epoch=epoch))

    def row(
        self,
        index: int = 0,
        *batches: bytes,
        high_watermark: int = 0,
        log_start: int = 0,
        code: Code | None = None,
        diverging: tuple[int, int] | None = None,
    ) -> tuple[FetchedRow, Code | None]:
        topic_id = self.broker.partition("t", index).topic_id.bytes
        records = memoryview(b"".join(batches))
        return FetchedRow(topic_id, index, 0, high_watermark, log_start, records, diverging), code


def play(function: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        disk = FaultyDisk(9)
        async with running(Broker(disk, MemoryStore(), VirtualClock())) as broker:
            await broker.engine.create_topic("t", 2)
            it = Scene(broker, disk)
            await function(it)
            assert not it.task.done() or it.task.result() is None
            it.task.cancel()
            await asyncio.wait({it.task})

    run_virtual(run, 3)


def scene(function: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a coroutine function that is given a scene."""

    def test() -> None:
        play(function)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


# --- fetch, append, sync, fetch again


@scene
async def test_the_next_fetch_says_what_the_last_one_brought_once_it_is_safe(it: Scene) -> None:
    partition = await it.follow()
    first = (await it.next(0))[0]
    assert first[:6] == (partition.topic_id.bytes, 0, EPOCH, 0, -1, 0)
    it.leader.answer(it.row(0, it.batch(0, 7), it.batch(1, 8, 2), high_watermark=2))
    second = (await it.next(1))[0]
    assert (second.fetch_offset, second.last_fetched_epoch, second.leader_epoch) == (3, 8, EPOCH)
    log = partition.opened()
    assert log.state.epochs.entries == [(7, 0), (8, 1)]
    assert log.durable_end == 3
    assert partition.high_watermark == log.committed_end == 2
    it.leader.answer(it.row(0, it.batch(3, 9), high_watermark=9))
    third = (await it.next(2))[0]
    assert (third.fetch_offset, third.last_fetched_epoch) == (4, 9)
    assert partition.high_watermark == 4, "no further than what is here"
    it.leader.answer(it.row(0, it.batch(4, 9), high_watermark=9))
    assert (await it.next(3))[0].fetch_offset == 5
    assert partition.high_watermark == 5
    assert it.broker.stats.replica_fetches == 3


@scene
async def test_malformed_batches_are_kept_and_counted(it: Scene) -> None:
    partition = await it.follow()
    await it.until_waiting()
    good, bad = it.batch(0, count=2), malformed(it.batch(2, count=2))
    it.leader.answer(it.row(0, good, bad, it.batch(4)))
    await it.until_asked_for(0, 5)
    assert partition.opened().end_offset == 5
    assert it.broker.stats.malformed_copies == 1
    assert it.broker.stats.unchecked_copies == 0


@scene
async def test_batches_that_lost_records_to_compaction_are_well(it: Scene) -> None:
    await it.follow()
    await it.until_waiting()
    it.leader.answer(it.row(0, it.batch(0), shortened(it.batch(1, count=3)), it.batch(6)))
    await it.until_asked_for(0, 7)
    assert it.broker.stats.malformed_copies == 0


@scene
async def test_a_batch_of_a_topic_that_is_not_checked_is_not_looked_at(it: Scene) -> None:
    partition = await it.follow()
    partition.config = replace(partition.config, checked=frozenset())
    await it.until_waiting()
    it.leader.answer(it.row(0, malformed(it.batch(0))))
    await it.until_asked_for(0, 1)
    assert it.broker.stats.malformed_copies == 0


@scene
async def test_what_was_not_appended_is_not_looked_at(it: Scene) -> None:
    await it.follow()
    await it.until_waiting()
    it.leader.answer(it.row(0, it.batch(0), bytes(malformed(it.batch(1)))[:-1]))
    await it.until_asked_for(0, 1)
    assert it.broker.stats.malformed_copies == 0


@scene
async def test_an_answer_without_news_is_asked_for_again(it: Scene) -> None:
    await it.follow_both()
    first = await it.next(0)
    assert set(first) == {0, 1}
    it.leader.answer()
    assert await it.next(1) == first
    it.leader.answer(it.row(1, it.batch(0)), it.row(0, high_watermark=5))
    second = await it.next(2)
    assert [second[index].fetch_offset for index in (0, 1)] == [0, 1]


@scene
async def test_a_leader_that_steps_down_speaks_of_what_it_appended_last_once_it_is_synced(it: Scene) -> None:
    """Or the leader would send other records for those offsets, and they would be taken for the ones that are here."""
    partition = it.broker.partition("t")
    epoch = partition.leader_epoch
    append(partition, batch_of([b"a", b"b"], it.broker.clock))
    log = partition.opened()
    assert (log.visible_end, log.end_offset) == (0, 2)
    log.state.epochs.note(EPOCH - 1, 2)  # in which nothing was written
    partition.follow(PartitionState((1, LEADER), (LEADER,), LEADER, EPOCH))
    it.following.add(partition)
    asked = (await it.next(0))[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.leader_epoch) == (2, epoch, EPOCH)
    assert log.durable_end == 2


@scene
async def test_what_is_led_or_not_open_is_not_asked_for(it: Scene) -> None:
    partition, other = it.broker.partition("t"), await it.follow(1)
    assert partition.led is not None
    it.following.add(partition)
    assert set(await it.next(0)) == {1}
    log, other.log = other.log, None
    it.leader.answer()
    await asyncio.sleep(1)
    assert len(it.leader.asked) == 1
    other.log = log
    it.following.add(other)
    assert set(await it.next(1)) == {1}


@scene
async def test_the_log_begins_where_the_leaders_does(it: Scene) -> None:
    partition = await it.follow()
    it.leader.answer(it.row(0, *(it.batch(offset) for offset in range(6)), high_watermark=6, log_start=2))
    second = (await it.next(1))[0]
    assert (second.fetch_offset, second.log_start) == (6, 2)
    assert partition.opened().log_start == 2
    it.leader.answer(it.row(0, high_watermark=6, log_start=1))
    it.leader.answer(it.row(0, high_watermark=6, log_start=50))
    assert (await it.next(2))[0].log_start == 2
    assert (await it.next(3))[0].log_start == 6, "not behind its end"


# --- what must be saved first


@scene
async def test_an_epoch_is_saved_even_if_the_rest_of_the_answer_is_damaged(it: Scene) -> None:
    partition = await it.follow()
    it.leader.answer(it.row(0, it.batch(0, EPOCH - 1)))
    await it.next(1)
    it.leader.answer(it.row(0, it.batch(1), it.batch(2)[:-1]))
    await it.until_asked_for(0, 2)
    assert partition.opened().state.epochs.latest == EPOCH


@scene
async def test_a_batch_of_an_epoch_that_has_not_begun_is_no_good(it: Scene) -> None:
    """Its checksum does not cover the epoch: a flipped bit there would end the log's history."""
    partition = await it.follow()
    it.leader.answer(it.row(0, it.batch(0), it.batch(1, EPOCH + 1)))
    await it.until_asked_for(0, 1)
    assert partition.opened().end_offset == 1
    assert partition.opened().state.epochs.latest == EPOCH


@scene
async def test_an_epoch_is_saved_even_if_another_leader_is_followed_meanwhile(it: Scene) -> None:
    partition, _ = await it.follow_both()
    it.leader.answer(it.row(0, it.batch(0, EPOCH - 1)))
    await it.next(1)
    elsewhere = ScriptedLeader(it.disk)
    following, task = it.follow_broker(OTHER, elsewhere)
    it.disk.fail("write_at", errno.ENOSPC, path_contains="t/1/state", times=5)  # which holds up what comes after it
    it.leader.answer(it.row(1, it.batch(0)), it.row(0, it.batch(1)))
    await wait_until_appended(partition, 2)
    await it.follow(0, EPOCH + 1, OTHER)
    following.add(partition)
    await wait_for(lambda: elsewhere.asked)
    position = elsewhere.asked[0].positions[0]
    assert (position.fetch_offset, position.last_fetched_epoch, position.leader_epoch) == (2, EPOCH, EPOCH + 1)
    it.disk.clear_faults()
    task.cancel()


@scene
async def test_without_room_for_the_state_nothing_is_told(it: Scene) -> None:
    await it.follow()
    await it.next(0)
    it.disk.fail("write_at", errno.ENOSPC, path_contains="state", times=3)
    it.leader.answer(it.row(0, it.batch(0)))
    began = it.broker.clock.monotonic()
    assert (await it.next(1))[0].fetch_offset == 1
    assert it.broker.clock.monotonic() - began >= 0.3


@scene
async def test_without_room_for_the_state_the_others_go_on_for_as_long_as_it_takes(it: Scene) -> None:
    await it.follow_both()
    await it.next(0)
    it.disk.fail("write_at", errno.ENOSPC, path_contains="t/0/state", times=1000)
    it.leader.answer(it.row(0, it.batch(0)), it.row(1, it.batch(0)))
    began, asked = it.broker.clock.monotonic(), 0
    while it.broker.clock.monotonic() - began < 300:
        asked += 1
        assert set(await it.next(asked)) == {1}
        it.leader.answer()
        await asyncio.sleep(1)
    assert it.broker.failures == []


@scene
async def test_without_room_for_records_the_others_go_on(it: Scene) -> None:
    partition, _ = await it.follow_both()
    await it.next(0)
    it.disk.fail("write_at", errno.ENOSPC, path_contains="t/0/", when=2)
    it.leader.answer(it.row(0, it.batch(0), it.batch(1)), it.row(1, it.batch(0)))
    assert set(await it.next(1)) == {1}
    await it.until_asked_for(0, 1)
    it.leader.answer(it.row(0, it.batch(1)))
    await it.until_asked_for(0, 2)
    assert partition.opened().end_offset == 2


# --- histories that part


HISTORY = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 3), (5, 3), (6, 3), (7, 3), (8, 5), (9, 5)]
PARTINGS = [
    ((3, 6), 6, 3),
    ((3, 8), 8, 3),
    ((3, 20), 8, 3),
    ((2, 7), 4, 1),
    ((1, 2), 2, 1),
    ((4, 5), 5, 3),
    ((5, 9), 9, 5),
    ((0, 0), 0, -1),
]


async def with_history(it: Scene, high_watermark: int = 0) -> Partition:
    """A follower whose log has three epochs, and that has just asked in the next one."""
    partition = await it.follow()
    it.leader.answer(it.row(0, *(it.batch(offset, epoch) for offset, epoch in HISTORY), high_watermark=high_watermark))
    await it.until_asked_for(0, 10)
    return partition


@pytest.mark.parametrize(("diverging", "parting", "last_epoch"), PARTINGS)
def test_the_end_is_taken_back_to_where_both_agree(diverging: tuple[int, int], parting: int, last_epoch: int) -> None:
    async def check(it: Scene) -> None:
        partition = await with_history(it)
        before = len(it.leader.asked)
        it.leader.answer(it.row(0, diverging=diverging))
        asked = (await it.next(before))[0]
        assert (asked.fetch_offset, asked.last_fetched_epoch) == (parting, last_epoch)
        log = partition.opened()
        assert log.end_offset == parting
        assert log.follows and not log.closed
        assert log.state.epochs.entries == [entry for entry in [(1, 0), (3, 4), (5, 8)] if entry[1] < parting]
        it.leader.answer(it.row(0, it.batch(parting, EPOCH), high_watermark=parting + 1))
        assert (await it.next(before + 1))[0].fetch_offset == parting + 1
        assert partition.high_watermark == parting + 1

    play(check)


@scene
async def test_a_log_that_was_replaced_is_gone_at_once_and_its_files_with_it(it: Scene) -> None:
    """Not when all garbage is collected, which is seldom: deleted segments would take room until then."""
    partition = await with_history(it)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Log) for each in gc.get_objects())
        it.leader.answer(it.row(0, diverging=(3, 6)))
        await it.until_asked_for(0, 6)
        it.leader.answer(it.row(0, code=Code.OFFSET_OUT_OF_RANGE, high_watermark=70, log_start=50))
        await it.until_asked_for(0, 50)
        assert sum(isinstance(each, Log) for each in gc.get_objects()) == before
        assert partition.opened().log_start == 50
    finally:
        gc.enable()


@scene
async def test_a_parting_behind_the_end_takes_nothing_and_is_not_asked_for_without_end(it: Scene) -> None:
    partition = await with_history(it)
    before, began = len(it.leader.asked), it.broker.clock.monotonic()
    log = partition.opened()
    it.leader.answer(it.row(0, diverging=(5, 12)))
    assert (await it.next(before))[0].fetch_offset == 10
    assert it.broker.clock.monotonic() - began >= 0.1
    assert partition.opened() is log


@scene
async def test_what_is_known_to_be_committed_is_never_taken_back(it: Scene) -> None:
    partition = await with_history(it, high_watermark=7)
    await it.follow(1)
    await it.until_asked_for(1, 0)
    assert partition.high_watermark == 7
    before = {name: data for name, data in contents(it.disk, "data/logs/t/0").items() if name.endswith(".log")}
    it.leader.answer(it.row(0, diverging=(3, 6)))
    number = len(it.leader.asked)
    assert set(await it.next(number)) == {1}
    assert partition.offline is not None and partition.offline.code is Code.CORRUPT_LOG
    assert "offset 6" in str(partition.offline) and "below 7" in str(partition.offline)
    assert partition.opened().end_offset == 10
    after = {name: data for name, data in contents(it.disk, "data/logs/t/0").items() if name.endswith(".log")}
    assert after == before
    it.leader.answer()
    assert set(await it.next(number + 1)) == {1}


@scene
async def test_down_to_what_is_known_to_be_committed_it_is(it: Scene) -> None:
    partition = await with_history(it, high_watermark=6)
    it.leader.answer(it.row(0, diverging=(3, 6)))
    assert (await it.until_asked_for(0, 6)).last_fetched_epoch == 3
    assert partition.offline is None


@scene
async def test_who_is_too_far_behind_begins_where_its_leader_does(it: Scene) -> None:
    partition = await with_history(it, high_watermark=4)
    before = len(it.leader.asked)
    it.leader.answer(it.row(0, code=Code.OFFSET_OUT_OF_RANGE, high_watermark=70, log_start=50))
    asked = (await it.next(before))[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.log_start) == (50, -1, 50)
    assert partition.high_watermark == 50
    it.leader.answer(it.row(0, it.batch(50, EPOCH), high_watermark=51, log_start=50))
    assert (await it.next(before + 1))[0].fetch_offset == 51
    partition.lead(PartitionState((1,), (1,), 1, EPOCH))
    assert [offset for batch in await read_all(partition) for offset, _ in batch.records] == [50]


@scene
async def test_an_empty_log_begins_where_its_leader_does_even_if_that_is_before_it(it: Scene) -> None:
    partition = await with_history(it, high_watermark=4)
    it.leader.answer(it.row(0, code=Code.OFFSET_OUT_OF_RANGE, high_watermark=70, log_start=50))
    await it.until_asked_for(0, 50)
    it.leader.answer(it.row(0, code=Code.OFFSET_OUT_OF_RANGE, high_watermark=20, log_start=3))
    asked = await it.until_asked_for(0, 3)
    assert (asked.last_fetched_epoch, asked.log_start) == (-1, 3)
    assert partition.high_watermark == 3, "what it once knew to be committed it has no more"


@scene
async def test_a_leader_with_less_takes_nothing_away(it: Scene) -> None:
    partition = await with_history(it)
    before = len(it.leader.asked)
    it.leader.answer(it.row(0, code=Code.OFFSET_OUT_OF_RANGE, high_watermark=4, log_start=10))
    assert (await it.next(before))[0].fetch_offset == 10
    assert partition.opened().log_start == 0


# --- trouble


@scene
async def test_an_error_pauses_only_its_partition(it: Scene) -> None:
    await it.follow_both()
    await it.next(0)
    began = it.broker.clock.monotonic()
    it.leader.answer(it.row(0, code=Code.NOT_LEADER), it.row(1, it.batch(0)))
    assert set(await it.next(1)) == {1}
    assert it.leader.asked[0].max_wait_ms == 500
    assert it.leader.asked[1].max_wait_ms <= 100, "it must not wait longer than the pause"
    await it.until_asked_for(0, 0)
    assert 0.1 <= it.broker.clock.monotonic() - began < 0.3


@scene
async def test_damage_on_the_way_is_asked_for_again(it: Scene) -> None:
    partition = await it.follow()
    await it.next(0)
    good = it.batch(0)
    it.leader.answer(it.row(0, good[:-1] + b"?"))
    await it.until_asked_for(0, 0)
    it.leader.answer(it.row(0, good, it.batch(1)))
    await it.until_asked_for(0, 2)
    assert partition.opened().end_offset == 2


@scene
async def test_only_a_leader_that_refuses_is_told_of(it: Scene) -> None:
    await it.follow()
    for refused in (False, True, False, True):
        it.leader.vanish(refused=refused)
    it.leader.answer(it.row(0, it.batch(0)))
    assert (await it.next(5))[0].fetch_offset == 1
    assert it.lost == [LEADER, LEADER]


@scene
async def test_a_failed_disk_stops_the_broker(it: Scene) -> None:
    await it.follow()
    await it.next(0)
    it.disk.fail("write_at", errno.EIO, path_contains="state")
    it.leader.answer(it.row(0, it.batch(0)))
    await wait_for(lambda: it.broker.failures)
    assert isinstance(it.broker.failures.pop(), OSError)


# --- other roles meanwhile


@scene
async def test_an_answer_of_another_epoch_is_dropped(it: Scene) -> None:
    partition = await it.follow()
    await it.next(0)
    await it.follow(0, EPOCH + 1)
    it.leader.answer(it.row(0, it.batch(0), high_watermark=1))
    second = (await it.next(1))[0]
    assert (second.leader_epoch, second.fetch_offset) == (EPOCH + 1, 0)
    assert partition.opened().end_offset == partition.high_watermark == 0
    await it.follow(0, EPOCH + 2)
    it.leader.answer(it.row(0, diverging=(1, 0)))
    assert (await it.next(2))[0].leader_epoch == EPOCH + 2


@scene
async def test_an_answer_to_who_leads_now_is_dropped(it: Scene) -> None:
    partition, _ = await it.follow_both()
    await it.next(0)
    it.following.remove(partition)
    await it.broker.engine.replicas.begin_epochs([(partition.opened(), EPOCH + 1)])
    partition.lead(PartitionState((1, 2), (1, 2), 1, EPOCH + 1))
    it.leader.answer(it.row(0, it.batch(0), high_watermark=1), it.row(1, it.batch(0)))
    assert set(await it.next(1)) == {1}
    assert partition.opened().end_offset == partition.high_watermark == 0
    assert partition.led is not None


@scene
async def test_an_answer_is_dropped_even_if_nobody_has_said_that_roles_change(it: Scene) -> None:
    one, other = await it.follow_both()
    await it.next(0)
    one.follow(PartitionState((1, LEADER), (LEADER,), LEADER, EPOCH + 1))
    other.lead(PartitionState((1,), (1,), 1, EPOCH))
    it.leader.answer(it.row(0, it.batch(0)), it.row(1, it.batch(0)))
    assert {index: at.leader_epoch for index, at in (await it.next(1)).items()} == {0: EPOCH + 1}
    assert one.opened().end_offset == other.opened().end_offset == 0


@scene
async def test_a_parting_of_another_epoch_takes_nothing_back(it: Scene) -> None:
    """R2: the end goes only because the leader of this very epoch says so, even if another was asked before."""
    partition = await with_history(it)
    lock = it.locks.setdefault(partition, asyncio.Lock())
    async with lock:  # whoever decides about roles is at work
        it.leader.answer(it.row(0, diverging=(1, 2)))
        await asyncio.sleep(0.5)
        await it.follow(0, EPOCH + 1)
    asked = await it.until_asked_for(0, 10)
    assert asked.leader_epoch == EPOCH + 1
    assert partition.opened().end_offset == 10


@pytest.mark.parametrize("role", ["again", "gone", "led", "led and nobody has said so"])
def test_another_role_while_records_are_synced_holds_nobody_up(role: str) -> None:
    async def check(it: Scene) -> None:
        partition = await it.follow()
        it.leader.answer(it.row(0, it.batch(0)))
        await it.next(1)
        it.leader.answer(it.row(0, it.batch(1)))
        await wait_until_appended(partition, 2)
        assert partition.opened().visible_end == 1
        if role == "again":
            await it.follow(0, EPOCH + 1)
            asked = await it.until_asked_for(0, 2)
            assert asked.leader_epoch == EPOCH + 1
            return
        if role != "led and nobody has said so":
            it.following.remove(partition)
        if role != "gone":
            partition.lead(PartitionState((1,), (1,), 1, EPOCH))
        else:
            partition.follow(PartitionState((1, OTHER), (OTHER,), OTHER, EPOCH + 1))
        await it.follow(1)
        assert set(await it.next(2)) == {1}
        await wait_for(lambda: partition.opened().visible_end == 2)
        assert partition.high_watermark == (0 if role == "gone" else 2), "the round was not told to the leader"

    play(check)


async def wait_until_appended(partition: Partition, end: int) -> None:
    """Without letting time pass, so that no sync is over yet."""
    for _ in range(100):
        if partition.opened().end_offset == end:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was appended")


@scene
async def test_closed_it_ends_when_what_is_under_way_is_done(it: Scene) -> None:
    partition = await it.follow()
    await it.next(0)
    it.leader.answer(it.row(0, it.batch(0)))
    await wait_until_appended(partition, 1)
    it.following.close()
    await wait_for(it.task.done)
    assert it.leader.closed
    assert not partition.opened().must_save, "what was copied is not saved"
    assert len(it.leader.asked) == 1
