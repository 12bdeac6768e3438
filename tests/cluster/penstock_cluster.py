"""Three `penstock serve` on one etcd of three members."""

import secrets
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.etcd import Etcd
from tests.peers.penstock import command
from tests.peers.ports import free_port

from .cluster_process import ClusterProcess, Node

_ASK_TIMEOUT_S = 2.0


class PenstockCluster(ClusterProcess):
    """`etcd` is there from the beginning, the brokers after `start`."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        members: int = 3,
        settings: Mapping[str, Any] | None = None,
        etcd_arguments: Sequence[str] = (),
    ) -> None:
        """
        Args:
            members: of etcd.
            settings: of every broker, as its file has them.
            etcd_arguments: more options of etcd's own.
        """
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "penstock.yaml"
        config.write_text(yaml.safe_dump(dict(settings or {})))
        self._directory = directory
        self.etcd = Etcd(directory, members=members, arguments=etcd_arguments)
        # Not a flag: a command line can be read by everybody on the machine.
        environment = {"PENSTOCK_CLUSTER_SECRET": secrets.token_hex(32)}
        self._config = config
        nodes = [self._node(number, directory, config, environment) for number in range(1, brokers + 1)]
        super().__init__("penstock", nodes, beside=self.etcd.stop)

    def stranger(self, number: int) -> Node:
        """A broker with another secret. It is none of `nodes`: whoever starts it ends it."""
        environment = {"PENSTOCK_CLUSTER_SECRET": secrets.token_hex(32)}
        return self._node(number, self._directory, self._config, environment)

    def data_directory(self, broker_id: int) -> Path:
        return self._directory / f"data-{broker_id}"

    def lose_disk(self, broker_id: int) -> None:
        """Kill a broker and remove everything it had."""
        self.nodes[broker_id].kill()
        shutil.rmtree(self.data_directory(broker_id))

    def _node(self, number: int, directory: Path, config: Path, environment: Mapping[str, str]) -> Node:
        kafka, http, internal = (f"127.0.0.1:{free_port()}" for _ in range(3))
        arguments = [*command(), "serve", "--data-dir", str(self.data_directory(number)), "--config", str(config)]
        arguments += ["--cluster", self.etcd.url, "--node-id", str(number), "--rack", f"rack-{number}"]
        arguments += ["--kafka", kafka, "--http", http, "--internal", internal]
        log = directory / f"penstock-{number}.log"
        return Node(number, kafka, arguments, lambda: _is_ready(http), log, environment)


def _is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/health/ready", timeout=_ASK_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
