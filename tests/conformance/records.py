"""Records as the cases see them, whichever client wrote or read them, and the sample sets they use."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CREATE_TIME, LOG_APPEND_TIME = 0, 1

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer sends; no timestamp leaves the choice to the client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """What a consumer hands out. `timestamp_type` is None where the client does not tell."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp_type: int | None = CREATE_TIME


def matches(sent: Sequence[Record], received: Sequence[Received], first_offset: int = 0) -> None:
    """Assert that `received` is exactly `sent`, in order and at consecutive offsets."""
    assert [each.offset for each in received] == list(range(first_offset, first_offset + len(sent)))
    for position, (wrote, read) in enumerate(zip(sent, received, strict=True)):
        assert read.key == wrote.key, f"key of record {position}"
        assert read.value == wrote.value, f"value of record {position}"
        assert read.headers == wrote.headers, f"headers of record {position}"
        if wrote.timestamp_ms is not None:
            assert read.timestamp_ms == wrote.timestamp_ms, f"timestamp of record {position}"


def sample(seed: int, *, start_ms: int, plain: bool = False, null_headers: bool = True) -> list[Record]:
    """A few dozen records of mixed shapes.

    Args:
        start_ms: the first record's timestamp; each next one is a millisecond later.
        plain: only what a line-oriented client can express: a non-empty key and value, one common header, no
            timestamp of its own.
        null_headers: whether one of the headers has no value.
    """
    source = random.Random(seed)

    def words(size: int) -> bytes:
        # Half compressible: runs of a small alphabet, without the bytes a line-oriented client splits at.
        return bytes(source.choice(b"abcdefgh 0123456789") for _ in range(size))

    records = [
        Record(words(size), words(1 + size % 19), (("content-type", b"text/plain"),), start_ms + position)
        for position, size in enumerate([1, 2, 15, 16, 100, 1000, 5000, *source.sample(range(1, 400), 20)])
    ]
    if plain:
        return [replace(each, timestamp_ms=None) for each in records]
    odd = [
        Record(b"", b""),
        Record(None, b"tombstone"),
        Record(b"no key", None),
        Record(b"\x00\xff" * 40, bytes(range(256))),
        Record(b"many headers", None, (("a", b"1"), ("a", b"2"), ("empty", b""), ("ü", b"x"))),
        Record(b"a header without value", None, (("null", None),) if null_headers else ()),
        Record(words(20_000), b"larger than one page"),
    ]
    last_ms = start_ms + len(records)
    return records + [replace(each, timestamp_ms=last_ms + n) for n, each in enumerate(odd)]
