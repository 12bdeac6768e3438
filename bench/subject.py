"""A broker under measurement: started on a fresh directory, with its CPU time and memory."""

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from tests.peers import kafka, penstock
from tests.peers.broker import Broker

# What Kafka's own start script passes.
_KAFKA_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
KAFKA_HEAP = "1g"
GONE_S = 10.0
LEFT_BYTES = 32 << 20  # metadata, logs of the process, indexes
BROKERS = ("penstock", "kafka")


@dataclass(slots=True)
class Subject:
    """A running broker. `cpu_s` and `rss_mb` count the process, its threads and its children."""

    broker: Broker
    directory: Path

    @property
    def name(self) -> str:
        return self.broker.name

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def create_topic(self, topic: str, partitions: int, penstock_config: dict[str, str]) -> None:
        """Make a topic; only Penstock gets the config, as Kafka would refuse settings it does not know."""
        config = penstock_config if self.name == "penstock" else {}
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(30)
        # Its files go a little later, and unlinking them would disturb what is measured next.
        deadline = time.monotonic() + GONE_S
        while self.disk_bytes() > LEFT_BYTES and time.monotonic() < deadline:
            time.sleep(0.05)

    def disk_bytes(self) -> int:
        """Bytes on disk under the broker's directory; files may go while this looks."""
        total = 0
        for place, _directories, files in os.walk(self.directory):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += os.stat(os.path.join(place, name)).st_blocks * 512
        return total

    def cpu_s(self) -> float:
        total = 0.0
        for each in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        return total

    def rss_mb(self) -> float:
        total = 0
        for each in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total / 1e6

    def stop(self) -> None:
        try:
            self.broker.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})

    def _processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.broker.pid)
        return [main, *main.children(recursive=True)]


def start(name: str, directory: Path) -> Subject:
    if name == "kafka":
        return Subject(kafka.start(directory, heap=KAFKA_HEAP, jvm=_KAFKA_JVM), directory)
    if name == "penstock":
        return Subject(penstock.start(directory), directory)
    raise ValueError(f"no broker called {name}")
