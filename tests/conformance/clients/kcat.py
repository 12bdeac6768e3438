"""kcat: the command line over Debian's older librdkafka."""

import re
import subprocess
import time
from collections.abc import Sequence

from tests.conformance.records import Received, Record

from .client import DEADLINE_S, Client, ClientError

# Control bytes that no sample record contains.
_KEY_END, _RECORD_END = "\\x1f", "\\x1e"
# Sizes come first, so keys and values may be any bytes; the headers run to the end of the line.
_FORMAT = "%o %T %K %S\\n%k%s%h\\n"
_ERROR_CODES = {
    "Broker: Offset out of range": 1,
    "Broker: Unknown topic or partition": 3,
    "Broker: Message size too large": 10,
}


class KcatClient(Client):
    name = "kcat"
    whole_records = False
    has_admin = False
    has_max_timestamp = False
    timestamp_types = False

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
        """Offsets are not reported by kcat: they are taken from the end of the partition afterwards."""
        arguments = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-D", _RECORD_END]
        lines = []
        for each in records:
            assert each.value, "kcat skips empty values"
            assert each.timestamp_ms is None, "kcat sends no timestamps of the caller's"
            lines.append(each.value if each.key is None else each.key + b"\x1f" + each.value)
        if records[0].key is not None:
            arguments += ["-K", _KEY_END]
        for name, value in records[0].headers:
            assert value is not None
            arguments += ["-H", f"{name}={value.decode()}"]
        properties = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "message.max.bytes": max_bytes,
            "message.timeout.ms": int(DEADLINE_S * 1000),
        }
        for name, setting in properties.items():
            arguments += ["-X", f"{name}={setting}"]
        try:
            before = self.latest(topic, partition) if acks != "0" else 0
        except ClientError:  # the first record makes the topic
            before = 0
        self._run(arguments, stdin=b"\x1e".join(lines))
        if acks == "0":
            return [-1] * len(records)
        deadline = time.monotonic() + DEADLINE_S
        while (end := self.latest(topic, partition)) < before + len(records):  # acks=1 is answered before it is visible
            assert time.monotonic() < deadline, f"{topic} ends at {end}, {len(records)} were written from {before} on"
        return list(range(end - len(records), end))

    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        policy = "error" if reset == "none" else reset
        arguments = ["-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-q"]
        arguments += ["-u", "-f", _FORMAT, "-X", f"topic.auto.offset.reset={policy}"]
        output = self._run(arguments)
        received = []
        while output:
            head, _, output = output.partition(b"\n")
            at, timestamp_ms, key_size, value_size = map(int, head.split())
            key, output = _take(output, key_size)
            value, output = _take(output, value_size)
            headers, _, output = output.partition(b"\n")
            received.append(Received(at, timestamp_ms, value, key, _headers(headers), None))
        if len(received) < count:
            raise TimeoutError(f"{len(received)} of {count} records came")
        return received

    def earliest(self, topic: str, partition: int) -> int:
        return self.offset_for_time(topic, partition, -2)

    def latest(self, topic: str, partition: int) -> int:
        return self.offset_for_time(topic, partition, -1)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        output = self._run(["-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"])
        found = re.search(rb"offset (-?\d+)", output)
        assert found, output
        return int(found.group(1))

    def topics(self) -> dict[str, int]:
        listing = self._run(["-L"]).decode()
        return {name: int(count) for name, count in re.findall(r'topic "([^"]+)" with (\d+) partitions', listing)}

    def _run(self, arguments: list[str], stdin: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=2 * DEADLINE_S, check=False)
        complaint = done.stderr.decode(errors="replace")
        for text, code in _ERROR_CODES.items():
            if text in complaint:
                raise ClientError(code, complaint)
        if done.returncode != 0:
            raise ClientError(-1, complaint)
        return done.stdout


def _take(output: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, output) if size < 0 else (output[:size], output[size:])


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = []
    for each in text.split(b",") if text else []:
        name, _, value = each.partition(b"=")
        pairs.append((name.decode(), None if value == b"NULL" else value))
    return tuple(pairs)
