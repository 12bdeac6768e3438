"""Kafka's own Java clients as loads: its producer performance tool, and Consume.java.

Kafka's consumer performance tool joins a consumer group; Consume.java is assigned its partitions, so that the figure
is about fetching alone and the same for both brokers.
"""

import functools
import hashlib
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.peers.kafka import jars, java

from bench.native import CACHE, HERE, NativeError

_OPTIONS = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
_TIMEOUT_S = 300.0
# The linger and the batches of load.c.
_PRODUCER = ("linger.ms=5", "batch.size=1000000", "buffer.memory=268435456", "enable.idempotence=false")
_STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)
WARM_SHARE = 0.3


@functools.cache
def _classes() -> Path:
    source = HERE / "Consume.java"
    fingerprint = hashlib.sha256(source.read_bytes() + jars().name.encode()).hexdigest()[:16]
    target = CACHE / f"consume-{fingerprint}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=CACHE)
        done = subprocess.run(
            ["javac", "-nowarn", "-cp", f"{jars()}/*", "-d", fresh, str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NativeError(f"{source.name} does not compile:\n{done.stderr}")
        os.rename(fresh, target)
    return target


def produce(bootstrap: str, topic: str, records: int, record_bytes: int, acks: str) -> dict[str, Any]:
    """Load with `kafka-producer-perf-test`; the first share of the records warms its JVM and does not count."""
    output = _run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(records), "--record-size", str(record_bytes)),
        *("--warmup-records", str(int(records * WARM_SHARE))),
        *("--command-property", f"acks={acks}", *_PRODUCER),
    )
    return parse_steady(output, record_bytes)


def parse_steady(output: str, record_bytes: int) -> dict[str, Any]:
    found = _STEADY.search(output)
    if found is None:
        raise NativeError(f"the producer performance tool gave no steady state:\n{output[-2000:]}")
    records, rate = int(found.group(1)), float(found.group(2))
    return {"seconds": records / rate, "records": records, "bytes": records * record_bytes}


def consume(
    bootstrap: str, topic: str, partitions: int, records: int, record_bytes: int, skip: int = 0
) -> dict[str, Any]:
    """Read `records` from all partitions, each from offset `skip` on."""
    output = _run("Consume", bootstrap, topic, *map(str, (partitions, records, record_bytes, skip)), classes=_classes())
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _run(main: str, *arguments: str, classes: Path | None = None) -> str:
    command = java(main, *arguments, options=_OPTIONS, classes=classes)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NativeError(f"{main} {' '.join(arguments)}: no end after {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise NativeError(f"{main} {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout
