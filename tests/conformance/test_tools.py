"""Kafka's own producers and consumers on the command line, as processes of their own."""

import json
import subprocess
from collections.abc import Callable

from tests.peers.broker import Broker
from tests.peers.kafka import java

from .clients.client import DEADLINE_S
from .conftest import Judges

_QUICK = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def run(main: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        java(f"org.apache.kafka.tools.{main}", *arguments, options=_QUICK),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_console_producer_and_consumer(broker: Broker, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("console")
    lines = [f"line {n}" for n in range(20)]
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    run("ConsoleProducer", *server, "--compression-codec", "zstd", stdin="\n".join(lines) + "\n")
    received = judges["kcat"].read(topic, 0, 0, 20)
    assert [each.value for each in received] == [line.encode() for line in lines]
    place = ("--partition", "0", "--offset", "5", "--max-messages", "15")
    assert run("consumer.ConsoleConsumer", *server, *place).split("\n")[:15] == lines[5:]


def test_verifiable_producer(broker: Broker, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("verifiable")
    server = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    output = run("VerifiableProducer", *server, "--max-messages", "200", "--acks", "-1")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    acknowledged = [each for each in events if each["name"] == "producer_send_success"]
    assert [each["offset"] for each in acknowledged] == list(range(200))
    received = judges["kafka-python"].read(topic, 0, 0, 200)
    assert [each.value for each in received] == [each["value"].encode() for each in acknowledged]
