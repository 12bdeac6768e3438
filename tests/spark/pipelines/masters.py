"""Spark's own servers, started from the installed pyspark: a standalone master with a worker, and a Connect server."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

DEADLINE_S = 120.0
_HOME = Path(pyspark.__file__).parent
# Nothing is left running when the test process itself is killed.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and a worker with two cores; gives `spark://host:port`."""
    with ExitStack() as held:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = held.enter_context(_serve(directory, "master", master))
        url = _find(log, r"Starting Spark master at (spark://\S+)")
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "2"]
        work = ["--memory", "2g", "--work-dir", str(directory / "work"), url]
        log = held.enter_context(_serve(directory, "worker", [*worker, *work]))
        _find(log, r"(Successfully registered with master)")
        yield url


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Connect server on two threads of this machine; gives `sc://host:port`."""
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = ["org.apache.spark.deploy.SparkSubmit", "--class", name, *words, "spark-internal"]
    with _serve(directory, "connect", command) as log:
        port = _find(log, r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _serve(directory: Path, name: str, words: Sequence[str]) -> Iterator[Path]:
    log = directory / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*_DIES_WITH_US, str(_HOME / "bin" / "spark-class"), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with all it has started
        server.wait(DEADLINE_S)


def _find(log: Path, pattern: str) -> str:
    """Wait for a line of a log; returns the pattern's group."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        assert time.monotonic() < deadline, f"no {pattern!r} in {log}:\n{log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.05)
