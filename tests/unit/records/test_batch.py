"""What a batch says of itself, checked without opening it."""

import pytest
from crc32c import crc32c

from penstock.errors import Code, PenstockError
from penstock.records.batch import BATCH_HEADER, CRC_START, LARGEST_OPENED_BYTES, check_produced, decode_header
from penstock.records.build import NewRecord, build_batch
from penstock.records.compression import Codec

SMALLEST = NewRecord(None, None, (), 0)


def claiming(count: int, records: int = 3, codec: Codec = Codec.NONE, delta: int | None = None) -> memoryview:
    """A batch of `records` whose header, under a right CRC, speaks of `count`."""
    batch = bytearray(build_batch([SMALLEST] * records, codec=codec))
    last = count - 1 if delta is None else delta
    header = decode_header(batch)._replace(record_count=count, last_offset_delta=last)
    BATCH_HEADER.pack_into(batch, 0, *header)
    BATCH_HEADER.pack_into(batch, 0, *header._replace(crc=crc32c(batch[CRC_START:])))
    return memoryview(batch)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [(1 << 31) - 1, LARGEST_OPENED_BYTES // 7 + 1])
def test_more_records_than_the_bytes_can_hold_are_refused(codec: Codec, count: int) -> None:
    with pytest.raises(PenstockError, match=f"record count {count} in a batch of") as refused:
        check_produced(claiming(count, codec=codec))
    assert refused.value.code is Code.INVALID_BATCH


def test_records_without_anything_in_them_fill_a_batch_to_the_byte() -> None:
    assert check_produced(claiming(60, records=60)).record_count == 60
    with pytest.raises(PenstockError, match="record count 61"):
        check_produced(claiming(61, records=60))


@pytest.mark.parametrize("codec", Codec)
def test_as_many_equal_records_as_a_codec_can_fold_are_taken(codec: Codec) -> None:
    assert check_produced(memoryview(build_batch([SMALLEST] * 100_000, codec=codec))).record_count == 100_000


@pytest.mark.parametrize(("count", "delta"), [(3, 3), (3, 1), (3, (1 << 31) - 1), (0, -1), (-1, -2)])
def test_a_last_offset_that_does_not_fit_the_count_is_refused(count: int, delta: int) -> None:
    with pytest.raises(PenstockError, match="does not fit last offset delta"):
        check_produced(claiming(count, delta=delta))
