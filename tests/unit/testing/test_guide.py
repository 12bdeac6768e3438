"""docs/testing.md and README: tests that they show pass, in a directory of their own; only the port is another."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.held_port import HeldPort

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "testing.md"
FIXED_PORT = "19092"
_FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_example_of_the_guide_is_a_file() -> None:
    text = GUIDE.read_text()
    assert len(_FILE.findall(text)) == text.count("```python"), "each begins with the file's name"


@pytest.mark.parametrize("page", [GUIDE, ROOT / "README.md"], ids=lambda page: page.name)
def test_all_that_is_shown_passes(page: Path, tmp_path: Path) -> None:
    files = dict(_FILE.findall(page.read_text()))
    assert files
    free = HeldPort()
    free.release()
    for name, code in files.items():
        (tmp_path / name).write_text(code.replace(FIXED_PORT, str(free.number)))
    tests = sum(code.count("def test_") for code in files.values())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "120", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr
