"""docs/testing.md: its programs run as they stand, in a directory of their own; only the fixed port is another."""

import re
import subprocess
import sys
from pathlib import Path

from penstock.testing.held_port import HeldPort

GUIDE = Path(__file__).parents[3] / "docs" / "testing.md"
FIXED_PORT = "19092"
_FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_all_that_is_shown_passes(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    files = dict(_FILE.findall(text))
    assert len(files) == text.count("```python"), "each example begins with the name of its file"
    free = HeldPort()
    free.release()
    for name, code in files.items():
        (tmp_path / name).write_text(code.replace(FIXED_PORT, str(free.number)))
    tests = sum(code.count("def test_") for code in files.values())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "120", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr
