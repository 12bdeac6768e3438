"""Batches made over for their topic: the same records, another codec, and nothing that cannot be opened."""

from itertools import product

import pytest

from penstock.errors import Code, PenstockError
from penstock.records.batch import HEADER_BYTES, LARGEST_OPENED_BYTES, check_produced, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.record import iterate_batch
from penstock.records.rewrite import rewrite

RECORDS = [(b"k%d" % at, b"v" * at, [("h", b"x")], 1000 + at) for at in range(40)]


def opened(batch: memoryview) -> list[object]:
    return list(iterate_batch(batch, 1 << 20))


@pytest.mark.parametrize(("before", "after"), list(product(Codec, [None, *Codec])))
def test_the_records_stay_the_same(before: Codec, after: Codec | None) -> None:
    batch = memoryview(bytearray(build_batch(RECORDS, codec=before, producer_id=7, producer_epoch=1, base_sequence=3)))
    header = check_produced(batch)
    made, made_header = rewrite(batch, header, after, keyed=True)
    assert check_produced(made) == made_header
    assert made_header.codec == (before if after is None else after)
    assert opened(made) == opened(batch)
    same = {"crc": 0, "attributes": 0, "batch_length": 0}
    assert made_header._replace(**same) == header._replace(**same)
    if after in (None, before):
        assert made is batch


def test_what_cannot_be_opened_is_refused() -> None:
    whole = build_batch(RECORDS, codec=Codec.GZIP)
    broken = bytearray(whole)
    broken[HEADER_BYTES + 4 :] = b"?" * (len(whole) - HEADER_BYTES - 4)
    with pytest.raises(PenstockError, match="cannot be opened") as refused:
        rewrite(memoryview(broken), decode_header(broken), Codec.NONE, keyed=False)
    assert refused.value.code is Code.CORRUPT_BATCH


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = bytearray(build_batch([(b"k", bytes(LARGEST_OPENED_BYTES), [], 0)], codec=Codec.ZSTD))
    assert len(bomb) < 10_000
    with pytest.raises(PenstockError) as refused:
        rewrite(memoryview(bomb), decode_header(bomb), Codec.NONE, keyed=False)
    assert refused.value.code is Code.BATCH_TOO_LARGE


def test_bytes_that_are_no_records_have_no_keys() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[HEADER_BYTES] = 1
    with pytest.raises(PenstockError, match="record 0 of -1 bytes"):
        rewrite(memoryview(batch), decode_header(batch), None, keyed=True)


def test_records_out_of_their_places_are_refused() -> None:
    misplaced = bytearray(build_batch([(b"k", b"v", [], 0), (b"k", b"v", [], 0)]))
    misplaced[HEADER_BYTES + 3] = 2  # an offset delta of one, for the first record
    with pytest.raises(PenstockError, match="record 0 has offset delta 1") as refused:
        rewrite(memoryview(misplaced), decode_header(misplaced), None, keyed=True)
    assert refused.value.code is Code.CORRUPT_BATCH


@pytest.mark.parametrize(("base", "fits"), [((1 << 63) - 10_001, True), ((1 << 63) - 10_000, False)])
def test_a_time_beyond_64_bits_is_refused(base: int, fits: bool) -> None:
    batch = bytearray(build_batch([(b"k", b"v", [], 0), (b"k", b"v", [], 10_000)]))
    header = decode_header(batch)._replace(base_timestamp=base)
    if fits:
        assert rewrite(memoryview(batch), header, None, keyed=True) == (memoryview(batch), header)
        return
    with pytest.raises(PenstockError, match="timestamp of record 1"):
        rewrite(memoryview(batch), header, None, keyed=True)
