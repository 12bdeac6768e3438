"""Starts a single-process Apache Kafka (broker and controller in one JVM) from the jars of scripts/jars."""

import base64
import functools
import os
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from .broker import Broker, BrokerError, answers_metadata, wait_until
from .ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
# Kafka's own values, made for a data centre, would have a test wait: a deleted topic keeps its files for a minute and
# more, a first member waits three seconds for others, the newer group protocol hears of a change after five seconds and
# of a crash after 45, an overdue transaction is found after ten.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
log.segment.delete.delay.ms=200
log.initial.task.delay.ms=200
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=200
group.consumer.min.session.timeout.ms=6000
group.consumer.session.timeout.ms=6000
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=100
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
_LOG4J = """\
<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c: %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


@functools.cache
def jars() -> Path:
    """The directory of the jars, fetched on first use."""
    done = subprocess.run([str(ROOT / "scripts" / "jars"), "kafka"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerError(f"scripts/jars failed:\n{done.stderr}")
    return Path(done.stdout.strip().splitlines()[-1])


def java(main: str, *arguments: str, options: tuple[str, ...] = (), classes: Path | None = None) -> list[str]:
    """The command that runs a main class out of the jars."""
    path = f"{jars()}/*" if classes is None else f"{classes}{os.pathsep}{jars()}/*"
    return ["java", *options, "-cp", path, main, *arguments]


def start(
    directory: Path,
    *,
    heap: str = "1g",
    partitions: int = 6,
    jvm: tuple[str, ...] = (),
    properties: Mapping[str, str] | None = None,
    ports: tuple[int, int] | None = None,
) -> Broker:
    """Start a broker on the data under `directory`, which is formatted first when it is new.

    Args:
        jvm: more options for the JVM.
        properties: more server properties; they win over the ones here.
        ports: of the plain listener and the controller's, for properties that name all listeners.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "kafka.log"
    port, controller = ports or free_ports(2)
    server = directory / "server.properties"
    server.write_text(
        _PROPERTIES.format(port=port, controller=controller, data=directory / "data", partitions=partitions)
        + "".join(f"{name}={value}\n" for name, value in (properties or {}).items())
    )
    log4j = directory / "log4j2.xml"
    log4j.write_text(_LOG4J)
    if not (directory / "data" / "meta.properties").exists():
        _format(server, log4j, log)
    options = (f"-Xms{heap}", f"-Xmx{heap}", *jvm, f"-Dlog4j2.configurationFile={log4j}")
    with log.open("ab") as out:
        started = time.monotonic()
        process = subprocess.Popen(
            java("kafka.Kafka", str(server), options=options),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    wait_until(lambda: answers_metadata("127.0.0.1", port), process, "kafka", log, every_s=0.02)
    return Broker("kafka", process, f"127.0.0.1:{port}", time.monotonic() - started, log)


def _format(server: Path, log4j: Path, log: Path) -> None:
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    if cluster.startswith("-"):
        cluster = "A" + cluster[1:]  # a leading dash would be read as an option
    with log.open("ab") as out:
        subprocess.run(
            java(
                "kafka.tools.StorageTool",
                *("format", "-t", cluster, "-c", str(server)),
                options=("-Xshare:auto", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log4j}"),
            ),
            stdout=out,
            stderr=out,
            check=True,
        )
