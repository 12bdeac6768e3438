"""The reference pages say what the code does."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
assert spec is not None and spec.loader is not None
make_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_docs)


@pytest.mark.parametrize("name", make_docs.PAGES)
def test_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == make_docs.PAGES[name](), "run: make docs"
