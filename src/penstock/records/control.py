"""Control batches: records the broker writes about transactions, which clients read but never show (KIP-98).

A marker is one record whose key is (version, type): 0 aborts, 1 commits. Types nobody knows are to be skipped. One such
is ours: a gap stands for records of an idempotent producer that were not kept, and has their sequences.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

from crc32c import crc32c

from penstock.records.batch import BATCH_HEADER, CRC_START, Header, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError, iterate_batch

CONTROL_KEY = Struct(">hh")  # version, type
_MARKER_VALUE = Struct(">hi")  # version, coordinator epoch
_LARGEST_BATCH = 1 << 20
NO_COORDINATOR = -1
"""In place of a coordinator's epoch: the marker was asked for by somebody else."""


_GAP: Final = 0x7065
"""Kafka's own types are small numbers."""


class Marker(IntEnum):
    ABORT = 0
    COMMIT = 1


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, coordinator_epoch: int, now_ms: int) -> bytes:
    """A batch that ends a producer's transaction in one partition."""
    record = (CONTROL_KEY.pack(0, marker), _MARKER_VALUE.pack(0, coordinator_epoch), (), now_ms)
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def build_gap(header: Header) -> bytes:
    """A batch in place of one that was sent: of its producer, with its sequences and as many offsets."""
    record = (CONTROL_KEY.pack(0, _GAP), None, (), header.max_timestamp)
    made = bytearray(
        build_batch(
            [record],
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            control=True,
        )
    )
    fields = decode_header(made)._replace(last_offset_delta=header.last_offset_delta, crc=0)
    BATCH_HEADER.pack_into(made, 0, *fields)
    BATCH_HEADER.pack_into(made, 0, *fields._replace(crc=crc32c(memoryview(made)[CRC_START:])))
    return bytes(made)


def decode_marker(batch: bytes | memoryview) -> Marker | None:
    """How a control batch ends a transaction; None if it does not."""
    try:
        for _, _, record in iterate_batch(batch, _LARGEST_BATCH):
            if record.key is not None and len(record.key) >= CONTROL_KEY.size:
                _, kind = CONTROL_KEY.unpack_from(record.key)
                return Marker(kind) if kind in (Marker.ABORT, Marker.COMMIT) else None
    except (RecordError, CompressionError):
        pass
    return None


def decode_coordinator_epoch(batch: bytes | memoryview) -> int:
    """The epoch of the coordinator that wrote a marker; NO_COORDINATOR if there is none."""
    try:
        for _, _, record in iterate_batch(batch, _LARGEST_BATCH):
            if record.value is not None and len(record.value) >= _MARKER_VALUE.size:
                epoch: int = _MARKER_VALUE.unpack_from(record.value)[1]
                return epoch
    except (RecordError, CompressionError):
        pass
    return NO_COORDINATOR
