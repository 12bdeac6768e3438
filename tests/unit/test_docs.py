"""The reference pages say what the code does."""

from pathlib import Path

import pytest
from scripts import make_docs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", make_docs.PAGES)
def test_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == make_docs.made(name), "run: make docs"
