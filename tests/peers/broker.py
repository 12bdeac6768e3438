"""A broker running as a child process: where it listens, how long it took to get ready, how it ends."""

import contextlib
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_METADATA_KEY = 3


class BrokerError(Exception):
    """The broker ended, or did not get ready, or did not stop; the message carries the end of its log."""


@dataclass(slots=True)
class Broker:
    """A started broker.

    Attributes:
        name: `penstock` or `kafka`.
        bootstrap: `host:port` of its Kafka listener.
        ready_s: seconds from exec to the moment it said, or showed, that it serves.
    """

    name: str
    process: subprocess.Popen[bytes]
    bootstrap: str
    ready_s: float
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Ask it to end and wait; a broker that does not end is killed and reported."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise BrokerError(f"{self.name} ignored SIGTERM for {STOP_TIMEOUT_S:.0f} s\n{tail(self.log)}") from None
        return self.process.returncode


def tail(log: Path, lines: int = 30) -> str:
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def answers_metadata(host: str, port: int, *, patience_s: float = 2.0) -> bool:
    """Whether a Metadata v1 request (all topics) is answered with at least one broker.

    Written out by hand: a client library's retries and start-up must not show in the time to ready.
    """
    body = struct.pack(">hhih5si", _METADATA_KEY, 1, 7, 5, b"probe", -1)
    try:
        with socket.create_connection((host, port), timeout=patience_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                head = stream.read(12)
    except OSError:
        return False
    if len(head) < 12:
        return False
    _size, correlation, brokers = struct.unpack(">iii", head)
    return bool(correlation == 7 and brokers > 0)


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path, every_s: float = 0.01
) -> None:
    """Poll `ready` until it holds; a broker that ended or is too slow is killed and raises."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None:
            raise BrokerError(f"{name} ended with {process.returncode} before it was ready\n{tail(log)}")
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise BrokerError(f"{name} was not ready after {START_TIMEOUT_S:.0f} s\n{tail(log)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(every_s)
