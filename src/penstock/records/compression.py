"""The five codecs of a record batch, each decompressed under a cap: a small batch cannot fill the memory.

Peak memory of `decompress` is about twice its limit: one library's output buffer and the bytes made of it.
`opened` keeps up to 4 MiB to open snappy into: new memory for each batch takes longer than opening it.
Codec libraries are imported on first use, since most brokers never open a compressed batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from struct import Struct, unpack_from
from types import ModuleType
from typing import Protocol

from typing_extensions import Buffer

# A producer writes one frame per batch. Concatenated frames are legal in gzip, lz4 and zstd, but thousands of
# empty ones only burn time (each is a new stream and a copy of the rest).
MAX_FRAMES = 256

# What zstd's highest level (22) declares when it does not know the size. The window is reserved, not touched,
# so what it really costs is bounded by the output, which is capped.
ZSTD_MAX_WINDOW_BYTES = 1 << 27
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # skippable frames have another; no producer writes them
_ZSTD_MAX_BLOCK_BYTES = 1 << 17  # RFC 8878 §3.1.1.2.4
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2  # kinds of block; 0 is raw, and 3 the library refuses

# snappy-java's stream, as Kafka's Java client writes it: this header, then raw blocks, each after its length.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2  # version, and the lowest version able to read it
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_LENGTH = Struct(">I")


# Memory that is used again. Of a new megabyte the kernel clears every page when it is touched, and malloc gives it back
# as soon as it is freed. Two: the event loop and the opener's thread open batches at the same time.
SCRATCH_BYTES = 2 << 20
_MOST_FREE = 2
_free: list[bytearray] = []


class Codec(IntEnum):
    """The low three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(ValueError):
    """The codec is unknown, the data is not what the codec writes, or more would come out than allowed."""


class TooLarge(CompressionError):
    """More would come out than allowed."""


class _Stream(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: Buffer, max_length: int, /) -> bytes: ...


def compress(codec: int, data: Buffer) -> bytes:
    """Compress the records section of a batch.

    Raises:
        CompressionError: no such codec.
    """
    encode = _COMPRESS.get(codec)
    if encode is None:
        raise CompressionError(f"unknown compression codec {codec}")
    return encode(memoryview(data).cast("B"))


def decompress(codec: int, data: Buffer, limit: int, *, strict: bool = False) -> bytes:
    """Decompress the whole of `data`, which must hold nothing else.

    Args:
        codec: one of `Codec`.
        data: what the codec wrote: for gzip, lz4 and zstd one frame or several.
        limit: the most bytes that may come out.
        strict: refuse what the format allows and some client cannot open; no producer writes it.

    Raises:
        CompressionError: unknown codec, corrupt or cut data, trailing bytes.
        TooLarge: more than `limit` bytes would come out.
    """
    decode = _DECOMPRESS.get(codec)
    if decode is None:
        raise CompressionError(f"unknown compression codec {codec}")
    return decode(memoryview(data).cast("B"), limit, strict)


@contextmanager
def opened(codec: int, data: Buffer, limit: int, *, strict: bool = False) -> Iterator[bytes | memoryview]:
    """What `decompress` returns, for the time of a `with` block only: its memory is used again afterwards.

    Raises:
        CompressionError: as `decompress`.
    """
    if codec != Codec.SNAPPY:
        yield decompress(codec, data, limit, strict=strict)
        return
    try:
        scratch = _free.pop()
    except IndexError:
        scratch = bytearray(SCRATCH_BYTES)
    try:
        # Released at the end, so that whoever kept it gets an error and not another batch.
        with _open_snappy(memoryview(data).cast("B"), limit, strict, scratch) as view:
            yield view
    finally:
        if len(_free) < _MOST_FREE:
            _free.append(scratch)


def _too_large(name: str, limit: int) -> TooLarge:
    return TooLarge(f"{name} data decompresses to more than {limit} bytes")


def _decompress_frames(
    open_stream: Callable[[], _Stream], name: str, data: Buffer, limit: int, most_frames: int
) -> bytes:
    pieces: list[bytes] = []
    left = limit
    rest: Buffer | None = data
    for _ in range(most_frames):
        stream = open_stream()
        piece = stream.decompress(rest or b"", left + 1)  # one more than allowed shows that there is more
        if len(piece) > left:
            raise _too_large(name, limit)
        if not stream.eof:
            raise CompressionError(f"{name} data ends inside a frame")
        pieces.append(piece)
        left -= len(piece)
        rest = stream.unused_data
        if not rest:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    raise CompressionError(f"{name} data has more than {most_frames} frames")


def _store(data: memoryview) -> bytes:
    return bytes(data)


def _load(data: memoryview, limit: int, strict: bool) -> bytes:
    if len(data) > limit:
        raise TooLarge(f"{len(data)} uncompressed bytes are more than {limit}")
    return bytes(data)


def _gzip_library() -> ModuleType:
    try:
        from isal import isal_zlib
    except ImportError:  # no wheel for this machine: the standard library does the same at a third of the speed
        import zlib

        return zlib
    return isal_zlib  # type: ignore[no-any-return, unused-ignore]


_GZIP_WBITS = 31  # the largest window, with gzip's header and trailer
_GZIP_FLAGS_AT = 3
_GZIP_RESERVED = 0xE0  # RFC 1952 §2.3.1.2: must be zero; zlib refuses others, isal does not look


def _compress_gzip(data: memoryview) -> bytes:
    library = _gzip_library()
    compressed: bytes = library.compress(data, library.Z_DEFAULT_COMPRESSION, _GZIP_WBITS)
    return compressed


def _decompress_gzip(data: memoryview, limit: int, strict: bool) -> bytes:
    library = _gzip_library()
    if strict and len(data) > _GZIP_FLAGS_AT and data[_GZIP_FLAGS_AT] & _GZIP_RESERVED:
        raise CompressionError(f"gzip data has unknown flags {data[_GZIP_FLAGS_AT]:#04x}")
    most_frames = 1 if strict else MAX_FRAMES  # librdkafka opens the first one alone, and aborts if that is empty
    try:
        return _decompress_frames(lambda: library.decompressobj(_GZIP_WBITS), "gzip", data, limit, most_frames)
    except library.error as error:
        raise CompressionError(f"gzip data is corrupt: {error}") from error


def _compress_snappy(data: memoryview) -> bytes:
    from cramjam import snappy

    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES])
        pieces += _XERIAL_LENGTH.pack(len(block)), block
    return b"".join(pieces)


def _decompress_snappy(data: memoryview, limit: int, strict: bool) -> bytes:
    with opened(Codec.SNAPPY, data, limit, strict=strict) as view:
        return bytes(view)


def _open_snappy(data: memoryview, limit: int, strict: bool, scratch: bytearray) -> memoryview:
    """What comes out, in `scratch` where it has room."""
    import cramjam

    if not data:
        raise CompressionError("snappy data is empty")  # the library takes it for an empty block, which is b"\x00"
    # librdkafka and franz-go write one raw block with no framing around it.
    framed = data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    if strict and framed and data[: len(_XERIAL_HEADER)] != _XERIAL_HEADER:
        raise CompressionError("snappy data has a stream header of another version than 1")
    blocks = _split_xerial(data) if framed else [data]
    try:
        # Blocks say their size up front; nothing is allocated for a size that is not allowed.
        total = sum(map(cramjam.snappy.decompress_raw_len, blocks))
        if total > limit:
            raise _too_large("snappy", limit)
        room = memoryview(scratch if total <= len(scratch) else bytearray(total))
        position = 0
        for block in blocks:
            position += cramjam.snappy.decompress_raw_into(block, room[position:])
    except cramjam.DecompressionError as error:
        raise CompressionError(f"snappy data is corrupt: {error}") from error
    return room[:position]


def _split_xerial(data: memoryview) -> list[memoryview]:
    position, end = len(_XERIAL_HEADER), len(data)
    if position > end:
        raise CompressionError("snappy data ends inside the stream header")
    blocks: list[memoryview] = []
    while position < end:
        start = position + _XERIAL_LENGTH.size
        if start > end:
            raise CompressionError("snappy data ends inside a block length")
        (size,) = _XERIAL_LENGTH.unpack_from(data, position)
        position = start + size
        if position > end:
            raise CompressionError(f"snappy block of {size} bytes, but {end - start} are left")
        blocks.append(data[start:position])
    return blocks


_LZ4_MAGIC = b"\x04\x22\x4d\x18"  # skippable frames have another
# The byte behind the magic: version (two bits), independent blocks, three bits that anybody may set, a reserved one,
# dictionary. Kafka's Java client insists on the first three and the last two.
_LZ4_FIXED_FLAGS = 0b1110_0011
_LZ4_PLAIN = 0b0110_0000


def _compress_lz4(data: memoryview) -> bytes:
    import lz4.frame

    # Kafka's Java client refuses linked blocks.
    compressed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
    return compressed


def _decompress_lz4(data: memoryview, limit: int, strict: bool) -> bytes:
    import lz4.frame

    if strict and (data[:4] != _LZ4_MAGIC or len(data) < 5 or data[4] & _LZ4_FIXED_FLAGS != _LZ4_PLAIN):
        raise CompressionError("lz4 data does not start with a frame of independent blocks without a dictionary")
    most_frames = 1 if strict else MAX_FRAMES  # neither librdkafka nor Java opens a second one
    try:
        return _decompress_frames(lz4.frame.LZ4FrameDecompressor, "lz4", data, limit, most_frames)
    except RuntimeError as error:  # the library has no error of its own
        raise CompressionError(f"lz4 data is corrupt: {error}") from error


def _compress_zstd(data: memoryview) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def _decompress_zstd(data: memoryview, limit: int, strict: bool) -> bytes:
    import zstandard

    # The one-shot call trusts a declared content size and ignores bytes after the frame; the stream reader
    # does not say whether the frame was complete. So frames are measured first, and then read with a bound.
    pieces: list[bytes] = []
    left = limit
    try:
        for frame, bound in _split_zstd(data):
            with zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES).stream_reader(frame) as reader:
                piece = reader.read(min(left, bound) + 1)
            if len(piece) > left:
                raise _too_large("zstd", limit)
            pieces.append(piece)
            left -= len(piece)
    except zstandard.ZstdError as error:
        raise CompressionError(f"zstd data is corrupt: {error}") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _split_zstd(data: memoryview) -> list[tuple[memoryview, int]]:
    """Each frame with the most bytes it can hold."""
    frames: list[tuple[memoryview, int]] = []
    position = 0
    while position < len(data) or not frames:
        end, bound = _measure_zstd_frame(data, position)
        frames.append((data[position:end], bound))
        position = end
        if len(frames) > MAX_FRAMES:
            raise CompressionError(f"zstd data has more than {MAX_FRAMES} frames")
    return frames


def _measure_zstd_frame(data: memoryview, start: int) -> tuple[int, int]:
    """Where the frame at `start` ends, and the most bytes it can hold (RFC 8878 §3.1.1)."""
    import zstandard

    head = data[start : start + 18]  # the longest frame header
    if head[:4] != _ZSTD_MAGIC:
        raise CompressionError("zstd data does not start a frame")
    has_checksum = zstandard.get_frame_parameters(head).has_checksum
    position, end = start + zstandard.frame_header_size(head), len(data)
    bound = 0
    last = 0
    while not last:
        if position + 3 > end:
            raise CompressionError("zstd data ends inside a frame")
        low, high = unpack_from("<HB", data, position)
        last, kind, size = low & 1, low >> 1 & 3, (low | high << 16) >> 3
        bound += _ZSTD_MAX_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
        position += 3 + (1 if kind == _ZSTD_RLE else size)
    position += 4 if has_checksum else 0
    if position > end:
        raise CompressionError("zstd data ends inside a frame")
    return position, bound


_COMPRESS: dict[int, Callable[[memoryview], bytes]] = {
    Codec.NONE: _store,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}

_DECOMPRESS: dict[int, Callable[[memoryview, int, bool], bytes]] = {
    Codec.NONE: _load,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
