"""The same pipeline on a standalone cluster and through Spark Connect, by the command line."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from tests.peers.broker import Broker
from tests.spark.observer import Observer
from tests.spark.publisher import Publisher

from .masters import connect_server, standalone
from .test_run import order

PIPELINE = """
name: masters
server: {server}
sources:
  orders:
    topic: {orders}
    format: json
    schema: "id BIGINT, shop STRING, amount BIGINT, at TIMESTAMP"
    watermark: {{column: at, delay: 1 hour}}
mode: update
spark: {{spark.sql.shuffle.partitions: 2}}
steps:
  large: {{python: "steps.py:large"}}
  totals: {{sql: "SELECT shop, sum(amount) AS total FROM orders GROUP BY shop"}}
sinks:
  rows: {{from: large, topic: {copies}, value: id}}
  totals: {{from: totals, jdbc: "sqlite:totals.db", table: totals, mode: upsert, keys: [shop]}}
dead_letters: {{topic: {dead}}}
"""
STEPS = """
from pyspark.sql.functions import udf

@udf("boolean")
def is_large(amount):
    return amount >= 5

def large(orders):
    return orders.where(is_large("amount"))
"""


@pytest.mark.parametrize(("server", "portions"), [(standalone, 1), (connect_server, 2)], ids=["standalone", "connect"])
def test_a_pipeline_elsewhere(
    server: Callable[[Path], AbstractContextManager[str]],
    portions: int,
    tmp_path: Path,
    broker: Broker,
    publisher: Publisher,
    new_topic: Callable[..., str],
) -> None:
    orders, copies, dead = new_topic("orders", partitions=2), new_topic("copies"), new_topic("dead")
    (tmp_path / "steps.py").write_text(STEPS)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(server=broker.bootstrap, orders=orders, copies=copies, dead=dead))
    fed: list[int] = []
    with server(tmp_path) as master:
        for number in range(portions):
            numbers = range(40 * number, 40 * number + 40)
            publisher.send(orders, [*map(order, numbers), b"bad"], partition=number)
            fed += numbers
            words = ["pipeline", "run", str(file), "--once", "--master", master, "--home", str(tmp_path / "home")]
            done = subprocess.run(
                [sys.executable, "-m", "penstock.cli.main", *words],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
            assert done.returncode == 0, done.stderr[-4000:]
            read = [each for part in Observer(broker.bootstrap).read(copies) for each in part]
            assert sorted(int(each.value or b"") for each in read) == [each for each in fed if each % 10 >= 5]
            with closing(sqlite3.connect(tmp_path / "totals.db")) as database:
                found = dict(database.execute("SELECT shop, total FROM totals"))
            expected = {f"s{shop}": sum(each % 10 for each in fed if each % 3 == shop) for shop in range(3)}
            assert found == expected, "state was kept between runs"
    assert len([each for part in Observer(broker.bootstrap).read(dead) for each in part]) == portions
