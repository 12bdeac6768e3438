"""The programs that judge what is in `deploy/`: beside this Python, in PATH, or built by `scripts/helm`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_TIMEOUT_S = 60


class ProgramError(Exception):
    """A program is missing; the text says what brings it."""


def find(name: str, *, comes_with: str) -> str:
    """Where a program is. Nothing is skipped for want of it."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise ProgramError(f"there is no {name}: {comes_with} brings it (make setup installs what tests need)")
    return found


def helm() -> str:
    """The helm that `scripts/helm` builds."""
    version = re.search(r"helm\.sh/helm/v3 v(\S+)", (ROOT / "scripts" / "helm-build" / "go.mod").read_text())
    assert version is not None
    program = ROOT / ".cache" / f"helm-{version[1]}" / "helm"
    if not program.exists():
        raise ProgramError(f"there is no {program}: run scripts/helm, which builds it with Go")
    return str(program)


def run(*command: str | Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    """What the command said and how it ended; both streams as one text in `stdout`."""
    return subprocess.run(
        [str(word) for word in command],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
