"""Starts `penstock serve` on ports of its own choosing and reads them from its `ready` line."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .broker import Broker, wait_until

_READY = re.compile(r"^ready .*\bkafka=(\S+)", re.MULTILINE)


def command() -> list[str]:
    """The `penstock` beside this Python; PENSTOCK_COMMAND names another one."""
    return [os.environ.get("PENSTOCK_COMMAND") or str(Path(sys.executable).with_name("penstock"))]


def start(
    directory: Path, *, settings: str = "", flags: Sequence[str] = (), launcher: Sequence[str] | None = None
) -> Broker:
    """Start a broker with its data and log under `directory`, new or as an earlier one left it.

    Args:
        settings: YAML handed to `--config`.
        flags: more arguments of `serve`.
        launcher: a command to run in place of `penstock`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "penstock.log"
    stdout = directory / "penstock.stdout"
    arguments = [
        *(launcher or command()),
        "serve",
        "--data-dir",
        str(directory / "data"),
        *(word for flag in ("--kafka", "--http") if flag not in flags for word in (flag, "127.0.0.1:0")),
        *flags,
    ]
    if settings:
        config = directory / "penstock.yaml"
        config.write_text(settings)
        arguments += ["--config", str(config)]
    stdout.unlink(missing_ok=True)  # a second start in one directory must not read the first one's line
    with stdout.open("wb") as out, log.open("ab") as err:
        started = time.monotonic()
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def address() -> str | None:
        found = _READY.search(stdout.read_text(errors="replace"))
        return found.group(1) if found else None

    wait_until(lambda: address() is not None, process, "penstock", log)
    ready_s = time.monotonic() - started
    bootstrap = address()
    assert bootstrap is not None
    return Broker("penstock", process, bootstrap, ready_s, log)
