"""One Kafka connection that sends one request at a time, for tests that must see the broker's own answer.

Old, non-flexible versions throughout: Produce 7, InitProducerId 0. Error codes are given as they came.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)

PRODUCE, INIT_PRODUCER_ID = 0, 22

# Recognisable in a system call trace: no length, offset or error code looks like it.
FIRST_CORRELATION = 0x5A7E0000


@dataclass(frozen=True, slots=True)
class Produced:
    """One partition's part of a Produce answer."""

    partition: int
    error_code: int
    base_offset: int


def encode_batch(values: Sequence[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    now_ms = int(time.time() * 1000)
    for index, value in enumerate(values):
        builder.append(index, now_ms, None, value, [])
    return bytes(builder.build())


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


class Wire:
    """Raises `OSError` when the connection is refused, lost or silent for `timeout` seconds."""

    def __init__(self, bootstrap: str, timeout: float = 15.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._correlations = count(FIRST_CORRELATION)
        self.last_correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("closed by the broker")
            parts += part
        return bytes(parts)

    def request(self, api_key: int, version: int, body: bytes) -> bytes:
        self.last_correlation = next(self._correlations)
        frame = struct.pack(">hhi", api_key, version, self.last_correlation) + _string("chaos") + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self._receive(struct.unpack(">i", self._receive(4))[0])
        correlation = struct.unpack_from(">i", answer)[0]
        if correlation != self.last_correlation:
            raise ValueError(f"answer to request {correlation:#x}, asked {self.last_correlation:#x}")
        return answer[4:]

    def produce(
        self, topic: str, values: Mapping[int, Sequence[bytes]], *, acks: int = -1, timeout_ms: int = 10_000
    ) -> list[Produced]:
        """Partition → values, as one batch each in one request."""
        body = [struct.pack(">hhii", -1, acks, timeout_ms, 1), _string(topic), struct.pack(">i", len(values))]
        for partition, texts in values.items():
            batch = encode_batch(texts)
            body.append(struct.pack(">ii", partition, len(batch)) + batch)
        answer = self.request(PRODUCE, 7, b"".join(body))
        name_size = struct.unpack_from(">h", answer, 4)[0]
        position = 6 + name_size
        partitions = struct.unpack_from(">i", answer, position)[0]
        position += 4
        produced = []
        for _ in range(partitions):
            partition, error, offset, _, _ = struct.unpack_from(">ihqqq", answer, position)
            produced.append(Produced(partition, error, offset))
            position += struct.calcsize(">ihqqq")
        return produced

    def produce_one(self, topic: str, value: bytes, partition: int = 0) -> Produced:
        return self.produce(topic, {partition: [value]})[0]

    def init_producer_id(self) -> int:
        answer = self.request(INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000))
        _, error, producer_id, _ = struct.unpack(">ihqh", answer)
        if error:
            raise ConnectionError(f"InitProducerId answered error {error}")
        return int(producer_id)
