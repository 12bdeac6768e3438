"""Single requests by hand, for what no client lets a user send: kio's messages over a blocking socket."""

import dataclasses
import datetime
import importlib
import io
import socket
import struct
import time
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse, PartitionData
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import PartitionProduceResponse, ProduceResponse
from kio.serial import entity_reader, entity_writer

from tests.conformance.clients.client import DEADLINE_S

T = TypeVar("T")
NO_PRODUCER = (-1, -1, -1)
_HEADER_SIZE = 61
_ATTRIBUTES_AT = 21
_PRODUCER_AT = 43


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
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        return self.send_body(type(request), body.getvalue(), version)

    def send_body(self, kind: Any, body: bytes, version: int | None = None) -> int:
        """Send any bytes behind the header of a request of that kind."""
        self._correlation += 1
        header = kind.__header_schema__(
            request_api_key=kind.__api_key__,
            request_api_version=kind.__version__ if version is None else version,
            correlation_id=self._correlation,
            client_id="wire",
        )
        head = io.BytesIO()
        entity_writer(type(header))(head, header)
        frame = head.getvalue() + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation

    def send_frame(self, frame: bytes) -> None:
        """Send a request with a header of its own."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, kind: type[T]) -> tuple[int, T]:
        """The next response and its correlation id."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        header, used = entity_reader(kind.__header_schema__)(frame, 0)  # type: ignore[attr-defined]
        response, more = entity_reader(kind)(frame, used)
        assert used + more == size, "bytes after the response"
        return header.correlation_id, response

    def skip(self) -> int:
        """Read the next response without looking at it; returns its size."""
        (size,) = struct.unpack(">i", self._read(4))
        self._read(size)
        return int(size)

    def receive_bytes(self) -> bytes:
        """What the next response has behind its correlation id."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)[4:]

    def ask(self, request: Any, kind: type[T]) -> T:
        sent = self.send(request)
        correlation, response = self.receive(kind)
        assert correlation == sent
        return response

    def call(self, api: str, version: int, **values: Any) -> Any:
        """Ask by kio's name of the API; see `make`."""
        return self.ask(make(api, version, **values), entity_of(api, version, "response"))

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
        if len(found) != size:
            raise ConnectionError("the broker closed the connection")
        return found


def entity_of(api: str, version: int, direction: str) -> Any:
    """kio's class of an API's "request" or "response"."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{direction}")
    return getattr(module, "".join(word.capitalize() for word in api.split("_")) + direction.capitalize())


def make(api: str, version: int, **values: Any) -> Any:
    """A request out of plain values: dictionaries for structures, lists for arrays, milliseconds for times.

    A field the version does not have is left out.
    """
    return _filled(entity_of(api, version, "request"), values)


def _filled(entity: Any, values: dict[str, Any]) -> Any:
    known = {each.name: each for each in dataclasses.fields(entity)}
    return entity(
        **{name: _converted(known[name].type, value) for name, value in values.items() if name in known},
    )


def _converted(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        element = next(get_args(each)[0] for each in (kind, *get_args(kind)) if get_origin(each) is tuple)
        return tuple(_converted(element, each) for each in value)
    if isinstance(value, dict):
        entity = next(each for each in (kind, *get_args(kind)) if dataclasses.is_dataclass(each))
        return _filled(entity, value)
    if isinstance(value, int) and "imedelta" in str(kind):
        return datetime.timedelta(milliseconds=value)
    return value


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


def batch(
    values: list[bytes],
    *,
    producer: tuple[int, int, int] = NO_PRODUCER,
    timestamp_ms: int = 1,
    keys: list[bytes | None] | None = None,
    codec: int = 0,
) -> bytes:
    """A record batch v2 as aiokafka builds it; `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(2, codec, 0, producer_id, epoch, sequence, 1 << 20)
    for offset, value in enumerate(values):
        builder.append(offset, timestamp_ms, keys[offset] if keys else None, value, [])
    return bytes(builder.build())


def producer_id(wire: Wire) -> int:
    """A producer id of its own."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout=datetime.timedelta(seconds=60))
    deadline = time.monotonic() + DEADLINE_S
    answer = wire.ask(request, InitProducerIdResponse)
    # Kafka says so, retriably, until it has its first block of ids.
    while answer.error_code is ErrorCode.coordinator_load_in_progress and time.monotonic() < deadline:
        answer = wire.ask(request, InitProducerIdResponse)
    assert answer.error_code is ErrorCode.none
    assert answer.producer_epoch == 0
    return answer.producer_id


class BatchHeader(NamedTuple):
    """What the cases look at in the fixed head of a stored batch."""

    base_offset: int
    codec: int
    append_time: bool
    producer: tuple[int, int, int]
    count: int  # type: ignore[assignment]


def batch_headers(records: bytes) -> list[BatchHeader]:
    """The heads of the whole batches in a fetched range."""
    found, position = [], 0
    while position + _HEADER_SIZE <= len(records):
        base, size = struct.unpack_from(">qi", records, position)
        if position + 12 + size > len(records):
            break
        (attributes,) = struct.unpack_from(">h", records, position + _ATTRIBUTES_AT)
        producer_id, epoch, sequence, count = struct.unpack_from(">qhii", records, position + _PRODUCER_AT)
        found.append(BatchHeader(base, attributes & 7, bool(attributes & 8), (producer_id, epoch, sequence), count))
        position += 12 + size
    return found


def base_offsets(records: bytes) -> list[int]:
    """Base offsets of the whole batches in a fetched range."""
    return [each.base_offset for each in batch_headers(records)]
