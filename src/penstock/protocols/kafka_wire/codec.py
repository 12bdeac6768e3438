"""Request and response headers, and the primitive types they and the hand-written messages are made of."""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from penstock.net.session import PeerError

_HEAD = Struct(">hhi")
_I16 = Struct(">h")
LENGTH_AND_CORRELATION = Struct(">ii")
_MAX_VARINT_BYTES = 5
_LONGEST_CLIENT_ID = 250  # in bytes; what is kept of it is shown to people


class RequestHead(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    position: int
    """Where the client id begins."""


def decode_head(frame: memoryview) -> RequestHead:
    """The fixed part of a request header. Raises `PeerError`."""
    try:
        api_key, version, correlation_id = _HEAD.unpack_from(frame, 0)
    except StructError:
        raise PeerError(f"request of {len(frame)} bytes has no header") from None
    return RequestHead(api_key, version, correlation_id, _HEAD.size)


def decode_client_id(frame: memoryview, position: int) -> str:
    """What a client calls itself, cut if it is long; empty if it does not. `skip_client_id` has checked the bytes."""
    length = min(max(_I16.unpack_from(frame, position)[0], 0), _LONGEST_CLIENT_ID)
    return bytes(frame[position + 2 : position + 2 + length]).decode("utf-8", "replace")


def skip_client_id(frame: memoryview, position: int, *, flexible: bool) -> int:
    """Where the message body begins. Raises `PeerError`."""
    try:
        length = _I16.unpack_from(frame, position)[0]
    except StructError:
        raise PeerError("request header ends before the client id") from None
    position += 2 + max(length, 0)
    if length < -1 or position > len(frame):
        raise PeerError(f"client id of {length} bytes does not fit the request")
    return skip_tags(frame, position) if flexible else position


def read_uvarint(frame: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it. Raises `PeerError`."""
    value = shift = 0
    for at in range(position, position + _MAX_VARINT_BYTES):
        if at >= len(frame):
            break
        byte = frame[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise PeerError("a varint does not end")


def encode_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(frame: memoryview, position: int) -> int:
    """Past a tagged-field section nobody here reads. Raises `PeerError`."""
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise PeerError("a tagged field reaches past the request")
    return position


def encode_response_head(correlation_id: int, body_size: int, *, flexible: bool) -> bytes:
    """Frame length and response header; `flexible` is header version 1, with an empty tag section."""
    if flexible:
        return LENGTH_AND_CORRELATION.pack(body_size + 5, correlation_id) + b"\0"
    return LENGTH_AND_CORRELATION.pack(body_size + 4, correlation_id)
