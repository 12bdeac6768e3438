"""The examples do what they say: fed and run in portions, what is in their sinks is what plain Python computes."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipelines.home.directory import Home
from penstock.pipelines.home.status import State, Status
from penstock.pipelines.spec import load
from tests.conformance.records import Received
from tests.peers import postgres
from tests.peers.broker import Broker
from tests.spark.observer import Observer
from tests.spark.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
DEADLINE_S = 180.0


class Example:
    """A copy of an example's folder, whose topics are its own."""

    def __init__(self, name: str, folder: Path, spark: "SparkSession", bootstrap: str) -> None:
        self.folder = shutil.copytree(EXAMPLES / name, folder / name)
        self._spark = spark
        self._bootstrap = bootstrap
        self._home = Home(folder / "home")
        self._file = next(self.folder.glob("pipeline.*"))
        self._prefix = f"{uuid.uuid4().hex[:8]}."
        self.feeder = self._give_own_topic()

    def _give_own_topic(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"feed_{self._prefix[:-1]}", self.folder / "feed.py")
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        for file in (self.folder / "feed.py", self._file):
            text = file.read_text()
            assert made.TOPIC in text
            file.write_text(text.replace(made.TOPIC, self._prefix + made.TOPIC))
        return made

    def topics(self) -> list[tuple[str, str]]:
        """Those that its commands make, and how many partitions they have."""
        return re.findall(r"penstock topic create (\S+) --partitions (\d+)", self._file.read_text())

    def feed(self, part: str) -> list[Any]:
        """Run the example's own feed; returns what it sends."""
        environment = {**os.environ, "PENSTOCK_SERVER": self._bootstrap}
        subprocess.run([sys.executable, "feed.py", part], cwd=self.folder, env=environment, check=True)
        return list(self.feeder.PARTS[part]())

    def run(self) -> Status:
        from penstock.pipelines.run.run import Run

        spec = load(self._file)
        run = Run(spec, self._home.pipeline(spec.name), self._spark, once=True)
        run.start()
        assert run.wait(DEADLINE_S), run.status
        assert run.error is None, run.error
        assert run.status.state is State.FINISHED
        return run.status

    def read(self, topic: str) -> list[Received]:
        """All of a topic that the file names, or that is named after one that it does."""
        own = self._prefix + topic if topic.startswith(self.feeder.TOPIC) else topic
        return [each for part in Observer(self._bootstrap).read(own) for each in part]


@pytest.fixture
def open_example(
    tmp_path: Path,
    spark: "SparkSession",
    broker: Broker,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Example]:
    monkeypatch.setenv("PENSTOCK_SERVER", broker.bootstrap)

    def open_it(name: str) -> Example:
        example = Example(name, tmp_path, spark, broker.bootstrap)
        for topic, partitions in example.topics():
            publisher.create_topic(topic, int(partitions))
        return example

    return open_it


# --- orders

Hour = tuple[datetime, str]


def _parse_orders(values: list[bytes]) -> Iterator[dict[str, Any]]:
    """Those that count."""
    for value in values:
        try:
            order = json.loads(value)
        except ValueError:
            continue
        if order["shop"] is not None and order["cents"] > 0:
            yield order | {"at": datetime.fromisoformat(order["at"])}


class Revenue:
    """What hours must hold: an hour is written when the newest order is ten minutes younger than its end."""

    def __init__(self) -> None:
        self.open: dict[Hour, list[int]] = defaultdict(list)
        self.written: dict[Hour, list[int]] = {}
        self.late = 0
        self._watermark = datetime.fromtimestamp(0, UTC)

    def add(self, values: list[bytes]) -> None:
        orders = list(_parse_orders(values))
        for order in orders:
            hour = order["at"].replace(minute=0, second=0)
            if hour + timedelta(hours=1) <= self._watermark:
                self.late += 1
            else:
                self.open[hour, order["shop"]].append(order["cents"])
        self._watermark = max(self._watermark, *(order["at"] - timedelta(minutes=10) for order in orders))
        for key in [key for key in self.open if key[0] + timedelta(hours=1) <= self._watermark]:
            self.written[key] = self.open.pop(key)


def test_orders(open_example: Callable[[str], Example], spark: "SparkSession") -> None:
    example = open_example("orders")
    model, fed = Revenue(), 0
    for part in ("afternoon", "evening"):
        sent = example.feed(part)
        fed += len(sent)
        status = example.run()
        model.add(sent)
        assert status.rows == fed
        _check_hours(example, model)
    # Every order is somewhere: in an hour that was written, in one that is open, too late, or a dead letter.
    assert model.late == 14
    counted = sum(map(len, model.written.values()))
    left = sum(map(len, model.open.values()))
    assert (status.dead_letters, counted + left + model.late + 3) == (3, fed)
    assert {name: each.rows for name, each in status.sinks.items()} == dict.fromkeys(
        ("hours", "lake"), len(model.written)
    )
    assert status.steps["paid"].failed == {"has a shop": 1, "costs something": 1}

    letters = example.read("shop.orders.dead")
    said = sorted((dict(each.headers)["penstock.step"], dict(each.headers)["penstock.reason"]) for each in letters)
    assert said[0][0] == b"orders" and (said[0][1] or b"").startswith(b"not decoded: ")
    assert said[1:] == [(b"paid", b"does not hold: costs something"), (b"paid", b"does not hold: has a shop")]
    assert example.run().rows == fed


def _check_hours(example: Example, model: Revenue) -> None:
    from deltalake import DeltaTable

    cities = {"north": "Oslo", "east": "Riga", "south": "Bari"}
    expected = sorted(
        (hour, shop, cities.get(shop, "unknown"), len(cents), sum(cents))
        for (hour, shop), cents in model.written.items()
    )
    table = DeltaTable(example.folder / "lake" / "revenue")
    rows = table.to_pyarrow_table().to_pylist()
    found = sorted((row["hour"], row["shop"], row["city"], row["orders"], row["cents"]) for row in rows)
    assert found == expected
    assert table.metadata().partition_columns == ["day"]
    assert {row["day"].isoformat() for row in rows} == {"2026-03-02"}
    records = [(each.key, json.loads(each.value or b"")) for each in example.read("shop.revenue")]
    assert all(key == row["shop"].encode() for key, row in records)
    told = [
        (datetime.fromisoformat(row["hour"]), row["shop"], row["city"], row["orders"], row["cents"])
        for _, row in records
    ]
    assert sorted(told) == expected


# --- clicks


def _find_sessions(values: list[bytes]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Sessions that are over, and those that are not."""
    clicks = {each["id"]: each for each in map(json.loads, values) if each["visitor"] is not None}
    silence = timedelta(minutes=30)
    by_visitor: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for click in sorted(clicks.values(), key=lambda each: each["at"]):
        click["at"] = datetime.fromisoformat(click["at"])
        own = by_visitor[click["visitor"]]
        if own and click["at"] - own[-1][-1]["at"] < silence:
            own[-1].append(click)
        else:
            own.append([click])
    watermark = max(each["at"] for each in clicks.values()) - timedelta(minutes=5)
    ended: list[tuple[Any, ...]] = []
    going_on: list[tuple[Any, ...]] = []
    for visitor, sessions in by_visitor.items():
        for each in sessions:
            row = (visitor, len(each), each[0]["at"], each[-1]["at"], sorted({click["page"] for click in each}))
            (ended if each[-1]["at"] + silence <= watermark else going_on).append(row)
    return sorted(ended), going_on


def test_clicks(open_example: Callable[[str], Example]) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    example = open_example("clicks")
    sent: list[bytes] = []
    going_on_before: list[tuple[Any, ...]] = []
    for part in ("morning", "noon"):
        sent += example.feed(part)
        status = example.run()
        ended, going_on = _find_sessions(sent)
        warehouse = example.folder / "warehouse"
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{warehouse / 'catalog.db'}", warehouse=warehouse.as_uri())
        table = catalog.load_table("web.sessions")
        rows = table.scan().to_arrow().to_pylist()
        assert (
            sorted(tuple(row[name] for name in ("visitor", "clicks", "began", "ended", "pages")) for row in rows)
            == ended
        )
        assert [str(each.transform) for each in table.spec().fields] == ["day"]
        assert len(ended) > 10 and going_on
        # Sessions that were open at the end of the first run are whole after the second.
        crossed = [one for one in going_on_before if any(one[2] == each[2] and one[1] < each[1] for each in ended)]
        assert bool(crossed) is (part == "noon")
        going_on_before = going_on
    assert status.steps["clicks"].failed == {"has a visitor": 1}
    assert (status.dead_letters, status.sinks["lake"].rows) == (0, len(ended))
    assert len({json.loads(each)["id"] for each in sent}) < len(sent)


# --- cdc


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.Postgres]:
    started = postgres.start()
    yield started
    started.stop()


def test_cdc(
    open_example: Callable[[str], Example], database: postgres.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv("CRM_DATABASE", f"jdbc:postgresql://127.0.0.1:{database.port}/postgres")
    example = open_example("cdc")
    customers: dict[int, tuple[Any, ...]] = {}
    ops: Counter[str] = Counter()
    for part in ("monday", "tuesday"):
        for _, value in example.feed(part):
            change = json.loads(value)
            row = change["row"]
            ops[change["op"]] += 1
            if change["op"] == "d":
                del customers[row["id"]]
            elif change["op"] in "cu":
                customers[row["id"]] = (row["id"], row["name"], row["city"], Decimal(row["credit"]))
        status = example.run()
        with psycopg.connect(database.url) as connection:
            found = connection.execute("SELECT id, name, city, credit FROM customers ORDER BY id").fetchall()
            columns = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = 'customers'"
            ).fetchall()
        assert found == sorted(customers.values())
        assert {name for (name,) in columns} == {"id", "name", "city", "credit"}
    assert min(ops[op] for op in "cud") > 50 and 20 < len(customers) < 100
    assert (status.rows, status.dead_letters) == (ops.total(), 1)
    (letter,) = example.read("cdc.dead")
    said = dict(letter.headers)
    assert (letter.key, said["penstock.step"]) == (b"1", b"customers")
    assert said["penstock.reason"] == b"does not hold: is a change"
