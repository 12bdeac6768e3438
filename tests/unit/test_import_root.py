"""The tests have one import root, the repository: a module imported under two names has two of each of its classes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py"))
OTHER_ROOTS = {path.stem for folder in ("tests", "bench") for path in (ROOT / folder).iterdir()} - {"__init__"}
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}


def strays(tree: ast.AST) -> Iterator[str]:
    """Every import that is not from the root, and every change of where imports are looked for."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in OTHER_ROOTS:
                yield f"line {node.lineno}: from {module}"
            case ast.Import(names=names):
                yield from (f"line {node.lineno}: {n.name}" for n in names if n.name.partition(".")[0] in OTHER_ROOTS)
            case ast.Call(func=ast.Attribute(value=target, attr=attr)) if attr in CHANGES and is_path(target):
                yield f"line {node.lineno}: sys.path.{attr}"
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                changed = node if isinstance(node, ast.Attribute) else node.value
                if is_path(changed):
                    yield f"line {node.lineno}: sys.path is set"
            case ast.ImportFrom(module="sys", names=names) if any(name.name == "path" for name in names):
                yield f"line {node.lineno}: from sys import path"
            case _:
                pass


def is_path(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path"


def test_everything_is_imported_from_the_root() -> None:
    found = {str(path.relative_to(ROOT)): list(strays(ast.parse(path.read_bytes()))) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.path.insert(0, 'tests')",
        "import sys\nsys.path[:0] = ['tests']",
        "import sys\nsys.path += ['tests']",
        "import sys\nsys.path = []",
        "from sys import path",
        "import chaos.load",
        "def late():\n    from chaos.load import wait_until",
    ],
)
def test_another_root_is_found(program: str) -> None:
    assert len(list(strays(ast.parse(program)))) == 1


def test_no_package_lies_in_a_folder_that_is_none() -> None:
    """pytest takes the outermost package for the root."""
    packages = {path.parent for path in (ROOT / "tests").rglob("__init__.py")}
    assert sorted(str(path) for path in packages if path.parent != ROOT and path.parent not in packages) == []
