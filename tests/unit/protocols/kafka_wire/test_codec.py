"""Headers and varints."""

import struct

import pytest

from penstock.net.connection import PeerError
from penstock.protocols.kafka_wire.codec import (
    decode_head,
    encode_response_head,
    encode_uvarint,
    read_uvarint,
    skip_client_id,
    skip_tags,
)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, (1 << 28) - 1, 1 << 28, (1 << 31) - 1])
def test_varints_round_trip(value: int) -> None:
    data = encode_uvarint(value)
    assert read_uvarint(memoryview(b"x" + data + b"y"), 1) == (value, 1 + len(data))
    for size in range(len(data)):
        with pytest.raises(PeerError):
            read_uvarint(memoryview(data[:size]), 0)


def test_a_varint_has_at_most_five_bytes() -> None:
    with pytest.raises(PeerError):
        read_uvarint(memoryview(b"\x80\x80\x80\x80\x80\x01"), 0)


def test_head() -> None:
    frame = struct.pack(">hhi", 3, 12, -7) + b"rest"
    head = decode_head(memoryview(frame))
    assert (head.api_key, head.version, head.correlation_id, head.position) == (3, 12, -7, 8)
    for size in range(8):
        with pytest.raises(PeerError):
            decode_head(memoryview(frame[:size]))


@pytest.mark.parametrize(
    ("data", "flexible", "end"),
    [
        (b"\xff\xffbody", False, 2),
        (b"\x00\x00body", False, 2),
        (b"\x00\x03abcbody", False, 5),
        (b"\xff\xff\x00body", True, 3),
        (b"\x00\x01a\x01\x07\x02xxbody", True, 8),
    ],
)
def test_client_id(data: bytes, flexible: bool, end: int) -> None:
    assert skip_client_id(memoryview(data), 0, flexible=flexible) == end


@pytest.mark.parametrize(
    ("data", "flexible"),
    [
        (b"", False),
        (b"\x00", False),
        (b"\x00\x05abc", False),
        (b"\xff\xfeabc", False),
        (b"\x80\x00abc", False),
        (b"\x00\x01a", True),
        (b"\x00\x01a\x01\x07\x05xx", True),
        (b"\x00\x01a\xff\xff\xff\xff\x0f", True),
    ],
)
def test_client_id_that_does_not_fit(data: bytes, flexible: bool) -> None:
    with pytest.raises(PeerError):
        skip_client_id(memoryview(data), 0, flexible=flexible)


def test_tags_of_size_zero() -> None:
    assert skip_tags(memoryview(b"\x02\x01\x00\x02\x00rest"), 0) == 5


def test_response_head_counts_itself() -> None:
    assert encode_response_head(9, 100, flexible=False) == struct.pack(">ii", 104, 9)
    assert encode_response_head(9, 100, flexible=True) == struct.pack(">ii", 105, 9) + b"\0"
