"""A real etcd for tests: one member or several as child processes, on ports of their own.

    with Etcd(tmp_path, members=3) as etcd:            # or Etcd(tmp_path) and .stop(); nothing here is to be awaited
        etcd.url                                       # "etcd://127.0.0.1:41234,127.0.0.1:41236"
        etcd.endpoints                                 # ["127.0.0.1:41234", ...]
        etcd.kill(0); etcd.start(0)                    # SIGKILL, and again on the same data and ports
        etcd.pause(1); etcd.resume(1)                  # SIGSTOP, SIGCONT
        etcd.leader()                                  # which member leads
        etcd.ctl("put", "/penstock/x", "1")            # etcdctl; its standard output
        etcd.save(path)                                # a backup
        etcd.restore(path)                             # all members stopped, their data replaced, started again

The ports stay reserved from beginning to end, so a killed member finds its own again. Members die with the process that
started them. The programs are those scripts/etcd builds; without them this fails and says so.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_READY_WITHIN_S = 60.0
_POLL_S = 0.02
_SHOWN_LINES = 15


class EtcdError(Exception):
    """A member did not do what it was told; the text ends with its last words."""


class Certificates(NamedTuple):
    """Files for TLS on the client port: what the members show, what they ask of clients."""

    authority: Path
    certificate: Path
    key: Path


def programs() -> Path:
    """The directory with etcd, etcdctl and etcdutl, built by `scripts/etcd`."""
    found = re.search(r"etcd/server/v3 v(\S+)", (_ROOT / "scripts" / "etcd-build" / "go.mod").read_text())
    assert found is not None
    directory = _ROOT / ".cache" / f"etcd-{found[1]}"
    if not (directory / ".stamp").exists():
        raise EtcdError(f"there is no {directory}: run scripts/etcd (make setup does), which builds it with Go")
    return directory


class Etcd:
    """A cluster of etcd. Its data and its logs lie in `directory`.

    Args:
        arguments: more of etcd's own options, for every member.
        tls: speak TLS to clients, and ask them for certificates of the same authority.
    """

    def __init__(
        self, directory: Path, members: int = 1, *, arguments: Sequence[str] = (), tls: Certificates | None = None
    ) -> None:
        self.directory = directory
        self._programs = programs()
        self._arguments = arguments
        self._tls = tls
        self._client_ports = [Port() for _ in range(members)]
        self._peer_ports = [Port() for _ in range(members)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        self.user = ""
        """`name:password` that etcdctl shows, once authentication is on."""
        try:
            for member in range(members):
                self.start(member, wait=False)
            self.wait()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "Etcd":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port.number}" for port in self._client_ports]

    @property
    def url(self) -> str:
        return f"{'etcds' if self._tls else 'etcd'}://{','.join(self.endpoints)}"

    def start(self, member: int = 0, *, wait: bool = True) -> None:
        """Start a member that does not run; `wait` until it answers, for which a majority must run."""
        assert self._processes[member] is None, f"etcd member {member} runs already"
        with open(self._log(member), "ab") as log:
            self._processes[member] = subprocess.Popen(
                # The kernel ends it with us, however we end.
                ["setpriv", "--pdeathsig", "KILL", str(self._programs / "etcd"), *self._options(member)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
            )
        if wait:
            self.wait(member)

    def wait(self, *members: int) -> None:
        """Until these members (all that run, if none is named) answer reads of the whole cluster."""
        deadline = time.monotonic() + _READY_WITHIN_S
        for member in members or [n for n, process in enumerate(self._processes) if process is not None]:
            while not self._is_healthy(member):
                process = self._processes[member]
                if process is None or process.poll() is not None or time.monotonic() > deadline:
                    raise EtcdError(f"etcd member {member} is not healthy:\n{self._last_words(member)}")

    def kill(self, member: int = 0) -> None:
        """SIGKILL, and wait until it is gone."""
        process, self._processes[member] = self._processes[member], None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self, member: int = 0) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        pid = self._signal(member, signal.SIGSTOP)
        # The signal is on its way to threads that go on meanwhile.
        while not all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in _threads(pid)):
            time.sleep(_POLL_S)

    def resume(self, member: int = 0) -> None:
        self._signal(member, signal.SIGCONT)

    def stop(self) -> None:
        """End all members and give the ports back. The data stay where they are."""
        self._end_all()
        for port in (*self._client_ports, *self._peer_ports):
            port.close()

    def leader(self) -> int:
        """The member that leads, by what the running members say."""
        running = [member for member, process in enumerate(self._processes) if process is not None]
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            done = self._ctl(["endpoint", "status", "-w", "json"], [self.endpoints[member] for member in running])
            with contextlib.suppress(json.JSONDecodeError):
                for status in json.loads(done.stdout):
                    if status["Status"]["leader"] == status["Status"]["header"]["member_id"]:
                        return self.endpoints.index(status["Endpoint"].rpartition("/")[2])
        raise EtcdError(f"no etcd member leads:\n{self._last_words(running[0])}")

    def ctl(self, *arguments: str) -> str:
        """What `etcdctl` prints. Raises when it fails."""
        done = self._ctl(list(arguments), self.endpoints)
        if done.returncode != 0:
            raise EtcdError(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def revision(self) -> int:
        """The store's."""
        return int(json.loads(self.ctl("get", "no-such-key", "-w", "json"))["header"]["revision"])

    def save(self, backup: Path) -> None:
        done = self._ctl(["snapshot", "save", str(backup)], self.endpoints[:1])
        if done.returncode != 0:
            raise EtcdError(f"etcdctl snapshot save {backup}: {done.stderr.strip()}")

    def restore(self, backup: Path) -> None:
        """Put a backup in the place of every member's data, as an operator would."""
        self._end_all()
        for member in range(len(self._processes)):
            shutil.rmtree(self._data(member))
            subprocess.run(
                [
                    str(self._programs / "etcdutl"),
                    *(
                        "snapshot",
                        "restore",
                        str(backup),
                        f"--data-dir={self._data(member)}",
                        f"--name=member-{member}",
                    ),
                    f"--initial-cluster={self._cluster()}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer_ports[member].number}",
                ],
                check=True,
                capture_output=True,
            )
            self.start(member, wait=False)
        self.wait()

    def _is_healthy(self, member: int) -> bool:
        try:
            # Asked first: etcdctl waits a second before it tries a refused connection again.
            socket.create_connection(("127.0.0.1", self._client_ports[member].number)).close()
        except ConnectionRefusedError:
            time.sleep(_POLL_S)
            return False
        return self._ctl(["endpoint", "health"], [self.endpoints[member]]).returncode == 0

    def _end_all(self) -> None:
        # Killed, not asked: a member that is asked looks for another leader first, for seconds when all are going.
        for member in range(len(self._processes)):
            self.kill(member)

    def _signal(self, member: int, number: signal.Signals) -> int:
        process = self._processes[member]
        assert process is not None, f"etcd member {member} does not run"
        process.send_signal(number)
        return process.pid

    def _options(self, member: int) -> list[str]:
        scheme = "https" if self._tls else "http"
        client, peer = (ports[member].number for ports in (self._client_ports, self._peer_ports))
        options = [
            f"--name=member-{member}",
            f"--data-dir={self._data(member)}",
            f"--listen-client-urls={scheme}://127.0.0.1:{client}",
            f"--advertise-client-urls={scheme}://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={self._cluster()}",
            "--socket-reuse-port",  # beside the socket that reserves the port
            "--unsafe-no-fsync",  # processes are killed here, never the machine
            "--log-level=warn",
        ]
        if self._tls:
            options += [f"--cert-file={self._tls.certificate}", f"--key-file={self._tls.key}"]
            options += [f"--trusted-ca-file={self._tls.authority}", "--client-cert-auth"]
        return [*options, *self._arguments]

    def _cluster(self) -> str:
        return ",".join(f"member-{n}=http://127.0.0.1:{port.number}" for n, port in enumerate(self._peer_ports))

    def _data(self, member: int) -> Path:
        return self.directory / f"etcd-{member}"

    def _log(self, member: int) -> Path:
        return self.directory / f"etcd-{member}.log"

    def _last_words(self, member: int) -> str:
        return "\n".join(self._log(member).read_text(errors="replace").splitlines()[-_SHOWN_LINES:])

    def _ctl(self, arguments: list[str], endpoints: list[str]) -> "subprocess.CompletedProcess[str]":
        scheme = "https" if self._tls else "http"
        options = [f"--endpoints={','.join(f'{scheme}://{endpoint}' for endpoint in endpoints)}"]
        if self._tls:
            options += [f"--cacert={self._tls.authority}", f"--cert={self._tls.certificate}", f"--key={self._tls.key}"]
        if self.user:
            options.append(f"--user={self.user}")
        command = [str(self._programs / "etcdctl"), *options, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)


class Port:
    """A port of 127.0.0.1 that nobody else can be given, but whoever binds with SO_REUSEPORT can share."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def _threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def _environment() -> dict[str, str]:
    """Ours without settings meant for another etcd."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ETCD_", "ETCDCTL_"))}
