"""Starts a PostgreSQL server from Debian's package on data of its own, as the user postgres where we are root."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .broker import STOP_TIMEOUT_S, BrokerError, tail, wait_until
from .ports import free_ports

_PACKAGES = Path("/usr/lib/postgresql")
_ACCOUNT = "postgres"
# A crash of the process is what tests make, never one of the machine, so nothing need reach the disk.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "timezone": "Asia/Kolkata",  # not UTC, so that a zone that is left out shows
}


@dataclass(slots=True)
class Postgres:
    """A started server, with the superuser `postgres` and a database of that name.

    Attributes:
        directory: all it has; gone after `stop`.
    """

    process: subprocess.Popen[bytes]
    port: int
    directory: Path
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def crash(self) -> None:
        """Kill it with all its processes at once, and start it again on the same data and port."""
        self._end(signal.SIGQUIT)
        self.process = _launch(self.directory, self.log, self.port, self.settings)

    def stop(self) -> None:
        try:
            self._end(signal.SIGINT)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise BrokerError(f"postgres ignored {how.name}\n{tail(self.log)}") from None


def binaries() -> Path:
    """The newest installed version's."""
    found = sorted(_PACKAGES.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise BrokerError(f"no initdb under {_PACKAGES}: run scripts/system-packages")
    return found[-1].parent


def start(*, hba: str = "", settings: Mapping[str, str] | None = None) -> Postgres:
    """Start a server on new data.

    Args:
        hba: lines of pg_hba.conf that go before the one that lets everybody in.
        settings: server settings; they win over the ones here.
    """
    # Not under pytest's directories: only their owner may enter those.
    directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(directory, _ACCOUNT)
    log = directory / "postgres.log"
    try:
        initdb = [str(binaries() / "initdb"), "--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        done = subprocess.run(
            _as_account([*initdb, "-U", "postgres", "-D", str(directory / "data")]),
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode != 0:
            raise BrokerError(f"initdb failed:\n{done.stderr}")
        access = directory / "data" / "pg_hba.conf"
        access.write_text(f"{hba}\nhost all all 127.0.0.1/32 trust\n")
        (port,) = free_ports(1)
        chosen = {**_SETTINGS, **(settings or {})}
        return Postgres(_launch(directory, log, port, chosen), port, directory, log, chosen)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _launch(directory: Path, log: Path, port: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    arguments = [f"--{name}={value}" for name, value in {**settings, "port": str(port)}.items()]
    with log.open("ab") as out:
        process = subprocess.Popen(
            _as_account([str(binaries() / "postgres"), "-D", str(directory / "data"), *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
        )
    wait_until(lambda: _answers(port), process, "postgres", log)
    return process


def _as_account(command: list[str]) -> list[str]:
    """The server refuses to run as root, and ends with us however we end."""
    guarded = ["setpriv", "--pdeathsig", "QUIT"]
    if os.geteuid() == 0:
        account = pwd.getpwnam(_ACCOUNT)
        guarded += ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--init-groups"]
    return [*guarded, *command]


def _answers(port: int) -> bool:
    """Whether somebody may log in: while it starts or recovers, a server answers with an error."""
    body = struct.pack(">i", 196608) + b"user\0postgres\0database\0postgres\0\0"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(struct.pack(">i", len(body) + 4) + body)
        return connection.recv(1) == b"R"
    return False
