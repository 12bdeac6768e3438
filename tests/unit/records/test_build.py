"""A built batch: its header fields, its checksum, and what it refuses."""

import struct
from typing import Any

import crc32c
import pytest

from penstock.records.build import NewRecord, build_batch
from penstock.records.compression import Codec, CompressionError

HEADER = struct.Struct(">qiibIhiqqqhii")


def test_header_fields() -> None:
    batch = build_batch(
        [NewRecord(None, b"b", (), 200), (b"k", b"a", [("h", None)], 300), (None, None, (), 100)],
        base_offset=77,
        producer_id=9,
        producer_epoch=3,
        base_sequence=12,
        transactional=True,
        control=True,
        leader_epoch=5,
    )
    crc = crc32c.crc32c(batch[21:])
    assert HEADER.unpack_from(batch) == (77, len(batch) - 12, 5, 2, crc, 0x30, 2, 200, 300, 9, 3, 12, 3)


def test_defaults() -> None:
    batch = build_batch([(None, b"", (), 1)])
    crc = crc32c.crc32c(batch[21:])
    assert HEADER.unpack_from(batch) == (0, 68 - 12, -1, 2, crc, 0, 0, 1, 1, -1, -1, -1, 1)
    assert batch[61:] == b"\x0c\x00\x00\x00\x01\x00\x00"


@pytest.mark.parametrize("codec", list(Codec))
def test_codec_bits_and_checksum(codec: Codec) -> None:
    batch = build_batch([(None, b"v" * 1000, (), 1)], codec=codec)
    fields = HEADER.unpack_from(batch)
    assert fields[5] == codec
    assert fields[4] == crc32c.crc32c(batch[21:])
    assert (len(batch) < 200) == (codec != Codec.NONE)


def test_no_records() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_unknown_codec() -> None:
    with pytest.raises(CompressionError):
        build_batch([(None, b"", (), 1)], codec=5)


@pytest.mark.parametrize("field", ["base_offset", "producer_id", "producer_epoch", "base_sequence", "leader_epoch"])
def test_numbers_out_of_range(field: str) -> None:
    too_large: dict[str, Any] = {field: 2**63}
    with pytest.raises(ValueError, match="batch header"):
        build_batch([(None, b"", (), 1)], **too_large)
    with pytest.raises(ValueError, match="batch header"):
        build_batch([(None, b"", (), 2**63)])
