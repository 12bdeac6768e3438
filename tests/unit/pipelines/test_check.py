"""What is found wrong with a pipeline before it runs, and where."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.cluster import Cluster
from penstock.client.settings import Settings
from penstock.pipelines import check
from penstock.pipelines.check import check_analysed, check_static
from penstock.pipelines.errors import Finding, SinkError, SinkUnavailable, SpecError
from penstock.pipelines.model import DeadLetters, Place, SinkSpec, Source, Spec, Step
from penstock.pipelines.run import graph
from penstock.pipelines.spec import parse
from penstock.testing import EmbeddedBroker, embedded_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(partitions=1, topic_defaults={"flush": "os"}) as running:
        with Cluster(Settings(running.bootstrap)) as cluster:
            cluster.create_topic("orders", 1, {})
        yield running


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections: bound, so nobody else gets it, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """What each sink's `probe` does, by its name; nothing where none is said."""
    table: dict[str, Callable[[], None]] = {}

    def open_sink(spec: SinkSpec, _context: object) -> object:
        return SimpleNamespace(probe=table.get(spec.name, lambda: None), close=lambda: None)

    monkeypatch.setattr(check, "open_sink", open_sink)
    return table


def at(line: int) -> Place:
    return Place("p.yaml", line)


def orders(topic: str = "orders", **options: object) -> Source:
    return Source("orders", "topic", {"topic": [topic], "from": "earliest", **options}, place=at(3))


def sink(name: str = "out", kind: str = "parquet", line: int = 20, **options: object) -> SinkSpec:
    chosen = {kind: "./out", **options}
    return SinkSpec(name, kind, "orders", chosen, at(line), {key: at(line + 1) for key in chosen})


def pipeline(
    *sources: Source,
    steps: tuple[Step, ...] = (),
    sinks: tuple[SinkSpec, ...] = (sink(),),
    letters: str = "drop",
    server: str = "127.0.0.1:1",
    directory: Path = Path(),
) -> Spec:
    letters_to = DeadLetters(letters, "p.dead" if letters == "topic" else "", at(30))
    return Spec("p", sources or (orders(),), steps, sinks, letters_to, server, directory=directory)


def static(spec: Spec, *, reach: bool = False) -> list[str]:
    return [str(each) for each in check_static(spec, reach=reach)]


def raiser(error: Exception) -> Callable[[], None]:
    def probe() -> None:
        raise error

    return probe


# --- by the file


def test_a_pipeline_that_is_fine() -> None:
    assert static(pipeline()) == []


def test_static_files_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "there.csv").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "_SUCCESS").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.csv").touch()
    patterns = ["*.csv", "there.{tsv,csv}", "full", f"file:{tmp_path}/full", "s3://x/*.csv", "*.tsv", "empty", "hidden"]
    source = Source("rates", "files", {"files": patterns, "format": "csv", "static": True}, place=at(7))
    spec = pipeline(source, directory=tmp_path)
    assert static(spec) == [
        f"p.yaml:7: source rates: no file is found by {pattern!r} in {tmp_path}"
        for pattern in ("*.tsv", "empty", "hidden")
    ]
    streamed = replace(source, options={**source.options, "static": False})
    assert static(pipeline(streamed, directory=tmp_path)) == []  # files may come later


def test_a_schema_file_must_be_there(tmp_path: Path) -> None:
    source = orders(format="avro", schema_file="orders.avsc")
    spec = pipeline(source, directory=tmp_path)
    assert "p.yaml:3: source orders: schema_file 'orders.avsc': there is no such file" in static(spec)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (orders(format="json", schema="id BIGNIT, shop STRING"), "did you mean BIGINT?"),
        (orders(format="json", schema="id BIGINT, at STRUCT<day: TIMESTMAP>"), "did you mean TIMESTAMP?"),
        (Source("orders", "files", {"format": "csv", "schema": "id BIGNIT"}, place=at(3)), "did you mean BIGINT?"),
    ],
)
def test_a_type_that_does_not_exist(source: Source, told: str) -> None:
    (found,) = static(pipeline(source))
    column, word = ("at.day", "TIMESTMAP") if "TIMESTMAP" in source.options["schema"] else ("id", "BIGNIT")
    assert found == f"p.yaml:3: source orders: schema: column {column!r}: there is no type {word} in Spark; {told}"


def test_types_that_only_spark_may_know() -> None:
    source = Source("orders", "files", {"format": "csv", "schema": "id GEOGRAPHY(4326)"}, place=at(3))
    assert static(pipeline(source)) == []


def test_functions_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("raise SystemExit('never run')\ndef clean(orders): ...\n")
    steps = (
        Step("clean", ("orders",), python="steps.py:clean", place=at(10)),
        Step("claen", ("orders",), python="steps.py:claen", place=at(12)),
        Step("gone", ("orders",), python="gone.py:clean", place=at(14)),
    )
    found = static(pipeline(steps=steps, directory=tmp_path))
    assert [text.partition(": ")[0] for text in found] == ["p.yaml:12", "p.yaml:14"]
    assert "claen" in found[0]
    assert "gone.py" in found[1]


def test_options_of_a_source() -> None:
    (found,) = static(pipeline(orders(options={"failOnDataLos": "false"})))
    assert found.startswith("p.yaml:3: source orders: ")
    assert "failOnDataLos" in found


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("delta", {}, "deltalake is not installed: pip install 'penstock-mq[pipelines]'"),
        ("iceberg", {}, "pyiceberg is not installed: pip install 'penstock-mq[pipelines]'"),
        ("bigquery", {}, "google-cloud-bigquery is not installed: pip install 'penstock-mq[bigquery]'"),
        ("jdbc", {"jdbc": "jdbc:postgresql://h/d"}, "psycopg is not installed: pip install 'penstock-mq[pipelines]'"),
        ("jdbc", {"jdbc": "jdbc:sqlite:x.db"}, None),
        ("topic", {}, None),
    ],
)
def test_libraries_of_sinks(
    kind: str,
    options: Mapping[str, Any],
    text: str | None,
    monkeypatch: pytest.MonkeyPatch,
    probes: dict[str, Any],
    broker: EmbeddedBroker,
) -> None:
    """A sink that lacks its library is not asked besides."""

    def find_spec(name: str) -> None:
        if name.startswith("google."):
            raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    if text:
        probes["out"] = raiser(ImportError("was asked"))
    found = static(pipeline(sinks=(sink(kind=kind, **options),), server=broker.bootstrap), reach=True)
    assert found == ([f"p.yaml:21: sink out: {text}"] if text else [])


def test_findings_come_by_their_lines(tmp_path: Path) -> None:
    early = replace(orders(options={"no": "1"}), place=at(5))
    late = Source("rates", "files", {"files": "none", "format": "csv", "static": True}, place=at(40))
    places = [each.place for each in check_static(pipeline(early, late, directory=tmp_path), reach=False)]
    assert places == [at(5), at(40)]


# --- by asking


def test_topics_that_are_not_there(broker: EmbeddedBroker, probes: dict[str, Any]) -> None:
    spec = pipeline(
        orders(),
        replace(orders("ordrs"), name="typo", place=at(5)),
        replace(orders("zzz"), name="other", place=at(6)),
        Source("like", "topic", {"pattern": "^ord"}, place=at(7)),
        Source("unlike", "topic", {"pattern": "^none"}, place=at(8)),
        server=broker.bootstrap,
        letters="topic",
    )
    where = broker.bootstrap
    assert static(spec, reach=True) == [
        f"p.yaml:5: source typo: there is no topic 'ordrs' at {where}; did you mean 'orders'?",
        f"p.yaml:6: source other: there is no topic 'zzz' at {where}; make it with: penstock topic create zzz",
        f"p.yaml:8: source unlike: no topic at {where} is like '^none'",
    ]


def test_nothing_is_made(broker: EmbeddedBroker, tmp_path: Path) -> None:
    text = f"""\
server: {broker.bootstrap}
sources: {{orders: {{topic: orders, format: json, schema: id BIGINT}}}}
sinks:
  a: {{parquet: ./files}}
  b: {{topic: made.later}}
  c: {{delta: ./lake}}
  d: {{jdbc: "sqlite:./shop.db", table: orders}}
"""
    spec = parse(text, tmp_path / "p.yaml")
    assert static(spec, reach=True) == []
    assert list(tmp_path.iterdir()) == []
    with Cluster(Settings(broker.bootstrap)) as cluster:
        assert list(cluster.topics(None)) == ["orders"]


def test_a_broker_that_is_away_is_told_of_once(closed_port: int) -> None:
    spec = pipeline(
        orders(),
        replace(orders("more"), name="more", place=at(5)),
        sinks=(sink("b", "topic", topic="out"),),
        letters="topic",
        server=f"127.0.0.1:{closed_port}",
    )
    (found,) = static(spec, reach=True)
    assert found.startswith(f"p.yaml:3: no broker answers at 127.0.0.1:{closed_port} (")
    assert found.endswith("is it running? `server` names another")


def test_dead_letters_alone_need_the_broker(closed_port: int, probes: dict[str, Any], tmp_path: Path) -> None:
    files = Source("f", "files", {"files": "in", "format": "text"}, place=at(2))
    spec = pipeline(files, letters="topic", server=f"127.0.0.1:{closed_port}", directory=tmp_path)
    (found,) = check_static(spec, reach=True)
    assert found.place == at(30)
    assert static(spec, reach=False) == []


def test_what_sinks_say(broker: EmbeddedBroker, probes: dict[str, Any]) -> None:
    probes["a"] = raiser(SinkUnavailable("sink a: no answer"))
    probes["b"] = raiser(SinkError("no such bucket"))
    probes["c"] = raiser(OSError("broken\nlines"))
    sinks = (sink("a", line=20), sink("b", line=22), sink("c", line=24), sink("fine", line=26))
    assert static(pipeline(sinks=sinks, server=broker.bootstrap), reach=True) == [
        "p.yaml:21: sink a: no answer",
        "p.yaml:23: sink b: no such bucket",
        "p.yaml:25: sink c: OSError: broken lines",
    ]


def test_sinks_are_asked_at_once_and_not_waited_for(
    broker: EmbeddedBroker, probes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "DEADLINE_S", 3.0)
    met = threading.Barrier(3)
    never = threading.Event()
    probes |= {"a": lambda: met.wait(60), "b": lambda: met.wait(60)}
    probes["silent"] = lambda: (met.wait(60), never.wait(600))
    sinks = (sink("a"), sink("b"), sink("silent", line=40))
    began_s = time.monotonic()
    try:
        found = static(pipeline(sinks=sinks, server=broker.bootstrap), reach=True)
    finally:
        never.set()
    assert found == ["p.yaml:41: sink silent: no answer within 3 s"]
    assert time.monotonic() - began_s < 60


# --- by Spark


class FakeSpark:
    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.settings.__setitem__, isModifiable=lambda _: True)

    def newSession(self) -> "FakeSpark":  # noqa: N802 - Spark's name
        return self


def test_what_spark_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [Finding(at(12), "step clean: no column amont")]

    def build(_spec: Spec, _spark: object) -> None:
        raise SpecError(told)

    monkeypatch.setattr(graph, "build", build)
    spark: Any = FakeSpark()
    assert check_analysed(replace(pipeline(), spark={"spark.sql.ansi.enabled": "false"}), spark) == told
    assert spark.settings == {"spark.sql.ansi.enabled": "false"}


def test_columns_that_sinks_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(schema_of=lambda _: SimpleNamespace(fieldNames=lambda: ["id", "Day"]), nodes={})
    monkeypatch.setattr(graph, "build", lambda *_: made)
    sinks = (
        sink("fine", partition_by=["day"], keys="id"),
        sink("iceberg", line=30, partition_by=["days(at)"]),
        sink("wrong", line=40, partition_by=["dya"]),
    )
    spark: Any = FakeSpark()
    assert list(map(str, check_analysed(pipeline(sinks=sinks), spark))) == [
        "p.yaml:41: sink wrong: partition_by: orders has no column 'dya'; it has id, Day"
    ]
