"""Doors reach records by the engine's verbs: what a partition keeps for itself, no protocol touches."""

import ast
from pathlib import Path

import penstock.protocols

PRIVATE = {"led", "leading", "opened", "log", "waiters", "append_own", "append_checked"}


def test_no_protocol_reaches_past_the_verbs() -> None:
    found = [
        f"{path.name}:{node.lineno}: .{node.attr}"
        for path in sorted(Path(penstock.protocols.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    assert found == []
