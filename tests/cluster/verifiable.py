"""Kafka's own VerifiableProducer as a judge: increasing numbers, idempotent, and a line of JSON for each ack.

Kafka's system tests use the same program. By itself it never retries; here it is told to, as long as it takes.
"""

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.history import History, Outcome, PartitionLog, Send
from tests.chaos.load import wait_until
from tests.peers.kafka import java

_MAIN = "org.apache.kafka.tools.VerifiableProducer"
_SETTINGS = """\
enable.idempotence=true
retries=2147483647
delivery.timeout.ms=300000
request.timeout.ms=10000
reconnect.backoff.max.ms=200
retry.backoff.max.ms=200
linger.ms=5
"""
_END_TIMEOUT_S = 90.0
NAME = "verifiable"


class VerifiableProducer:
    """Starts with the block, and does not outlive it."""

    def __init__(self, bootstrap: str, topic: str, directory: Path, *, rate: int = 500, keys: int = 24) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output, self._errors = directory / "verifiable.jsonl", directory / "verifiable.err"
        settings = directory / "verifiable.properties"
        settings.write_text(_SETTINGS)
        arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(rate), "--acks", "-1"]
        arguments += ["--repeating-keys", str(keys), "--command-config", str(settings)]
        options = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        self._command = java(_MAIN, *arguments, options=options)
        self._process: subprocess.Popen[bytes] | None = None
        self._read_bytes = 0
        self._acked = 0

    def __enter__(self) -> "VerifiableProducer":
        with self._output.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def acked(self) -> int:
        with self._output.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._acked += whole.count(b'"producer_send_success"')
        return self._acked

    def wait_for_acks(self, number: int, timeout: float = 60) -> None:
        target = self.acked + number
        try:
            wait_until(lambda: self.acked >= target, timeout, f"{number} more acks of {NAME}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{self._last_words()}") from None

    def finish(self) -> dict[str, Any]:
        """Have it stop and wait for all its acks; what it says of itself in the end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{NAME} does not end within {_END_TIMEOUT_S:.0f} s\n{self._last_words()}") from None
        (said,) = [line for line in self._lines() if line["name"] == "tool_data"]
        return said

    def failures(self) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line["name"] == "producer_send_error"]

    def history(self, logs: Mapping[int, PartitionLog]) -> History:
        """What it was told. It does not say where a failed send was meant to go: if it is anywhere, it went there."""
        found = {record.value: index for index, log in logs.items() for record in log.records}
        history = History()
        for line in self._lines():
            if line["name"] == "producer_send_success":
                history.sent(Send(NAME, int(line["value"]), line["partition"], line["value"]))
                history.settled(line["value"], Outcome.OK, line["offset"] if line["offset"] >= 0 else None)
            elif line["name"] == "producer_send_error":
                history.sent(Send(NAME, int(line["value"]), found.get(line["value"], 0), line["value"]))
        return history

    def _lines(self) -> list[dict[str, Any]]:
        with self._output.open("rb") as file:
            return [json.loads(line) for line in file if line.endswith(b"\n") and line.startswith(b"{")]

    def _last_words(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]
