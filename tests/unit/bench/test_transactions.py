"""Which transactions are measured, and what they leave in a log."""

import pytest
from bench.transactions import LOADS, ROWS, offsets_of_one


def test_every_load_has_a_row_with_a_bar() -> None:
    assert {load.name for load in LOADS} == {row.name for row in ROWS}
    assert len(ROWS) == 4
    assert all(row.bars and row.more_is_better for row in ROWS)


def test_units_fit_the_size() -> None:
    assert {(load.records, load.row().unit) for load in LOADS} == {(1000, "records/s"), (10, "transactions/s")}


@pytest.mark.parametrize(("records", "offsets"), [(1000, 1006), (10, 16), (2, 4)])
def test_a_marker_in_each_partition_written(records: int, offsets: int) -> None:
    assert offsets_of_one(records) == offsets
