"""Kinds of sinks that only have keys."""

import sys
from types import ModuleType
from typing import Any

import pytest

from penstock.pipelines import sinks
from penstock.pipelines.keys import Key

_KEYS = {
    "topic": (Key("topic", "text", "", required=True), Key("key", "text", "")),
    "delta": (
        Key("delta", "text", "", required=True),
        Key("partition_by", "texts", "", default=()),
        Key("file_size", "size", "", default=128_000_000, least=1000),
        Key("password", "choice", "", choices=("a",), secret=True),
    ),
}


@pytest.fixture(autouse=True)
def _plain_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, keys in _KEYS.items():
        module: Any = ModuleType(f"plain_{kind}")
        module.KEYS = keys
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(sinks.KINDS, kind, module.__name__)
