"""Which form of the compiled modules runs, and that it is made of the sources that are here."""

import subprocess
import sys
from pathlib import Path

import hatch_build
import pytest

from penstock import compiled

ROOT = Path(__file__).parents[2]


def said(code: str, monkeypatch: pytest.MonkeyPatch, *, pure: bool) -> str:
    monkeypatch.setenv("PENSTOCK_PURE", "1" if pure else "0")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_what_is_compiled_was_made_of_these_sources() -> None:
    assert hatch_build.is_fresh(), "'make .venv/.compiled' compiles them"


def test_the_sources_run_if_one_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ", ".join(compiled.MODULES)
    code = f"import {modules}, sys; print(*(sys.modules[name].__file__[-3:] for name in {compiled.MODULES!r}))"
    assert said(code, monkeypatch, pure=True).split() == [".py"] * len(compiled.MODULES)
    assert said(code, monkeypatch, pure=False).split() == [".so"] * len(compiled.MODULES)
    code = "from penstock.compiled import form; print(form())"
    assert said(code, monkeypatch, pure=True) == "pure Python\n"
    assert said(code, monkeypatch, pure=False) == "compiled\n"


def test_errors_from_compiled_modules_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import traceback
from penstock.records.walk import walk
try:
    walk(b"", 1)
except ValueError:
    print(traceback.format_exc())
"""
    for pure in (True, False):
        told = said(code, monkeypatch, pure=pure)
        assert "src/penstock/records/walk.py" in told and "in walk" in told and "1 records in 0 bytes" in told


def test_without_a_compiler_nothing_is_compiled_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "penstock" / "records" / "walk.py"
    source.parent.mkdir(parents=True)
    source.write_text("# other sources than were compiled\n")
    stale = source.with_name("walk" + hatch_build.SUFFIX)
    stale.touch()
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path)
    monkeypatch.setattr(hatch_build, "modules", lambda: [source])
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not hatch_build.compile_modules()
    assert "no C compiler (no-such-compiler)" in capsys.readouterr().err
    assert not stale.exists(), "Python would find it before the source"
