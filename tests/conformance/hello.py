"""The first message of TLS by hand, so that a client can offer what no library of today would."""

import os
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SSL_3, TLS_1_0, TLS_1_1, TLS_1_2, TLS_1_3 = range(0x0300, 0x0305)
FALLBACK_SCSV = 0x5600
RENEGOTIATION_SCSV = 0x00FF
HEARTBEAT, TICKET, RENEGOTIATION = 15, 35, 0xFF01
_VERSIONS, _GROUPS, _POINTS, _SIGNATURES, _SHARES = 43, 10, 11, 13, 51
_HANDSHAKE, _ALERT = 22, 21
STRONG_GROUPS = (29, 23, 24)
STRONG_SIGNATURES = (0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501)
ALERTS = {40: "handshake failure", 70: "protocol version", 86: "inappropriate fallback", 71: "insufficient security"}
_DEADLINE_S = 10.0
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a ServerHello that asks for another key share (RFC 8446 §4.1.3)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """
    Attributes:
        newest: the version at the head of the message, the newest one that is not TLS 1.3.
        versions: where TLS 1.3 is offered too; empty: no such extension.
    """

    ciphers: Sequence[int]
    newest: int = TLS_1_2
    versions: Sequence[int] = ()
    groups: Sequence[int] = STRONG_GROUPS
    signatures: Sequence[int] = STRONG_SIGNATURES
    compressions: Sequence[int] = (0,)
    more: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server made of an offer: a choice, or an alert, or it only hung up."""

    alert: str = ""
    version: int = 0
    cipher: int = 0
    compression: int = 0
    extensions: frozenset[int] = frozenset()

    @property
    def is_refusal(self) -> bool:
        return not self.version


def say_hello(address: str, offer: Offer) -> Answer:
    """Make an offer, and see what comes of it."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _DEADLINE_S) as connection:
        connection.sendall(_records(_hello(offer), min(offer.newest, TLS_1_0)))
        try:
            with connection.makefile("rb") as file:
                head = file.read(5)
                if len(head) < 5:
                    return Answer("hung up")
                kind, _, size = struct.unpack(">BHH", head)
                body = file.read(size)
        except ConnectionResetError:
            return Answer("hung up")
    if kind == _ALERT:
        return Answer(ALERTS.get(body[1], f"alert {body[1]}"))
    assert kind == _HANDSHAKE and body[0] == 2, f"neither alert nor ServerHello: {head + body!r}"
    return _chosen(body[4 : 4 + int.from_bytes(body[1:4])])


def _hello(offer: Offer) -> bytes:
    extensions = {
        _GROUPS: _listed(offer.groups),
        _POINTS: b"\x01\x00",
        _SIGNATURES: _listed(offer.signatures),
        **offer.more,
    }
    if offer.versions:
        packed = b"".join(struct.pack(">H", version) for version in offer.versions)
        extensions[_VERSIONS] = bytes([len(packed)]) + packed
        extensions[_SHARES] = b"\0\0"  # none yet: the server says by which group it wants one
    block = b"".join(struct.pack(">HH", kind, len(value)) + value for kind, value in extensions.items())
    body = struct.pack(">H", offer.newest) + os.urandom(32) + b"\0" + _listed(offer.ciphers)
    body += bytes([len(offer.compressions), *offer.compressions])
    if offer.newest > SSL_3:
        body += struct.pack(">H", len(block)) + block
    return b"\x01" + len(body).to_bytes(3) + body


def _listed(numbers: Iterable[int]) -> bytes:
    packed = b"".join(struct.pack(">H", number) for number in numbers)
    return struct.pack(">H", len(packed)) + packed


def _records(message: bytes, version: int) -> bytes:
    pieces = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    return b"".join(struct.pack(">BHH", _HANDSHAKE, version, len(piece)) + piece for piece in pieces)


def _chosen(body: bytes) -> Answer:
    version = int.from_bytes(body[:2])
    at = 35 + body[34]
    cipher, compression = struct.unpack_from(">HB", body, at)
    at += 5
    extensions = {}
    while at < len(body):
        kind, size = struct.unpack_from(">HH", body, at)
        extensions[kind] = body[at + 4 : at + 4 + size]
        at += 4 + size
    if _VERSIONS in extensions:
        version = int.from_bytes(extensions[_VERSIONS])
    return Answer("", version, cipher, compression, frozenset(extensions))
