"""Partitions that end before what was durable, accepted as they are: those alone, whole or not at all."""

import pytest
from tests.simulated_broker import Broker, batch_of, produce, read_all, running, virtual

from penstock.engine.topics import Topic
from penstock.storage.kept_ends import load_ends
from penstock.storage.offline.acceptance import OlderLog, accept, find_older
from penstock.storage.offline.catalogue import Catalogue, TopicEntry
from penstock.storage.offline.inspection import DirectoryReport, find_owners, inspect_directory
from penstock.storage.offline.repair import make_plan
from penstock.testing.faulty_disk import FaultyDisk, PowerCut
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock


class Older:
    """Topic `t` of three partitions with ten records each; the first two are put back as they were with four."""

    def __init__(self) -> None:
        self.disk = FaultyDisk(max_delay_s=0.0)
        self.store = MemoryStore()
        self.clock = VirtualClock()
        self.topic: Topic | None = None

    def broker(self) -> Broker:
        return Broker(self.disk, self.store, self.clock)

    async def write(self, *, clean: bool) -> None:
        broker = self.broker()
        await broker.start()
        self.topic = await broker.engine.create_topic("t", 3)
        await self.produce(broker, 4)
        old = self.disk.backup()
        await self.produce(broker, 6)
        await broker.stop()
        if not clean:
            broker.directory.remove_clean_mark()
        for index in (0, 1):
            self.disk.restore(f"data/logs/t/{index}", old)

    async def produce(self, broker: Broker, count: int) -> None:
        for number in range(count):
            for partition in self.partitions:
                await produce(broker.partition("t", partition), batch_of([b"%d" % number], self.clock))

    @property
    def partitions(self) -> range:
        return range(3)

    def report(self) -> DirectoryReport:
        assert self.topic is not None
        entry = TopicEntry(self.topic.topic_id, 3, 0)
        return inspect_directory(self.disk, "data", Catalogue("data/meta/metadata.db", "c", {"t": entry}))

    def find(self) -> list[OlderLog]:
        return find_older(self.disk, self.report(), find_owners(self.disk, "data"))

    async def offline(self) -> list[int]:
        async with running(self.broker()) as broker:
            return [index for index in self.partitions if broker.partition("t", index).log is None]


@pytest.mark.parametrize("clean", [True, False])
def test_what_is_accepted_goes_on_where_it_ends(clean: bool) -> None:
    @virtual
    async def run() -> None:
        older = Older()
        await older.write(clean=clean)
        found = older.find()
        assert [(log.name, log.end_offset, log.known_end, log.is_damaged) for log in found] == [
            ("t-0", 4, 10, False),
            ("t-1", 4, 10, False),
        ]
        accept(older.disk, older.report(), found[:1])
        assert [log.name for log in older.find()] == ["t-1"]
        async with running(older.broker()) as broker:
            assert broker.partition("t", 1).log is None
            appended = await produce(broker.partition("t"), batch_of([b"new"], older.clock))
            assert appended.base_offset == 4
            headers = [batch.header for batch in await read_all(broker.partition("t"))]
            assert headers[-1].leader_epoch > headers[-2].leader_epoch  # clients see that it is another record
            assert broker.partition("t", 2).opened().end_offset == 10
        assert older.topic is not None
        assert load_ends(older.disk, "data/meta")[older.topic.topic_id] == [5, 10, 10]

    run()


@virtual
async def test_the_mark_of_a_clean_stop_goes_and_what_it_knew_stays() -> None:
    older = Older()
    await older.write(clean=True)
    older.disk.unlink("data/meta/log-ends")  # as an earlier release leaves it
    found = older.find()
    assert [log.name for log in found] == ["t-0", "t-1"]
    accept(older.disk, older.report(), found[:1])
    assert not older.disk.exists("data/clean-shutdown")
    assert await older.offline() == [1]


@virtual
async def test_a_log_that_is_damaged_by_itself_is_no_old_copy() -> None:
    older = Older()
    await older.write(clean=False)
    segment = "data/logs/t/1/00000000000000000000.log"
    async with running(older.broker()):
        pass
    older.disk.flip_byte(segment, 70)
    (log,) = [log for log in older.find() if log.name == "t-1"]
    assert not log.is_damaged and log.end_offset < 4  # nothing of it was ever promised by its own files
    older.disk.open("data/logs/t/1/state").truncate(3)
    (log,) = [log for log in older.find() if log.name == "t-1"]
    assert log.is_damaged


@virtual
async def test_a_power_cut_leaves_it_accepted_or_not() -> None:
    rehearsal = Older()
    await rehearsal.write(clean=True)
    report, found = rehearsal.report(), rehearsal.find()
    before = rehearsal.disk.operations
    accept(rehearsal.disk, report, found)
    outcomes = []
    for moment in range(1, rehearsal.disk.operations - before + 1):
        older = Older()
        await older.write(clean=True)
        report, found = older.report(), older.find()
        older.disk.cut_power_after(moment)
        with pytest.raises(PowerCut):
            accept(older.disk, report, found)
        older.disk = older.disk.after_power_cut()
        offline = await older.offline()
        assert offline in ([0, 1], []), f"moment {moment}"
        outcomes.append(offline)
        accept(older.disk, older.report(), older.find())
        assert await older.offline() == []
    assert outcomes[0] == [0, 1]


@virtual
async def test_repair_leaves_the_offsets_empty_instead() -> None:
    older = Older()
    await older.write(clean=False)
    report = older.report()
    assert [finding.kind for finding in report.damage] == ["short", "short"]
    assert "old copy" in report.damage[0].what and "penstock log accept" in report.damage[0].way_out
    assert older.topic is not None
    entry = TopicEntry(older.topic.topic_id, 3, 0)
    plan = make_plan(report, Catalogue("data/meta/metadata.db", "c", {"t": entry}), 0, "c")
    assert [step.lost for step in plan.steps] == [((4, 9),), ((4, 9),)]
    for step in plan.steps:
        step.apply(older.disk)
    assert older.report().damage == [] and older.find() == []
    async with running(older.broker()) as broker:
        appended = await produce(broker.partition("t"), batch_of([b"new"], older.clock))
        assert appended.base_offset == 10


@virtual
async def test_a_partition_made_anew_goes_on_behind_what_was_durable() -> None:
    older = Older()
    await older.write(clean=False)
    older.disk.lose("data/logs/t/0")
    assert older.topic is not None
    catalogue = Catalogue("data/meta/metadata.db", "c", {"t": TopicEntry(older.topic.topic_id, 3, 0)})
    plan = make_plan(older.report(), catalogue, 0, "c", recreate_missing=True)
    for step in plan.steps:
        step.apply(older.disk)
    async with running(older.broker()) as broker:
        assert (await produce(broker.partition("t"), batch_of([b"new"], older.clock))).base_offset == 10
