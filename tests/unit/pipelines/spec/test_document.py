import pytest

from penstock.pipelines.model import Place
from penstock.pipelines.spec import document
from penstock.pipelines.spec.tree import Findings, Leaf, Node, Table
from penstock.pipelines.spec.values import read_data


def read(text: str, **environment: str) -> tuple[Node | None, list[str]]:
    findings = Findings()
    node = document.read(text, "f.yaml", findings, environment)
    return node, [str(each) for each in findings.error().findings]


def data(text: str, **environment: str) -> object:
    node, wrong = read(text, **environment)
    assert not wrong
    assert node is not None
    return read_data(node)


def leaf(text: str, *keys: str) -> Leaf:
    node, wrong = read(text)
    assert not wrong
    for key in keys:
        assert isinstance(node, Table)
        entry = node.get(key)
        assert entry is not None
        node = entry.value
    assert isinstance(node, Leaf)
    return node


def test_values_are_read_by_their_looks() -> None:
    text = "a: 1\nb: 1.5\nc: true\nd: no\ne: '1'\nf: ~\ng: [x, 2]\nh: 2026-01-01\ni: 1e3\nj: 1:30"
    assert data(text) == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": "no",
        "e": "1",
        "f": None,
        "g": ["x", 2],
        "h": "2026-01-01",
        "i": 1000.0,
        "j": "1:30",
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sql: SELECT 1", 1),
        ("sql: |\n  SELECT\n  1", 2),
        ("sql: >-\n  SELECT\n  1", 2),
        ("sql: | # a comment\n  SELECT", 2),
        ("sql: &name |\n  SELECT", 2),
        ("sql: &name\n  |2\n  SELECT", 3),
        ("sql:\n  SELECT 1", 2),
        ("sql: |\n\n  SELECT", 2),
        ("sql: 'SELECT\n  1'", 1),
    ],
)
def test_the_line_where_a_text_begins(text: str, line: int) -> None:
    assert leaf("# first\n" + text, "sql").text_place == Place("f.yaml", line + 1)


def test_aliases_and_merges() -> None:
    text = """
base: &base {a: 1, b: 2}
more: &more {b: 3, c: 4}
one: {<<: *base, b: 9}
two: {<<: [*base, *more], d: 5}
"""
    read = data(text)
    assert isinstance(read, dict)
    assert read["one"] == {"b": 9, "a": 1}
    assert read["two"] == {"d": 5, "a": 1, "b": 2, "c": 4}


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("a ${A} b ${B}", {"A": "x", "B": "y"}, "a x b y"),
        ("${A:5}", {}, 5),
        ("${A:5}", {"A": "6"}, 6),
        ("'${A:5}'", {}, "5"),
        ("${A:}", {}, None),
        ("${A:host:9092}", {}, "host:9092"),
        ("$${A}", {"A": "x"}, "${A}"),
        ("$A costs $5", {"A": "x"}, "$A costs $5"),
        ("${A}", {"A": "b: {c: 1}"}, "b: {c: 1}"),
        ("${A}", {"A": "${B}", "B": "x"}, "${B}"),
    ],
)
def test_variables(text: str, environment: dict[str, str], expected: object) -> None:
    assert data(f"key: {text}", **environment) == {"key": expected}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "f.yaml:2: `a` is there twice, first on line 1"),
        ("a:\n  b: ${NOWHERE}", "f.yaml:2: the variable NOWHERE is not set"),
        ("a: |\n  x\n  y ${NOWHERE}", "f.yaml:3: the variable NOWHERE"),
        ("a: >\n  x $${\n  y ${NOWHERE:b}\n  ${NOWHERE}", "f.yaml:4: the variable NOWHERE"),
        ("a: ${no-name}", "f.yaml:1: `${` begins a variable"),
        (
            "a: {b: ${C}}",
            """f.yaml:1: not YAML: expected ',' or '}', but got '{' (while parsing a flow mapping, line 1); between""",
        ),
        ("a: [1\nb: 2", "f.yaml:2: not YAML: "),
        ("a: b: c", "f.yaml:1: not YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2", "f.yaml:2: a second document begins here"),
        ("a: *nobody", "f.yaml:1: not YAML: found undefined alias"),
        ("a: 1\nb: \x00", "f.yaml:2: not YAML: the character U+0000"),
        ('a: "\\UFFFFFFFF"', "f.yaml:1: not YAML"),
        ("a: !!python/object:os.system x", "f.yaml:1: the tag tag:yaml.org,2002:python/object:os.system means nothing"),
        ("? [a]\n: b", "f.yaml:1: a key must be a text"),
        ("a: 1\n<<: 5", "f.yaml:2: `<<` takes over a map"),
        ("a: &a [*a]", "f.yaml:1: what stands here is a part of itself"),
        ("[" + "a," * 30_000 + "]", "f.yaml:1: the file is more than 20000 values"),
        ("[" * 100_000, "f.yaml:1: the file is nested deeper than"),
        ("a: " + "x" * 1_000_001, "f.yaml:1: the file is larger than"),
    ],
)
def test_what_is_wrong_with_a_text(text: str, expected: str) -> None:
    _, wrong = read(text)
    assert len(wrong) == 1
    assert wrong[0].startswith(expected)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    _, wrong = read("\n".join(lines))
    assert wrong == [f"f.yaml:1: aliases make more than {document.MAX_NODES} values of the file; write less"]


def test_a_mistake_behind_aliases_is_told_once() -> None:
    _, wrong = read("a: &a {x: 1, x: 2}\nb: *a\nc: *a")
    assert len(wrong) == 1
