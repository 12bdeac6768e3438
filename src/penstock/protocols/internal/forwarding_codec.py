"""Forward 0, which brokers ask of each other: a batch for a partition that the asked one leads, by hand, both sides.

It is no API of Kafka's; its key is far away from theirs. All numbers are big endian, as Kafka's are. Every body begins
with its version, in a byte. A broker first asks which versions the other one takes, and sends a batch only when that
was answered: a release that does not know the API closes the connection, and nobody has to guess what became of it.

Request 0: nothing more. Answer 0: the newest version that is taken.
Request 2: topic id, partition, milliseconds left, length of durability, and this; subjects (`subject_codec`); the
batch, up to the end of the frame. Its header has the producer id and the sequence by which a batch that comes twice is
known.
Answer 2: whether the batch may be there in spite of an error, first and last offset, time of the append; the error
(`error_codec`), if any.

Version 1 had a name where the subjects are. No release has spoken it.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple
from uuid import UUID

from penstock.engine.access import Subject
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.publishing import Appended
from penstock.net.connection import PeerError
from penstock.protocols.internal import error_codec, subject_codec

KEY: Final = 20002
VERSION: Final = 0
ASKING: Final = 0
NEWEST: Final = 2
_REQUEST = Struct(">B16siiB")
_ANSWER = Struct(">B?qqq")
_MOST_MS: Final = (1 << 31) - 1
_NOWHERE: Final = Appended(-1, -1, -1)

QUESTION: Final = bytes((ASKING,))


class Request(NamedTuple):
    topic_id: UUID
    partition_index: int
    timeout_s: float
    durability: str
    subjects: tuple[Subject, ...]
    batch: bytearray
    """A copy: the log patches it in place."""


def encode(forwarded: Forwarded) -> bytes:
    """A request body. Raises PenstockError."""
    durability, subjects = forwarded.durability.word.encode(), subject_codec.encode(forwarded.subjects)
    left_ms = min(max(int(forwarded.timeout_s * 1000), 0), _MOST_MS)
    head = _REQUEST.pack(NEWEST, forwarded.topic_id.bytes, forwarded.partition_index, left_ms, len(durability))
    return b"".join((head, durability, subjects, forwarded.batch))


def decode(body: memoryview) -> Request | None:
    """A request body; None asks for versions. Raises `PeerError`."""
    if len(body) == 1 and body[0] == ASKING:
        return None
    if len(body) < _REQUEST.size:
        raise PeerError(f"a Forward request of {len(body)} bytes; it has {_REQUEST.size} at least")
    version, topic_id, index, left_ms, durability_bytes = _REQUEST.unpack_from(body)
    if version != NEWEST or left_ms < 0:
        raise PeerError(
            f"a Forward request of version {version} with {left_ms} ms left; version {NEWEST} is spoken here"
        )
    middle = _REQUEST.size + durability_bytes
    subjects, start = subject_codec.decode(body, middle)
    if start >= len(body):
        raise PeerError(f"a Forward request of {len(body)} bytes without a batch")
    durability = _text(body[_REQUEST.size : middle])
    return Request(UUID(bytes=topic_id), index, left_ms / 1000, durability, subjects, bytearray(body[start:]))


def encode_versions() -> bytes:
    return bytes((ASKING, NEWEST))


def decode_versions(body: memoryview) -> int:
    """The newest version the broker takes. Raises `PeerError`."""
    if len(body) != 2 or body[0] != ASKING:
        raise PeerError(f"an answer of {len(body)} bytes to which versions of Forward are taken")
    return body[1]


def encode_answer(outcome: Outcome) -> bytes:
    head = _ANSWER.pack(NEWEST, outcome.is_open, *(outcome.appended or _NOWHERE))
    return head + error_codec.encode(outcome.error)


def decode_answer(body: memoryview) -> Outcome:
    """Raises `PeerError`."""
    try:
        version, is_open, base, last, timestamp = _ANSWER.unpack_from(body)
    except StructError:
        raise PeerError("a Forward answer ends too early") from None
    if version != NEWEST:
        raise PeerError(f"a Forward answer of version {version}")
    error, end = error_codec.decode(body, _ANSWER.size)
    if end != len(body):
        raise PeerError(f"a Forward answer of {len(body)} bytes that ends after {end}")
    appended = Appended(base, last, timestamp) if base >= 0 else None
    if error is None and (appended is None or is_open):
        raise PeerError(f"a Forward answer without an error and with offset {base}")
    return Outcome(appended, error, is_open)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise PeerError("a Forward body with a text that is none") from None
