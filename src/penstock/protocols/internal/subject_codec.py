"""Subjects in what brokers ask of each other for clients: who they are, where they come from, by which door.

How many, in two bytes; of each whether the asking broker itself is meant, lengths of its words (principal, host, door,
method, key), the moment after which it has to prove itself again, and the words. A broker itself is told by that mark
alone, so that no client's name, whatever it is, is taken for one.
"""

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from penstock.engine.access import BROKERS, Subject
from penstock.errors import Code, PenstockError
from penstock.net.connection import PeerError

MOST: Final = 1000
_COUNT = Struct(">H")
_HEAD = Struct(">?HHBBBq")
_LONGEST: Final = (4096, 1024, 255, 255, 255)


def encode(subjects: Sequence[Subject]) -> bytes:
    """Raises PenstockError."""
    if not 0 < len(subjects) <= MOST:
        raise PenstockError(Code.INVALID_REQUEST, f"{len(subjects)} subjects in one request; allowed: 1 to {MOST}")
    return _COUNT.pack(len(subjects)) + b"".join(map(_encode, subjects))


def _encode(subject: Subject) -> bytes:
    if subject is BROKERS:
        return _HEAD.pack(True, 0, 0, 0, 0, 0, 0)
    *texts, until_ms = subject
    words = [str(each).encode(errors="surrogatepass") for each in texts]
    for name, word, longest in zip(Subject._fields, words, _LONGEST, strict=False):
        if len(word) > longest:
            raise PenstockError(Code.INVALID_REQUEST, f"a {name} of {len(word)} bytes; allowed: {longest}")
    return _HEAD.pack(False, *map(len, words), until_ms) + b"".join(words)


def decode(body: memoryview, position: int) -> tuple[tuple[Subject, ...], int]:
    """Subjects, and where they end. Raises `PeerError`."""
    try:
        (count,) = _COUNT.unpack_from(body, position)
        position += _COUNT.size
        if not 0 < count <= min(MOST, (len(body) - position) // _HEAD.size):
            raise PeerError(f"{count} subjects in a request with {len(body) - position} bytes left")
        subjects = []
        for _ in range(count):
            subject, position = _decode(body, position)
            subjects.append(subject)
    except StructError:
        raise PeerError("a request ends within its subjects") from None
    return tuple(subjects), position


def _decode(body: memoryview, position: int) -> tuple[Subject, int]:
    is_broker, *lengths, until_ms = _HEAD.unpack_from(body, position)
    position += _HEAD.size
    end = position + sum(lengths)
    too_long = any(length > longest for length, longest in zip(lengths, _LONGEST, strict=True))
    if too_long or end > len(body) or (is_broker and (end > position or until_ms)):
        raise PeerError(f"a subject with words of {lengths} bytes, and {len(body) - position} are left")
    if is_broker:
        return BROKERS, position
    words = []
    for length in lengths:
        try:  # a name must not become another's
            words.append(str(body[position : position + length], "utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise PeerError("a subject with a word that is no text") from None
        position += length
    principal, host, door, method, key = words
    return Subject(principal, host, door, method, key, until_ms), position
