"""One etcd member on each machine, as processes that can be killed, paused and started again."""

import base64
import json
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.etcd import EtcdError, programs

from .namespaces import Namespaces, address
from .network import ETCD_PEER_PORT, ETCD_PORT

_READY_WITHIN_S = 60.0
_POLL_S = 0.05
_ASK_S = "2s"


class EtcdMembers:
    def __init__(self, namespaces: Namespaces, directory: Path) -> None:
        self._namespaces, self._directory = namespaces, directory
        self._programs = programs()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.members = list(range(1, namespaces.machines + 1))

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self._endpoint(member) for member in self.members)}"

    @property
    def running(self) -> list[int]:
        return [member for member, process in self._processes.items() if process.poll() is None]

    def start_all(self) -> None:
        for member in self.members:
            if member not in self.running:
                self.launch(member)
        self.wait()

    def launch(self, member: int) -> None:
        """Start a member and return at once."""
        cluster = ",".join(f"m{each}=http://{address(each)}:{ETCD_PEER_PORT}" for each in self.members)
        client, peer = f"http://{self._endpoint(member)}", f"http://{address(member)}:{ETCD_PEER_PORT}"
        options = [
            f"--name=m{member}",
            f"--data-dir={self._data(member)}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={cluster}",
            "--unsafe-no-fsync",  # processes are killed here, never the machine; the power-cut disks are the brokers'
            "--log-level=warn",
        ]
        command = ["setpriv", "--pdeathsig", "KILL", *self._namespaces.within(member), str(self._programs / "etcd")]
        with self.log(member).open("ab") as log:
            self._processes[member] = subprocess.Popen(
                [*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self) -> None:
        """Until every running member answers a read of the whole cluster."""
        deadline = time.monotonic() + _READY_WITHIN_S
        for member in self.running:
            while self._ctl("endpoint", "health", at=[member]).returncode != 0:
                if time.monotonic() > deadline:
                    raise EtcdError(f"etcd member {member} is not healthy; its log is {self.log(member)}")
                time.sleep(_POLL_S)

    def kill(self, member: int) -> None:
        process = self._processes.pop(member, None)
        if process is not None:
            process.kill()
            process.wait()

    def stop_gently(self) -> None:
        """All at once, as a service manager does: they end leases while they can, and their watchers hear of it."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(_READY_WITHIN_S)
        self._processes.clear()

    def signal(self, member: int, number: int) -> None:
        self._processes[member].send_signal(number)

    def stop(self) -> None:
        for member in self.members:
            self.kill(member)

    def keep_copy(self) -> None:
        """Of what all members hold now, taken while none of them runs."""
        self.stop()
        for member in self.members:
            shutil.copytree(self._data(member), self._copy(member))
        self.start_all()

    def put_copy_back(self) -> None:
        """As an operator does who has nothing better."""
        self.stop()
        for member in self.members:
            shutil.rmtree(self._data(member))
            self._copy(member).rename(self._data(member))
        self.start_all()

    def leader(self) -> int:
        deadline = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < deadline:
            done = self._ctl("endpoint", "status", "-w", "json", at=self.running)
            with suppress(json.JSONDecodeError):
                for status in json.loads(done.stdout):
                    if status["Status"]["leader"] == status["Status"]["header"]["member_id"]:
                        host = status["Endpoint"].rpartition("/")[2]
                        return next(member for member in self.members if self._endpoint(member) == host)
        raise EtcdError("no etcd member leads")

    def get(self, prefix: str, revision: int = 0) -> list[tuple[str, bytes, int]]:
        """Key, value and the revision that wrote it, of every key with this prefix."""
        more = [f"--rev={revision}"] if revision else []
        done = self._ctl("get", "--prefix", prefix, "-w", "json", *more, at=self.running)
        if done.returncode != 0:
            raise EtcdError(f"etcdctl get {prefix}: {done.stderr.strip()}")
        kvs = json.loads(done.stdout).get("kvs", [])
        return [(_decoded(kv["key"]).decode(), _decoded(kv.get("value", "")), kv["mod_revision"]) for kv in kvs]

    def log(self, member: int) -> Path:
        return self._directory / f"etcd-{member}.log"

    def _data(self, member: int) -> Path:
        return self._directory / f"etcd-{member}"

    def _copy(self, member: int) -> Path:
        return self._directory / f"etcd-{member}-copy"

    def _endpoint(self, member: int) -> str:
        return f"{address(member)}:{ETCD_PORT}"

    def _ctl(self, *arguments: str, at: list[int]) -> "subprocess.CompletedProcess[str]":
        endpoints = ",".join(f"http://{self._endpoint(member)}" for member in at)
        command = [str(self._programs / "etcdctl"), f"--endpoints={endpoints}", "--dial-timeout", _ASK_S]
        command += ["--command-timeout", "5s", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
