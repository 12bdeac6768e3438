"""Compressed bodies that are wrong around good records, each as one small function; and odd ones that are right."""

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache

import cramjam
import lz4.frame
import zstandard

from penstock.records.compression import Codec, compress
from penstock.records.varint import encode

from .damaged_records import GOOD, Section, record

_HALF = len(GOOD) // 2
_SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_BOMB_VALUE_BYTES = 17 << 20


def garbage(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def gzipped(data: bytes = GOOD) -> bytes:
    return gzip.compress(data, mtime=0)


def gzip_with_flags(flags: int, extra: bytes = b"") -> bytes:
    whole = gzipped()
    return whole[:3] + bytes([flags]) + whole[4:10] + extra + whole[10:]


def raw_snappy(data: bytes = GOOD) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes, version: int = 1, readable_from: int = 1) -> bytes:
    head = _XERIAL_MAGIC + struct.pack(">ii", version, readable_from)
    return head + b"".join(struct.pack(">I", len(block)) + block for block in blocks)


def lz4_frame(data: bytes = GOOD, **options: object) -> bytes:
    options = {"block_linked": False, "store_size": False, **options}
    return bytes(lz4.frame.compress(data, **options))


def lz4_described(flags: int, more: bytes = b"") -> bytes:
    """A frame with other flags, and a checksum of its header that is right."""
    frame = lz4_frame()
    descriptor = bytes([flags, frame[5]]) + more
    return frame[:4] + descriptor + bytes([_xxh32(descriptor) >> 8 & 0xFF]) + frame[7:]


def _xxh32(data: bytes) -> int:
    """xxHash of fewer than 16 bytes with seed 0: an lz4 frame's header carries a byte of it."""
    mask, primes = 0xFFFFFFFF, (2654435761, 2246822519, 3266489917, 668265263, 374761393)

    def turned(number: int, bits: int) -> int:
        return (number << bits | number >> 32 - bits) & mask

    words = len(data) // 4 * 4
    found = primes[4] + len(data)
    for at in range(0, words, 4):
        found = turned(found + int.from_bytes(data[at : at + 4], "little") * primes[2] & mask, 17) * primes[3] & mask
    for byte in data[words:]:
        found = turned(found + byte * primes[4] & mask, 11) * primes[0] & mask
    found = (found ^ found >> 15) * primes[1] & mask
    found = (found ^ found >> 13) * primes[2] & mask
    return found ^ found >> 16


def zstd_frame(data: bytes = GOOD, **parameters: int) -> bytes:
    made = zstandard.ZstdCompressionParameters(**parameters)
    return zstandard.ZstdCompressor(compression_params=made).compress(data)


def zstd_stream(data: bytes = GOOD, window_log: int = 20) -> bytes:
    """A frame without its content size, of any window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def changed(data: bytes, at: int, by: int = 1) -> bytes:
    out = bytearray(data)
    out[at] ^= by
    return bytes(out)


def _linked() -> bytes:
    """Good records in two blocks; one alone would be independent whatever one asks for."""
    records = record(0) + record(1, value=encode(100_000) + bytes(100_000)) + record(2)
    return lz4_frame(records, block_linked=True, block_size=4)


@cache
def bomb(codec: Codec) -> bytes:
    """One good record, of 17 MiB."""
    return compress(codec, record(0, value=encode(_BOMB_VALUE_BYTES) + bytes(_BOMB_VALUE_BYTES)))


def _of_every_codec(codec: Codec) -> dict[str, Callable[[], bytes]]:
    others = [other for other in Codec if other not in (codec, Codec.NONE)]
    return {
        "no bytes": lambda: b"",
        "garbage": lambda: garbage(300),
        "a lot of garbage": lambda: garbage(100_000),
        "a good beginning and then garbage": lambda: compress(codec, GOOD)[:16] + garbage(100),
        "what was never compressed": lambda: GOOD,
        "cut by one byte": lambda: compress(codec, GOOD)[:-1],
        "cut in half": lambda: compress(codec, GOOD)[: len(compress(codec, GOOD)) // 2],
        "a byte behind the frame": lambda: compress(codec, GOOD) + b"\x01",
        "garbage behind the frame": lambda: compress(codec, GOOD) + garbage(40),
        "zeros behind the frame": lambda: compress(codec, GOOD) + bytes(40),
        "a frame twice: records twice": lambda: compress(codec, GOOD) * 2,
        "compressed twice": lambda: compress(codec, compress(codec, GOOD)),
        **{f"a frame of {other.name.lower()}": lambda other=other: compress(other, GOOD) for other in others},  # type: ignore[misc]
    }


DAMAGED: dict[Codec, dict[str, Callable[[], bytes]]] = {
    Codec.GZIP: {
        **_of_every_codec(Codec.GZIP),
        "a wrong checksum": lambda: changed(gzipped(), -5),
        "a wrong size": lambda: changed(gzipped(), -1),
        "a wrong checksum of its header": lambda: gzip_with_flags(2, b"\x00\x00"),
        "unknown flags": lambda: gzip_with_flags(0xE0),
        "two members": lambda: gzipped(GOOD[:_HALF]) + gzipped(GOOD[_HALF:]),
        "an empty member first": lambda: gzipped(b"") + gzipped(),  # librdkafka aborts its process
        "an empty member last": lambda: gzipped() + gzipped(b""),
        "zlib's header in place of gzip's": lambda: zlib.compress(GOOD),
        "no header": lambda: gzipped()[10:-8],
    },
    Codec.SNAPPY: {
        **_of_every_codec(Codec.SNAPPY),
        "a raw block that declares more": lambda: changed(raw_snappy(), 0, 0x40),
        "two raw blocks": lambda: raw_snappy(GOOD[:_HALF]) + raw_snappy(GOOD[_HALF:]),
        "a garbled raw block": lambda: raw_snappy()[:1] + b"\xfe" * 20,
        "a stream of version 0": lambda: xerial(raw_snappy(), version=0, readable_from=0),
        "a stream of version 2": lambda: xerial(raw_snappy(), version=2, readable_from=2),
        "a stream's header alone": xerial,
        "a stream's header cut": lambda: xerial()[:12],
        "a block of no bytes": lambda: xerial(raw_snappy(), b""),
        "a block beyond the end": lambda: xerial(raw_snappy())[:16] + struct.pack(">I", 5000) + raw_snappy(),
        "a block of two gigabytes": lambda: xerial() + b"\x7f\xff\xff\xff" + raw_snappy(),
        "a block's length cut": lambda: xerial(raw_snappy()) + b"\x00\x00",
        "two streams": lambda: xerial(raw_snappy(GOOD[:_HALF])) + xerial(raw_snappy(GOOD[_HALF:])),
    },
    Codec.LZ4: {
        **_of_every_codec(Codec.LZ4),
        "a wrong checksum of its header": lambda: changed(lz4_frame(), 6),
        "a wrong checksum": lambda: changed(lz4_frame(content_checksum=True), -1),
        "a wrong checksum of a block": lambda: changed(lz4_frame(block_checksum=True), -5),
        "a wrong size": lambda: lz4_described(0b0110_1000, struct.pack("<Q", 5000)),
        "another version": lambda: lz4_described(0b1010_0000),
        "a reserved flag": lambda: lz4_described(0b0110_0010),
        "a dictionary": lambda: lz4_described(0b0110_0001, b"\x01\x00\x00\x00"),
        "linked blocks": _linked,
        "two frames": lambda: lz4_frame(GOOD[:_HALF]) + lz4_frame(GOOD[_HALF:]),
        "an empty frame first": lambda: lz4_frame(b"") + lz4_frame(),
        "an empty frame last": lambda: lz4_frame() + lz4_frame(b""),
        "a skippable frame first": lambda: _SKIPPABLE + lz4_frame(),
        "a skippable frame last": lambda: lz4_frame() + _SKIPPABLE,
        "no end": lambda: lz4_frame()[:-4],
    },
    Codec.ZSTD: {
        **_of_every_codec(Codec.ZSTD),
        "a wrong checksum": lambda: changed(zstd_frame(write_checksum=1), -1),
        "a wrong size": lambda: changed(zstd_frame(), 5),
        "a window of 256 MiB": lambda: zstd_stream(window_log=28),
        "a window of 2 GiB": lambda: zstd_stream(window_log=31),
        "a skippable frame first": lambda: _SKIPPABLE + zstd_frame(),
        "a skippable frame last": lambda: zstd_frame() + _SKIPPABLE,
        "a dictionary": lambda: zstd_frame()[:4] + bytes([zstd_frame()[4] | 1, 7]) + zstd_frame()[5:],
        "nothing but its magic": lambda: zstd_frame()[:4],
        "a block of a reserved kind": lambda: b"\x28\xb5\x2f\xfd\x00\x58\x07\x00\x00",
    },
}

BOMBS: dict[Codec, dict[str, Callable[[], bytes]]] = {
    codec: {"17 MiB": lambda codec=codec: bomb(codec)}  # type: ignore[misc]
    for codec in Codec
    if codec
}
BOMBS[Codec.SNAPPY]["4 GiB, it says"] = lambda: b"\xff\xff\xff\xff\x0f\x00a"
BOMBS[Codec.GZIP]["65 MiB of zeros"] = lambda: gzip.compress(bytes(65 << 20), 9, mtime=0)
BOMBS[Codec.ZSTD]["600 MiB of one byte"] = lambda: (
    b"\x28\xb5\x2f\xfd\x00\x58"
    + b"".join((1 << 20 | 2 | (at == 4799)).to_bytes(3, "little") + b"\x00" for at in range(4800))
)

_ODD_NUMBERS = record(
    0,
    time=b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    place=b"\x80\x80\x80\x80\x00",
    key=b"\x82\x00k",
    value=b"\x82\x80\x80\x00v",
    headers=b"\x80\x00",
)
_ODD_LENGTH = b"\x90\x80\x80\x80\x00" + record(1)[1:]
ODD_RECORDS: dict[str, Callable[[], Section]] = {
    "attributes nobody knows": lambda: Section(record(0, attributes=b"\x7f") + record(1, attributes=b"\x01"), 2),
    "numbers with more bytes than they need": lambda: Section(_ODD_NUMBERS + _ODD_LENGTH, 2),
    "a header with an empty name and no value": lambda: Section(record(0, headers=b"\x02\x00\x01"), 1),
    "times that go backwards": lambda: Section(record(0) + record(1, time=encode(-5000)), 2),
    "three thousand headers": lambda: Section(record(0, headers=encode(3000) + b"\x02h\x02x" * 3000), 1),
}
ODD_FRAMES: dict[Codec, dict[str, Callable[[], bytes]]] = {
    Codec.NONE: {"as it is": lambda: GOOD},
    Codec.GZIP: {
        "a name and a checksum in its header": lambda: _gzip_with_name(),
        "stored": lambda: gzip.compress(GOOD, 0, mtime=0),
    },
    Codec.SNAPPY: {
        "a raw block": raw_snappy,
        "a stream of two blocks": lambda: xerial(raw_snappy(GOOD[:_HALF]), raw_snappy(GOOD[_HALF:])),
    },
    Codec.LZ4: {
        "its size and all checksums": lambda: lz4_frame(content_checksum=True, block_checksum=True, store_size=True),
    },
    Codec.ZSTD: {
        "two frames": lambda: zstd_frame(GOOD[:_HALF]) + zstd_frame(GOOD[_HALF:]),
        "an empty frame first": lambda: zstd_frame(b"") + zstd_frame(),
        "an empty frame last": lambda: zstd_frame() + zstd_frame(b""),
        "a stream with a checksum": lambda: zstd_frame(write_checksum=1, write_content_size=0),
        "a window of 128 MiB": lambda: zstd_stream(window_log=27),
    },
}


def _gzip_with_name() -> bytes:
    head = gzipped()[:3] + b"\x0a" + gzipped()[4:10] + b"records\x00"
    return head + struct.pack("<H", zlib.crc32(head) & 0xFFFF) + gzipped()[10:]
