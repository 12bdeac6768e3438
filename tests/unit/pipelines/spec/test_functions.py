import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipelines.errors import SpecError
from penstock.pipelines.model import Place, Step
from penstock.pipelines.spec import parse
from penstock.pipelines.spec.functions import find_file, load_function, parse_reference

_FILE = """\
raise_when_run = 1 / 0


def two(orders, clean): ...


def more(orders, days=7): ...


def later(orders, last): ...


def keyword(orders, *, clean): ...


def nothing(): ...


def unknown(ordrs): ...


if True:
    other = two
"""
_PIPELINE = """\
sources:
  orders: {{topic: orders}}
steps:
  clean: {{sql: SELECT * FROM orders}}
  made: {step}
  last: {{sql: SELECT * FROM made}}
sinks:
  out: {{topic: t}}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "f.py").write_text(_FILE)
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "inner.py").write_text(_FILE)
    (tmp_path / "bad.py").write_text("x = 1\ndef f(:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("step", "inputs"),
    [
        ("{python: 'f.py:two'}", ("orders", "clean")),
        ("{python: 'steps/inner.py:two'}", ("orders", "clean")),
        ("{python: 'steps.inner:two'}", ("orders", "clean")),
        ("{python: 'f.py:more'}", ("orders",)),
        ("{python: 'f.py:two', inputs: [CLEAN, orders]}", ("clean", "orders")),
        ("{python: 'f.py:unknown', inputs: clean}", ("clean",)),
        ("{python: 'f.py:other', inputs: clean}", ("clean",)),
        ("{python: 'json.decoder:scanstring', inputs: clean}", ("clean",)),
    ],
)
def test_inputs_are_parameters_and_nothing_is_run(directory: Path, step: str, inputs: tuple[str, ...]) -> None:
    assert parse(_PIPELINE.format(step=step), directory / "p.yaml").steps[1].inputs == inputs


@pytest.mark.parametrize(
    ("step", "file", "line", "expected"),
    [
        ("{python: two}", "p.yaml", 5, "step made: `python` must be `file.py:function`"),
        ("{python: 'g.py:two'}", "p.yaml", 5, "step made: there is no g.py in "),
        ("{python: 'nowhere.at_all:two'}", "p.yaml", 5, "step made: there is no nowhere.at_all among Python's modules"),
        ("{python: 'f.py:tow'}", "p.yaml", 5, "step made: f.py has no function `tow`; did you mean `two`?"),
        ("{python: 'f.py:other'}", "p.yaml", 5, "step made: its parameters cannot be seen without running the file"),
        ("{python: 'bad.py:f'}", "bad.py", 2, "not Python: "),
        (
            "{python: 'f.py:unknown'}",
            "f.py",
            19,
            "step made: the parameter `ordrs` is no source or step above; did you",
        ),
        ("{python: 'f.py:later'}", "f.py", 10, "step made: the parameter `last` stands below"),
        ("{python: 'f.py:keyword'}", "f.py", 13, "step made: the parameter `clean` is keyword-only"),
        ("{python: 'f.py:nothing'}", "f.py", 16, "step made: the function has no parameter"),
        (
            "{python: 'f.py:two', inputs: clean}",
            "f.py",
            4,
            "step made: the function takes 2 tables, and `inputs` names 1",
        ),
    ],
)
def test_what_is_wrong_with_a_function(directory: Path, step: str, file: str, line: int, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(_PIPELINE.format(step=step), directory / "p.yaml")
    (finding,) = caught.value.findings
    assert finding.place == Place(str(directory / file), line)
    assert finding.text.startswith(expected)


@pytest.mark.parametrize("text", ["", "a", "a.py", ":f", "a-b:f", "a.py:", "a.py:f g", "a..b:f"])
def test_what_is_no_reference(text: str) -> None:
    assert parse_reference(text) is None


def test_a_module_is_found_without_being_imported(directory: Path) -> None:
    reference = parse_reference("steps.inner:two")
    assert reference is not None
    assert find_file(reference, directory) == directory / "steps" / "inner.py"
    assert "steps" not in sys.modules


def step(python: str) -> Step:
    return Step("made", ("a",), python=python, place=Place("p.yaml", 5))


def test_a_file_is_loaded_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "prices_beside.py").write_text("RATE = 3\ndef rate(): return RATE\n")
    (tmp_path / "f.py").write_text("import prices_beside\ndef times(a): return a * prices_beside.rate()\n")
    path = list(sys.path)
    assert load_function(step("f.py:times"), tmp_path)(2) == 6
    assert sys.path == path
    assert "prices_beside" not in sys.modules


def test_two_directories_may_have_modules_of_one_name(tmp_path: Path) -> None:
    loaded = []
    for rate in (3, 5):
        directory = tmp_path / str(rate)
        directory.mkdir()
        (directory / "prices_twice.py").write_text(f"RATE = {rate}\n")
        (directory / "f.py").write_text("from prices_twice import RATE\ndef times(a): return a * RATE\n")
        loaded.append(load_function(step("f.py:times"), directory))
    assert [each(1) for each in loaded] == [3, 5]


def test_a_changed_file_is_loaded_anew(tmp_path: Path) -> None:
    results = []
    for rate in (3, 5):
        (tmp_path / "f.py").write_text(f"def times(a): return a * {rate}\n")
        results.append(load_function(step("f.py:times"), tmp_path)(1))
    assert results == [3, 5]


@pytest.mark.parametrize("python", ["f.py:times", "f:times"])
@pytest.mark.parametrize("is_on_path", [False, True])
def test_a_loaded_function_runs_where_its_file_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, is_on_path: bool
) -> None:
    from pyspark import cloudpickle

    if is_on_path:
        monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prices_far.py").write_text("class Price:\n    rate = 3\n")
    (tmp_path / "f.py").write_text("from prices_far import Price\ndef times(a): return a * Price().rate\n")
    before = set(sys.modules)
    data = cloudpickle.dumps(load_function(step(python), tmp_path))
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(2))"
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, cwd="/", check=False)
    assert (done.stdout, done.stderr) == (b"6\n", b"")
    for name in {"f", "prices_far"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_an_installed_function_travels_by_its_name(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    function = load_function(step("json:dumps"), tmp_path)
    assert function is json.dumps
    assert pickle.loads(cloudpickle.dumps(function)) is json.dumps  # noqa: S301


@pytest.mark.parametrize(
    ("python", "place", "expected"),
    [
        ("away.py:f", "p.yaml:5", "step made: there is no away.py in "),
        ("f.py:absent", "p.yaml:5", "step made: f.py has no function `absent`; did you mean `present`?"),
        ("f.py:NUMBER", "p.yaml:5", "step made: f.py:NUMBER is a int, not a function"),
        ("breaks.py:f", "{}/breaks.py:3", "cannot be imported: ZeroDivisionError: division by zero"),
        ("leaves.py:f", "{}/leaves.py:2", "cannot be imported: SystemExit: 3"),
        ("syntax.py:f", "{}/syntax.py:1", "not Python: "),
        ("not_there_at_all:f", "p.yaml:5", "step made: there is no module not_there_at_all"),
        ("breaks:f", "p.yaml:5", "step made: breaks cannot be imported: ZeroDivisionError"),
        ("lacks:f", "p.yaml:5", "step made: lacks cannot be imported: No module named 'not_there_at_all'"),
    ],
)
def test_what_cannot_be_loaded(tmp_path: Path, python: str, place: str, expected: str) -> None:
    (tmp_path / "f.py").write_text("NUMBER = 5\ndef present(a): ...\n")
    (tmp_path / "breaks.py").write_text("def g():\n    ...\nx = 1 / 0\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "lacks.py").write_text("import not_there_at_all\n")
    with pytest.raises(SpecError) as caught:
        load_function(step(python), tmp_path)
    (finding,) = caught.value.findings
    assert str(finding.place) == place.format(tmp_path)
    assert finding.text.startswith(expected)
