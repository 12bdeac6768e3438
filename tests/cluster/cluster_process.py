"""Brokers of one cluster as processes: started, killed, stopped and paused one by one, and asked who leads what.

Every broker answers Metadata from its own view, which may be old. What counts here is what all live ones agree on.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from tests.conformance.wire import Wire
from tests.peers.broker import BrokerError, tail, wait_until

STOP_TIMEOUT_S = 60.0
AGREE_TIMEOUT_S = 60.0
REPLICAS = 3
MIN_ISR = 2
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
_POLL_S = 0.02
_METADATA_VERSION = 9
_GROUP, _TRANSACTION = 0, 1
# Nothing is left running when the process that started it is killed.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class Partition(NamedTuple):
    """One partition as a broker sees it; leader -1: none."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.leader >= 0 and set(self.isr) == set(self.replicas)


View = dict[int, Partition]


@dataclass(slots=True)
class Node:
    """One broker: how it is started, and its process if it was.

    Attributes:
        is_ready: whether it serves, by its own word.
        log: what it prints, over all its starts.
        crashes: exit codes of those of its processes that were started again and had ended without being told to.
    """

    id: int
    bootstrap: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    paused: bool = False
    crashes: list[int] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"broker {self.id} was never started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_crashed(self) -> bool:
        """Ended without being told to."""
        return self._process is not None and self._process.poll() not in (None, *_TOLD)

    @property
    def is_live(self) -> bool:
        """Running, and not told to stand still."""
        return self.is_running and not self.paused

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, f"broker {self.id} still runs"
        if self.has_crashed:
            self.crashes.append(self.process.returncode)
        with self.log.open("ab") as out:
            out.write(f"--- start {self.starts + 1}\n".encode())
            out.flush()
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        self.starts += 1
        self.paused = False

    def wait_ready(self) -> None:
        wait_until(self.is_ready, self.process, f"broker {self.id}", self.log, every_s=_POLL_S)

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """SIGKILL, also of what it started, and wait until it is gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.paused = False

    def terminate(self) -> None:
        """SIGTERM, and return at once."""
        self.process.send_signal(signal.SIGTERM)

    def wait_end(self) -> int:
        """The exit code; one that does not end is killed and reported."""
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"broker {self.id} did not end within {STOP_TIMEOUT_S:.0f} s\n{tail(self.log)}") from None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.terminate()
        return self.wait_end()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def view(self, topic: str) -> View:
        """What it says of a topic; empty when it does not know it, or does not answer."""
        try:
            with Wire(self.bootstrap) as wire:
                answer = wire.call(
                    "metadata",
                    _METADATA_VERSION,
                    topics=[{"name": topic}],
                    allow_auto_topic_creation=False,
                    include_cluster_authorized_operations=False,
                    include_topic_authorized_operations=False,
                )
        except OSError:
            return {}
        return {
            int(each.partition_index): Partition(
                int(each.leader_id), int(each.leader_epoch), tuple(each.replica_nodes), tuple(each.isr_nodes)
            )
            for each in answer.topics[0].partitions
        }

    def brokers(self) -> set[int]:
        """The brokers it knows of; empty when it does not answer."""
        try:
            with Wire(self.bootstrap) as wire:
                answer = wire.call("describe_cluster", 1, include_cluster_authorized_operations=False, endpoint_type=1)
        except OSError:
            return set()
        return {int(each.broker_id) for each in answer.brokers}

    def coordinator(self, kind: int, key: str) -> int | None:
        try:
            with Wire(self.bootstrap) as wire:
                (found,) = wire.call("find_coordinator", 4, key_type=kind, coordinator_keys=[key]).coordinators
        except OSError:
            return None
        return int(found.node_id) if found.error_code is ErrorCode.none else None


class ClusterProcess:
    """Not started by the constructor. Use as a context manager, so that nothing is left running.

    Args:
        name: `penstock` or `kafka`.
        beside: ends what the brokers need beside them.
    """

    def __init__(self, name: str, nodes: Sequence[Node], *, beside: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.smallest_segments = {"segment.bytes": "1048576" if name == "kafka" else "65536"}
        self.nodes = {node.id: node for node in nodes}
        self._beside = beside

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_live]

    def start(self) -> None:
        """Start every broker that does not run, and wait until each of them knows all."""
        started = [node for node in self.nodes.values() if not node.is_running]
        for node in started:
            node.launch()
        for node in started:
            node.wait_ready()
        self._wait(lambda: all(node.brokers() == set(self.nodes) for node in self.nodes.values()), "all know all")

    def close(self) -> None:
        """Kill everything; the data stays."""
        for node in self.nodes.values():
            node.kill()
        self._beside()

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """On all brokers, with two of three replicas needed for an ack; returns when all are in sync."""
        settings = {"min.insync.replicas": str(MIN_ISR), **(config or {})}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})  # must outlive the answer
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=REPLICAS, config=settings)
        admin.create_topics([wanted])[topic].result(AGREE_TIMEOUT_S)
        self._wait(lambda: len(self.view(topic) or {}) == partitions, f"all know {topic}")
        self.wait_whole(topic)

    def view(self, topic: str) -> View | None:
        """What all live brokers agree on; None as long as they do not."""
        seen = [node.view(topic) for node in self.live]
        return seen[0] if seen and all(each == seen[0] for each in seen) else None

    def agreed(self, topic: str) -> View:
        """What all live brokers agree on, as soon as they do."""
        found: View | None = None

        def is_found() -> bool:
            nonlocal found
            found = self.view(topic)
            return bool(found)

        self._wait(is_found, f"all live brokers say the same of {topic}")
        assert found is not None
        return found

    def leader(self, topic: str, partition: int) -> int:
        """The live broker that leads, as all live ones say."""
        found = -1

        def is_led() -> bool:
            nonlocal found
            view = self.view(topic)
            if not view or partition not in view:
                return False
            found = view[partition].leader
            return found in self.nodes and self.nodes[found].is_live

        self._wait(is_led, f"all agree on a live leader of {topic} [{partition}]")
        return found

    def leads_nothing(self, broker: int, *topics: str) -> bool:
        """Whether all live brokers see other leaders everywhere."""
        for topic in (*topics, *INTERNAL_TOPICS):
            for node in self.live:
                if any(each.leader in (broker, -1) for each in node.view(topic).values()):
                    return False
        return True

    def wait_moved(self, broker: int, *topics: str) -> None:
        """Until every partition of these topics and the internal ones is led by others."""
        self._wait(lambda: self.leads_nothing(broker, *topics), f"broker {broker} leads nothing")

    def wait_whole(self, *topics: str) -> None:
        """Until all brokers are live, and agree that every replica of these topics and the internal ones is in sync."""
        if len(self.live) < len(self.nodes):
            raise BrokerError(f"a broker is down, so it cannot get in sync\n{self.describe()}")
        self._wait(lambda: all(self.view(each) and self._is_whole(each) for each in topics), f"{topics} in sync")
        self._wait(lambda: all(self._is_whole(topic) for topic in INTERNAL_TOPICS), "internal topics in sync")

    def _is_whole(self, topic: str) -> bool:
        view = self.view(topic)
        return view is not None and all(each.is_whole for each in view.values())

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(_GROUP, group)

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(_TRANSACTION, transactional_id)

    def _coordinator(self, kind: int, key: str) -> int:
        found: set[int | None] = set()

        def is_found() -> bool:
            nonlocal found
            found = {node.coordinator(kind, key) for node in self.live}
            return len(found) == 1 and found <= {node.id for node in self.live}

        self._wait(is_found, f"all agree on a live coordinator of {key}")
        (broker,) = found
        assert broker is not None
        return broker

    def _wait(self, condition: Callable[[], bool], what: str, timeout_s: float = AGREE_TIMEOUT_S) -> None:
        """Raises with what the brokers say last, and the log of one that ended by itself."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            for node in self.nodes.values():
                if node.has_crashed:
                    raise BrokerError(f"broker {node.id} ended with {node.process.returncode}\n{tail(node.log)}")
            if time.monotonic() > deadline:
                raise BrokerError(f"not within {timeout_s:.0f} s: {what}\n{self.describe()}")
            time.sleep(_POLL_S)

    def describe(self) -> str:
        """For a person: every broker's state and the end of its log."""
        parts = []
        for node in self.nodes.values():
            state = "live" if node.is_live else "paused" if node.paused else "down"
            known = sorted(node.brokers()) if node.is_live else []
            parts.append(f"broker {node.id} ({state}, knows {known}):\n{tail(node.log, 15)}")
        return "\n".join(parts)


_TOLD = (0, 143, -signal.SIGKILL, -signal.SIGTERM)
"""How a broker ends that was told to; a JVM that was asked says 143."""
