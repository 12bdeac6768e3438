"""Three Apache Kafka, each broker and controller in one JVM, from the jars of scripts/jars."""

import base64
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.peers.broker import BrokerError, answers_metadata, tail
from tests.peers.kafka import java
from tests.peers.ports import free_port

from .cluster_process import MIN_ISR, REPLICAS, ClusterProcess, Node

_PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "default.replication.factor": str(REPLICAS),
    "min.insync.replicas": str(MIN_ISR),
    "offsets.topic.replication.factor": str(REPLICAS),
    "transaction.state.log.replication.factor": str(REPLICAS),
    "transaction.state.log.min.isr": str(MIN_ISR),
    "share.coordinator.state.topic.replication.factor": str(REPLICAS),
    "share.coordinator.state.topic.min.isr": str(MIN_ISR),
}
_LOG4J = """\
<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="ERROR"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class KafkaCluster(ClusterProcess):
    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        heap: str = "512m",
        jvm: tuple[str, ...] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            jvm: more options for every JVM.
            properties: more server properties; they win over the ones here.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        log4j = directory / "log4j2.xml"
        log4j.write_text(_LOG4J)
        self._logging = f"-Dlog4j2.configurationFile={log4j}"
        self._options = (f"-Xms{heap}", f"-Xmx{heap}", *jvm, self._logging)
        addresses = {number: f"127.0.0.1:{free_port()}" for number in range(1, brokers + 1)}
        controllers = {number: f"127.0.0.1:{free_port()}" for number in addresses}
        shared = {
            **_PROPERTIES,
            "controller.quorum.voters": ",".join(f"{number}@{address}" for number, address in controllers.items()),
            **(properties or {}),
        }
        identity = base64.urlsafe_b64encode(uuid.UUID(int=uuid.uuid4().int >> 1).bytes).rstrip(b"=").decode()
        nodes = []
        for number, address in addresses.items():
            own = {
                "node.id": str(number),
                "broker.rack": f"rack-{number}",
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controllers[number]}",
                "advertised.listeners": f"PLAINTEXT://{address}",
                "log.dirs": str(directory / f"data-{number}"),
            }
            nodes.append(self._node(number, address, {**shared, **own}, identity))
        super().__init__("kafka", nodes)

    def _node(self, number: int, address: str, properties: Mapping[str, str], identity: str) -> Node:
        server = self._directory / f"server-{number}.properties"
        server.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        log = self._directory / f"kafka-{number}.log"
        self._format(server, identity, log)
        host, port = address.split(":")
        return Node(
            number,
            address,
            java("kafka.Kafka", str(server), options=self._options),
            lambda: answers_metadata(host, int(port)),
            log,
        )

    def _format(self, server: Path, identity: str, log: Path) -> None:
        options = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", self._logging)
        tool = java("kafka.tools.StorageTool", "format", "-t", identity, "-c", str(server), options=options)
        with log.open("ab") as out:
            done = subprocess.run(tool, stdout=out, stderr=out, check=False)
        if done.returncode != 0:
            raise BrokerError(f"the storage of {server} could not be formatted\n{tail(log)}")
