"""The brokers, each on its machine: started in its namespace, and asked from the clients' side who leads what."""

import secrets
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from tests.chaos.transactional_run import BROKER_SETTINGS
from tests.cluster.cluster_process import ClusterProcess, Node
from tests.peers.penstock import command

from .disks import Disk
from .etcd_members import EtcdMembers
from .namespaces import Namespaces, address
from .network import HTTP_PORT, INTERNAL_PORT, KAFKA_PORT
from .trust import Trust

_ASK_TIMEOUT_S = 2.0


class Size(NamedTuple):
    """What a process takes. Sockets are apart: how many there are is up to others, too."""

    rss_bytes: int
    files: int
    sockets: int

    def __str__(self) -> str:
        return f"{self.rss_bytes >> 20} MiB, {self.files} files, {self.sockets} sockets"


@dataclass(slots=True)
class Machine(Node):
    """One broker.

    Attributes:
        disk: where its data lies.
        clock: the file that says by how much its wall clock is wrong, if it can be.
        hidden: cut off from the clients, so that nobody can ask it anything.
    """

    disk: Disk | None = None
    clock: Path | None = None
    hidden: bool = False

    @property
    def is_live(self) -> bool:
        return self.is_running and not self.paused and not self.hidden

    @property
    def data(self) -> Path:
        assert self.disk is not None
        return self.disk.data

    def shift_clock(self, seconds: int) -> None:
        assert self.clock is not None, f"broker {self.id} runs without libfaketime"
        self.clock.write_text(f"{seconds:+d}\n")

    def size(self) -> Size | None:
        """While it runs."""
        try:
            pid = self.process.pid
            names = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
            sockets = sum(name.startswith("socket:") for name in names)
            return Size(psutil.Process(pid).memory_info().rss, len(names) - sockets, sockets)
        except (psutil.Error, OSError):
            return None


def faketime() -> Path | None:
    """libfaketime's preload library, if it is installed."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def make_cluster(
    namespaces: Namespaces,
    etcd: EtcdMembers,
    disks: Sequence[Disk],
    directory: Path,
    *,
    clocks: bool,
    trust: Trust | None = None,
) -> ClusterProcess:
    """Not started yet.

    Args:
        clocks: the wall clock of each broker can be shifted.
        trust: what brokers know each other and their clients by; None: a secret, and nobody.
    """
    config = directory / "penstock.yaml"
    config.write_text(yaml.safe_dump(BROKER_SETTINGS | {"topics": {"internal_partitions": 4}}))
    secret = {"PENSTOCK_CLUSTER_SECRET": secrets.token_hex(32)}
    nodes: list[Node] = []
    for number, disk in enumerate(disks, start=1):
        host = address(number)
        arguments = [*namespaces.within(number), *command(), "serve", "--insecure", "--config", str(config)]
        arguments += ["--data-dir", str(disk.data), "--cluster", etcd.url]
        arguments += ["--node-id", str(number), "--rack", f"rack-{number}"]
        arguments += ["--kafka", f"{host}:{KAFKA_PORT}", "--http", f"{host}:{HTTP_PORT}"]
        arguments += ["--internal", f"{host}:{INTERNAL_PORT}"]
        log = directory / f"penstock-{number}.log"
        clock = directory / f"clock-{number}" if clocks else None
        proofs = trust.environment(number) if trust is not None else secret
        environment = {**proofs, **(_wrong_clock(clock) if clock else {})}
        nodes.append(
            Machine(
                number, f"{host}:{KAFKA_PORT}", arguments, _readiness(host), log, environment, disk=disk, clock=clock
            )
        )
    return ClusterProcess("penstock", nodes)


def _wrong_clock(clock: Path) -> dict[str, str]:
    library = faketime()
    assert library is not None, "there is no libfaketime: install Debian's faketime package"
    clock.write_text("+0\n")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def _readiness(host: str) -> Callable[[], bool]:
    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{host}:{HTTP_PORT}/health/ready", timeout=_ASK_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return is_ready
