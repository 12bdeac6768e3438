"""Offsets by time where compaction has been: a batch without records still carries their time."""

from typing import Any

from tests.simulated_broker import virtual
from tests.simulated_log import open_log

from penstock.engine.offset_lookup import find_largest_time
from penstock.records.build import build_batch
from penstock.storage.compaction.process import InlineCompaction
from penstock.storage.log.compacting import Compaction
from penstock.storage.log.options import LogOptions
from penstock.storage.log.rewriting import Rewriting
from penstock.testing.faulty_disk import FaultyDisk


@virtual
async def test_the_largest_time_is_not_that_of_an_emptied_batch() -> None:
    options = LogOptions(compact=True, min_dirty_ratio=0.0)
    bench = await open_log(FaultyDisk(max_delay_s=0.0), options)
    log, start = bench.log, bench.clock.now_ms()
    fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    bench.append_batch(bytearray(build_batch([(b"k", b"old", [], start + 100)], **fields)))
    for key, at in ((b"k", 5), (b"a", 20), (b"b", 10)):
        bench.append_batch(bytearray(build_batch([(key, b"new", [], start + at)])))
    log.want_roll()
    await bench.commit()
    await bench.tend()
    bench.append_batch(bytearray(build_batch([(b"c", b"new", [], start + 15)])))
    await bench.commit()
    compaction = Compaction(Rewriting(bench.upkeep._shelf, InlineCompaction(bench.disk), 0))
    job = compaction.next_job(log, bench.clock.now_ms())
    assert job is not None and await compaction.run(log, job, bench.clock.now_ms())
    assert log.segments[0].max_timestamp == start + 100, "the emptied batch's"
    found = find_largest_time(log, log.visible_end)
    assert found is not None and (found.offset, found.timestamp) == (2, start + 20)
