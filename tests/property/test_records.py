"""Batches against aiokafka's reader and writer, and against damage: only our own two errors ever come out."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES, check_produced
from penstock.records.build import NewRecord, build_batch
from penstock.records.compression import Codec, CompressionError, compress, decompress
from penstock.records.record import RecordError, encode, iterate, iterate_batch
from penstock.records.rewrite import check_records
from penstock.records.varint import decode_varint
from penstock.records.walk import walk, walk_view

LIMIT = 1 << 20

calm = settings(deadline=None)  # a busy machine is no failure

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

codecs = st.sampled_from(list(Codec))
compressed_codecs = st.sampled_from([codec for codec in Codec if codec])
# Long ones by repetition: the lengths of two and three bytes matter, not what is in them.
payloads = st.binary(max_size=80) | st.builds(bytes.__mul__, st.binary(min_size=1, max_size=3), st.integers(20, 6000))
headers = st.lists(st.tuples(st.text(max_size=70), st.none() | payloads), max_size=4)
new_records = st.builds(
    NewRecord,
    st.none() | payloads,
    st.none() | payloads,
    headers,
    st.integers(0, 2**42) | st.integers(0, 300),
)
batches = st.lists(new_records, min_size=1, max_size=8)
offsets = st.integers(0, 2**62)


def rows(records: list[NewRecord], base_offset: int) -> list[Row]:
    return [
        (base_offset + n, record.timestamp_ms, record.key, record.value, tuple(record.headers))
        for n, record in enumerate(records)
    ]


def read(batch: bytes) -> list[Row]:
    return [
        (offset, timestamp, record.key, record.value, record.headers)
        for offset, timestamp, record in iterate_batch(batch, LIMIT)
    ]


@calm
@given(batches, codecs, offsets)
def test_round_trip(records: list[NewRecord], codec: Codec, base_offset: int) -> None:
    assert read(build_batch(records, codec=codec, base_offset=base_offset)) == rows(records, base_offset)


@calm
@given(batches, codecs, offsets, st.booleans())
def test_aiokafka_reads_ours(records: list[NewRecord], codec: Codec, base_offset: int, transactional: bool) -> None:
    batch = build_batch(
        records,
        codec=codec,
        base_offset=base_offset,
        producer_id=7,
        producer_epoch=2,
        transactional=transactional,
    )
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.is_transactional == transactional
    assert theirs.next_offset == base_offset + len(records)
    assert theirs.max_timestamp == max(record.timestamp_ms for record in records)
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == rows(records, base_offset)


def built_by_aiokafka(records: list[NewRecord], codec: Codec, producer_id: int = -1) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(codec),
        is_transactional=producer_id >= 0,
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=min(producer_id, 0),
        batch_size=1 << 30,
    )
    for n, record in enumerate(records):
        assert builder.append(n, record.timestamp_ms, record.key, record.value, list(record.headers)) is not None
    return bytes(builder.build())


@calm
@given(batches, codecs)
def test_we_read_aiokafkas(records: list[NewRecord], codec: Codec) -> None:
    theirs = built_by_aiokafka(records, codec)
    assert read(theirs) == rows(records, 0)
    if codec is Codec.NONE:
        assert build_batch(records, leader_epoch=int.from_bytes(theirs[12:16], "big", signed=True)) == theirs


@calm
@given(batches, codecs, st.sampled_from([-1, 7]))
def test_what_aiokafka_builds_is_taken(records: list[NewRecord], codec: Codec, producer_id: int) -> None:
    theirs = memoryview(built_by_aiokafka(records, codec, producer_id))
    check_records(theirs, check_produced(theirs))
    section = decompress(codec, theirs[HEADER_BYTES:], LIMIT, strict=True)
    assert list(iterate(section, len(records))) == list(iterate(build_batch(records)[HEADER_BYTES:], len(records)))


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for at, value in changes:
        out[at % len(out)] = value
    return bytes(out)


def exhaust(things: Iterator[object]) -> None:
    with suppress(RecordError, CompressionError):
        for _ in things:
            pass


# Small numbers hit the header and the first lengths, where damage matters most.
changes = st.lists(st.tuples(st.integers(0, 100) | st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)


@calm
@given(batches, codecs, changes)
def test_a_damaged_batch_raises_only_our_errors(
    records: list[NewRecord], codec: Codec, changes: list[tuple[int, int]]
) -> None:
    exhaust(iterate_batch(damaged(build_batch(records, codec=codec), changes), LIMIT))


@calm
@given(batches, changes)
def test_damaged_records_raise_only_our_errors(records: list[NewRecord], changes: list[tuple[int, int]]) -> None:
    exhaust(iterate(damaged(build_batch(records)[61:], changes), len(records)))


@calm
@given(batches, codecs, st.data())
def test_a_truncated_batch_is_an_error(records: list[NewRecord], codec: Codec, data: st.DataObject) -> None:
    batch = build_batch(records, codec=codec)
    size = data.draw(st.integers(0, len(batch) - 1))
    with pytest.raises(RecordError):
        read(batch[:size])
    if size >= 61:  # the same with a length that agrees: now the cut is inside the records
        cut = batch[:8] + (size - 12).to_bytes(4, "big") + batch[12:size]
        with pytest.raises((RecordError, CompressionError)):
            read(cut)


@calm
@given(st.binary(max_size=200), st.integers(-5, 30))
def test_random_bytes_as_records(data: bytes, count: int) -> None:
    exhaust(iterate(data, count))


def walked(section: bytes, count: int) -> int | None:
    """What a walk says, whole and in pieces of any size."""
    found = said_by(lambda: walk(section, count))
    for window in (1, 7, 64):
        assert said_by(partial(walk_view, memoryview(section), count, window=window)) == found
    return found


def said_by(look: Callable[[], int]) -> int | None:
    try:
        return look()
    except RecordError:
        return None


def attributes(section: bytes, count: int) -> list[int]:
    """Of each record in a section that can be iterated over."""
    found, position = [], 0
    for _ in range(count):
        size, position = decode_varint(section, position)
        found.append(section[position])
        position += size
    return found


def iterated(section: bytes, count: int) -> int | None:
    """What `walk` should say of it: how many records have no key, None if anything is wrong."""
    try:
        records = list(iterate(section, count))
    except RecordError:
        return None
    if [record.offset_delta for record in records] != list(range(count)) or max(
        attributes(section, count), default=0
    ) > 0x7F:
        return None
    return sum(record.key is None for record in records)


@calm
@given(batches, st.just([]) | changes, st.integers(-1, 1))
def test_a_walk_sees_what_iterating_sees(records: list[NewRecord], changes: list[tuple[int, int]], more: int) -> None:
    section, count = damaged(build_batch(records)[61:], changes), len(records) + more
    assert walked(section, count) == iterated(section, count)


@calm
@given(batches, st.sets(st.integers(0, 30)), st.integers(-1, 1))
def test_what_compaction_leaves_is_walked(records: list[NewRecord], gone: set[int], more: int) -> None:
    section = build_batch(records)[61:]
    kept = [each for each in iterate(section, len(records)) if each.offset_delta not in gone]
    left = bytearray()
    for each in kept:
        encode(left, each.offset_delta, each.timestamp_delta, each.key, each.value, each.headers)
    last = kept[-1].offset_delta if kept else 0
    keyless = sum(each.key is None for each in kept)
    for window in (1, 7, 64):
        assert walk_view(memoryview(left), len(kept), 0, len(records), window) == keyless
    assert walk(bytes(left), len(kept), 0, last) == keyless
    if kept and last:
        assert said_by(lambda: walk(bytes(left), len(kept), 0, last - 1)) is None
    if len(kept) != len(records) and kept and last != len(kept) - 1:
        assert walked(bytes(left), len(kept)) is None


@calm
@given(
    st.binary(max_size=60) | st.binary(max_size=20).map(lambda rest: bytes([len(rest) * 2]) + rest), st.integers(-2, 8)
)
def test_random_bytes_are_walked_as_they_are_iterated(section: bytes, count: int) -> None:
    assert walked(section, count) == iterated(section, count)


@calm
@given(compressed_codecs, st.binary(max_size=300), st.integers(0, 3000))
def test_random_bytes_never_pass_the_cap(codec: Codec, data: bytes, limit: int) -> None:
    with suppress(CompressionError):
        assert len(decompress(codec, data, limit)) <= limit


@calm
@given(compressed_codecs, payloads, changes, st.integers(0, 20_000))
def test_damaged_frames_never_pass_the_cap(
    codec: Codec, data: bytes, changes: list[tuple[int, int]], limit: int
) -> None:
    with suppress(CompressionError):
        assert len(decompress(codec, damaged(compress(codec, data), changes), limit)) <= limit


@calm
@given(codecs, st.binary(max_size=100_000), st.integers(0, 100))
def test_compression_round_trip(codec: Codec, data: bytes, spare: int) -> None:
    assert decompress(codec, compress(codec, data), len(data) + spare) == data
