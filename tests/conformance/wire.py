"""Single requests by hand, for what no client lets a user send: kio's messages over a blocking socket."""

import datetime
import io
import socket
import struct
import time
from typing import Any, TypeVar

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse, PartitionData
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import PartitionProduceResponse, ProduceResponse
from kio.serial import entity_reader, entity_writer

from tests.conformance.clients.client import DEADLINE_S

T = TypeVar("T")
NO_PRODUCER = (-1, -1, -1)
_HEADER_SIZE = 61


class Wire:
    """One connection to a broker."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self._stream = self._socket.makefile("rb")
        self._correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, request: Any, version: int | None = None) -> int:
        """Send a request and return its correlation id; `version` overrides the one in the header."""
        self._correlation += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__ if version is None else version,
            correlation_id=self._correlation,
            client_id="wire",
        )
        body = io.BytesIO()
        entity_writer(type(header))(body, header)
        entity_writer(type(request))(body, request)
        frame = body.getvalue()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation

    def receive(self, kind: type[T]) -> tuple[int, T]:
        """The next response and its correlation id."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        header, used = entity_reader(kind.__header_schema__)(frame, 0)  # type: ignore[attr-defined]
        response, more = entity_reader(kind)(frame, used)
        assert used + more == size, "bytes after the response"
        return header.correlation_id, response

    def ask(self, request: Any, kind: type[T]) -> T:
        sent = self.send(request)
        correlation, response = self.receive(kind)
        assert correlation == sent
        return response

    def closed(self) -> bool:
        """Whether the broker ends the connection."""
        return self._stream.read(1) == b""

    def produce(self, topic: str, batches: dict[int, bytes], acks: int = -1) -> dict[int, PartitionProduceResponse]:
        answer = self.ask(produce_request(topic, batches, acks), ProduceResponse)
        return {each.index: each for each in answer.responses[0].partition_responses}

    def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int = 1 << 20) -> PartitionData:
        answer = self.ask(fetch_request(topic, partition, offset, max_bytes), FetchResponse)
        return answer.responses[0].partitions[0]

    def _read(self, size: int) -> bytes:
        found = self._stream.read(size)
        assert len(found) == size, "the broker closed the connection"
        return found


def produce_request(topic: str, batches: dict[int, bytes], acks: int = -1) -> ProduceRequest:
    data = tuple(PartitionProduceData(index=index, records=batch) for index, batch in batches.items())
    return ProduceRequest(
        acks=acks,
        timeout=datetime.timedelta(seconds=DEADLINE_S),
        topic_data=(TopicProduceData(name=topic, partition_data=data),),
    )


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> FetchRequest:
    place = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        max_bytes=max_bytes,
        topics=(FetchTopic(topic=topic, partitions=(place,)),),
        forgotten_topics_data=(),
        rack_id="",
    )


def wait_for_leaders(bootstrap: str, topic: str, partitions: int) -> None:
    """Return once every partition serves. Kafka answers CreateTopics before it leads the new partitions.

    Clients retry until then; a request by hand does not.
    """
    deadline = time.monotonic() + DEADLINE_S
    with Wire(bootstrap) as wire:
        for partition in range(partitions):
            while (error := wire.fetch(topic, partition, 0).error_code) is not ErrorCode.none:
                assert time.monotonic() < deadline, f"{topic} [{partition}]: {error!r}"


def batch(values: list[bytes], *, producer: tuple[int, int, int] = NO_PRODUCER, timestamp_ms: int = 1) -> bytes:
    """A record batch v2 as aiokafka builds it; `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, epoch, sequence, 1 << 20)
    for offset, value in enumerate(values):
        builder.append(offset, timestamp_ms, None, value, [])
    return bytes(builder.build())


def base_offsets(records: bytes) -> list[int]:
    """Base offsets of the whole batches in a fetched range."""
    found, position = [], 0
    while position + _HEADER_SIZE <= len(records):
        base, size = struct.unpack_from(">qi", records, position)
        if position + 12 + size > len(records):
            break
        found.append(base)
        position += 12 + size
    return found
