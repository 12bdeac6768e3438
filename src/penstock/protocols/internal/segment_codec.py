"""CopySegment 0, which brokers ask of each other: a range of a sealed segment, by hand, both sides.

It is no API of Kafka's; its key is far away from theirs. All numbers are big endian, as Kafka's are.

Request: topic id, partition, leader epoch, offset the segment begins at, position in its file, most bytes wanted, least
bytes there must be from that offset on, replica id, incarnation.
Answer: error, base, next offset and size of the segment, length of its card and the card (with position 0 only), then
bytes of the file up to the end of the frame. A base that was not asked for, and nothing else: no segment
begins at that offset, the next one does there; -1 if there is none. In place of a card, a refusal has the word for its
error (`broker_words`), if any.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from penstock.cluster.replication.source import SegmentPart, SegmentWanted
from penstock.engine.segment_copies import BLOCK_BYTES
from penstock.net.connection import PeerError

KEY: Final = 20001
VERSION: Final = 0
_REQUEST = Struct(">16siiqqiqiq")
_ANSWER = Struct(">hqqqi")


class CopyRequest(NamedTuple):
    wanted: SegmentWanted
    replica_id: int
    incarnation: int


class Answered(NamedTuple):
    code: int
    """Kafka's; 0 is none."""
    part: SegmentPart

    @property
    def word(self) -> str:
        """Our own for the error, where Kafka's code stands for several."""
        return self.part.card.decode("ascii", "replace") if self.code else ""


def encode(wanted: SegmentWanted, replica_id: int, incarnation: int) -> bytes:
    """A request body."""
    return _REQUEST.pack(*wanted, replica_id, incarnation)


def decode(body: memoryview) -> CopyRequest:
    """A request body. Raises `PeerError`."""
    if len(body) != _REQUEST.size:
        raise PeerError(f"a CopySegment request of {len(body)} bytes; it has {_REQUEST.size}")
    *fields, replica_id, incarnation = _REQUEST.unpack(body)
    wanted = SegmentWanted._make(fields)
    if wanted.offset < 0 or wanted.position < 0 or wanted.position % BLOCK_BYTES or wanted.max_bytes < BLOCK_BYTES:
        raise PeerError(
            f"a CopySegment request for offset {wanted.offset}, {wanted.max_bytes} bytes at {wanted.position}: "
            f"positions are multiples of {BLOCK_BYTES}, and so much is the least to ask for"
        )
    return CopyRequest(wanted, replica_id, incarnation)


def encode_answer(code: int, base: int = -1, next_offset: int = -1, size: int = 0, card: bytes = b"") -> bytes:
    """An answer's body but for the bytes of the file, which follow it."""
    return _ANSWER.pack(code, base, next_offset, size, len(card)) + card


def encode_refusal(code: int, word: str) -> bytes:
    return encode_answer(code, card=word.encode())


def decode_answer(body: memoryview) -> Answered:
    """An answer's body; what is in it is copied out. Raises `PeerError`."""
    try:
        code, base, next_offset, size, card_bytes = _ANSWER.unpack_from(body, 0)
    except StructError:
        raise PeerError("a CopySegment answer ends too early") from None
    start = _ANSWER.size + card_bytes
    if card_bytes < 0 or start > len(body) or size < 0 or len(body) - start > size:
        raise PeerError(
            f"a CopySegment answer of {len(body)} bytes has a card of {card_bytes} and some of {size} of a file"
        )
    part = SegmentPart(base, next_offset, size, bytes(body[_ANSWER.size : start]), bytes(body[start:]))
    return Answered(code, part)
