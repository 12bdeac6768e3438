"""Records found in place: the same ones the reader of values finds, and no bytes that are not records."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES
from penstock.records.build import build_batch
from penstock.records.record import RecordError, encode, iterate
from penstock.storage.compaction.spans import spans

data = st.none() | st.binary(max_size=80) | st.binary(min_size=1, max_size=2).map(lambda piece: piece * 5000)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
small: st.SearchStrategy[Any] = st.tuples(st.none() | st.just(b"k"), st.just(b""), st.just([]), st.integers(0, 9))
records = st.lists(st.tuples(data, data, headers, st.integers(-(2**41), 2**41)), min_size=1, max_size=6) | st.lists(
    small, min_size=60, max_size=90
)


@settings(deadline=None, max_examples=30)
@given(records)
def test_the_same_records_as_values(
    some: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
) -> None:
    section = build_batch(some)[HEADER_BYTES:]
    found = list(spans(section, len(some), len(some) - 1))
    assert [(s.timestamp_delta, s.offset_delta, s.key, s.has_value) for s in found] == [
        (r.timestamp_delta, r.offset_delta, r.key, r.value is not None) for r in iterate(section, len(some))
    ]
    assert b"".join(section[span.start : span.stop] for span in found) == section
    for span in found:
        alone = section[span.start : span.body], section[span.body : span.tail], section[span.tail : span.stop]
        made = bytearray()
        encode(made, span.offset_delta, span.timestamp_delta, *some[span.offset_delta][:3])
        assert b"".join(alone) == made


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(-1, 9))
def test_other_bytes_are_refused_or_are_records(section: bytes, count: int) -> None:
    try:
        found = list(spans(section, count, 100))
    except RecordError:
        return
    assert len(found) == count and sum(span.stop - span.start for span in found) == len(section)


def section_of(*deltas: int) -> bytes:
    out = bytearray()
    for delta in deltas:
        encode(out, delta, 0, b"k", b"v", ())
    return bytes(out)


@pytest.mark.parametrize(
    ("section", "count", "why"),
    [
        (section_of(0, 1) + b"\0", 2, "after the last"),
        (section_of(0, 1), 1, "after the last"),
        (section_of(0, 1)[:-1], 2, "are left"),
        (section_of(0, 0), 2, "offset delta 0 after 0"),
        (section_of(1, 0), 2, "offset delta 0 after 1"),
        (section_of(0, 4), 2, "up to 3"),
        (section_of(0), -1, "-1 records"),
        (section_of(0), 1 << 30, "records in"),
        (b"\x0e\0\0\0\x02k\x03\0", 1, "value of -2"),
        (b"\x0e\0\0\0\x02k\x02\0", 1, "value of 1"),
    ],
)
def test_what_is_wrong_is_named(section: bytes, count: int, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        list(spans(section, count, 3))
