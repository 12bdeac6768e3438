"""The driver as others see it: whether one is up, what it says of itself, and how to have one.

HOME/driver.lock   flock of the driver
HOME/driver.json   sealed: pid, http, master, started_ms; gone after an orderly end, so that what is left of a dead
                   driver tells the next one that it died
HOME/driver.log    what it and Spark say; driver.log.1 is older
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.pipelines.errors import Busy, PipelineError
from penstock.pipelines.home import Holder, Home, sealed
from penstock.pipelines.home.directory import Lock

DEFAULT_MASTER: Final = "local[*]"
DEFAULT_HTTP: Final = "127.0.0.1:0"
LOG_BYTES: Final = 20 * 1024 * 1024
PROGRAM: Sequence[str] = ("-m", "penstock.pipelines.driver")


@dataclass(frozen=True, slots=True)
class Driver:
    """What a driver says of itself; `http` is "" until it answers there, `host:port` then."""

    pid: int
    http: str
    master: str
    started_ms: int


class Presence:
    """The driver's files in one home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = Lock(home.path / "driver.lock")
        self._facts = home.path / "driver.json"
        self.log = home.path / "driver.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the driver.

        Raises:
            Busy: there is one.
        """
        self._home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock.held("the background driver") as other:
            if other is not None:
                raise Busy(
                    f"a driver is up for {self._home.path} already, in process {other.pid or '?'}. It takes up what "
                    "'penstock pipeline start' asks for; to end it: penstock pipeline stop --all --driver"
                )
            yield

    def holder(self) -> Holder | None:
        return self._lock.holder()

    def find(self) -> Driver | None:
        """The driver that is up; None if there is none, or it has not said anything yet."""
        holder = self.holder()
        if holder is None:
            return None
        facts = self.load()
        return facts if facts is not None and holder.pid in (facts.pid, 0) else None

    def load(self) -> Driver | None:
        """What the last driver said, unless it ended in order."""
        body = sealed.load(self._facts, "Remove it: the driver writes it when it starts")
        try:
            return None if body is None else Driver(**body)
        except TypeError as error:
            raise PipelineError(
                f"{self._facts} is damaged ({error}). Remove it: the driver writes it when it starts"
            ) from None

    def was_left(self) -> bool:
        """Whether the driver before did not end in order."""
        return self._facts.exists()

    def save(self, driver: Driver) -> None:
        sealed.save(self._facts, asdict(driver))

    def clear(self) -> None:
        self._facts.unlink(missing_ok=True)

    def spawn(self, master: str, http: str) -> "subprocess.Popen[bytes]":
        """Begin a driver that outlives this process and its terminal. If there is one already, the new one ends."""
        self._home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        trim_log(self.log)
        words = ["--home", str(self._home.path), "--master", master, "--http", http]
        with open(self.log, "ab") as log:
            # In its home, because Spark leaves files in the working directory; -P, so that none there is a module.
            return subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", *PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._home.path,
            )


def trim_log(path: Path, size_bytes: int = LOG_BYTES) -> None:
    """Copy a log that has grown too large aside and empty it. Whoever writes appends, so they go on at the start."""
    if path.exists() and path.stat().st_size > size_bytes:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
