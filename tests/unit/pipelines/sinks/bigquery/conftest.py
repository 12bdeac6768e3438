"""The stand-in server and a sink that leads there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.peers.bigquery import BigQuery

from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.bigquery import KEYS, open_sink
from penstock.pipelines.sinks.bigquery.sink import BigQuerySink
from penstock.pipelines.sinks.contract import Context

from .frames import TABLE, Letters

QUICK = {"retry_from": 0.0, "retry_to": 0.001, "timeout": 20.0, "batch_wait": 60.0}


@pytest.fixture
def server() -> Iterator[BigQuery]:
    with BigQuery() as started:
        started.add_table(
            TABLE,
            {"name": "id", "type": "INTEGER", "mode": "REQUIRED"},
            {"name": "name", "type": "STRING"},
        )
        yield started


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def sink(server: BigQuery, tmp_path: Path) -> Iterator[Callable[..., BigQuerySink]]:
    """Makes a sink that leads to the stand-in; each one is a new process' sink on the same state."""
    made: list[BigQuerySink] = []

    def make(table: str = TABLE, **options: Any) -> BigQuerySink:
        values = {key.name: key.default for key in KEYS} | QUICK | server.options | {"bigquery": table} | options
        context = Context("revenue", "127.0.0.1:9092", {}, tmp_path, tmp_path / "state")
        made.append(open_sink(SinkSpec("warehouse", "bigquery", "orders", values), context))
        return made[-1]

    yield make
    for each in made:
        each.close()
