from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.errors import SpecError
from penstock.pipelines.model import Action, DeadLetters, Expectation, Place, Spec, Watermark
from penstock.pipelines.run.sources import kafka_options
from penstock.pipelines.spec import load, parse

WHOLE = """\
name: revenue
description: by the hour
server: broker:9092
client: {security.protocol: SASL_SSL, retries: 5}
every: 500ms
limit: 1000
mode: update
patience: 1h
spark: {spark.sql.shuffle.partitions: 4}
sources:
  orders:
    topic: [orders, late.orders]
    format: json
    schema: id BIGINT, at TIMESTAMP
    from: 2026-01-31T12:00:00
    watermark: {column: at, delay: 10 minutes}
    expect: [{name: has id, that: id IS NOT NULL, otherwise: drop}]
    options: {failOnDataLoss: false}
  customers:
    files: data/*.csv
    format: csv
    static: true
    options: {header: yes}
steps:
  clean:
    sql: |
      SELECT *
      FROM Orders JOIN customers USING (id)
    expect:
      positive: amount > 0
      small: {that: amount < 9, otherwise: warn}
  last:
    sql: SELECT * FROM x
    inputs: clean
    watermark: {column: at, delay: 90s}
sinks:
  lake: {delta: ./lake, from: clean, partition_by: day, file_size: 1MB}
  out.1: {topic: t}
dead_letters: {file: dead}
"""


def test_a_whole_file() -> None:
    spec = parse(WHOLE, "dir/p.yaml")
    assert (spec.name, spec.description, spec.server) == ("revenue", "by the hour", "broker:9092")
    assert spec.client == {"security.protocol": "SASL_SSL", "retries": "5"}
    assert (spec.every_s, spec.limit, spec.mode, spec.patience_s) == (0.5, 1000, "update", 3600.0)
    assert spec.spark == {"spark.sql.shuffle.partitions": "4"}
    assert spec.directory == Path("dir").absolute()
    assert spec.file == Path("dir/p.yaml")
    orders, customers = spec.sources
    assert (orders.kind, orders.place) == ("topic", Place("dir/p.yaml", 11))
    assert orders.options == {
        "topic": ("orders", "late.orders"),
        "pattern": None,
        "format": "json",
        "schema": "id BIGINT, at TIMESTAMP",
        "schema_file": None,
        "message": None,
        "from": "2026-01-31T12:00:00+00:00",
        "server": None,
        "options": {"failOnDataLoss": "false"},
    }
    assert orders.watermark == Watermark("at", "10 minutes")
    assert orders.expect == (Expectation("has id", "id IS NOT NULL", Action.DROP, Place("dir/p.yaml", 17)),)
    assert customers.is_static
    assert customers.options["files"] == ("data/*.csv",)
    assert customers.options["options"] == {"header": "yes"}
    clean, last = spec.steps
    assert clean.inputs == ("orders", "customers")
    assert clean.sql == "SELECT *\nFROM Orders JOIN customers USING (id)\n"
    assert (clean.place, clean.sql_place) == (Place("dir/p.yaml", 25), Place("dir/p.yaml", 27))
    assert [(each.name, each.otherwise) for each in clean.expect] == [
        ("positive", Action.QUARANTINE),
        ("small", Action.WARN),
    ]
    assert last.inputs == ("clean",)
    assert last.watermark == Watermark("at", "90 seconds")
    lake, out = spec.sinks
    assert (lake.kind, lake.source) == ("delta", "clean")
    assert lake.options == {"delta": "./lake", "partition_by": ("day",), "file_size": 1_000_000, "password": None}
    assert lake.places["partition_by"] == Place("dir/p.yaml", 37)
    assert (out.name, out.kind, out.source) == ("out.1", "topic", "last")
    assert spec.dead_letters == DeadLetters("file", "dead", Place("dir/p.yaml", 39))


SMALL = {
    "head": "",
    "orders": "{topic: orders}",
    "more": "",
    "clean": "{sql: SELECT * FROM orders}",
    "then": "",
    "out": "{topic: t}",
    "others": "",
    "letters": "",
}
_LINES = """\
{head}
sources:
  orders: {orders}
  {more}
steps:
  clean: {clean}
  {then}
sinks:
  out: {out}
  {others}
{letters}
"""


def small(**parts: str) -> Spec:
    return parse(_LINES.format(**SMALL | parts), "small.yaml")


def test_what_is_left_out() -> None:
    spec = small()
    assert spec.name == "small"
    assert (spec.server, spec.every_s, spec.limit, spec.mode, spec.patience_s) == (
        "127.0.0.1:9092",
        1,
        500_000,
        "append",
        600,
    )
    assert spec.dead_letters == DeadLetters("topic", "small.dead")
    assert spec.sinks[0].source == "clean"
    assert parse("sources: {a: {topic: a}}\nsinks: {o: {topic: b}}", "s.yaml").sinks[0].source == "a"


def test_defaults_are_nobody_elses() -> None:
    first = small()
    first.client["x"] = "y"  # type: ignore[index]
    assert small().client == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("latest", "latest"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ('{orders: {"0": 5, 1: -2}}', {"orders": {"0": 5, "1": -2}}),
    ],
)
def test_where_a_topic_begins(given: str, expected: object) -> None:
    assert small(orders=f"{{topic: orders, from: {given}}}").sources[0].options["from"] == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("dead_letters: log", DeadLetters("log")),
        ("dead_letters: drop", DeadLetters("drop")),
        ("dead_letters: {topic: d}", DeadLetters("topic", "d")),
        ("dead_letters:", DeadLetters("topic", "small.dead")),
    ],
)
def test_dead_letters(given: str, expected: DeadLetters) -> None:
    found = small(letters=given).dead_letters
    assert (found.kind, found.target) == (expected.kind, expected.target)


@pytest.mark.parametrize(
    ("part", "text", "line", "expected"),
    [
        ("head", "evry: 1s", 1, "unknown key `evry`; did you mean `every`?"),
        ("head", "xyz: 1s", 1, "unknown key `xyz`; there is `name`, `description`"),
        ("head", "every: soon", 1, "`every` must be a duration, as 500ms, 90s, 10m or 1h, or a number"),
        ("head", "every: -1", 1, "`every` must be at least 0 s; it is '-1'"),
        ("head", "limit: 0", 1, "`limit` must be at least 1; it is '0'"),
        ("head", "limit: [5]", 1, "`limit` must be a number; it is a list"),
        ("head", "mode: complete", 1, "`mode` must be one of append, update: "),
        ("head", "client: {a: {b: c}}", 1, "`client` must be a map of texts; `a` has a map"),
        ("head", "name: No Name", 1, "the pipeline's name 'No Name', must be of a-z"),
        ("orders", "{}", 3, "source orders: give `topic`, `pattern` or `files`"),
        ("orders", "orders", 3, "source orders: must be a map with `topic` or `files`; it is 'orders'"),
        ("orders", "{topic: a, files: b}", 3, "source orders: both `files` and a topic are given"),
        ("orders", "{topic: a, pattern: b}", 3, "source orders: give `topic` or `pattern`, not both"),
        ("orders", "{topic: a b}", 3, "source orders: 'a b' cannot be a topic's name"),
        ("orders", "{topic: a, formt: json}", 3, "source orders: unknown key `formt`; did you mean `format`?"),
        ("orders", "{topic: a, format: xml}", 3, "source orders: `format` must be one of json, avro"),
        ("orders", "{topic: a, format: json}", 3, "source orders: format json needs `schema`"),
        ("orders", "{topic: a, format: avro}", 3, "source orders: format avro needs `schema` or `schema_file`"),
        ("orders", "{topic: a, schema: a INT}", 3, "source orders: `schema` without `format`"),
        ("orders", "{topic: a, format: json, schema: a INT, message: M}", 3,
         "source orders: format json takes no `message`"),
        ("orders", "{topic: a, from: yesterday}", 3, "source orders: `from` must be earliest, latest, a time"),
        ("orders", "{topic: a, from: {a: {x: 5}}}", 3, "source orders: `from` must be earliest"),
        ("orders", "{topic: a, from: {b: {0: 5}}}", 3, "source orders: `from` names the topic 'b', which"),
        ("orders", "{topic: a, watermark: 10m}", 3, "source orders: `watermark` must be as {column: at"),
        ("orders", "{topic: a, watermark: {column: at}}", 3, "source orders: watermark: `delay` is missing"),
        ("orders", "{topic: a, watermark: {column: at, delay: long}}", 3,
         "source orders: watermark: `delay` must be as 10 min"),
        ("orders", "{files: a, format: csv}", 3, "source orders: a stream of files needs `schema`"),
        ("orders", "{files: a, schema: b INT}", 3, "source orders: `format` is missing"),
        ("orders", "{files: a, format: csv, static: true}", 3, "every source is static"),
        ("orders", "{files: a, format: csv, schema: a INT, from: latest}", 3, "source orders: unknown key `from`"),
        ("more", "ORDERS: {topic: a}", 4, "source ORDERS: the source orders on line 3 has that name"),
        ("more", "orders: {topic: a}", 4, "`orders` is there twice, first on line 3"),
        ("more", "my-orders: {topic: a}", 4, "source 'my-orders': the name must be of letters, digits and '_'"),
        ("more", "from: {topic: a}", 4, "source from: FROM is a word of SQL"),
        ("clean", "{}", 6, "step clean: give `sql` or `python`"),
        ("clean", "{sql: SELECT * FROM orders, python: 'a.py:b'}", 6, "step clean: give `sql` or `python`, not both"),
        ("clean", "{sql: SELECT * FROM ordrs}", 6,
         "step clean: the query reads no source and no step above: `ordrs` is no source or step above; did you mean"),
        ("clean", "{sql: SELECT 1}", 6, "step clean: the query reads no source and no step above: there is `orders`"),
        ("clean", "{sql: SELECT * FROM clean}", 6, "step clean: `clean` is the step itself"),
        ("clean", "{sql: SELECT 1, inputs: [order]}", 6,
         "step clean: `inputs`: `order` is no source or step above; did you mean `orders`?"),
        ("clean", "{sql: '  '}", 6, "step clean: `sql` is empty"),
        ("clean", "{sql: SELECT * FROM orders, expect: x > 0}", 6, "step clean: `expect` must be as {NAME: PREDICATE}"),
        ("clean", "{sql: SELECT * FROM orders, expect: {a: }}", 6,
         "step clean: expectation 'a': must be an SQL predicate"),
        ("clean", "{sql: SELECT * FROM orders, expect: {a: {that: b, otherwise: stop}}}", 6,
         "step clean: expectation 'a': `otherwise` must be one of warn, drop, quarantine, fail: "),
        ("clean", "{sql: SELECT * FROM orders, expect: [{name: a, that: b}, {name: a, that: c}]}", 6,
         "step clean: the expectation 'a' is there twice"),
        ("clean", "{sql: SELECT * FROM orders, expect: [{that: b}]}", 6, "step clean: expectation: `name` is missing"),
        ("then", "Orders: {sql: SELECT * FROM clean}", 7, "step Orders: the source orders on line 3 has that name"),
        ("out", "{from: clean}", 9, "sink out: no key says what kind it is; give one of `topic`, `parquet`, `delta`"),
        ("out", "{dleta: x}", 9, "sink out: no key says what kind it is; did you mean `delta`?"),
        ("out", "{topic: a, delta: b}", 9, "sink out: `topic` and `delta` are two kinds"),
        ("out", "{topic: a, from: cleen}", 9,
         "sink out: `from` names 'cleen', which is no source or step; did you mean `clean`?"),
        ("out", "{delta: a, file_size: 5}", 9, "sink out: `file_size` must be at least 1000 bytes"),
        ("out", "{delta: a, partition: b}", 9, "sink out: unknown key `partition`; did you mean `partition_by`?"),
        ("out", "{delta: a, password: geheim}", 9,
         "sink out: `password` must be one of a: there is `a`; it is what is given"),
        ("out", "there", 9, "sink out: must be a map"),
        ("others", "a b: {topic: t}", 10, "sink 'a b': the name must be of letters"),
        ("letters", "dead_letters: away", 11, "`dead_letters` must be one of `{topic: NAME}`"),
        ("letters", "dead_letters: {topic: a, file: b}", 11, "`dead_letters` must be one of"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_its_line(part: str, text: str, line: int, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        small(**{part: text})
    (finding,) = caught.value.findings
    assert finding.place == Place("small.yaml", line)
    assert finding.text.startswith(expected)


def test_a_step_sees_only_what_is_above_it() -> None:
    with pytest.raises(SpecError) as caught:
        small(clean="{sql: SELECT * FROM orders JOIN Later}", then="later: {sql: SELECT * FROM clean}")
    assert str(caught.value) == "small.yaml:6: step clean: `later` stands below; a step sees only what is above it"


def test_names_of_columns_are_no_tables() -> None:
    spec = small(
        clean="{sql: 'SELECT later, EXTRACT(DAY FROM later) FROM orders'}", then="later: {sql: SELECT * FROM clean}"
    )
    assert [each.inputs for each in spec.steps] == [("orders",), ("clean",)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["the file is empty"]),
        ("- a", ["a pipeline is a map"]),
        ("name: x", ["`sources` is missing", "`sinks` is missing"]),
        ("sources: {}\nsinks: {}", ["`sources` is empty", "`sinks` is empty"]),
        (
            "sources: []\nsinks: 5",
            ["`sources` must be a map from names to sources; it is a list", "`sinks` must be a map"],
        ),
        (
            "sources: {a: {topic: a}, b: {topic: b}}\nsinks: {o: {topic: c}}",
            ["sink o: there are several sources and no step"],
        ),
    ],
)
def test_files_that_lack_the_most(text: str, expected: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "p.yaml")
    assert [found.text[: len(want)] for found, want in zip(caught.value.findings, expected, strict=True)] == expected


def test_all_mistakes_are_told_at_once_by_line() -> None:
    with pytest.raises(SpecError) as caught:
        small(
            head="limit: none",
            orders="{topic: '${NOT_SET_ANYWHERE}', from: ever, x: 1}",
            clean="{sql: SELECT * FROM nowhere}",
            out="{delta: a, from: nobody}",
        )
    assert [each.place.line for each in caught.value.findings] == [1, 3, 3, 3, 6, 9]


def test_a_variable_that_is_not_set_is_the_only_thing_told_of_its_value() -> None:
    lost = "'${NOT_SET_ANYWHERE}'"
    with pytest.raises(SpecError) as caught:
        small(
            head=f"limit: {lost}",
            orders=f"{{topic: [{lost}], format: {lost}, schema: x, from: {lost}, watermark: {lost}, expect: {lost}}}",
            clean=f"{{sql: {lost}}}",
            then=f"other: {{python: {lost}}}",
            out=f"{{delta: {lost}, from: {lost}, partition_by: {lost}}}",
            letters=f"dead_letters: {lost}",
        )
    assert [each.place.line for each in caught.value.findings] == [1, 3, 6, 7, 9, 11]
    assert all("NOT_SET_ANYWHERE is not set" in each.text for each in caught.value.findings)


def test_a_broken_node_keeps_its_name() -> None:
    with pytest.raises(SpecError) as caught:
        small(orders="5", clean="6", then="last: {sql: SELECT * FROM clean JOIN orders}", out="{topic: t, from: clean}")
    assert [each.place.line for each in caught.value.findings] == [3, 6]


def test_load_says_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    for name, data, line, expected in (
        ("a.yaml", None, 1, "the file cannot be read: No such file"),
        ("a.json", b"", 1, "a pipeline is a .yaml, .yml or .py file"),
        ("b.yaml", b"a: 1\nb: \xff", 2, "the file is not UTF-8"),
        ("c.yml", b"a: " + "ä".encode() * 600_000, 1, "the file is larger than"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(SpecError) as caught:
            load(path)
        (finding,) = caught.value.findings
        assert finding.place == Place(str(path), line)
        assert finding.text.startswith(expected)


_SCRAPS = st.sampled_from(
    [
        *WHOLE.splitlines(),
        *"{}[]:,&*!|>'\"%@`#-?~$",
        "<<: *a",
        "&a ",
        "*a",
        "\t",
        "\x85",
        "${A}",
        "${",
        "- ",
        "  ",
        "---",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_SCRAPS | st.text(max_size=8), max_size=30), st.sampled_from(["\n", "\n  ", " ", ""]))
def test_any_text_is_a_pipeline_or_an_error_with_places(scraps: list[str], between: str) -> None:
    _parse_anything(between.join(scraps))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_is_a_pipeline_or_an_error_with_places(draw: st.DataObject) -> None:
    lines = WHOLE.splitlines()
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(lines) - 1))
        cut = draw.draw(st.integers(0, len(lines[at])))
        lines[at] = lines[at][:cut] + draw.draw(_SCRAPS | st.just("")) + lines[at][cut + draw.draw(st.integers(0, 9)) :]
    _parse_anything("\n".join(lines))


def _parse_anything(text: str) -> None:
    try:
        assert isinstance(parse(text, "any.yaml"), Spec)
        return
    except SpecError as error:
        findings = error.findings
    assert findings
    assert all(each.place and each.place.file == "any.yaml" and each.place.line >= 1 for each in findings)


def test_brokers_by_a_context_and_a_password_by_a_file() -> None:
    client = "client: {sasl.password.file: secrets/shop, ssl.ca.location: /ca.pem}"
    text = f"context: shop\n{client}\nsources: {{a: {{topic: t}}}}\nsinks: {{b: {{topic: u}}}}\n"
    spec = parse(text, "dir/p.yaml")
    login = {"context": "shop", "kafka.sasl.password.file": str(Path("dir/secrets/shop").absolute())}
    login["kafka.ssl.ca.location"] = "/ca.pem"
    assert kafka_options(spec.server, spec.client) == login
    named = parse(f"server: h:1\n{text}", "dir/p.yaml")
    assert kafka_options(named.server, named.client) == {**login, "kafka.bootstrap.servers": "h:1"}
    assert "secrets" not in repr(spec)


def test_a_client_that_is_no_map_is_not_shown() -> None:
    with pytest.raises(SpecError) as wrong:
        parse("client: sasl.password=hush\nsources: {a: {topic: t}}\nsinks: {b: {topic: u}}\n", "p.yaml")
    assert "`client` must be" in str(wrong.value) and "hush" not in str(wrong.value)
