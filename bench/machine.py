"""Facts about the machine and the versions, kept beside every result."""

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
from tests.peers.kafka import jars

from bench.subject import KAFKA_HEAP

ROOT = Path(__file__).resolve().parent.parent


def facts(data_directory: Path) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": revision(),
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "system": _system(),
        "filesystem": filesystem(data_directory),
        "python": platform.python_version(),
        "java": _first_line("java", "-version"),
        "penstock": _version("penstock-mq"),
        "kafka": f"{jars().name.removeprefix('kafka-')}, heap {KAFKA_HEAP}",
        "librdkafka": confluent_kafka.libversion()[0],  # native.py links the C programs with the same
    }


def busy_percent() -> float:
    """How much of all cores other work takes, over two seconds."""
    return float(psutil.cpu_percent(interval=2.0))


def revision() -> str:
    """The commit, with `+` when files differ from it."""
    head = _first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "--", "src", "bench"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return (head or "unknown") + ("+" if changed.strip() else "")


def filesystem(directory: Path) -> str:
    """The type of the file system that holds `directory`."""
    best, kind = "", "unknown"
    resolved = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _device, point, fstype, *_ = line.split()
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    if done.returncode != 0:
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()
