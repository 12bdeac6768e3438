"""One attack on a new broker, measured: its memory, its loop's longest stall, what an innocent client waits."""

import contextlib
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from tests.chaos.broker_process import DIES_WITH_US, BrokerProcess
from tests.chaos.load import create_topic
from tests.chaos.wire import Wire
from tests.hostile.attacks import COMPACTED, TOPIC

_MIB = 1 << 20
_AFTER_S = 3.0
_ROOT = Path(__file__).parents[2]
_STALL = re.compile(r"^penstock_process_loop_stall_max_seconds (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class Cost:
    attack: str
    peak_mib: int
    left_mib: int
    stall_ms: int
    p99_ms: int
    written: int
    """Records of the innocent client, each safe before the next."""
    probes: int
    """Times `/health/live` answered."""
    exit_code: int
    """Of the broker, asked to stop while the attackers' last requests are hardly over."""


class Watch:
    """Looks at the broker again and again while others act: its memory, and whether a probe is answered."""

    def __init__(self, broker: BrokerProcess, http: str) -> None:
        self._process = psutil.Process(broker.pid)
        self._http = http
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = self.memory()
        self.probes = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.peak = max(self.peak, self.memory())
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{self._http}/health/live", timeout=5).close()
                self.probes += 1


def attack(name: str, directory: Path, seconds: float) -> Cost:
    """Raises AssertionError when the innocent client is refused anything."""
    with BrokerProcess(directory / "data", directory, config={"limits": {"max_connections": 9000}}) as broker:
        broker.start()
        create_topic(broker.bootstrap, TOPIC, 1000)
        create_topic(broker.bootstrap, COMPACTED, 1, {"cleanup.policy": "compact"})
        create_topic(broker.bootstrap, "innocent", 1)
        with Wire(broker.bootstrap, timeout=60) as innocent, Watch(broker, broker.http) as watch:
            for _ in range(20):
                assert innocent.produce_one("innocent", b"before").error_code == 0
            before = watch.memory()
            arguments = [name, broker.bootstrap, broker.http, str(seconds)]
            attackers = subprocess.Popen(
                [*DIES_WITH_US, sys.executable, "-m", "tests.hostile.attacks", *arguments], cwd=_ROOT
            )
            waits = _write_until(innocent, lambda: attackers.poll() is not None)
            assert attackers.returncode == 0
            peak, written = watch.peak, len(waits)
            over = time.monotonic() + _AFTER_S
            _write_until(innocent, lambda: time.monotonic() > over)
            left, probes = watch.memory(), watch.probes
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=20) as metrics:
            stall = _STALL.search(metrics.read().decode())
        assert stall is not None
        exit_code = broker.stop(30)
        assert "request failed" not in broker.output() and "Traceback" not in broker.output()
    waits.sort()
    return Cost(
        name,
        (peak - before) // _MIB,
        (left - before) // _MIB,
        round(float(stall[1]) * 1000),
        round(waits[len(waits) * 99 // 100] * 1000),
        written,
        probes,
        exit_code,
    )


def _write_until(innocent: Wire, over: Callable[[], bool]) -> list[float]:
    """How long each record took to be safe, in seconds."""
    waits = []
    while not over():
        began = time.monotonic()
        assert innocent.produce_one("innocent", b"during").error_code == 0
        waits.append(time.monotonic() - began)
        time.sleep(0.005)
    return waits
