"""Arrow columns to batches: the record iterator, the batch builder and a foreign parser judge what comes out."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES, check_produced, crc_matches, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec, CompressionError
from penstock.records.record import MAX_HEADERS, iterate_batch
from penstock.spark.arrow import encode as encoding
from penstock.spark.arrow.decode import TYPES
from penstock.spark.arrow.encode import Section, encode, seal

NOW = 1_700_000_000_123
PLAIN: dict[str, Any] = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "transactional": False}

Headers = Sequence[tuple[str, bytes | None]] | None
Row = tuple[bytes | None, bytes | None, Headers]


def sections(rows: Sequence[Row], *, codec: int = 0, max_bytes: int = 1 << 20) -> list[Section]:
    keys, values, headers = zip(*rows, strict=True) if rows else ((), (), ())
    return list(
        encode(
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(headers, TYPES["headers"]),
            NOW,
            codec=codec,
            max_bytes=max_bytes,
        )
    )


def read(batch: bytes) -> list[Row]:
    """The rows of a batch, once its header is found right."""
    check_produced(memoryview(batch))
    rows: list[Row] = []
    for at, (offset, timestamp, one) in enumerate(iterate_batch(batch, 1 << 30)):
        assert (offset, timestamp) == (at, NOW)
        rows.append((one.key, one.value, one.headers))
    return rows


_bytes = st.none() | st.binary(max_size=8) | st.sampled_from([55, 56, 63, 64, 200, 8190, 8192]).map(bytes)
_headers = st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=70)), max_size=3)
_rows = st.lists(st.tuples(_bytes, _bytes, _headers), max_size=90) | st.integers(1, 200).map(
    lambda count: [(None, b"%05d" % at, None) for at in range(count)]
)


@settings(deadline=None, max_examples=150)
@given(_rows, st.sampled_from([0, 0, *Codec]), st.integers(0, 5000) | st.just(1 << 20), st.integers(1, 20_000))
def test_every_row_once_and_in_order(rows: list[Row], codec: int, max_bytes: int, woven_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_WOVEN_BYTES", woven_bytes)
        made = sections(rows, codec=codec, max_bytes=max_bytes)
    found: list[Row] = []
    for section in made:
        opened = read(seal(section, **PLAIN))
        assert len(opened) == section.count > 0
        found += opened
        plain = build_batch([(key, value, headers or (), NOW) for key, value, headers in opened])
        assert len(plain) <= max_bytes or section.count == 1
    assert found == [(key, value, tuple(headers or ())) for key, value, headers in rows]


@settings(deadline=None)
@given(_rows.filter(bool), st.booleans())
def test_bytes_are_those_of_the_builder(rows: list[Row], transactional: bool) -> None:
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 3,
        "base_sequence": 11,
        "transactional": transactional,
    }
    (section,) = sections(rows, max_bytes=1 << 30)
    made = build_batch([(key, value, headers or (), NOW) for key, value, headers in rows], **fields)
    assert seal(section, **fields) == made


def test_a_foreign_parser_reads_it() -> None:
    (section,) = sections([(b"k", b"v" * 200, [("h", b"x"), ("n", None)]), (None, None, None)], codec=Codec.GZIP)
    batch = DefaultRecordBatch(bytearray(seal(section, **PLAIN)))
    assert batch.validate_crc()
    assert [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in batch] == [
        (0, NOW, b"k", b"v" * 200, [("h", b"x"), ("n", None)]),
        (1, NOW, None, None, []),
    ]


def test_sections_fill_what_they_may_take() -> None:
    made = sections([(b"key", bytes(100), None)] * 10_000, max_bytes=20_000)
    sizes = [HEADER_BYTES + len(section.body) for section in made]
    assert max(sizes) <= 20_000
    assert min(sizes[:-1]) > 19_700


@pytest.mark.parametrize("count", [2, 9, 63, 64, 65])
def test_a_section_takes_no_byte_more_than_it_may(count: int) -> None:
    rows: list[Row] = [(None, b"value", None)] * count
    size = len(build_batch([(*row[:2], (), NOW) for row in rows]))
    assert all(HEADER_BYTES + len(section.body) < size for section in sections(rows, max_bytes=size - 1))


def test_a_section_that_just_fits_is_not_split() -> None:
    rows: list[Row] = [(None, b"value", None)] * 9
    size = len(build_batch([(*row[:2], (), NOW) for row in rows]))
    assert [section.count for section in sections(rows, max_bytes=size)] == [9]


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 100])
def test_a_record_larger_than_allowed_comes_alone(max_bytes: int) -> None:
    rows: list[Row] = [(None, bytes(1000), None), (None, b"", None), (b"k" * 2000, None, None)]
    assert [section.count for section in sections(rows, max_bytes=max_bytes)] == [1, 1, 1]


def test_no_rows_make_no_sections() -> None:
    assert sections([]) == []
    assert list(encode(None, pa.array([], pa.binary()), None, NOW, codec=0, max_bytes=100)) == []


def test_columns_left_out_are_null() -> None:
    (section,) = encode(None, pa.array([b"a", None], pa.binary()), None, NOW, codec=0, max_bytes=1000)
    assert section == sections([(None, b"a", None), (None, None, None)])[0]
    assert (section.base_timestamp, section.max_timestamp, section.codec) == (NOW, NOW, 0)


def test_slices_of_columns() -> None:
    rows: list[Row] = [(b"k%d" % at, b"v" * at, [(f"h{at}", b"x")] * (at % 3)) for at in range(60)]
    keys, values, headers = (
        pa.array(column, kind)
        for column, kind in zip(zip(*rows, strict=True), (pa.binary(), pa.binary(), TYPES["headers"]), strict=True)
    )
    (section,) = encode(keys[13:29], values[13:29], headers[13:29], NOW, codec=0, max_bytes=1 << 20)
    assert read(seal(section, **PLAIN)) == [(key, value, tuple(one or ())) for key, value, one in rows[13:29]]


def test_nulls_with_bytes_of_their_own_stay_null() -> None:
    """Arrow says nothing about what lies under a null."""
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 3, 4))),
            pa.py_buffer(b"axxb"),
        ],
    )
    assert hidden.to_pylist() == [b"a", None, b"b"]
    (section,) = encode(hidden, hidden, None, NOW, codec=0, max_bytes=1000)
    assert read(seal(section, **PLAIN)) == [(b"a", b"a", ()), (None, None, ()), (b"b", b"b", ())]
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2]),
        pa.array([("a", b"1"), ("b", b"2")], TYPES["headers"].value_type),
        type=TYPES["headers"],
        mask=pa.array([True, False]),
    )
    (section,) = encode(None, hidden[:2], lists, NOW, codec=0, max_bytes=1000)
    assert read(seal(section, **PLAIN)) == [(None, b"a", ()), (None, None, (("b", b"2"),))]


def test_headers_nobody_could_read_back_are_refused() -> None:
    for wrong in ([(None, b"x")], [None]):
        headers = pa.array([[("a", b"x")], None, wrong], TYPES["headers"])
        with pytest.raises(ValueError, match="row 2 has a header without a name"):
            list(encode(None, pa.nulls(3, pa.binary()), headers, NOW, codec=0, max_bytes=1000))
    most: list[tuple[str, bytes | None]] = [("", None)] * MAX_HEADERS
    (section,) = sections([(None, None, most)])
    assert len(read(seal(section, **PLAIN))[0][2] or ()) == MAX_HEADERS
    with pytest.raises(ValueError, match=f"row 1 has {MAX_HEADERS + 1} headers"):
        sections([(None, None, None), (None, None, [*most, ("", None)])])


def test_other_columns_are_refused() -> None:
    values = pa.array([b"a", b"b"], pa.binary())
    wrong = [
        (pa.array(["a", "b"]), None, "keys: 2 of type string, not 2 of type binary"),
        (pa.array([b"a"], pa.binary()), None, "keys: 1 of type binary, not 2"),
        (None, pa.nulls(3, TYPES["headers"]), "headers: 3 of type list"),
        (None, pa.nulls(2, pa.list_(pa.string())), "headers: 2 of type list<.*string>, not 2 of type list<.*struct"),
    ]
    for keys, headers, why in wrong:
        with pytest.raises(TypeError, match=why):
            list(encode(keys, values, headers, NOW, codec=0, max_bytes=1000))
    with pytest.raises(CompressionError, match="codec 9"):
        list(encode(None, values, None, NOW, codec=9, max_bytes=1000))


def test_a_record_no_batch_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_LARGEST_RECORD_BYTES", 100)
    with pytest.raises(ValueError, match="row 1 makes a record of 2"):
        sections([(None, b"a", None), (bytes(100), bytes(100), None)])


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_LARGEST_BYTES", 100)
    with pytest.raises(ValueError, match="more than 2 GiB; encode fewer"):
        sections([(None, None, [("n" * 40, b"v" * 40)])] * 2)


def test_a_large_record_is_built_apart_from_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they could have more than 2 GiB."""
    monkeypatch.setattr(encoding, "_WOVEN_BYTES", 1000)
    monkeypatch.setattr(encoding, "_LARGEST_BYTES", 5100)
    rows: list[Row] = [(None, bytes(500), None), (b"k", bytes(5000), None), (None, bytes(500), None)]
    assert [section.count for section in sections(rows, max_bytes=600)] == [1, 1, 1]


def test_which_headers_may_be_null_does_not_matter() -> None:
    pair = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    headers = pa.array([[("h", b"x")]], pa.list_(pa.field("item", pair, nullable=False)))
    (section,) = encode(None, pa.array([b"v"], pa.binary()), headers, NOW, codec=0, max_bytes=1000)
    assert read(seal(section, **PLAIN)) == [(None, b"v", (("h", b"x"),))]


def test_the_seal_is_the_broker_s_to_check() -> None:
    (section,) = sections([(None, b"v", None)] * 5, codec=Codec.LZ4)
    batch = seal(section, producer_id=9, producer_epoch=2, base_sequence=40, transactional=True)
    header = decode_header(batch)
    assert crc_matches(memoryview(batch), header)
    assert header._replace(crc=0, batch_length=0) == (0, 0, -1, 2, 0, 0x13, 4, NOW, NOW, 9, 2, 40, 5)
