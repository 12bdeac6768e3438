"""A child of a test can be interrupted, also when the tests run in the background of a shell."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_child_heeds_ctrl_c() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_so_it_does_in_the_background() -> None:
    pytest = [sys.executable, "-m", "pytest", f"{__file__}::{test_a_child_heeds_ctrl_c.__name__}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        ["bash", "-c", 'trap "" INT; exec "$@"', "bash", *pytest],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
