"""Codecs: what other producers write is readable, and nothing gets out beyond the cap."""

import gzip
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial

import cramjam
import lz4.frame
import pytest
import zstandard

from penstock.records import compression
from penstock.records.compression import SCRATCH_BYTES, Codec, CompressionError, compress, decompress, opened

LIMIT = 1 << 20
BOMB_BYTES = 64 * LIMIT
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"".join(b"line %d of a text that repeats itself\n" % number for number in range(3000))


def zstd_stream(data: bytes, window_log: int = 21, checksum: bool = False) -> bytes:
    """A frame as streaming producers write it: without its content size."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=False, write_checksum=checksum
    )
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def zstd_run_bomb(size: int) -> bytes:
    """Run-length blocks only: four bytes each, 128 KiB each when opened."""
    blocks = size >> 17
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x58"  # no content size; a window of 2 MiB
    words = [(1 << 17) << 3 | 1 << 1 | (number == blocks - 1) for number in range(blocks)]
    return header + b"".join(word.to_bytes(3, "little") + b"\x00" for word in words)


def raw_snappy_header(declared: int) -> bytes:
    out = bytearray()
    while declared > 0x7F:
        out.append(declared & 0x7F | 0x80)
        declared >>= 7
    return bytes([*out, declared])


def xerial(*blocks: bytes) -> bytes:
    head = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    return head + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", TEXT], ids=["empty", "one", "text"])
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert type(packed) is bytes
    opened = decompress(codec, packed, max(len(data), 1))
    assert type(opened) is bytes
    assert opened == data


@pytest.mark.parametrize("codec", list(Codec))
def test_any_buffer_is_taken(codec: Codec) -> None:
    packed = compress(codec, memoryview(bytearray(TEXT))[10:])
    assert decompress(codec, memoryview(bytearray(b"..." + packed))[3:], LIMIT) == TEXT[10:]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_text_gets_smaller(codec: Codec) -> None:
    assert len(compress(codec, TEXT)) < len(TEXT) // 3


@pytest.mark.parametrize("codec", list(Codec))
def test_exactly_the_limit_passes_and_one_less_does_not(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(CompressionError, match="more than"):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(CompressionError, match="unknown"):
        compress(codec, b"x")
    with pytest.raises(CompressionError, match="unknown"):
        decompress(codec, b"x", LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("limit", [0, LIMIT])
def test_nothing_and_junk_are_corrupt(codec: Codec, limit: int) -> None:
    for junk in (b"", b"\x01", b"\xff" * 40, b"this was never compressed by anyone"):
        with pytest.raises(CompressionError):
            decompress(codec, junk, limit)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_anywhere_is_an_error(codec: Codec) -> None:
    packed = compress(codec, TEXT[:5000])
    for size in range(len(packed)):
        if codec is Codec.SNAPPY and size == 16:
            continue  # a xerial header alone is an empty stream
        with pytest.raises(CompressionError):
            decompress(codec, packed[:size], LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("tail", [b"\x01", b"trailing bytes that are no frame"])
def test_trailing_bytes_are_an_error(codec: Codec, tail: bytes) -> None:
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, TEXT) + tail, LIMIT)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_frames_in_a_row(codec: Codec) -> None:
    packed = compress(codec, TEXT) + compress(codec, b"") + compress(codec, b"end")
    assert decompress(codec, packed, len(TEXT) + 3) == TEXT + b"end"
    with pytest.raises(CompressionError, match="more than"):
        decompress(codec, packed, len(TEXT) + 2)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_number_of_frames_is_bounded(codec: Codec) -> None:
    frame = compress(codec, b"a")
    most = compression.MAX_FRAMES
    assert decompress(codec, frame * most, LIMIT) == b"a" * most
    with pytest.raises(CompressionError, match="frames"):
        decompress(codec, frame * (most + 1), LIMIT)


def xerial_of_version(version: int) -> bytes:
    return xerial(bytes(cramjam.snappy.compress_raw(TEXT))).replace(b"\x00\x00\x00\x01", version.to_bytes(4, "big"))


SKIPPABLE_LZ4 = b"\x50\x2a\x4d\x18\x01\x00\x00\x00."
# Legal, written by nobody, and some client stops at it: librdkafka (an empty gzip member first even aborts it), Java's
# with lz4, aiokafka with snappy.
UNREADABLE_TO_SOME: dict[str, tuple[Codec, bytes]] = {
    "gzip members": (Codec.GZIP, compress(Codec.GZIP, TEXT[:9]) + compress(Codec.GZIP, TEXT[9:])),
    "gzip, an empty member first": (Codec.GZIP, compress(Codec.GZIP, b"") + compress(Codec.GZIP, TEXT)),
    "lz4 frames": (Codec.LZ4, compress(Codec.LZ4, TEXT[:9]) + compress(Codec.LZ4, TEXT[9:])),
    "lz4, a skippable frame first": (Codec.LZ4, SKIPPABLE_LZ4 + compress(Codec.LZ4, TEXT)),
    "lz4, a skippable frame last": (Codec.LZ4, compress(Codec.LZ4, TEXT) + SKIPPABLE_LZ4),
    "lz4, linked blocks": (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True, block_size=4)),
    "snappy, version 0": (Codec.SNAPPY, xerial_of_version(0)),
    "snappy, version 2": (Codec.SNAPPY, xerial_of_version(2)),
}


@pytest.mark.parametrize("name", UNREADABLE_TO_SOME)
def test_what_some_client_cannot_open_is_strictly_refused(name: str) -> None:
    codec, data = UNREADABLE_TO_SOME[name]
    assert decompress(codec, data, LIMIT) == TEXT
    with pytest.raises(CompressionError):
        decompress(codec, data, LIMIT, strict=True)


def test_gzip_s_reserved_flags_are_strictly_refused() -> None:
    flagged = bytearray(compress(Codec.GZIP, TEXT))
    flagged[3] |= 0x20  # isal does not look at it, zlib does
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, flagged, LIMIT, strict=True)


@pytest.mark.parametrize("codec", list(Codec))
def test_what_producers_write_is_strictly_right(codec: Codec) -> None:
    assert decompress(codec, compress(codec, TEXT), LIMIT, strict=True) == TEXT
    for cut in range(1 if codec else 0, 8 if codec else 0):
        with pytest.raises(CompressionError):
            decompress(codec, compress(codec, TEXT)[:cut], LIMIT, strict=True)


def test_forms_that_everybody_opens() -> None:
    lz4_checked = lz4.frame.compress(TEXT, block_linked=False, content_checksum=True, block_checksum=True)
    assert decompress(Codec.LZ4, lz4_checked, LIMIT, strict=True) == TEXT
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), LIMIT, strict=True) == TEXT
    frames = compress(Codec.ZSTD, b"") + compress(Codec.ZSTD, TEXT) + zstd_stream(b"")
    assert decompress(Codec.ZSTD, frames, LIMIT, strict=True) == TEXT


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: gzip.compress(bytes(BOMB_BYTES), 1)),
    "gzip-members": (Codec.GZIP, lambda: gzip.compress(bytes(LIMIT // 2), 1) * 128),
    "snappy-raw": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(BOMB_BYTES)))),
    "snappy-xerial": (
        Codec.SNAPPY,
        lambda: xerial(*[bytes(cramjam.snappy.compress_raw(bytes(65536)))] * 1024),
    ),
    "snappy-declared": (Codec.SNAPPY, lambda: raw_snappy_header(0xFFFF_FFFF) + b"\x00a"),
    "lz4": (Codec.LZ4, lambda: lz4.frame.compress(bytes(BOMB_BYTES))),
    "lz4-frames": (Codec.LZ4, lambda: lz4.frame.compress(bytes(LIMIT // 2)) * 128),
    "zstd": (Codec.ZSTD, lambda: zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))),
    "zstd-stream": (Codec.ZSTD, lambda: zstd_stream(bytes(BOMB_BYTES), window_log=27)),
    "zstd-runs": (Codec.ZSTD, lambda: zstd_run_bomb(BOMB_BYTES)),
    "zstd-frames": (Codec.ZSTD, lambda: zstd_stream(bytes(LIMIT // 2)) * 128),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_is_stopped_at_the_limit(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    decompress(codec, compress(codec, b"warm"), LIMIT)  # the library's import is not what is measured
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match="more than"):
            decompress(codec, bomb, LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * LIMIT + 2 * len(bomb) + (1 << 19)


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_does_not_grow_the_process(name: str) -> None:
    """Native allocations, which tracemalloc does not see: the high-water mark of a fresh process."""
    codec, make = BOMBS[name]
    program = (
        "import sys\n"
        "from penstock.records.compression import compress, decompress\n"
        "def peak():\n"
        "    return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
        "codec, limit = int(sys.argv[1]), int(sys.argv[2])\n"
        "bomb = sys.stdin.buffer.read()\n"
        "decompress(codec, compress(codec, b'warm'), limit)\n"
        "before = peak()\n"
        "try:\n"
        "    decompress(codec, bomb, limit)\n"
        "except ValueError:\n"
        "    print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(int(codec)), str(LIMIT)],
        input=make(),
        capture_output=True,
        check=True,
    )
    assert int(done.stdout) < 16 * 1024  # KiB, of a bomb of 64 MiB


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[bytearray]:
    """The memory that `opened` keeps; none yet."""
    kept: list[bytearray] = []
    monkeypatch.setattr(compression, "_free", kept)
    return kept


@pytest.mark.parametrize("codec", list(Codec))
def test_opened_for_a_while_it_is_the_same(codec: Codec) -> None:
    for data in (TEXT, b"", TEXT[:100]):
        with opened(codec, compress(codec, data), LIMIT, strict=True) as view:
            assert view == data


@pytest.mark.parametrize("frame", [lambda data: bytes(cramjam.snappy.compress_raw(data)), partial(compress, 2)])
def test_snappy_memory_is_used_again(free: list[bytearray], frame: Callable[[bytes], bytes]) -> None:
    packed = frame(TEXT), frame(TEXT[1:])
    # As in two threads, and in one more than memory is kept for.
    with opened(Codec.SNAPPY, packed[0], LIMIT) as first, opened(Codec.SNAPPY, packed[1], LIMIT) as second:
        with opened(Codec.SNAPPY, packed[0], LIMIT):
            pass
        assert (bytes(first), bytes(second)) == (TEXT, TEXT[1:])
    assert len(free) == 2
    memory = free[-1]
    with pytest.raises(ValueError, match="released"):
        bytes(first)
    with pytest.raises(CompressionError), opened(Codec.SNAPPY, frame(TEXT)[:-1], LIMIT):
        pass
    assert len(free) == 2 and free[-1] is memory
    with opened(Codec.SNAPPY, frame(b"short"), LIMIT) as view:
        assert isinstance(view, memoryview)
        assert view.obj is memory and view == b"short"  # and nothing of what was there before


def test_snappy_beyond_the_memory_that_is_kept(free: list[bytearray]) -> None:
    data = bytes(SCRATCH_BYTES) + b"x"
    for packed in (bytes(cramjam.snappy.compress_raw(data)), compress(Codec.SNAPPY, data)):
        assert decompress(Codec.SNAPPY, packed, len(data)) == data
        with opened(Codec.SNAPPY, packed, len(data)) as view:
            assert view == data
        assert [len(each) for each in free] == [SCRATCH_BYTES]


def test_the_run_bomb_is_a_valid_frame() -> None:
    """Otherwise the bomb test would pass for the wrong reason."""
    assert decompress(Codec.ZSTD, zstd_run_bomb(1 << 18), 1 << 18) == bytes(1 << 18)


def test_gzip_of_the_standard_library() -> None:
    assert decompress(Codec.GZIP, gzip.compress(TEXT), LIMIT) == TEXT
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT


def test_gzip_checksum_is_checked() -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 1
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, packed, LIMIT)


def test_gzip_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(Codec.GZIP, TEXT)
    monkeypatch.setitem(sys.modules, "isal", None)
    assert decompress(Codec.GZIP, packed, len(TEXT)) == TEXT
    assert gzip.decompress(compress(Codec.GZIP, TEXT)) == TEXT
    with pytest.raises(CompressionError, match="more than"):
        decompress(Codec.GZIP, packed, len(TEXT) - 1)
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, packed[:-1], LIMIT)
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, b"junk", LIMIT)


def test_snappy_raw_block() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), LIMIT) == TEXT


def test_snappy_is_written_as_xerial_blocks_of_32_kib() -> None:
    packed = compress(Codec.SNAPPY, TEXT)
    assert packed[:16] == xerial()
    position, sizes = 16, []
    while position < len(packed):
        size = int.from_bytes(packed[position : position + 4], "big")
        block = packed[position + 4 : position + 4 + size]
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + size
    assert sizes == [32768] * (len(TEXT) // 32768) + [len(TEXT) % 32768]


def test_snappy_block_longer_than_the_stream() -> None:
    with pytest.raises(CompressionError, match="left"):
        decompress(Codec.SNAPPY, xerial() + b"\xff\xff\xff\xff" + b"abc", LIMIT)


def test_lz4_is_written_with_independent_blocks() -> None:
    assert lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT * 3))["block_linked"] is False


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_lz4_of_other_writers(linked: bool, sized: bool) -> None:
    packed = lz4.frame.compress(TEXT * 3, block_linked=linked, store_size=sized, content_checksum=True)
    assert decompress(Codec.LZ4, packed, len(TEXT) * 3) == TEXT * 3


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("data", [b"", TEXT, bytes(300_000)], ids=["empty", "text", "zeros"])
def test_zstd_without_content_size(checksum: bool, data: bytes) -> None:
    packed = zstd_stream(data, checksum=checksum)
    assert zstandard.get_frame_parameters(packed).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert decompress(Codec.ZSTD, packed, len(data)) == data
    assert decompress(Codec.ZSTD, packed * 2, 2 * len(data)) == data * 2
    with pytest.raises(CompressionError):
        decompress(Codec.ZSTD, packed[:-1], LIMIT)


def test_zstd_checksum_is_checked() -> None:
    packed = bytearray(zstd_stream(TEXT, checksum=True))
    packed[-1] ^= 1
    with pytest.raises(CompressionError):
        decompress(Codec.ZSTD, packed, LIMIT)


def test_zstd_window_is_capped() -> None:
    assert decompress(Codec.ZSTD, zstd_stream(b"x" * 1000, window_log=27), LIMIT) == b"x" * 1000
    with pytest.raises(CompressionError, match="memory"):
        decompress(Codec.ZSTD, zstd_stream(b"x" * 1000, window_log=28), LIMIT)


def test_zstd_lying_content_size() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"y" * 1000))
    assert packed[4] >> 6 == 1  # the two-byte form of the size, less 256
    packed[5:7] = b"\x00\x00"
    with pytest.raises(CompressionError):
        decompress(Codec.ZSTD, packed, LIMIT)


def test_zstd_reserved_block_kind() -> None:
    packed = bytearray(zstd_run_bomb(1 << 17))
    packed[6] |= 3 << 1
    packed[7:9] = b"\x00\x00"
    with pytest.raises(CompressionError):
        decompress(Codec.ZSTD, packed, LIMIT)


def test_zstd_skippable_frame_is_refused() -> None:
    with pytest.raises(CompressionError, match="start a frame"):
        decompress(Codec.ZSTD, b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd", LIMIT)


def test_codec_libraries_are_imported_on_first_use() -> None:
    program = (
        "import sys, penstock.records.compression, penstock.records.record, penstock.records.build\n"
        "print(sorted({'isal', 'cramjam', 'lz4', 'zstandard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", _WITH_PATH + program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


# Without `site` no start-up hook imports a codec; the path comes from this process.
_WITH_PATH = f"import sys; sys.path[:] = {sys.path!r}\n"
