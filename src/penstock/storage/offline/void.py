"""Batches without records, which stand for offsets that were lost, so that a repaired log has no holes.

A void is a control batch of a type nobody else uses: clients skip control batches and go on behind their last offset.
Its one record says in words what happened. Holes instead would need an exception in every place that relies on
contiguous offsets: recovery, look-ups at the end of a segment, readers that compare with the offset before.
"""

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from penstock.records.batch import BATCH_HEADER, NO_TIMESTAMP, decode_header
from penstock.records.build import build_batch

VOID_TYPE = 0x5056
_CONTROL_KEY = Struct(">hh")  # version, type; both as in Kafka's own control records
_LARGEST_SPAN = 1 << 30
_CRC_START = 21


def void_batches(first_offset: int, next_offset: int, leader_epoch: int, pad: int = 0) -> Iterator[tuple[bytes, int]]:
    """Batches that cover offsets `[first_offset, next_offset)` and hold no records, each with the offset behind it.

    Args:
        pad: bytes to make the last one longer by.
    """
    while first_offset < next_offset:
        end = min(next_offset, first_offset + _LARGEST_SPAN)
        yield _void(first_offset, end, leader_epoch, pad if end == next_offset else 0), end
        first_offset = end


def _void(first_offset: int, next_offset: int, leader_epoch: int, pad: int) -> bytes:
    text = f"penstock: offsets {first_offset} to {next_offset - 1} were lost".encode() + b"." * pad
    key = _CONTROL_KEY.pack(0, VOID_TYPE)
    batch = bytearray(
        build_batch([(key, text, [], NO_TIMESTAMP)], base_offset=first_offset, leader_epoch=leader_epoch, control=True)
    )
    header = decode_header(batch)._replace(last_offset_delta=next_offset - first_offset - 1)
    BATCH_HEADER.pack_into(batch, 0, *header)
    BATCH_HEADER.pack_into(batch, 0, *header._replace(crc=crc32c(memoryview(batch)[_CRC_START:])))
    return bytes(batch)
