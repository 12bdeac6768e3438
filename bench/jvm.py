"""Kafka's own Java clients as loads: its performance tools, and the programs beside this file.

Kafka's consumer performance tool joins a consumer group and does not look at what it gets; Consume.java is assigned its
partitions, so that its figure is about fetching alone, and checks every record.
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
_BATCHING = ("linger.ms=5", "batch.size=1000000", "buffer.memory=268435456")
_PRODUCER = (*_BATCHING, "enable.idempotence=false")
_STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec", re.MULTILINE)
_TOOL_FIELDS = 10
_SHARE_TOOL_FIELDS = 7
WARM_SHARE = 0.3


@functools.cache
def _classes(name: str) -> Path:
    source = HERE / f"{name}.java"
    fingerprint = hashlib.sha256(source.read_bytes() + jars().name.encode()).hexdigest()[:16]
    target = CACHE / f"{name.lower()}-{fingerprint}"
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
    return _run_own("Consume", bootstrap, topic, partitions, records, record_bytes, skip)


def consume_in_group(bootstrap: str, topic: str, group: str, records: int) -> dict[str, Any]:
    """Read with `kafka-consumer-perf-test`; the time to join the group does not count."""
    output = _run(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--num-records", str(records), "--timeout", "60000", "--hide-header"),
    )
    return parse_fetched(output, records)


def parse_fetched(output: str, records: int) -> dict[str, Any]:
    """The tool's one line: begin, end, MB, MB/s, records, records/s, ms of rebalancing, ms of fetching, and rates."""
    fields = output.strip().splitlines()[-1].split(",") if output.strip() else []
    if len(fields) != _TOOL_FIELDS or int(fields[4]) < records:
        raise NativeError(f"the consumer performance tool did not read {records} records:\n{output[-2000:]}")
    return {"seconds": int(fields[7]) / 1000, "records": int(fields[4]), "join_s": int(fields[6]) / 1000}


def begin_at_first(bootstrap: str, group: str) -> None:
    """Have a share group begin at the first record of its topics."""
    _run(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", bootstrap, "--alter", "--entity-type", "groups", "--entity-name", group),
        *("--add-config", "share.auto.offset.reset=earliest"),
    )


def consume_shared(bootstrap: str, topic: str, group: str, records: int) -> dict[str, Any]:
    """Read and acknowledge with `kafka-share-consumer-perf-test`."""
    output = _run(
        "org.apache.kafka.tools.ShareConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--num-records", str(records), "--timeout", "60000", "--hide-header"),
    )
    return parse_shared(output, records)


def parse_shared(output: str, records: int) -> dict[str, Any]:
    """The tool's one line: begin, end, MB, MB/s, records/s, records, ms."""
    fields = output.strip().splitlines()[-1].split(",") if output.strip() else []
    if len(fields) != _SHARE_TOOL_FIELDS or int(fields[5]) < records:
        raise NativeError(f"the share consumer performance tool did not read {records} records:\n{output[-2000:]}")
    return {"seconds": int(fields[6]) / 1000, "records": int(fields[5])}


def transact(
    bootstrap: str, topic: str, partitions: int, records: int, record_bytes: int, warm_ms: int, timed_ms: int
) -> dict[str, Any]:
    """Commit transactions of `records` each for some time."""
    place = (bootstrap, topic, partitions, records, record_bytes, warm_ms, timed_ms)
    return _run_own("Transact", *place, *_BATCHING)


def own_command(name: str, *arguments: str | int) -> list[str]:
    """The command that runs a program beside this file."""
    return java(name, *map(str, arguments), options=_OPTIONS, classes=_classes(name))


def _run_own(name: str, *arguments: str | int) -> dict[str, Any]:
    output = _run(name, *map(str, arguments), classes=_classes(name))
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
