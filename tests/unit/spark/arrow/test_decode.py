"""Batches to Arrow: the record iterator of `penstock.records` is the judge of what comes out and of what is refused."""

import datetime
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.records import record, varint
from penstock.records.batch import BATCH_HEADER, HEADER_BYTES, LOG_APPEND_TIME, MAGIC, PREFIX_BYTES, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec, CompressionError, compress
from penstock.records.record import RecordError, iterate_batch
from penstock.spark.arrow import chain, fields
from penstock.spark.arrow import decode as decoding
from penstock.spark.arrow.decode import CANONICAL, Place, decode

LIMIT = 1 << 20
END = (1 << 63) - 1
SPARK = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
    ]
)
FAULTS = (RecordError, CompressionError)


def laid(batches: Sequence[bytes], gap: int = 0) -> tuple[memoryview, list[Place]]:
    """The batches in one buffer, each after `gap` bytes of something else."""
    data = bytearray()
    places = []
    for batch in batches:
        data += b"\x5a" * gap
        places.append(Place(len(data), decode_header(batch)))
        data += batch
    return memoryview(data), places


def opened(
    batches: Sequence[bytes],
    wanted: Sequence[str] = CANONICAL,
    *,
    first: int = -END,
    end: int = END,
    limit: int = LIMIT,
    gap: int = 0,
) -> pa.RecordBatch:
    data, places = laid(batches, gap)
    found = decode(data, places, wanted, topic="événements", partition=7, first=first, end=end, limit=limit)
    found.validate(full=True)
    return found


def rows_of(found: pa.RecordBatch) -> list[tuple[object, ...]]:
    return [
        (
            row["offset"],
            row["timestamp"],
            row["timestampType"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in found.set_column(
            found.schema.get_field_index("timestamp"), "timestamp", found["timestamp"].view(pa.int64())
        ).to_pylist()
    ]


def judged(batches: Sequence[bytes], first: int = -END, end: int = END) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        append_time = decode_header(batch).attributes & LOG_APPEND_TIME
        for offset, timestamp, one in iterate_batch(batch, LIMIT):
            if first <= offset < end:
                microseconds = timestamp * 1000 if abs(timestamp) <= END // 1000 else None
                rows.append((offset, microseconds, int(bool(append_time)), one.key, one.value, one.headers))
    return rows


def sealed(section: bytes, count: int, *, codec: int = 0, attributes: int = 0, **fields: int) -> bytes:
    """A batch around a section of records, which may be anything."""
    body = compress(codec, section) if codec else section
    header = {
        "base_offset": 0,
        "last_offset_delta": max(count - 1, 0),
        "base_timestamp": 1_000,
        "max_timestamp": 2_000,
        "magic": MAGIC,
    } | fields
    return (
        BATCH_HEADER.pack(
            header["base_offset"],
            HEADER_BYTES - PREFIX_BYTES + len(body),
            0,
            header["magic"],
            0,
            codec | attributes,
            header["last_offset_delta"],
            header["base_timestamp"],
            header["max_timestamp"],
            -1,
            -1,
            -1,
            count,
        )
        + body
    )


def section_of(
    records: Sequence[tuple[int, int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]],
) -> bytes:
    section = bytearray()
    for one in records:
        record.encode(section, *one)
    return bytes(section)


@contextmanager
def tuned(lanes: int, block: int, probe: int, rows: int, few: int) -> Iterator[None]:
    """Small data takes the ways that large data takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "_LANES", lanes)
        patch.setattr(chain, "_BLOCK", block)
        patch.setattr(chain, "_PROBE", probe)
        patch.setattr(fields, "_BLOCK", rows)
        patch.setattr(fields, "_FEW", few)
        yield


_tuning = st.tuples(
    st.sampled_from([1, 2, 3, 64]),
    st.sampled_from([1, 5, 16]),
    st.sampled_from([1, 3, 256]),
    st.sampled_from([1, 7, 8192]),
    st.sampled_from([1, 3, 32]),
)
_bytes = st.none() | st.binary(max_size=12) | st.integers(50, 300).map(bytes) | st.integers(8180, 8210).map(bytes)
_headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=4)
_deltas = st.integers(-200, 20_000) | st.integers(-(1 << 62), 1 << 62)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Batches one after the other, some compressed, compacted (with gaps) or stamped by the broker, some empty."""
    made = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        steps = draw(st.lists(st.just(1) | st.integers(1, 9000), max_size=40))
        records = []
        delta = -1
        for step in steps:
            delta += step
            records.append((delta, draw(_deltas), draw(_bytes), draw(_bytes), draw(_headers)))
        last = delta + draw(st.integers(1 if delta < 0 else 0, 3))
        made.append(
            sealed(
                section_of(records),
                len(records),
                codec=draw(st.sampled_from([0, 0, *Codec])),
                attributes=draw(st.sampled_from([0, LOG_APPEND_TIME])),
                base_offset=offset,
                last_offset_delta=last,
                base_timestamp=draw(st.integers(-1, 1 << 41)),
                max_timestamp=draw(st.integers(-1, END)),
            )
        )
        offset += last + 1
    return made


@settings(deadline=None, max_examples=120)
@given(batches(), _tuning, st.data())
def test_rows_are_those_of_the_iterator(
    made: list[bytes], tuning: tuple[int, int, int, int, int], data: st.DataObject
) -> None:
    everything = judged(made)
    with tuned(*tuning):
        assert rows_of(opened(made, gap=data.draw(st.integers(0, 3)))) == everything
    offsets = [int(str(row[0])) for row in everything] or [0]
    first = data.draw(st.integers(offsets[0] - 1, offsets[-1] + 1))
    end = data.draw(st.integers(offsets[0] - 1, offsets[-1] + 1))
    assert rows_of(opened(made, first=first, end=end)) == judged(made, first, end)


def alike(made: Sequence[bytes], tuning: tuple[int, int, int, int, int]) -> None:
    """Decoding and the iterator refuse the same batches, and find the same rows in all others."""
    try:
        expected = judged(made)
    except FAULTS:
        with tuned(*tuning), pytest.raises(FAULTS):
            opened(made)
    else:
        with tuned(*tuning):
            assert rows_of(opened(made)) == expected


@settings(deadline=None, max_examples=120)
@given(batches().filter(bool), _tuning, st.randoms(use_true_random=False))
def test_changed_bytes_are_refused_alike_or_read_alike(
    made: list[bytes], tuning: tuple[int, int, int, int, int], chance: random.Random
) -> None:
    at = chance.randrange(len(made))
    changed = bytearray(made[at])
    if len(changed) == HEADER_BYTES:
        return
    for _ in range(chance.randint(1, 3)):
        position = chance.randrange(HEADER_BYTES, len(changed))
        changed[position] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, changed[position] ^ 1 << chance.randrange(8)])
    made[at] = bytes(changed)
    alike(made, tuning)


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 4), st.binary(max_size=60), st.sampled_from([Codec.NONE, Codec.LZ4]), _tuning)
def test_any_bytes_are_refused_alike_or_read_alike(
    count: int, section: bytes, codec: Codec, tuning: tuple[int, int, int, int, int]
) -> None:
    alike([sealed(section, count, codec=codec)], tuning)


@pytest.mark.parametrize("missing", range(1, 13))
def test_what_follows_a_section_does_not_help_it(missing: int) -> None:
    """The bytes a section lacks are there, but behind it."""
    whole = section_of([(at, 0, b"k", b"v", [("h", b"x")]) for at in range(3)])
    for count in (2, 3):
        batch = sealed(whole[:-missing], count)
        data = memoryview(batch + whole[-missing:] + whole)
        with pytest.raises(RecordError):
            decode(data, [Place(0, decode_header(batch))], (), topic="t", partition=0, first=0, end=END, limit=LIMIT)


def test_schema_is_the_one_spark_asks_for() -> None:
    found = opened([build_batch([(b"k", b"v", [("n", b"x")], 5)])])
    assert found.schema.equals(to_arrow_schema(SPARK, timezone="UTC"), check_metadata=True)
    assert opened([]).schema == found.schema


def test_columns_come_in_the_order_asked_for() -> None:
    batch = build_batch([(b"k", b"v", (), 5)])
    assert opened([batch], ("partition", "value", "topic")).to_pylist() == [
        {"partition": 7, "value": b"v", "topic": "événements"}
    ]
    assert opened([batch], ("offset",)).num_columns == 1
    assert opened([batch], ()).num_columns == 0
    with pytest.raises(ValueError, match="'valeu'; there are key, value"):
        opened([batch], ("valeu",))


def test_null_stays_null_and_empty_stays_empty() -> None:
    found = opened([build_batch([(None, b"", (), 5), (b"", None, (), 5)])])
    assert [(row["key"], row["value"]) for row in found.to_pylist()] == [(None, b""), (b"", None)]


def test_header_names_that_are_not_utf8_are_replaced() -> None:
    body = b"\x00\x00\x00\x01\x01\x04" + b"\x02\xff\x01" + b"\x02h\x02v"
    batch = sealed(varint.encode(len(body)) + body, 1)
    assert rows_of(opened([batch])) == judged([batch])
    assert opened([batch], ("headers",)).to_pylist() == [
        {"headers": [{"key": "\ufffd", "value": None}, {"key": "h", "value": b"v"}]}
    ]


@pytest.mark.parametrize("count", [1, 31, 33, 300])
def test_many_headers(count: int) -> None:
    """A record with far more headers than the others, in its place among them."""
    few = [("h", b"1")]
    many = [(f"n{at}", bytes(at % 70)) for at in range(count)]
    batch = build_batch([(None, b"v", headers, 0) for headers in (few, many, (), few)] * 40)
    assert rows_of(opened([batch])) == judged([batch])


@pytest.mark.parametrize("size", [8, 100, 9000])
def test_runs_of_records_of_one_size(size: int) -> None:
    """The size changes where offsets need another byte; lengths have one byte, two or three."""
    count = 40_000_000 // size // 500 if size > 8 else 20_000
    batch = build_batch([(None, b"%08d" % at + bytes(size - 8), (), 9) for at in range(count)])
    assert rows_of(opened([batch])) == judged([batch])


def test_a_run_that_almost_goes_on() -> None:
    """The last record of a run looks like its fellows by its first length byte only."""
    records = [(None, bytes(100), (), 9)] * 200
    records[150] = (None, bytes(228), (), 9)
    records[199] = (None, bytes(101), (), 9)
    batch = build_batch(records)
    assert rows_of(opened([batch])) == judged([batch])


def test_timestamps_outside_of_microseconds_are_null() -> None:
    most = END // 1000
    stamps = [-1, 0, most, most + 1, -most, -most - 1, END, -END - 1]
    found = opened(
        [
            sealed(section_of([(0, 0, None, None, ())]), 1, base_timestamp=stamp, base_offset=at)
            for at, stamp in enumerate(stamps)
        ]
    )
    assert found["timestamp"].view(pa.int64()).to_pylist() == [
        -1000,
        0,
        most * 1000,
        None,
        -most * 1000,
        None,
        None,
        None,
    ]
    usual = opened([build_batch([(None, None, (), 1_700_000_000_123)])], ("timestamp",))
    assert usual.to_pylist() == [{"timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, datetime.UTC)}]


def test_the_broker_s_time_is_that_of_every_record() -> None:
    section = section_of([(0, 77, None, None, ()), (1, -77, None, None, ())])
    made = [sealed(section, 2), sealed(section, 2, attributes=LOG_APPEND_TIME, base_offset=2)]
    found = opened(made, ("timestamp", "timestampType"))
    assert found["timestamp"].view(pa.int64()).to_pylist() == [1_077_000, 923_000, 2_000_000, 2_000_000]
    assert found["timestampType"].to_pylist() == [0, 0, 1, 1]


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    section = section_of([(0, 1, None, None, ())])
    assert opened([sealed(section, 1, base_timestamp=END - 1)]).num_rows == 1
    with pytest.raises(RecordError, match="64 bits"):
        opened([sealed(section, 1, base_timestamp=END)])
    with pytest.raises(RecordError, match="64 bits"):
        opened([sealed(section_of([(0, -1, None, None, ())]), 1, base_timestamp=-END - 1)])
    assert opened([sealed(section, 1, base_timestamp=END, attributes=LOG_APPEND_TIME)]).num_rows == 1


@pytest.mark.parametrize(
    "deltas",
    [(0, 0), (1, 0), (-1, 0), (0, 4)],
    ids=["twice", "back", "below the base", "beyond the last"],
)
def test_offsets_that_do_not_ascend_inside_the_batch_are_refused(deltas: tuple[int, ...]) -> None:
    good = build_batch([(None, b"v", (), 5)] * 3)
    batch = sealed(section_of([(delta, 0, None, b"v", ()) for delta in deltas]), len(deltas), last_offset_delta=3)
    with pytest.raises(RecordError):
        judged([batch])
    for around in ([batch], [good, batch], [batch, good], [good, batch, good]):
        with pytest.raises(RecordError, match="offset delta"):
            opened(around)


def test_batches_with_no_records_between_others() -> None:
    full = build_batch([(None, b"v", (), 5)] * 3)
    empty = sealed(b"", 0, last_offset_delta=5)
    for around in ([empty], [empty, full], [full, empty], [empty, full, empty, empty, full, empty]):
        assert rows_of(opened(around)) == judged(around)


def test_a_batch_outside_of_the_offsets_is_not_opened_but_its_header_is_checked() -> None:
    torn = sealed(b"nonsense", 1, base_offset=100)
    good = build_batch([(None, b"v", (), 5)], base_offset=50)
    assert opened([good, torn], end=100).num_rows == 1
    assert opened([torn, good], first=101, end=200).num_rows == 0
    with pytest.raises(RecordError):
        opened([torn], first=100, end=101)
    with pytest.raises(RecordError, match="last offset delta"):
        opened([good, sealed(b"", 0, base_offset=100, last_offset_delta=-5)], end=100)


def test_places_that_are_no_batches_are_refused() -> None:
    batch = build_batch([(None, b"v", (), 5)])
    header = decode_header(batch)
    wrong = [
        (Place(1, header), "batch at 1 is not whole in data of"),
        (Place(-1, header), "batch at -1 is not whole"),
        (Place(0, header._replace(batch_length=len(batch))), "not whole in data of"),
        (Place(0, header._replace(batch_length=3)), "not whole in data of"),
        (Place(0, header._replace(batch_length=-100)), "not whole in data of"),
        (Place(0, header._replace(magic=1)), "not of format 2"),
        (Place(0, header._replace(base_offset=END)), None),
        (Place(0, header._replace(base_offset=END, last_offset_delta=1)), "last offset delta"),
    ]
    for place, why in wrong:
        ask = (memoryview(batch), [place], CANONICAL)
        if why is None:
            assert decode(*ask, topic="t", partition=0, first=0, end=END + 1, limit=LIMIT)["offset"].to_pylist() == [
                END
            ]
            continue
        with pytest.raises(RecordError, match=why):
            decode(*ask, topic="t", partition=0, first=-END, end=END + 1, limit=LIMIT)


@pytest.mark.parametrize("count", [-1, 0, 2, 3, 1 << 30, (1 << 31) - 1])
def test_counts_that_do_not_fit_are_refused_before_anything_is_made_for_them(count: int) -> None:
    batch = sealed(section_of([(0, 0, None, b"v", ())]), count, last_offset_delta=(1 << 31) - 1)
    tracemalloc.start()
    with pytest.raises(RecordError):
        opened([batch])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


FOUR_GIGABYTES = b"\xfe\xff\xff\xff\x1f"
SIX_BYTES = b"\x80\x80\x80\x80\x80\x00"


@pytest.mark.parametrize("few", [1, 32])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x00\x00\x00\x03\x01\x00", "key of -2 bytes"),
        (b"\x00\x00\x00\x01\x03\x00", "value of -2 bytes"),
        (b"\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00", "key of 2 GiB"),
        (b"\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00", "value of 2 GiB"),
        (b"\x00\x00\x00" + FOUR_GIGABYTES + b"\x01\x00", "key of 33 bits"),
        (b"\x00\x00\x00\x01" + SIX_BYTES + b"\x00", "value length of six bytes"),
        (b"\x00\x00\x00\x01" + b"\x80" * 8 + b"\x00\x00", "value length of nine bytes"),
        (b"\x00\x00" + SIX_BYTES + b"\x01\x01\x00", "offset of six bytes"),
        (b"\x00\x00\xff\xff\xff\xff\x1f\x01\x01\x00", "offset of 33 bits"),
        (b"\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00\x01\x01\x00", "timestamp of 65 bits"),
        (b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00", "timestamp of eleven bytes"),
        (b"\x00\x00\x00\x01\x01\x01", "-1 headers"),
        (b"\x00\x00\x00\x01\x01" + SIX_BYTES, "header count of six bytes"),
        (b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f", "2 Gi headers"),
        (b"\x00\x00\x00\x01\x01\x06\x00\x00\x00\x00\x00", "three headers in five bytes"),
        (b"\x00\x00\x00\x01\x01\x02\x01\x00", "header without a name"),
        (b"\x00\x00\x00\x01\x01\x02\x03\x00", "header name of -2 bytes"),
        (b"\x00\x00\x00\x01\x01\x02\x00\x03", "header value of -2 bytes"),
        (b"\x00\x00\x00\x01\x01\x02\xfe\xff\xff\xff\x0f\x00", "header name of 2 GiB"),
        (b"\x00\x00\x00\x01\x01\x02\x00\xfe\xff\xff\xff\x0f", "header value of 2 GiB"),
        (b"\x00\x00\x00\x01\x01\x02\x00" + SIX_BYTES, "header value length of six bytes"),
        (b"\x00\x00\x00\x01\x01\x02\x00\x02", "header value beyond the record"),
        (b"\x00\x00\x00\x01\x01\x00\x00", "a byte too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_that_are_none_are_refused(body: bytes, why: str, few: int) -> None:
    batch = sealed(varint.encode(len(body)) + body, 1)
    with pytest.raises(RecordError):
        judged([batch])
    with tuned(64, 16, 256, 8192, few), pytest.raises(RecordError):
        opened([batch])


@pytest.mark.parametrize(
    "length",
    [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\xff" * 10, b"\xff", b"\x0f", b"\x8f\x00", b"\x8f\x80\x00"],
    ids=bytes.hex,
)
def test_lengths_that_are_none_are_refused(length: bytes) -> None:
    for rest in (b"", b"\x00\x00\x00\x01\x01\x00", bytes(20)):
        with pytest.raises(RecordError):
            opened([sealed(length + rest, 1)])


def test_more_headers_than_anybody_needs_are_refused() -> None:
    for count in (record.MAX_HEADERS, record.MAX_HEADERS + 1):
        body = b"\x00\x00\x00\x01\x01" + varint.encode(count) + b"\x00\x01" * count
        alike([sealed(varint.encode(len(body)) + body, 1)], (64, 16, 256, 8192, 32))


def test_a_long_negative_length_does_not_lead_backwards() -> None:
    whole = section_of([(0, 0, None, bytes(5000), ())])
    back = -len(whole) - 5
    raw = (~back << 1) | 1
    length = bytes((raw & 0x7F | 0x80, raw >> 7 & 0x7F | 0x80, raw >> 14))
    for lanes in (1, 64):
        with tuned(lanes, 16, 256, 8192, 32), pytest.raises(RecordError, match=f"record of {back} bytes"):
            opened([sealed(whole + length + bytes(20), 3)])


def test_numbers_written_longer_than_needed_are_read() -> None:
    body = b"\x00" + b"\x80\x00" + b"\x80\x80\x00" + b"\x82\x00k" + b"\x82\x80\x80\x80\x00v" + b"\x80\x00"
    for length in (b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x80\x00"):
        section = bytes((length[0] | len(body) << 1,)) + length[1:] + body
        batch = sealed(section, 1)
        assert rows_of(opened([batch])) == judged([batch]) == [(0, 1_000_000, 0, b"k", b"v", ())]


def test_compressed_batches_are_opened_under_the_limit() -> None:
    batch = build_batch([(None, bytes(5000), (), 5)], codec=Codec.ZSTD)
    assert opened([batch, batch], limit=6000).num_rows == 2
    with pytest.raises(CompressionError, match="more than 4000"):
        opened([batch], limit=4000)


def test_a_corrupt_codec_is_refused() -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch = bytearray(sealed(b"", 1, codec=codec))
        batch[-1] ^= 0x55
        batch[HEADER_BYTES] ^= 0x55
        with pytest.raises(FAULTS):
            opened([bytes(batch)])
    with pytest.raises(CompressionError, match="codec 5"):
        opened([sealed(b"", 0, attributes=5)])


def test_too_much_data_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = build_batch([(None, b"v" * 100, (), 5)] * 3)
    monkeypatch.setattr(decoding, "LARGEST_BYTES", 2 * len(batch))
    assert opened([batch, batch]).num_rows == 6
    with pytest.raises(RecordError, match="fewer batches at a time"):
        opened([batch, batch, batch])
    packed = build_batch([(None, bytes(len(batch)), (), 5)], codec=Codec.ZSTD)
    assert opened([packed], ("value",)).num_rows == 1
    with pytest.raises(RecordError, match="decode fewer at a time"):
        opened([packed, packed], ("value",))
    with pytest.raises(RecordError, match="name of topic"):
        opened([build_batch([(None, None, (), 5)] * 70)], ("topic",))


def test_the_rows_outlive_the_data() -> None:
    batch = build_batch([(b"key", b"value", [("name", b"header")], 5)])
    data, places = laid([batch])
    found = decode(data, places, CANONICAL, topic="t", partition=0, first=0, end=END, limit=LIMIT)
    before = found.to_pylist()
    owner = data.obj
    data[:] = bytes(len(data))
    assert found.to_pylist() == before
    data.release()
    assert isinstance(owner, bytearray)
    owner += b"a buffer still looked at cannot grow"


def test_data_of_other_shapes() -> None:
    """A view into the middle of a buffer, and one of larger elements, are bytes all the same."""
    batch = build_batch([(b"key", b"value", (), 5)] * 5)
    even = batch + bytes(len(batch) % 2)
    for data in (memoryview(b"xyz" + batch + b"zyx")[3:-3], memoryview(even).cast("H")):
        place = Place(0, decode_header(batch))
        found = decode(data, [place], ("value",), topic="t", partition=0, first=0, end=END, limit=LIMIT)
        assert found["value"].to_pylist() == [b"value"] * 5


def test_batches_out_of_order_are_refused() -> None:
    batch = build_batch([(b"key", b"value", (), 5)] * 5)
    data, places = laid([batch, batch])
    for wrong in ([places[1], places[0]], [places[0], places[0]]):
        with pytest.raises(RecordError, match="starts before the end of the one before it"):
            decode(data, wrong, CANONICAL, topic="t", partition=0, first=0, end=END, limit=LIMIT)


def test_headers_of_rows_left_out_are_left_out() -> None:
    batch = build_batch([(None, None, [(f"h{at}", b"x")] * at, 0) for at in range(6)])
    for first in range(7):
        assert rows_of(opened([batch], first=first, end=5)) == judged([batch], first, 5)


def test_many_batches_of_many_sizes() -> None:
    """Enough of them to be walked in step, with records of one to four bytes of length among them."""
    chance = random.Random(7)
    made = []
    offset = 0
    for at in range(200):
        sizes = [chance.choice([0, 50, 56, 57, 100, 8190]) for _ in range(at * 7 % 41)] + [1_100_000] * (at == 150)
        records = [(delta, 0, None, bytes(size), ()) for delta, size in enumerate(sizes)]
        made.append(sealed(section_of(records), len(records), base_offset=offset, last_offset_delta=max(len(sizes), 1)))
        offset += max(len(sizes), 1) + 1
    assert rows_of(opened(made)) == judged(made)
    assert rows_of(opened(made, first=offset // 3, end=offset // 2)) == judged(made, offset // 3, offset // 2)


@pytest.mark.parametrize("headers", [False, True], ids=["least records", "least headers"])
def test_memory_stays_a_small_multiple_of_the_data(headers: bool) -> None:
    """The smallest records there are, and as many headers as fit, cost what their columns cost."""
    if headers:
        body = b"\x00\x00\x00\x01\x01" + varint.encode(60_000) + b"\x00\x01" * 60_000
        one = varint.encode(len(body)) + body
        batch = sealed(one, 1)
    else:
        batch = sealed(section_of([(at, 0, None, None, ()) for at in range(30_000)]), 30_000)
    wanted = [name for name in CANONICAL if name != "topic"]
    opened([batch], wanted)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    data, places = laid([batch])
    found = decode(data, places, wanted, topic="t", partition=0, first=0, end=END, limit=LIMIT)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.num_rows
    assert python + pa.total_allocated_bytes() - before < 60 * len(batch)


@pytest.mark.parametrize("count", [record.MAX_HEADERS, (1 << 31) - 1])
def test_a_hostile_count_of_headers_allocates_nothing(count: int) -> None:
    body = b"\x00\x00\x00\x01\x01" + varint.encode(count)
    batch = sealed(varint.encode(len(body)) + body, 1)
    tracemalloc.start()
    with pytest.raises(RecordError, match="headers"):
        opened([batch])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
