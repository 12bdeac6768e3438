"""Every package's docstring lists its files, so that a reader finds the one that is looked for."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "penstock"
ONE_FILE_PER_API = SOURCE / "protocols" / "kafka" / "handlers"


@pytest.mark.parametrize("init", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: str(path.parent.name))
def test_the_docstring_names_every_file(init: Path) -> None:
    if init.parent == ONE_FILE_PER_API:
        return
    docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
    modules = {path.name for path in init.parent.glob("[!_]*.py")}
    packages = {path.parent.name for path in init.parent.glob("*/__init__.py")}
    assert sorted(name for name in modules | packages if name not in docstring) == []
