"""A `power_cut_fs` mount as tests use it: mounted in a process of its own, cut, asked, and unmounted."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.power_disk import CutKind

ROOT = Path(__file__).parents[2]
CUT = "user.power.cut"
STATE = "user.power.state"


class PowerCutMount:
    """A mount as a test sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut(self, kind: CutKind = "drop", seed: int = 0) -> None:
        os.setxattr(self.path, CUT, f"{kind} {seed}".encode())

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(os.getxattr(self.path, STATE))
        return state


def why_not() -> str | None:
    """The reason why a mount cannot work here, or None."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing or not ours"
    try:
        import mfusepy
    except (ImportError, OSError) as error:
        return f"mfusepy or libfuse is missing: {error}"
    if mfusepy.fuse_version_major < 3:
        return "libfuse 3 is missing"
    return None


@contextmanager
def mounted(mount_point: Path, *, strict: bool = True, capacity_bytes: int = 1 << 30) -> Iterator[PowerCutMount]:
    """Mount a fresh disk in a process of its own; unmount and end the process at the end."""
    mount_point.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.chaos.power_cut_fs", str(mount_point.absolute())]
    command += ["--capacity-bytes", str(capacity_bytes)]
    process = subprocess.Popen(command if strict else [*command, "--not-strict"], cwd=ROOT)
    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(mount_point):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{mount_point} did not mount, exit code {process.poll()}")
            time.sleep(0.01)
        yield PowerCutMount(mount_point)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(mount_point)], check=False)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
