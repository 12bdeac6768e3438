"""A producer id for a batch that has none."""

from penstock.records.batch import check_produced
from penstock.records.build import build_batch
from penstock.records.record import iterate_batch
from penstock.records.stamp import stamp_producer


def test_all_but_the_producer_stays() -> None:
    batch = build_batch([(b"k", b"%d" % number, (), 1_700_000_000_000) for number in range(3)])
    stamped = stamp_producer(batch, 1 << 40, 7)
    before, after = check_produced(memoryview(batch)), check_produced(memoryview(stamped))
    assert after == before._replace(producer_id=1 << 40, producer_epoch=0, base_sequence=7, crc=after.crc)
    assert after.crc != before.crc
    assert list(iterate_batch(stamped, 1 << 20)) == list(iterate_batch(batch, 1 << 20))
    assert before.producer_id == -1, "the batch itself was changed"
