"""docs/threat-model.md names tests that are there, and cells of the fault matrix."""

import re
from pathlib import Path

import pytest
from tests.matrix.cells import CELLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_what_is_named_is_there(file: str, test: str) -> None:
    found = ROOT / "tests" / file
    assert found.exists()
    assert not test or re.search(rf"^(async )?def {test}\(", found.read_text(), re.MULTILINE)


def test_cells_that_are_named_are_there() -> None:
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+){2,})`", PAGE))
    assert len(named) >= 3
    assert named <= set(CELLS)


def test_most_of_what_is_said_is_shown() -> None:
    assert len(NAMED) > 30
