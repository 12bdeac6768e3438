"""What `deploy/compose/prepare.sh` makes, made here."""

import os
import subprocess
import sys
from pathlib import Path

from .programs import DEPLOY

SCRIPT = DEPLOY / "compose" / "prepare.sh"


def prepare(directory: Path, host: str = "localhost") -> Path:
    """Run the script with its volumes in a directory, whose path is the result; everything in them is ours."""
    made = directory / "made"
    for volume in ("authorities", "brokers", "etcd", "prometheus", "grafana"):
        (made / volume).mkdir(parents=True, exist_ok=True)
    text = SCRIPT.read_text()
    assert '-o "$1" -g "$1" ' in text
    program = directory / "prepare.sh"
    program.write_text(text.replace('-o "$1" -g "$1" ', "").replace("/made/", f"{made}/"))
    own = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", str(program)],
        env={"PATH": own, "ADVERTISED_HOST": host, "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return made
