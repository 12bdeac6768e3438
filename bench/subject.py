"""A broker under measurement: started, stopped and killed on a directory, with its CPU time and memory."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.peers import kafka, penstock
from tests.peers.broker import Broker, BrokerError

from bench.cells import TOPIC_CONFIG, Durability

# What Kafka's own start script passes.
_KAFKA_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
KAFKA_HEAP = "1g"
# Kafka's own five minutes would put every retention outside of what is watched; this is Penstock's default.
_KAFKA_PROPERTIES = {"log.retention.check.interval.ms": "5000"}
_HTTP = re.compile(r"\bhttp=(\S+)")
GONE_S = 10.0
ADMIN_S = 60.0
_CLEAN_EXITS = (0, 143)  # a JVM that was asked to end says 143
BROKERS = ("penstock", "kafka")


@dataclass(slots=True)
class Subject:
    """A running broker. `cpu_s` and `rss_mb` count the process, its threads and its children."""

    broker: Broker
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.broker.name

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def http(self) -> str:
        """Penstock's `host:port` for metrics."""
        found = _HTTP.search((self.directory / "penstock.stdout").read_text())
        assert found is not None
        return found.group(1)

    def create_topic(
        self, topic: str, partitions: int, durability: Durability, config: dict[str, str] | None = None
    ) -> None:
        """Make a topic of a durability; `config` are settings that both brokers know."""
        settings = TOPIC_CONFIG[durability][self.name] | (config or {})
        self._administer(topic, lambda admin: admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]))

    def add_partitions(self, topic: str, total: int) -> None:
        self._administer(topic, lambda admin: admin.create_partitions([NewPartitions(topic, total)]))

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._administer(topic, lambda admin: admin.incremental_alter_configs([resource]))

    def end_offsets(self, topic: str, partitions: int) -> list[int]:
        client = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "never-joined"})
        try:
            return [client.get_watermark_offsets(TopicPartition(topic, each))[1] for each in range(partitions)]
        finally:
            client.close()

    def delete_topic(self, topic: str) -> None:
        self._administer(topic, lambda admin: admin.delete_topics([topic]))
        # Its files go a little later, and unlinking them would disturb what is measured next.
        deadline = time.monotonic() + GONE_S
        while self.topic_bytes(topic) and time.monotonic() < deadline:
            time.sleep(0.05)

    def topic_bytes(self, topic: str) -> int:
        """Bytes on disk of a topic, and of topics on their way out; files may go while this looks."""
        total = 0
        for path in self.topic_files(topic):
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(path).st_blocks * 512
        return total

    def topic_files(self, topic: str) -> Iterator[str]:
        """Penstock's are in `TOPIC/PARTITION`, deleted ones in `~removed`; Kafka's in `TOPIC-PARTITION`, and deleted
        ones in `TOPIC-PARTITION.ID-delete`."""
        named = re.compile(rf"{re.escape(topic)}(-\d+(\..*)?)?|~removed")
        top = str(self.directory / "data")
        for place, _directories, files in os.walk(top):
            if any(named.fullmatch(part) for part in place.removeprefix(top).split(os.sep)):
                yield from (os.path.join(place, name) for name in files)

    def cpu_s(self) -> float:
        total = 0.0
        for each in self._processes():
            with contextlib.suppress(OSError):
                total += cpu_of(each.pid)
        return total

    def rss_mb(self) -> float:
        total = 0
        for each in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total / 1e6

    def stop(self) -> None:
        """End it and remove its data."""
        try:
            self.broker.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def end(self) -> None:
        """A clean stop; the data stays."""
        code = self.broker.stop()
        if code not in _CLEAN_EXITS:
            raise BrokerError(f"{self.name} did not stop cleanly, it ended with {code}")

    def kill(self) -> None:
        """What a crash of the process leaves; the data stays."""
        self.broker.process.kill()
        self.broker.process.wait()

    def start_again(self) -> None:
        """A new process on the data of the one that ended."""
        self.broker = start(self.name, self.directory, settings=self.settings).broker

    def _administer(self, topic: str, ask: Callable[[AdminClient], dict[Any, Future[Any]]]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})  # must outlive the answer
        try:
            (answer,) = ask(admin).values()
            answer.result(ADMIN_S)
        except KafkaException as error:
            raise BrokerError(f"{self.name}: topic {topic}: {error}") from error

    def _processes(self) -> list[psutil.Process]:
        main = psutil.Process(self.broker.pid)
        return [main, *main.children(recursive=True)]


def cpu_of(pid: int) -> float:
    """Another process's CPU seconds, by its own clock (clock_getcpuclockid): /proc counts in hundredths.

    Raises:
        OSError: there is no such process.
    """
    return time.clock_gettime((~pid << 3) | 2)


def start(
    name: str, directory: Path, launcher: Sequence[str] | None = None, settings: Mapping[str, str] | None = None
) -> Subject:
    """Start a broker on a directory, new or used.

    Args:
        launcher: replaces Penstock's command.
        settings: of this broker, under its own names.
    """
    settings = settings or {}
    if name == "kafka":
        properties = _KAFKA_PROPERTIES | dict(settings)
        broker = kafka.start(directory, heap=KAFKA_HEAP, jvm=_KAFKA_JVM, properties=properties)
    elif name == "penstock":
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        broker = penstock.start(directory, flags=flags, launcher=launcher)
    else:
        raise ValueError(f"no broker called {name}")
    return Subject(broker, directory, settings)
