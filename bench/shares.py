"""Share groups beside Apache Kafka's, in interleaved rounds on this machine; `python -m bench.queues` runs them.

Kafka's own share consumer tool reads a topic of 100 B messages and acknowledges them; then librdkafka's share consumer
gets messages one by one as they are sent, which gives the time from send to receive. Both brokers with their defaults.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Producer, ShareConsumer

from bench import jvm, native
from bench.progress import say
from bench.subject import Subject, start

PARTITIONS: Final = 6
MESSAGES: Final = 500_000
VALUE_BYTES: Final = 100
SINGLES: Final = 500
_GAP_S: Final = 0.005
_DEADLINE_S: Final = 120.0
_RATE = re.compile(r"[\d.]+")
BROKERS: Final = ("penstock", "kafka")


def measure(name: str, directory: Path, messages: int) -> dict[str, float]:
    subject = start(name, directory)
    try:
        _read(subject, "warm", messages // 5)
        return _read(subject, "bulk", messages) | _one_by_one(subject)
    finally:
        subject.stop()


def _read(subject: Subject, topic: str, messages: int) -> dict[str, float]:
    subject.create_topic(topic, PARTITIONS, "page cache")
    native.run("load", "produce", subject.bootstrap, topic, PARTITIONS, messages, VALUE_BYTES, "1")
    jvm.begin_at_first(subject.bootstrap, topic)
    before_s = subject.cpu_s()
    found = jvm.consume_shared(subject.bootstrap, topic, topic, messages)
    cpu_s = subject.cpu_s() - before_s
    subject.delete_topic(topic)
    rate = found["records"] / found["seconds"]
    say(f"{subject.name}: {topic}: {rate:,.0f} messages/s, {cpu_s / messages * 1e6:.2f} CPU-us each")
    return {"rate": rate, "cpu_us": cpu_s / messages * 1e6}


def _one_by_one(subject: Subject) -> dict[str, float]:
    subject.create_topic("singles", 1, "page cache")
    jvm.begin_at_first(subject.bootstrap, "singles")
    settings = {"bootstrap.servers": subject.bootstrap, "group.id": "singles", "fetch.wait.max.ms": 500}
    consumer = ShareConsumer(settings)
    consumer.subscribe(["singles"])
    producer = Producer({"bootstrap.servers": subject.bootstrap, "acks": "1", "linger.ms": 0})
    waits_ms: list[float] = []
    try:
        for number in range(SINGLES + SINGLES // 5):
            sent = time.perf_counter()
            producer.produce("singles", b"." * VALUE_BYTES)
            producer.poll(0)
            deadline = sent + _DEADLINE_S
            while not [each for each in consumer.poll(1.0) if each.error() is None]:
                if time.perf_counter() > deadline:
                    raise native.NativeError(f"{subject.name}: message {number} did not come")
            if number >= SINGLES // 5:
                waits_ms.append((time.perf_counter() - sent) * 1000)
            time.sleep(_GAP_S)
    finally:
        consumer.close()
    waits_ms.sort()
    found = {"p50_ms": waits_ms[len(waits_ms) // 2], "p99_ms": waits_ms[int(len(waits_ms) * 0.99)]}
    say(f"{subject.name}: send to receive p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms")
    return found


def measure_rounds(rounds: int, messages: int) -> list[dict[str, dict[str, float]]]:
    """Both brokers in turn."""
    found = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        each = {}
        for name in BROKERS if number % 2 == 0 else reversed(BROKERS):
            with tempfile.TemporaryDirectory() as directory:
                each[name] = measure(name, Path(directory), messages)
        found.append(each)
    return found
