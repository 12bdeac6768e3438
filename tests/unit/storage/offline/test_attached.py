"""A directory at rest with logs attached to partitions: looked at as known ones, and found again without metadata."""

from tests.simulated_broker import virtual
from tests.unit.engine.test_attached import Counted, begun
from tests.unit.engine.test_engine import Machine

from penstock.cluster.metadata.offline import _entry, _record
from penstock.engine.topics import TOPICS, TopicRecord
from penstock.storage.attached_names import attached_id
from penstock.storage.offline.catalogue import Catalogue
from penstock.storage.offline.findings import Kind
from penstock.storage.offline.inspection import inspect_directory
from penstock.storage.offline.repair import KEEP_ALL, rebuild_catalogue


async def _at_rest() -> tuple[Machine, TopicRecord]:
    machine = Machine()
    counted = await begun(machine)
    await counted.step("a")
    await counted.broker.stop()
    entry = await machine.store.get(TOPICS + "t")
    assert entry is not None
    return machine, TopicRecord.decode(entry.value)


@virtual
async def test_what_is_attached_is_known_by_the_record_of_its_topic() -> None:
    machine, record = await _at_rest()
    assert _record(_entry(record)) == record
    known = Catalogue("meta", "c", {"t": _entry(record)})
    report = inspect_directory(machine.disk, "data", known)
    assert sorted(partition.name for partition in report.partitions) == ["t-0", "t-1", "t~count-0", "t~count-1"]
    assert report.damage == []
    machine.disk.lose("data/logs/t~count/1")
    missing = inspect_directory(machine.disk, "data", known).damage
    assert [finding.partition for finding in missing if finding.kind is Kind.MISSING_PARTITION] == ["t~count-1"]


@virtual
async def test_metadata_that_is_rebuilt_has_it_and_a_start_finds_it() -> None:
    machine, record = await _at_rest()
    report = inspect_directory(machine.disk, "data", Catalogue("meta", exists=False))
    ids = {"t": record.topic_id, "t~count": attached_id(record.topic_id, "count")}
    rebuilt = rebuild_catalogue(report, Catalogue("meta", exists=False), ids, "c")
    assert rebuilt.topics.keys() == {"t"}
    assert rebuilt.topics["t"].attached == {"count": KEEP_ALL}
    await machine.store.transact(put={TOPICS + "t": _record(rebuilt.topics["t"]).encode()})
    again = Counted(machine)
    await again.broker.start()
    assert await again.numbers() == {"a": 1}
    await again.broker.stop()
