"""The Java client (kafka-clients): one JVM of java/*.java, asked by lines of JSON."""

import base64
import functools
import hashlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.records import Received, Record
from tests.peers.kafka import ROOT, jars, java

from .client import DEADLINE_S, Client, ClientError

_SOURCES = sorted((Path(__file__).resolve().parent.parent / "java").glob("*.java"))


@functools.cache
def _classes() -> Path:
    """The compiled judge, kept between runs under a name made of its sources and its jars."""
    parts = [each.read_bytes() for each in _SOURCES] + [jars().name.encode()]
    fingerprint = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    target = ROOT / ".cache" / "conformance" / f"judge-{fingerprint}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=target.parent)
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{jars()}/*", "-d", fresh, *map(str, _SOURCES)],
            check=True,
            capture_output=True,
        )
        try:
            os.rename(fresh, target)
        except OSError:  # another run was quicker
            if not target.exists():
                raise
    return target


class JavaClient(Client):
    name = "java"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_bytes: int = 8 << 20,
    ) -> list[int]:
        config = {
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "max.request.size": str(max_bytes),
            "linger.ms": "5",
            "max.block.ms": str(int(DEADLINE_S * 1000)),
            "request.timeout.ms": str(int(DEADLINE_S * 500)),
            "delivery.timeout.ms": str(int(DEADLINE_S * 1000)),
        }
        packed = [
            {
                "k": _text(each.key),
                "v": _text(each.value),
                "h": [[name, _text(value)] for name, value in each.headers],
                "t": each.timestamp_ms,
            }
            for each in records
        ]
        answer = self.ask("produce", topic=topic, partition=partition, config=config, records=packed)
        return list(answer["offsets"])

    def place(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """Send a record with each key; returns the partitions that the client chose."""
        records = [{"k": _text(key), "v": "", "h": [], "t": None} for key in keys]
        answer = self.ask("produce", topic=topic, partition=None, config={"linger.ms": "5"}, records=records)
        return list(answer["partitions"])

    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        answer = self.ask("read", topic=topic, partition=partition, offset=offset, count=count, reset=reset)
        received = [
            Received(
                each["o"],
                each["t"],
                _bytes(each["v"]),
                _bytes(each["k"]),
                tuple((name, _bytes(value)) for name, value in each["h"]),
                each["y"],
            )
            for each in answer["records"]
        ]
        if len(received) < count:
            raise TimeoutError(f"{len(received)} of {count} records came")
        return received

    def earliest(self, topic: str, partition: int) -> int:
        return int(self.ask("offset", topic=topic, partition=partition, at="earliest")["offset"])

    def latest(self, topic: str, partition: int) -> int:
        return int(self.ask("offset", topic=topic, partition=partition, at="latest")["offset"])

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        return int(self.ask("offset", topic=topic, partition=partition, at=str(timestamp_ms))["offset"])

    def max_timestamp(self, topic: str, partition: int) -> tuple[int, int]:
        answer = self.ask("offset", topic=topic, partition=partition, at="max")
        return answer["offset"], answer["timestamp"]

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self.ask("create", topic=topic, partitions=partitions, config=dict(config or {}))

    def delete_topic(self, topic: str) -> None:
        self.ask("delete", topic=topic)

    def topics(self) -> dict[str, int]:
        return dict(self.ask("topics")["topics"])

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kill(self) -> None:
        """End the JVM, which has no time to say anything to the broker."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask(self, verb: str, **details: Any) -> dict[str, Any]:
        """One command to the JVM and its answer. Raises `ClientError`."""
        with self._turn:
            if self._process is None:
                options = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
                self._process = subprocess.Popen(
                    java("Judge", self.bootstrap, options=options, classes=_classes()),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"do": verb, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java judge ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"], answer["message"])
        return answer


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
