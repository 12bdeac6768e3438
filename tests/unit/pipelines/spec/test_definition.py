import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.errors import SpecError
from penstock.pipelines.model import Place, Spec
from penstock.pipelines.spec import load
from penstock.pipelines.spec.definition import Pipeline
from penstock.pipelines.spec.fingerprint import fingerprint

_YAML = """\
name: revenue
server: broker:9092
client: {security.protocol: SASL_SSL, retries: 5}
every: 90s
limit: 1000
sources:
  orders:
    topic: [orders, late]
    format: json
    schema: id BIGINT
    from: {orders: {"0": 5}}
    watermark: {column: at, delay: 10 minutes}
    options: {failOnDataLoss: false}
  customers: {files: data/*.csv, format: csv, static: true}
steps:
  clean:
    sql: SELECT * FROM orders JOIN customers
    expect: {positive: amount > 0, small: {that: amount < 9, otherwise: warn}}
  hourly: {python: "program.py:hourly"}
  daily: {python: "program.py:by_day", inputs: [hourly], expect: [{name: a, that: b}]}
sinks:
  lake: {from: hourly, delta: ./lake, partition_by: [day], file_size: 1MB}
  out: {topic: t}
dead_letters: {topic: revenue.dead}
"""
_PROGRAM = """\
from datetime import timedelta
from penstock.pipelines.spec.definition import Pipeline

pipeline = Pipeline(
    "revenue",
    server="broker:9092",
    client={"security.protocol": "SASL_SSL", "retries": 5},
    every=timedelta(seconds=90),
    limit=1000,
)
pipeline.topic(
    "orders",
    topic=["orders", "late"],
    format="json",
    schema="id BIGINT",
    from_={"orders": {"0": 5}},
    watermark={"column": "at", "delay": "10 minutes"},
    options={"failOnDataLoss": False},
)
pipeline.files("customers", files="data/*.csv", format="csv", static=True)
pipeline.sql(
    "clean",
    "SELECT * FROM orders JOIN customers",
    expect={"positive": "amount > 0", "small": {"that": "amount < 9", "otherwise": "warn"}},
)

@pipeline.step
def hourly(clean):
    return 1 / 0

@pipeline.step(name="daily", inputs=["hourly"], expect=[{"name": "a", "that": "b"}])
def by_day(rows):
    return rows

pipeline.sink("lake", source="hourly", delta="./lake", partition_by=("day",), file_size="1MB")
pipeline.sink("out", topic="t")
pipeline.dead_letters(topic="revenue.dead")
"""


def without_places(spec: Spec) -> Spec:
    def bare(each):  # type: ignore[no-untyped-def]
        return replace(each, place=None, expect=tuple(replace(found, place=None) for found in each.expect))

    return replace(
        spec,
        sources=tuple(map(bare, spec.sources)),
        steps=tuple(replace(bare(each), sql_place=None, function=None) for each in spec.steps),
        sinks=tuple(replace(each, place=None, places={}) for each in spec.sinks),
        dead_letters=replace(spec.dead_letters, place=None),
        place=None,
        file=None,
    )


def test_a_program_and_a_file_are_the_same_pipeline(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(_YAML)
    (tmp_path / "program.py").write_text(_PROGRAM)
    written, programmed = load(tmp_path / "pipeline.yaml"), load(tmp_path / "program.py")
    assert without_places(programmed) == without_places(written)
    assert fingerprint(programmed) == fingerprint(written)
    assert programmed.steps[2].function is not None
    assert programmed.steps[2].function("x") == "x"


def test_places_are_lines_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    spec = load(path)
    placed: tuple[Any, ...] = (*spec.sources, *spec.steps, *spec.sinks)
    lines = {each.name: each.place.line for each in placed if each.place}
    assert lines == {"orders": 11, "customers": 20, "clean": 21, "hourly": 27, "daily": 31, "lake": 35, "out": 36}
    assert spec.place == Place(str(path), 4)
    assert spec.steps[0].sql_place == Place(str(path), 23)


def test_a_changed_program_has_its_new_lines(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    lines = []
    for head in ("", "#\n" * 3):
        path.write_text(head + _PROGRAM)
        place = load(path).steps[0].sql_place
        lines.append(place.line if place else 0)
    assert lines == [23, 26]


def test_a_pipeline_is_put_together_anywhere() -> None:
    pipeline = Pipeline("p", every=timedelta(milliseconds=500), description=None)
    pipeline.topic("orders", pattern="orders-.*")
    pipeline.sql("clean", "SELECT\n* FROM orders")
    pipeline.sink("out", delta=Path("lake"), partition_by={"day"})
    pipeline.dead_letters("log")
    spec = pipeline.spec()
    assert (spec.every_s, spec.description, spec.dead_letters.kind) == (0.5, "", "log")
    assert spec.file == Path(__file__)
    assert spec.sinks[0].options["delta"] == "lake"
    assert spec.steps[0].sql_place == Place(__file__, Path(__file__).read_text().split("SELECT\\n*")[0].count("\n") + 1)


def test_mistakes_are_those_of_a_file() -> None:
    pipeline = Pipeline("p", evry="1s")
    pipeline.topic("orders", topic="a")
    pipeline.topic("orders", topic="b")

    @pipeline.step(expect={"a": {"that": "b", "otherwise": "c"}})
    def clean(ordrs: object) -> None: ...

    pipeline.sink("out", delta="x", source="nobody")
    with pytest.raises(SpecError) as caught:
        pipeline.spec()
    first = _line_of('topic="a"')
    texts = [each.text for each in caught.value.findings]
    assert [each.split(";")[0].split(":")[0] for each in texts] == [
        "unknown key `evry`",
        f"`orders` is there twice, first on line {first}",
        "step clean",
        "step clean",
        "sink out",
    ]
    assert {each.place.file for each in caught.value.findings if each.place} == {__file__}


def _line_of(text: str) -> int:
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_what_cannot_stand_in_a_file_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match=r"test_definition\.py:[0-9]+: a bytes cannot stand in a pipeline"):
        Pipeline("p", server=b"x")


@pytest.mark.parametrize(
    ("program", "line", "expected"),
    [
        ("x = 5", 1, "no variable holds a Pipeline"),
        ("{use}\na = Pipeline('a')\nb = Pipeline('b')", 1, "several pipelines are here: a, b"),
        ("{use}\n\na = Pipeline(5 / 0)", 3, "cannot be imported: ZeroDivisionError"),
        ("{use}\na = b = Pipeline('a')", 2, "`sinks` is empty"),
        ("{use}\na = Pipeline('a')\na.spec()", 2, "`sinks` is empty"),
    ],
)
def test_what_is_no_program_of_a_pipeline(tmp_path: Path, program: str, line: int, expected: str) -> None:
    path = tmp_path / "p.py"
    path.write_text(program.format(use="from penstock.pipelines.spec.definition import Pipeline"))
    with pytest.raises(SpecError) as caught:
        load(path)
    assert caught.value.findings[0].place == Place(str(path), line)
    assert any(each.text.startswith(expected) for each in caught.value.findings)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the file is not there"):
        load(tmp_path / "p.py")


def test_reading_a_pipeline_needs_no_spark(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM.replace("1 / 0", "2"))
    (tmp_path / "pipeline.yaml").write_text(_YAML)
    program = """
import sys
from pathlib import Path
from penstock.pipelines.spec import load
from penstock.pipelines.spec.fingerprint import fingerprint
import penstock.pipelines.spec.definition, penstock.pipelines.spec.sample
from penstock.pipelines import sinks
from types import ModuleType
for kind in ("topic", "delta"):
    module = ModuleType("plain_" + kind)
    module.KEYS = tuple(__import__("penstock.pipelines.keys").pipelines.keys.Key(name, "any", "")
                        for name in (kind, "partition_by", "file_size"))
    sys.modules[module.__name__] = module
    sinks.KINDS[kind] = module.__name__
for each in sys.argv[1:]:
    fingerprint(load(Path(each)))
print("pyspark" in sys.modules)
"""
    arguments = [str(tmp_path / "pipeline.yaml"), str(tmp_path / "program.py")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
