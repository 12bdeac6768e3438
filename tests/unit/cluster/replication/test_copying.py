"""How a follower copies segments: when it asks, whose turn it is, and what ends a copy without a trace."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulated_broker import Broker, running, wait_for
from tests.simulated_log import Bench, contents
from tests.unit.storage.log.test_adoption import RANGE, leader_log, tiny_blocks

from penstock.cluster.replication.copying import Copying, CopySettings
from penstock.cluster.replication.source import FetchedRow, LeaderGone, Position, SegmentPart, SegmentWanted
from penstock.cluster.replication.throttle import Throttle
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.errors import Code, PenstockError
from penstock.storage.log.copied import append_copied
from penstock.storage.log.segment_range import find_segment, read_range
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

SETTINGS = CopySettings(from_bytes=500, range_bytes=RANGE, pause_s=3.0)
LEADER = 2


class Leader:
    """A source that lends segments of a log, and does to them on the way what a test wants."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.asked: list[SegmentWanted] = []
        self.spoil: Callable[..., SegmentPart] = lambda _, part: part
        self.segments = len(bench.log.segments) - 1

    async def copy_segment(self, wanted: SegmentWanted) -> SegmentPart:
        self.asked.append(wanted)
        await asyncio.sleep(0.001)
        log = self.bench.log
        segment = find_segment(log, wanted.offset, log.committed_end, wanted.least_bytes)
        if segment is None or segment.base != wanted.offset:
            return SegmentPart(-1 if segment is None else segment.base, -1, 0, b"", b"")
        card, (file, position, size, _) = read_range(log, segment, wanted.position, wanted.max_bytes)
        data = file.read_at(size, position)
        part = SegmentPart(segment.base, segment.next_offset, segment.size, card, data)
        return self.spoil(wanted, part)


class Scene:
    """A broker that follows partitions of a topic, and copies what it lacks."""

    def __init__(self, broker: Broker, leader: Leader) -> None:
        self.broker = broker
        self.leader = leader
        self.failures: list[BaseException] = []
        self.ended = 0
        self.lock = asyncio.Lock()
        self.copying = Copying(
            leader,  # type: ignore[arg-type]
            broker.engine.replicas,
            broker.clock,
            broker.stats,
            self.failures.append,
            lambda _: self.lock,
            Throttle(broker.clock, lambda: None),
            self._end,
            SETTINGS,
        )
        self.task = asyncio.get_running_loop().create_task(self.copying.run())

    def _end(self) -> None:
        self.ended += 1

    async def follow(self, index: int = 0, epoch: int = 9) -> Partition:
        partition = self.broker.partition("t", index)
        partition.follow(PartitionState((1, LEADER), (LEADER,), LEADER, epoch))
        await self.broker.engine.replicas.forget_empty_epochs(partition.opened())
        return partition

    def show(self, partition: Partition, *, high_watermark: int | None = None) -> bool:
        """What a fetch brings, and whether it makes the partition be copied."""
        log, leader = partition.opened(), self.leader.bench.log
        end = leader.end_offset if high_watermark is None else high_watermark
        position = Position(partition.topic_id.bytes, partition.index, partition.leader_epoch, log.end_offset, -1, 0, 0)
        batch = self.leader.bench.disk.open(leader.segments[0].path).read_at(500, 0)
        row = FetchedRow(position.topic_id, position.partition_index, 0, end, 0, memoryview(batch))
        return self.copying.takes(partition, position, log, row)

    async def until_ended(self, times: int = 1) -> None:
        await wait_for(lambda: self.ended >= times)

    def leftovers(self) -> list[str]:
        return [name for name in contents(self.broker.disk, "data/logs/t/0") if ".cop" in name]

    def adopted(self, partition: Partition) -> int:
        segments = [segment.base for segment in partition.opened().segments]
        assert segments == [segment.base for segment in self.leader.bench.log.segments][: len(segments)]
        return len(segments) - 1


def scene(function: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def play() -> None:
        with tiny_blocks():
            leader = Leader(await leader_log())
            disk = FaultyDisk(9)
            async with running(Broker(disk, MemoryStore(), VirtualClock())) as broker:
                await broker.engine.create_topic("t", 2, {"segment.bytes": "1500"})
                it = Scene(broker, leader)
                await function(it)
                it.task.cancel()
                await asyncio.wait({it.task})
                assert it.task.cancelled()

    def test() -> None:
        run_virtual(play, 3)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


@scene
async def test_all_sealed_segments_are_copied_and_then_it_is_fetched(it: Scene) -> None:
    partition = await it.follow()
    assert it.show(partition)
    key = partition.topic_id.bytes, 0
    assert key in it.copying
    await it.until_ended()
    assert key not in it.copying
    assert it.copying.segments == it.adopted(partition) == it.leader.segments == 3
    assert partition.opened().end_offset == it.leader.bench.log.segments[-1].base
    assert it.broker.stats.copied_bytes == sum(segment.size for segment in it.leader.bench.log.segments[:-1])
    assert all(wanted.leader_epoch == 9 for wanted in it.leader.asked)
    assert it.leftovers() == []
    assert not it.failures


@scene
async def test_who_is_near_does_not_ask(it: Scene) -> None:
    partition = await it.follow()
    assert not it.show(partition, high_watermark=2)
    assert it.show(partition, high_watermark=3)


@scene
async def test_an_answer_without_records_says_nothing(it: Scene) -> None:
    partition = await it.follow()
    position = Position(partition.topic_id.bytes, 0, 9, 0, -1, 0, 0)
    row = FetchedRow(position.topic_id, 0, 0, 1 << 40, 0, memoryview(b""))
    assert not it.copying.takes(partition, position, partition.opened(), row)


@scene
async def test_a_range_with_a_flipped_bit_is_asked_for_again(it: Scene) -> None:
    partition = await it.follow()
    seen: set[tuple[int, int]] = set()

    def flip_once(wanted: SegmentWanted, part: SegmentPart) -> SegmentPart:
        at = wanted.offset, wanted.position
        if at in seen:
            return part
        seen.add(at)
        return part._replace(data=flipped(part.data))

    it.leader.spoil = flip_once
    assert it.show(partition)
    await it.until_ended()
    assert it.adopted(partition) == 3
    assert len(it.leader.asked) == 2 * len(seen) + 1


@scene
async def test_what_never_matches_is_given_up(it: Scene) -> None:
    partition = await it.follow()
    it.leader.spoil = lambda wanted, part: part._replace(data=flipped(part.data)) if wanted.position else part
    assert it.show(partition)
    await it.until_ended()
    assert len(it.leader.asked) == 1 + 3
    assert it.adopted(partition) == 0
    assert it.leftovers() == []
    assert not it.failures
    assert not it.show(partition), "asked again at once"
    await asyncio.sleep(SETTINGS.pause_s)
    it.leader.spoil = lambda _, part: part
    assert it.show(partition)
    await it.until_ended(2)
    assert it.adopted(partition) == 3


@scene
async def test_a_card_with_a_flipped_bit_is_refused(it: Scene) -> None:
    partition = await it.follow()
    it.leader.spoil = lambda _, part: part._replace(card=flipped(part.card))
    assert it.show(partition)
    await it.until_ended()
    assert it.adopted(partition) == 0
    assert it.leftovers() == []


@scene
async def test_a_segment_that_is_replaced_meanwhile_is_noticed(it: Scene) -> None:
    changes: list[Callable[[SegmentPart], SegmentPart]] = [
        lambda part: part._replace(size=part.size - 1),
        lambda part: part._replace(next_offset=part.next_offset + 1),
        lambda part: SegmentPart(part.next_offset, -1, 0, b"", b""),
        lambda part: SegmentPart(-1, -1, 0, b"", b""),
    ]
    partition = await it.follow()
    for number, change in enumerate(changes, 1):
        it.leader.spoil = lambda wanted, part, change=change: change(part) if wanted.position else part
        assert it.show(partition)
        await it.until_ended(number)
        assert it.adopted(partition) == 0
        assert it.leftovers() == []
        await asyncio.sleep(SETTINGS.pause_s)


@scene
async def test_a_leader_that_refuses_or_goes_costs_a_pause(it: Scene) -> None:
    partition = await it.follow()
    errors = (LeaderGone("gone", refused=False), PenstockError(Code.FENCED_LEADER_EPOCH, "another epoch"))
    for number, error in enumerate(errors, 1):

        def refuse(wanted: SegmentWanted, part: SegmentPart, error: Exception = error) -> SegmentPart:
            if wanted.position:
                raise error
            return part

        it.leader.spoil = refuse
        assert it.show(partition)
        await it.until_ended(number)
        assert it.adopted(partition) == 0
        assert it.leftovers() == []
        assert not it.show(partition)
        await asyncio.sleep(SETTINGS.pause_s)


@scene
async def test_with_another_epoch_nothing_is_adopted(it: Scene) -> None:
    partition = await it.follow()

    def change(wanted: SegmentWanted, part: SegmentPart) -> SegmentPart:
        if wanted.position:
            it.copying.forget((partition.topic_id.bytes, 0))
            partition.follow(PartitionState((1, LEADER), (LEADER,), LEADER, 10))
        return part

    it.leader.spoil = change
    assert it.show(partition)
    await wait_for(lambda: len(it.leader.asked) == 2 and not it.leftovers())
    assert it.adopted(partition) == 0
    it.leader.spoil = lambda _, part: part
    assert it.show(partition), "a pause, although nothing was wrong"
    await it.until_ended()
    assert it.adopted(partition) == 3
    assert it.leader.asked[-1].leader_epoch == 10


@scene
async def test_an_epoch_that_changes_before_the_lock_is_had(it: Scene) -> None:
    partition = await it.follow()
    async with it.lock:
        assert it.show(partition)
        await wait_for(lambda: it.copying._adoption is not None)
        partition.follow(PartitionState((1, LEADER), (LEADER,), LEADER, 10))
    await it.until_ended()
    assert it.adopted(partition) == 0
    assert it.leftovers() == []


@scene
async def test_between_segments_it_is_fetched_up_to_the_next(it: Scene) -> None:
    partition = await it.follow()
    leader = it.leader.bench
    batches = await leader.read(0, limit=3)
    log = partition.opened()
    append_copied(log, memoryview(bytearray(batches[0].data)))
    await wait_for(lambda: log.visible_end == log.end_offset)
    assert it.show(partition)
    await it.until_ended()
    assert it.adopted(partition) == 0
    assert not it.show(partition), "asked again before the next segment begins"
    border = leader.log.segments[1].base
    while log.end_offset < border:
        for batch in await leader.read(log.end_offset, limit=border):
            append_copied(log, memoryview(bytearray(batch.data)))
    await wait_for(lambda: log.visible_end == border)
    assert it.show(partition)
    await it.until_ended(2)
    assert it.copying.segments == 2
    assert partition.opened().end_offset == leader.log.segments[-1].base


@scene
async def test_a_full_disk_costs_the_copy_and_no_more(it: Scene) -> None:
    partition = await it.follow()
    it.broker.disk.fail("write_at", errno.ENOSPC, path_contains=".copying")
    assert it.show(partition)
    await it.until_ended()
    assert it.leftovers() == []
    await asyncio.sleep(SETTINGS.pause_s)
    it.broker.disk.fail("write_at", errno.ENOSPC, path_contains="copied.index")
    assert it.show(partition)
    await it.until_ended(2)
    assert it.adopted(partition) == 0
    assert it.leftovers() == []
    assert not it.show(partition)
    assert not it.failures
    await asyncio.sleep(SETTINGS.pause_s)
    assert it.show(partition)
    await it.until_ended(3)
    assert it.adopted(partition) == 3


@scene
async def test_a_disk_that_fails_stops_the_broker(it: Scene) -> None:
    partition = await it.follow()
    it.broker.disk.fail("sync_files", errno.EIO, path_contains=".copying")
    assert it.show(partition)
    await wait_for(lambda: it.failures)
    assert it.adopted(partition) == 0


@scene
async def test_partitions_take_turns(it: Scene) -> None:
    partitions = [await it.follow(index) for index in range(2)]
    for partition in partitions:
        assert it.show(partition)
    await it.until_ended(2)
    turns = [wanted.partition_index for wanted in it.leader.asked if wanted.position == 0]
    assert turns == [0, 1] * 4
    assert [it.adopted(partition) for partition in partitions] == [3, 3]


@scene
async def test_a_log_is_not_left_half_replaced(it: Scene) -> None:
    partition = await it.follow()
    assert it.show(partition)
    await wait_for(lambda: partition.opened().closed)
    adopted = it.adopted(partition)
    it.task.cancel()
    await asyncio.wait({it.task})
    assert not partition.opened().closed
    assert it.adopted(partition) == adopted + 1
    assert it.leftovers() == []


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])
