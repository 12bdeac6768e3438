"""Filters become bounds that are never too narrow."""

import base64
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.variant_utils import VariantUtils
from pyspark.sql.worker.data_source_pushdown_filters import deserializeFilter

from penstock.spark.options.pushdown import Bounds, bounds_of

PARTITION, OFFSET, TIMESTAMP = ("partition",), ("offset",), ("timestamp",)
Comparison = Callable[[tuple[str, ...], Any], Filter]


def test_no_filters_no_bounds() -> None:
    assert bounds_of([]) == Bounds()


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (EqualTo(OFFSET, 5), Bounds(offset_from=5, offset_to=6)),
        (EqualNullSafe(OFFSET, 5), Bounds(offset_from=5, offset_to=6)),
        (GreaterThan(OFFSET, 5), Bounds(offset_from=6)),
        (GreaterThanOrEqual(OFFSET, 5), Bounds(offset_from=5)),
        (LessThan(OFFSET, 5), Bounds(offset_to=5)),
        (LessThanOrEqual(OFFSET, 5), Bounds(offset_to=6)),
        (In(OFFSET, [9, 3, None, 7]), Bounds(offset_from=3, offset_to=10)),  # type: ignore[arg-type]  # as Spark has it
        (EqualTo(PARTITION, 2), Bounds(partitions=frozenset({2}))),
        (EqualNullSafe(PARTITION, 2), Bounds(partitions=frozenset({2}))),
        (In(PARTITION, (1, 3, None)), Bounds(partitions=frozenset({1, 3}))),
        (GreaterThan(PARTITION, 2), Bounds(partition_from=3)),
        (LessThan(PARTITION, 2), Bounds(partition_to=2)),
    ],
)
def test_one_filter(each: Filter, expected: Bounds) -> None:
    assert bounds_of([each]) == expected


def test_filters_together_leave_what_all_leave() -> None:
    filters = [
        GreaterThan(OFFSET, 3),
        GreaterThanOrEqual(OFFSET, 10),
        GreaterThan(OFFSET, 5),
        LessThan(OFFSET, 90),
        LessThanOrEqual(OFFSET, 50),
        In(PARTITION, (1, 2, 3)),
        In(PARTITION, (2, 3, 4)),
        GreaterThan(PARTITION, 2),
        IsNotNull(OFFSET),
    ]
    bounds = bounds_of(filters)
    assert bounds == Bounds(frozenset({2, 3}), partition_from=3, offset_from=10, offset_to=51)
    assert [bounds.keeps(partition) for partition in range(5)] == [False, False, False, True, False]


def test_filters_that_contradict_each_other_leave_nothing() -> None:
    bounds = bounds_of([EqualTo(PARTITION, 1), EqualTo(PARTITION, 2), EqualTo(OFFSET, 1), EqualTo(OFFSET, 2)])
    assert bounds.partitions == frozenset() and not bounds.keeps(1)
    assert (bounds.offset_from, bounds.offset_to) == (2, 2)


@pytest.mark.parametrize(
    "each",
    [
        Not(EqualTo(OFFSET, 5)),
        Not(In(PARTITION, (1,))),
        EqualNullSafe(PARTITION, None),
        In(PARTITION, (None,)),
        In(OFFSET, ()),
        EqualTo(OFFSET, 5.0),
        EqualTo(OFFSET, "5"),
        EqualTo(OFFSET, True),
        In(OFFSET, (1, 2.5)),
        EqualTo(("value", "offset"), 5),
        EqualTo(("offset", "low"), 5),
        EqualTo(("topic",), "a"),
        EqualTo(("Offset",), 5),
        StringStartsWith(("topic",), "a"),
        GreaterThan(TIMESTAMP, datetime(2024, 1, 1)),  # as a TIMESTAMP_NTZ would come
        GreaterThan(TIMESTAMP, 5),
        LessThan(TIMESTAMP, datetime(2024, 1, 1, tzinfo=UTC)),
        GreaterThan(TIMESTAMP, datetime(1969, 12, 31, tzinfo=UTC)),
        GreaterThan(TIMESTAMP, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_says_nothing_bounds_nothing(each: Filter) -> None:
    assert bounds_of([each]) == Bounds()


@pytest.mark.parametrize("comparison", [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual])
def test_times_lose_what_is_less_than_a_millisecond(comparison: Comparison) -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, 2999, tzinfo=UTC)
    assert bounds_of([comparison(TIMESTAMP, moment)]) == Bounds(timestamp_from_ms=1002)


def test_the_latest_of_lower_times_counts_and_the_earliest_of_a_set() -> None:
    early, late = (datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (1, 2))
    assert bounds_of([GreaterThan(TIMESTAMP, early), GreaterThan(TIMESTAMP, late)]).timestamp_from_ms == 2000
    assert bounds_of([In(TIMESTAMP, (late, early))]).timestamp_from_ms == 1000


def test_times_as_spark_hands_them_over() -> None:
    """Spark sends microseconds as a variant; what becomes of it is pyspark's, not ours."""
    micros = 1_704_186_245_678_901

    def sent(type_info: int) -> Filter:
        value = base64.b64encode(bytes([type_info << 2]) + struct.pack("<q", micros)).decode()
        metadata = base64.b64encode(b"\x01\x00\x00").decode()
        column = {"name": "GreaterThanOrEqual", "columnPath": ["timestamp"], "isNegated": False}
        return deserializeFilter({**column, "value": {"value": value, "metadata": metadata}})

    assert bounds_of([sent(VariantUtils.TIMESTAMP)]) == Bounds(timestamp_from_ms=micros // 1000)
    assert bounds_of([sent(VariantUtils.TIMESTAMP_NTZ)]) == Bounds()


# --- Never narrow ----------------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SMALL = st.integers(-3, 12)
MOMENTS = st.integers(-3_000, 12_000).map(lambda micros: _EPOCH + timedelta(microseconds=micros))


def _filters() -> st.SearchStrategy[Filter]:
    def of(column: tuple[str, ...], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
        comparisons = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
        one = st.builds(lambda kind, value: kind(column, value), st.sampled_from(comparisons), values)
        several = st.lists(values | st.none(), max_size=3).map(lambda chosen: In(column, tuple(chosen)))
        return one | several

    return of(PARTITION, SMALL) | of(OFFSET, SMALL) | of(TIMESTAMP, MOMENTS)


def _passes(each: Any, row: dict[str, Any]) -> bool:
    value = row[each.attribute[0]]
    if isinstance(each, In):
        return value in each.value
    return bool(
        {
            EqualTo: value == each.value,
            EqualNullSafe: value == each.value,
            GreaterThan: value > each.value,
            GreaterThanOrEqual: value >= each.value,
            LessThan: value < each.value,
            LessThanOrEqual: value <= each.value,
        }[type(each)]
    )


@given(st.lists(_filters(), max_size=4), st.integers(0, 8), st.integers(0, 10), st.integers(0, 12))
def test_rows_that_pass_the_filters_are_within_the_bounds(
    filters: list[Filter], partition: int, offset: int, timestamp_ms: int
) -> None:
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    row = {"partition": partition, "offset": offset, "timestamp": moment}
    bounds = bounds_of(filters)
    if all(_passes(each, row) for each in filters):
        assert bounds.keeps(partition)
        assert bounds.offset_from is None or offset >= bounds.offset_from
        assert bounds.offset_to is None or offset < bounds.offset_to
        assert bounds.timestamp_from_ms is None or timestamp_ms >= bounds.timestamp_from_ms
