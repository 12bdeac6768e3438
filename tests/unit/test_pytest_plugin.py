"""pytest beside Penstock: nothing is imported before a fixture is used."""

import subprocess
import sys
from pathlib import Path

WHAT_COMES = """
import sys
import pytest
before = set(sys.modules)
import penstock.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_brings_itself_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WHAT_COMES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["penstock", "penstock.pytest_plugin"]


CASES = """
import sys

def test_without_a_broker():
    assert "penstock.testing" not in sys.modules

def test_one_for_all(penstock_broker):
    penstock_broker.create_topic("orders")
    sys.shared = penstock_broker

def test_and_one_apart(penstock_broker, penstock_fresh_broker):
    assert penstock_broker is sys.shared
    assert penstock_fresh_broker.bootstrap != penstock_broker.bootstrap
    penstock_fresh_broker.create_topic("orders")
"""


def test_the_fixtures_are_found_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
