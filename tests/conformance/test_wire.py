"""What no client lets a user send: single refusals, repeated batches, odd versions, many requests at once."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as OldApiVersionsResponse
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.produce.v9.response import ProduceResponse

from tests.conformance.conftest import Judges, fresh_name
from tests.conformance.wire import Wire, base_offsets, batch, fetch_request, produce_request, producer_id
from tests.peers.broker import Broker


def test_a_partition_out_of_range_is_refused_alone(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("range", partitions=2)
    one = batch([b"a", b"b"], timestamp_ms=now_ms)
    answers = wire.produce(topic, {0: one, 99: one})
    assert answers[99].error_code is ErrorCode.unknown_topic_or_partition
    assert answers[0].error_code is ErrorCode.none
    assert answers[0].base_offset == 0
    assert wire.produce(topic, {0: one})[0].base_offset == 2


def test_an_unknown_topic_is_refused(wire: Wire, judges: Judges, now_ms: int) -> None:
    topic = fresh_name("never-made")
    answers = wire.produce(topic, {0: batch([b"a"], timestamp_ms=now_ms)})
    assert answers[0].error_code is ErrorCode.unknown_topic_or_partition
    assert wire.fetch(topic, 0, 0).error_code is ErrorCode.unknown_topic_or_partition
    assert topic not in judges["confluent"].topics()


def test_a_damaged_batch_is_refused(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("damaged")
    damaged = bytearray(batch([b"a" * 100], timestamp_ms=now_ms))
    damaged[-20] ^= 1
    assert wire.produce(topic, {0: bytes(damaged)})[0].error_code is ErrorCode.corrupt_message
    assert wire.fetch(topic, 0, 0).high_watermark == 0
    assert wire.produce(topic, {0: batch([b"a"], timestamp_ms=now_ms)})[0].base_offset == 0


def test_a_repeated_batch_is_not_written_twice(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic, own = new_topic("repeat"), producer_id(wire)
    batches = [batch([b"%d" % n] * 3, producer=(own, 0, 3 * n), timestamp_ms=now_ms) for n in range(5)]
    for number, each in enumerate(batches):
        assert wire.produce(topic, {0: each})[0].base_offset == 3 * number
    for number, each in enumerate(batches):  # the last five are remembered
        answer = wire.produce(topic, {0: each})[0]
        assert answer.error_code is ErrorCode.none
        assert answer.base_offset == 3 * number
    assert wire.fetch(topic, 0, 0).high_watermark == 15


def test_a_gap_in_the_sequence_is_refused(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic, own = new_topic("gap"), producer_id(wire)

    def send(epoch: int, sequence: int) -> ErrorCode:
        one = batch([b"x"], producer=(own, epoch, sequence), timestamp_ms=now_ms)
        return wire.produce(topic, {0: one})[0].error_code

    assert send(0, 0) is ErrorCode.none
    assert send(0, 2) is ErrorCode.out_of_order_sequence_number
    assert send(0, 1) is ErrorCode.none
    assert send(1, 5) is ErrorCode.out_of_order_sequence_number, "a new epoch starts at 0"
    assert send(1, 0) is ErrorCode.none
    assert send(0, 2) is ErrorCode.invalid_producer_epoch
    assert wire.fetch(topic, 0, 0).high_watermark == 3


def test_producer_ids_differ(wire: Wire) -> None:
    assert len({producer_id(wire) for _ in range(20)}) == 20


def test_fetch_inside_a_batch_gets_the_whole_batch(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("inside")
    for base in (0, 10, 20):
        one = batch([b"v" * 50] * 10, timestamp_ms=now_ms)
        assert wire.produce(topic, {0: one})[0].base_offset == base
    # How many batches follow is the broker's choice; the first one must hold the offset asked for.
    for offset, base in ((0, 0), (9, 0), (10, 10), (15, 10), (29, 20)):
        assert base_offsets(wire.fetch(topic, 0, offset).records or b"")[:1] == [base]


def test_fetch_limit_below_one_batch_still_moves_on(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("limit")
    for base in (0, 10):
        one = batch([b"v" * 1000] * 10, timestamp_ms=now_ms)
        assert wire.produce(topic, {0: one})[0].base_offset == base
    assert base_offsets(wire.fetch(topic, 0, 0, max_bytes=100).records or b"") == [0]  # KIP-74


def test_fetch_at_and_beyond_the_end(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("end", partitions=2)
    wire.produce(topic, {0: batch([b"v"], timestamp_ms=now_ms)})
    at_end = wire.fetch(topic, 0, 1)
    assert (at_end.error_code, at_end.high_watermark) == (ErrorCode.none, 1)
    assert at_end.records == b"", "empty, not null: librdkafka takes null for a damaged response"
    beyond = wire.fetch(topic, 0, 2)
    assert beyond.error_code is ErrorCode.offset_out_of_range
    assert wire.fetch(topic, 0, -1).error_code is ErrorCode.offset_out_of_range
    assert wire.fetch(topic, 1, 0).records == b""
    assert wire.fetch(topic, 2, 0).error_code is ErrorCode.unknown_topic_or_partition


def test_no_acknowledgement_means_no_response(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("silent")
    wire.send(produce_request(topic, {0: batch([b"quiet"], timestamp_ms=now_ms)}, acks=0))
    answer = wire.produce(topic, {0: batch([b"loud"], timestamp_ms=now_ms)}, acks=1)
    assert answer[0].base_offset == 1


def test_responses_come_in_request_order(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("order")
    sent: list[tuple[int, type]] = []
    for number in range(40):
        if number % 2:
            sent.append((wire.send(fetch_request(topic, 0, 0)), FetchResponse))
        else:
            one = batch([b"%d" % number], timestamp_ms=now_ms)
            sent.append((wire.send(produce_request(topic, {0: one})), ProduceResponse))
    bases = []
    for correlation, kind in sent:
        answer: Any
        received, answer = wire.receive(kind)
        assert received == correlation
        if kind is ProduceResponse:
            bases.append(answer.responses[0].partition_responses[0].base_offset)
    assert bases == list(range(20))


def test_api_versions_from_the_future(wire: Wire) -> None:
    request = ApiVersionsRequest(client_software_name="wire", client_software_version="1")
    sent = wire.send(request, version=99)
    correlation, answer = wire.receive(OldApiVersionsResponse)  # KIP-511: answered in version 0
    assert correlation == sent
    assert answer.error_code is ErrorCode.unsupported_version
    assert 18 in [each.api_key for each in answer.api_keys]


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(struct.pack(">i", -5), id="negative size"),
        pytest.param(struct.pack(">i", 0x7FFFFFFF), id="absurd size"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">ihhih", 10, 9999, 0, 1, -1), id="unknown request"),
    ],
)
def test_garbage_ends_its_connection_only(broker: Broker, wire: Wire, garbage: bytes) -> None:
    with Wire(broker.bootstrap) as noisy:
        noisy._socket.sendall(garbage)
        assert noisy.closed()
    assert producer_id(wire) >= 0
