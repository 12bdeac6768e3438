"""A broker, and the disks it may run on."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.power_mount import PowerCutMount, mounted, why_not


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started yet."""
    with BrokerProcess(tmp_path / "data", tmp_path) as process:
        yield process


@pytest.fixture
def power_mount(tmp_path: Path) -> Iterator[PowerCutMount]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with mounted(tmp_path / "power-disk") as mount:
        yield mount


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    path = tmp_path / "small-disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "chaos", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
