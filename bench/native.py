"""Compiles the C programs on the spot, once per source, and runs them."""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"
_TIMEOUT_S = 300.0


class NativeError(Exception):
    """A C program did not compile, or ended with an error."""


def librdkafka() -> list[str]:
    """The linker's arguments for the librdkafka of confluent-kafka, the one `machine.facts` has the version of.

    Debian's lacks `fetch.queue.backoff.ms`, which came with 2.2; only its headers are used.
    """
    bundle = Path(confluent_kafka.__file__).resolve().parents[1] / "confluent_kafka.libs"
    bundled = max(bundle.glob("librdkafka*.so*"), default=None)
    if bundled is None:  # built against the system's
        return ["-lrdkafka"]
    return [f"-L{bundle}", f"-l:{bundled.name}", f"-Wl,-rpath,{bundle}"]


def libraries(name: str) -> list[str]:
    return {
        "load": [*librdkafka(), "-lpthread"],
        "transact": librdkafka(),
        "fetch": ["-lpthread"],
        "floor": [],
    }[name]


@cache
def program(name: str) -> Path:
    source, linked = HERE / f"{name}.c", libraries(name)
    fingerprint = hashlib.sha256(source.read_bytes() + " ".join(linked).encode()).hexdigest()[:16]
    target = CACHE / f"{name}-{fingerprint}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=CACHE)
        os.close(handle)
        done = subprocess.run(
            ["gcc", "-O2", "-Wall", "-o", fresh, str(source), *linked],
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


class Running:
    """A program under way."""

    def __init__(self, name: str, *arguments: str | int, prefix: Sequence[str] = ()) -> None:
        self._command = [*prefix, str(program(name)), *map(str, arguments)]
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> dict[str, Any]:
        """Wait for its end and return the JSON it printed.

        Raises:
            NativeError: it failed, or took too long.
        """
        try:
            output, errors = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NativeError(f"{' '.join(self._command)}: no end after {_TIMEOUT_S:.0f} s") from None
        if self._process.returncode != 0:
            raise NativeError(f"{' '.join(self._command)}: {errors.strip()}")
        result: dict[str, Any] = json.loads(output.splitlines()[-1])
        return result

    def stop(self) -> None:
        """Ask it to end early; `finish` has what it measured until then."""
        self._process.terminate()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def running(name: str, *arguments: str | int, prefix: Sequence[str] = ()) -> Iterator[Running]:
    """Start a program, through the command `prefix`, and do something beside it; it does not outlive the block."""
    started = Running(name, *arguments, prefix=prefix)
    try:
        yield started
    finally:
        started.kill()


def run(name: str, *arguments: str | int, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run a program and return the JSON it printed.

    Raises:
        NativeError: it failed, or took too long.
    """
    with running(name, *arguments, prefix=prefix) as started:
        return started.finish()
