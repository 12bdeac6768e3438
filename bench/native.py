"""Compiles the C programs on the spot, once per source, and runs them."""

import hashlib
import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"
_LIBRARIES = {"load": ["-lrdkafka", "-lpthread"], "floor": []}
_TIMEOUT_S = 300.0


class NativeError(Exception):
    """A C program did not compile, or ended with an error."""


@cache
def program(name: str) -> Path:
    source = HERE / f"{name}.c"
    target = CACHE / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=CACHE)
        os.close(handle)
        done = subprocess.run(
            ["gcc", "-O2", "-Wall", "-o", fresh, str(source), *_LIBRARIES[name]],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            os.unlink(fresh)
            raise NativeError(
                f"{source.name} does not compile (scripts/system-packages installs gcc and librdkafka-dev):\n"
                f"{done.stderr}"
            )
        os.rename(fresh, target)
    return target


def run(name: str, *arguments: str | int) -> dict[str, Any]:
    """Run a program and return the JSON it printed.

    Raises:
        NativeError: it failed, or printed none.
    """
    command = [str(program(name)), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{' '.join(command)}: no end after {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise NativeError(f"{' '.join(command)}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
