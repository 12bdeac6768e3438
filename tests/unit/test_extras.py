"""What is optional is in an extra, every extra is told of by its name, and nobody is sent for another's package."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from penstock.extras import DISTRIBUTION, extra_of, install_line, tell_missing

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
READ = ("src", "docs", "deploy", "examples", "scripts", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
BROUGHT_ALONG = {"requests": "google-cloud-bigquery", "sqlalchemy": "pyiceberg"}
INSTALL = re.compile(r"\b(?:pipx?3?|uv(?: pip| tool)?) (?:install|add)\b(.*)")
NAME = re.compile(r"(?<![\w./@-])penstock(?:[-_][a-z]+)*(?=\[[a-z, ]+\])")


def named(requirement: str) -> str:
    """The package of a requirement."""
    return re.split(r"[^a-z0-9-]", requirement.lower().replace("_", "-"), maxsplit=1)[0]


def packages(extra: str) -> set[str]:
    """Of an extra, with those it includes."""
    found = set()
    for each in OPTIONAL[extra]:
        if named(each) == DISTRIBUTION:
            for other in each.partition("[")[2].rstrip("]").split(","):
                found |= packages(other)
        found.add(named(each))
    return found


def imported() -> set[str]:
    """All that the package imports, anywhere, and is not its own; but for what pytest alone imports.

    Compilers read what i64 is, and nobody imports it when the package runs: `mypy_extensions` comes with mypy.
    """
    found = set()
    source = ROOT / "src" / "penstock"
    for path in set(source.rglob("*.py")) - {source / "pytest_plugin.py"}:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    tops = {name.partition(".")[0] for name in found}
    own = {"penstock", "pyspark_penstock", "mypy_extensions"} | set(sys.stdlib_module_names)
    return {name for name in found if name.partition(".")[0] in tops - own}


def test_the_project_has_the_name_that_users_are_told() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert install_line("spark") == "pip install 'penstock-mq[spark]'"


def test_what_is_imported_is_always_installed_or_its_extra_is_known() -> None:
    given = packages_distributions()
    base = {named(each) for each in PROJECT["dependencies"]}
    wrong = {}
    for module in imported():
        top = module.partition(".")[0]
        brought_by = {named(each) for each in given.get(top, ())} | {BROUGHT_ALONG.get(top, "")}
        extra = extra_of(module)
        if not brought_by & (base if extra is None else packages(extra)):
            wrong[module] = extra
    assert wrong == {}


def misnamed(text: str) -> Iterator[str]:
    """Packages of another name that somebody who follows the text would install."""
    for line in text.splitlines():
        yield from (f"{each}[" for each in NAME.findall(line) if each != DISTRIBUTION)
        for words in INSTALL.findall(line):
            for word in words.split():
                word = word.strip("'\"`:,;.)")
                if named(word) != DISTRIBUTION and re.match(r"penstock\b(?![/.])", word):
                    yield word


def test_no_text_sends_a_user_for_another_package() -> None:
    found = {}
    for place in map(ROOT.joinpath, READ):
        for path in place.rglob("*") if place.is_dir() else [place]:
            if path.is_file() and (wrong := list(misnamed(path.read_text(errors="replace")))):
                found[str(path.relative_to(ROOT))] = wrong
    assert found == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install penstock", ["penstock"]),
        ("run `pip3 install -U penstock==0.1`: then", ["penstock==0.1"]),
        ("uv tool install 'penstock[spark]'", ["penstock[", "penstock[spark]"]),
        ("needs `penstock[cluster]`", ["penstock["]),
        ("pip install 'penstock-queue[spark]'", ["penstock-queue[", "penstock-queue[spark]"]),
        ("pip install 'penstock-mq[spark]'   # or '.[spark]' in a clone", []),
        ("uv pip install --python /opt/penstock 'penstock-mq[cluster] @ file:///x.whl'", []),
        ("helm install penstock deploy/helm/penstock", []),
        ("/opt/penstock/bin/pip install ./penstock.whl", []),
    ],
)
def test_another_package_is_found(text: str, wrong: list[str]) -> None:
    assert list(misnamed(text)) == wrong


def test_a_module_that_is_missing_is_told_by_its_package() -> None:
    assert tell_missing("pyspark.sql") == "pyspark is not installed: pip install 'penstock-mq[spark]'"
    assert tell_missing("google.cloud.bigquery") == (
        "google.cloud.bigquery is not installed: pip install 'penstock-mq[bigquery]'"
    )
    assert tell_missing("no_such_thing") is None
