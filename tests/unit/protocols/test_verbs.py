"""Doors reach records by the engine's verbs: what a partition keeps for itself, no protocol touches."""

import ast
from pathlib import Path

import penstock.protocols

PRIVATE = {"led", "leading", "opened", "log", "waiters", "append_own", "append_checked"}


OF_ACTING = {"Cursor", "find_ends"}
"""What clients' doors get of `Acting`, which asks whether they may."""


def test_clients_doors_read_as_somebody() -> None:
    found = [
        f"{path.name}:{node.lineno}: {alias.name}"
        for path in sorted(Path(penstock.protocols.__file__).parent.rglob("*.py"))
        if "internal" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in OF_ACTING
    ]
    assert found == []


def test_no_protocol_reaches_past_the_verbs() -> None:
    found = [
        f"{path.name}:{node.lineno}: .{node.attr}"
        for path in sorted(Path(penstock.protocols.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    assert found == []
