"""An error, or that there is none, in what brokers answer each other.

Kafka's number, in two bytes, 0 for none; lengths of word, text and help; these three. The word is our own for the error
(`broker_words`), if any.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from penstock.errors import PenstockError
from penstock.net.connection import PeerError
from penstock.protocols.kafka_wire import broker_words, errors

_HEAD = Struct(">hBHH")
_LONGEST_TEXT: Final = 1000
_NONE: Final = _HEAD.pack(errors.NONE, 0, 0, 0)


def encode(error: PenstockError | None) -> bytes:
    if error is None:
        return _NONE
    word = broker_words.word_of(error).encode()
    text, way_out = (each[:_LONGEST_TEXT].encode(errors="replace") for each in (str(error), error.help))
    head = _HEAD.pack(errors.kafka_code(error), len(word), len(text), len(way_out))
    return b"".join((head, word, text, way_out))


def decode(body: memoryview, position: int) -> tuple[PenstockError | None, int]:
    """The error, and where it ends. Raises `PeerError`."""
    try:
        number, *sizes = _HEAD.unpack_from(body, position)
    except StructError:
        raise PeerError("an answer ends before its error") from None
    position += _HEAD.size
    if position + sum(sizes) > len(body):
        raise PeerError(f"an error with texts of {sizes} bytes, and {len(body) - position} are left")
    words = []
    for size in sizes:
        try:
            words.append(str(body[position : position + size], "utf-8"))
        except UnicodeDecodeError:
            raise PeerError("an error with a text that is none") from None
        position += size
    word, text, way_out = words
    code = broker_words.code_of(number, word)
    return (None if code is None else PenstockError(code, text, help=way_out)), position
