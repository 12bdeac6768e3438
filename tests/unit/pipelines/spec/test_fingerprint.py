from pathlib import Path

import pytest

from penstock.pipelines.spec import parse
from penstock.pipelines.spec.fingerprint import changes, fingerprint, strip

_FILE = """\
sources:
  orders:
    topic: orders
    format: json
    schema: id BIGINT, at TIMESTAMP
    watermark: {column: at, delay: 10 minutes}
    expect: {has id: id IS NOT NULL}
steps:
  clean:
    sql: |
      SELECT id, 'a  b' AS c
      FROM orders
    expect:
      positive: amount > 0
      small: {that: amount < 9, otherwise: warn}
  made:
    python: f.py:made
sinks:
  lake: {delta: "s3://key:secret@bucket/lake", from: made}
"""
_PYTHON = '''\
import os

def made(clean):
    text = """a

    b"""
    return clean.where(text)
'''


def prints(directory: Path, *changed: tuple[str, str], python: tuple[str, str] = ("", "")) -> dict[str, str]:
    text = _FILE
    for old, new in changed:
        assert old in text
        text = text.replace(old, new)
    assert python[0] in _PYTHON
    (directory / "f.py").write_text(_PYTHON.replace(*python) if python[0] else _PYTHON)
    return fingerprint(parse(text, directory / "p.yaml"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SELECT id, 'a  b' AS c\n", "SELECT   id,'a  b' AS c -- why\n\n"),
        ("sources:", "every: 5s\nlimit: 5\npatience: 1h\nserver: b:1\nclient: {a: b}\nspark: {c: d}\nsources:"),
        ("format: json", "format: json\n    from: latest\n    options: {a: b}"),
        ("id BIGINT, at", "id   BIGINT,  at"),
        ("delay: 10 minutes", "delay: 10   minutes"),
        ("positive: amount > 0", "above: amount  >  0"),
        ("amount < 9", "amount < 8"),
        ("key:secret@", "key:other@"),
        ("from: made", "partition_by: day"),
        ("python: f.py:made", "python: f.py:made\n    inputs: clean"),
    ],
)
def test_what_does_not_count(tmp_path: Path, old: str, new: str) -> None:
    assert changes(prints(tmp_path), prints(tmp_path, (old, new))) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("'a  b'", "'a b'", ["step clean changed"]),
        ("topic: orders", "topic: others", ["source orders changed"]),
        ("id BIGINT", "id INT", ["source orders changed"]),
        ("delay: 10", "delay: 20", ["source orders changed"]),
        ("id IS NOT NULL", "id > 0", ["source orders changed"]),
        ("amount > 0", "amount > 1", ["step clean changed"]),
        ("positive: amount > 0", "positive: {that: amount > 0, otherwise: warn}", ["step clean changed"]),
        ("bucket/lake", "bucket/pond", ["sink lake changed"]),
        ("from: made", "from: clean", ["sink lake changed"]),
        ("lake: {delta", "pond: {delta", ["sink pond is new", "sink lake is gone"]),
        ("sources:", "mode: update\nsources:", ["the pipeline's mode changed"]),
    ],
)
def test_what_counts(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert changes(prints(tmp_path), prints(tmp_path, (old, new))) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("import os", "import sys", []),
        ("def made(clean):", "\n\ndef made(clean):  # why", []),
        ("    return", "\n    # because\n\n    return", []),
        ("where(text)", "where(text + '')", ["step made changed"]),
        ("a\n\n", "a\n", ["step made changed"]),
    ],
)
def test_what_counts_of_a_function(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert changes(prints(tmp_path), prints(tmp_path, python=(old, new))) == expected


def test_a_schema_file_counts_by_its_content(tmp_path: Path) -> None:
    text = ("format: json\n    schema: id BIGINT, at TIMESTAMP", "format: avro\n    schema_file: a.avsc")
    found = []
    for content in ("1", "2"):
        (tmp_path / "a.avsc").write_text(content)
        found.append(prints(tmp_path, text))
    assert changes(*found) == ["source orders changed"]


def test_strings_keep_what_looks_like_comments() -> None:
    assert strip("def f():\n    return '# a'  # b\n") == "def f():\n    return '# a'"
