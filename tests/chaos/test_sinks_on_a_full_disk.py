"""Sinks of pipelines on a full disk: something to wait for, and each micro-batch once when there is room again."""

from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.errors import SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from tests.unit.pipelines.sinks.lake import PLAIN, QUERY, Rows, put, sink_of

from .test_disk_full import fill

ROWS_A_BATCH = 2000


def read(kind: str, directory: Path) -> list[int]:
    if kind == "parquet":
        import pyarrow.parquet as pq

        return [each for path in directory.rglob("part-*.parquet") for each in pq.read_table(path)["id"].to_pylist()]
    from deltalake import DeltaTable

    return list(DeltaTable(str(directory)).to_pyarrow_table()["id"].to_pylist())


def rows_of(batch: int) -> Rows:
    return [{"id": batch * ROWS_A_BATCH + each, "day": f"{each * 7919:09d}"} for each in range(ROWS_A_BATCH)]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("left_bytes", [0, 6_000, 30_000, 90_000])
def test_a_full_disk_is_waited_for(kind: str, left_bytes: int, small_disk: Path) -> None:
    lake = small_disk / "lake"
    sink: Any = sink_of(kind, small_disk, **{kind: str(lake)})
    sink.prepare(PLAIN)
    assert put(sink, 0, rows_of(0)) == ROWS_A_BATCH
    filler = small_disk / "filler"
    fill(filler, left_bytes)
    batch, refused = 1, list[str]()
    for _ in range(20):
        try:
            put(sink, batch, rows_of(batch))
            batch += 1
        except SinkUnavailable as error:
            refused.append(str(error))
            filler.unlink(missing_ok=True)  # from now on there is room
        if batch > 3 and refused:
            break
    assert refused and all("lake" in each for each in refused), refused
    assert sink.is_written(BatchId(QUERY, batch - 1))
    assert sorted(read(kind, lake)) == list(range(batch * ROWS_A_BATCH))
