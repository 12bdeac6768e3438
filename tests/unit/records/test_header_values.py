"""What a header of one name says, record by record: what single records say of it, too."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES
from penstock.records.build import build_batch
from penstock.records.header_values import header_values
from penstock.records.record import RecordError, iterate

NAME = "penstock-id"
Headers = Sequence[tuple[str, bytes | None]]

names = st.sampled_from([NAME, "", "a", "penstock-i", "penstock-ie", "x" * 200]) | st.text(max_size=3)
values = st.none() | st.binary(max_size=5) | st.just(b"v" * 300)
records = st.tuples(
    st.none() | st.binary(max_size=3) | st.just(b"k" * 20_000),
    values,
    st.lists(st.tuples(names, values), max_size=5),
    st.integers(0, 1 << 40),
)


def section_of(*headers: Headers) -> bytes:
    return build_batch([(None, b"v", each, 5) for each in headers])[HEADER_BYTES:]


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=20))
def test_it_says_what_the_records_say(given: list[tuple[bytes | None, bytes | None, Headers, int]]) -> None:
    section = build_batch(given)[HEADER_BYTES:]
    expected = []
    for each in iterate(section, len(given)):
        said = [value for name, value in each.headers if name == NAME]
        if said and said[-1] is not None:
            expected.append((each.offset_delta, said[-1]))
    assert header_values(section, len(given), NAME.encode()) == expected


def test_of_several_the_last_one_counts() -> None:
    section = section_of([(NAME, b"a"), ("b", b"c"), (NAME, b"d")], [(NAME, b"e"), (NAME, None)])
    assert header_values(section, 2, NAME.encode()) == [(0, b"d")]


@pytest.mark.parametrize("end", range(1, 12))
def test_what_is_cut_off_is_refused(end: int) -> None:
    section = section_of([(NAME, b"a")])
    with pytest.raises(RecordError):
        header_values(section[:end], 1, NAME.encode())


def test_more_records_than_there_can_be_are_refused() -> None:
    for count in (-1, 50):
        with pytest.raises(RecordError):
            header_values(section_of([]), count, NAME.encode())
