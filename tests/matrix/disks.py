"""Where a broker's data lies: a plain directory, a small file system, or a disk that forgets what was not synced."""

import os
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from tests.chaos.power_mount import PowerCutMount, mounted

from .namespaces import run

DiskKind = Literal["plain", "small", "power"]
SMALL_MIB = 48


class Disk:
    """One broker's. Use as a context manager."""

    def __init__(self, kind: DiskKind, directory: Path, number: int) -> None:
        self.kind = kind
        self.path = directory / f"disk-{number}"
        self._image = directory / f"disk-{number}.image"
        self._power: PowerCutMount | None = None
        self._closing = ExitStack()

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def power(self) -> PowerCutMount:
        assert self._power is not None, f"{self.path} is a {self.kind} disk: its power cannot be cut"
        return self._power

    def __enter__(self) -> "Disk":
        self.path.mkdir(parents=True, exist_ok=True)
        if self.kind == "power":
            self._power = self._closing.enter_context(mounted(self.path))
        elif self.kind == "small":
            with self._image.open("wb") as image:
                image.truncate(SMALL_MIB << 20)
            run(["mkfs.ext4", "-q", "-F", "-m", "0", str(self._image)])
            run(["mount", "-o", "loop", str(self._image), str(self.path)])
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        if self.kind == "small":
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
            self._image.unlink(missing_ok=True)

    def fill(self) -> None:
        """Leave no room: another tenant of the same file system has taken it, to the last block."""
        assert os.path.ismount(self.path), f"{self.path} is a {self.kind} disk: filling it would fill the machine's own"
        with (self.path / "another-tenant").open("wb", buffering=0) as file:
            for step in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(bytes(step)):
                        pass

    def free(self) -> None:
        (self.path / "another-tenant").unlink(missing_ok=True)
