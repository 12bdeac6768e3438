"""A batch that was refused holds those behind it back only as long as the partition may not know better."""

import asyncio
from dataclasses import replace
from uuid import UUID

from tests.simulated_broker import virtual
from tests.simulated_log import Bench, open_log

from penstock.engine.opener import Opener
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState, alone
from penstock.engine.topic_config import make_config
from penstock.errors import Code, PenstockError
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.storage.log.copied import append_copied
from penstock.storage.log.log import Appended
from penstock.tasks import Tasks
from penstock.testing.faulty_disk import FaultyDisk

ME, OTHER = 1, 2
PRODUCER, EPOCH = 7, 3
AWAY = PenstockError(Code.NOT_AVAILABLE, "the coordinator is away")


class Answer:
    """Of a coordinator that is asked whether it knows the partition."""

    def __init__(self, error: PenstockError | None = None) -> None:
        self._error = error

    async def known(self, place: tuple[str, int]) -> None:
        if self._error is not None:
            raise self._error

    def check(self, place: tuple[str, int]) -> None:
        pass


class LedPartition:
    """One partition that this broker leads at first, and what a producer sends it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.partition = Partition("t", UUID(int=5), 0, alone(ME, 0), make_config({}, {}), bench.clock, ME)
        self.partition.use(bench.log)
        self._opener = Opener(bench.disk, Tasks(bench.failures.append))

    @staticmethod
    def batch(sequence: int) -> bytearray:
        records = [(None, b"%d" % sequence, (), 1_700_000_000_000)]
        return bytearray(
            build_batch(records, producer_id=PRODUCER, producer_epoch=EPOCH, base_sequence=sequence, transactional=True)
        )

    async def send(self, sequence: int, error: PenstockError | None = None) -> Appended | PenstockError:
        """The first batch of a transaction, about which its coordinator says this."""
        batch = memoryview(self.batch(sequence))
        answer: asyncio.Future[Appended | PenstockError] = asyncio.get_running_loop().create_future()
        self._opener.append(self.partition, batch, decode_header(batch), answer.set_result, Answer(error))
        return await answer

    def end_transaction(self) -> None:
        self.partition.append_marker(PRODUCER, EPOCH, Marker.COMMIT, 0)

    def _state(self, leader: int) -> PartitionState:
        return replace(self.partition.state, leader=leader, leader_epoch=self.partition.leader_epoch + 1)

    def follow(self, *copied: bytes | bytearray) -> None:
        """Another broker leads, and these are copied from it."""
        self.partition.follow(self._state(OTHER))
        for data in copied:
            placed = bytearray(data)
            placed[0:8] = self.bench.log.end_offset.to_bytes(8, "big")
            placed[12:16] = self.partition.leader_epoch.to_bytes(4, "big")
            append_copied(self.bench.log, memoryview(placed))

    async def lead(self) -> None:
        state = self._state(ME)
        await self.bench.upkeep.begin_epochs([(self.bench.log, state.leader_epoch)])
        self.partition.lead(state)


async def made() -> LedPartition:
    return LedPartition(await open_log(FaultyDisk(1)))


@virtual
async def test_what_follows_a_refused_batch_waits_for_it() -> None:
    world = await made()
    assert await world.send(0, AWAY) is AWAY
    behind = await world.send(1)
    assert isinstance(behind, PenstockError)
    assert behind.code is Code.OUT_OF_ORDER_SEQUENCE
    for sequence in (0, 1):
        assert isinstance(await world.send(sequence), Appended)


@virtual
async def test_a_refused_batch_that_another_leader_took_holds_nothing_back() -> None:
    """The producer was told to send it again, did so where the partition was led meanwhile, and went on there."""
    world = await made()
    assert isinstance(await world.send(0), Appended)
    world.end_transaction()
    assert await world.send(1, AWAY) is AWAY
    world.follow(world.batch(1), build_marker(PRODUCER, EPOCH, Marker.COMMIT, 1, 1_700_000_000_000))
    await world.lead()
    assert isinstance(await world.send(2), Appended)


@virtual
async def test_a_batch_that_was_on_its_way_when_another_became_the_leader_holds_nothing_back() -> None:
    world = await made()
    world.follow()
    late = await world.send(0)
    assert isinstance(late, PenstockError)
    assert late.code is Code.NOT_LEADER
    world.follow(world.batch(0), build_marker(PRODUCER, EPOCH, Marker.COMMIT, 1, 1_700_000_000_000))
    await world.lead()
    assert isinstance(await world.send(1), Appended)
