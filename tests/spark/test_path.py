"""Reads with `path`: sealed segments from a broker's own files, the rest from the broker; files alone when it is down.

Always beside a Penstock of its own: nobody else has such a directory.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.peers import penstock
from tests.peers.broker import Broker

from .publisher import Publisher
from .query import read_rows, read_values

RECORDS = 400


def start(place: Path) -> tuple[Broker, Publisher]:
    """A broker with a topic of many sealed segments, an aborted transaction, and at its end one that stays open."""
    started = penstock.start(place)
    publisher = Publisher(started.bootstrap)
    publisher.create_topic("orders", 2, **{"segment.bytes": "16384"})
    publisher.fill("orders", RECORDS, partitions=2, size=200)
    for end in ("abort", "commit", "open"):
        with publisher.transaction(end) as send:
            send("orders", [end.encode()] * 3)
    return started, publisher


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("path")


@pytest.fixture(scope="module")
def owner(place: Path) -> Iterator[Broker]:
    started, publisher = start(place)
    yield started
    publisher.close()
    started.stop()


def load(spark: SparkSession, place: Path, **options: str) -> DataFrame:
    given = {"path": str(place / "data"), "subscribe": "orders", **options}
    return spark.read.format("penstock").options(**given).load()


def test_files_and_broker_together_give_what_the_broker_gives(spark: SparkSession, owner: Broker, place: Path) -> None:
    brokers = {"kafka.bootstrap.servers": owner.bootstrap}
    whole = read_rows(spark.read.format("penstock").options(**brokers, subscribe="orders").load())
    assert read_rows(load(spark, place, **brokers)) == whole
    assert [row.value for row in whole if row.partition == 0][-3:] == [b"commit"] * 3  # not the open transaction's
    some = {"startingOffsets": '{"orders":{"0":37,"1":5}}', "endingOffsets": '{"orders":{"0":301,"1":-1}}'}
    found = read_rows(load(spark, place, **brokers, **some, minPartitions="7"))
    assert found == [
        row for row in whole if row.offset in (range(37, 301) if row.partition == 0 else range(5, RECORDS))
    ]


def test_a_directory_in_use_wants_its_broker_named(spark: SparkSession, owner: Broker, place: Path) -> None:
    with pytest.raises(Exception, match=r"is in use by a running broker.*kafka\.bootstrap\.servers"):
        load(spark, place).count()


def test_another_brokers_directory_is_refused(
    spark: SparkSession, owner: Broker, place: Path, broker: Broker, publisher: Publisher
) -> None:
    publisher.create_topic("orders")
    publisher.send("orders", [b"another"])
    with pytest.raises(Exception, match="holds the records of topic id"):
        load(spark, place, **{"kafka.bootstrap.servers": broker.bootstrap}).count()


def test_files_alone_when_the_broker_is_down(spark: SparkSession, tmp_path: Path) -> None:
    stopped, _ = start(tmp_path)
    stopped.stop()
    values = read_values(load(spark, tmp_path))
    assert len(values) == 2 * RECORDS + 3
    assert values.count(b"commit") == 3
    assert b"abort" not in values
    assert b"open" not in values
