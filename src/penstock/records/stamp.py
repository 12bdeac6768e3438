"""A producer's id and sequence, put into a batch that has none: the log then takes it once, however often it comes."""

from struct import Struct

from crc32c import crc32c

from penstock.records.batch import CRC_START

_CRC = Struct(">I")
_PRODUCER = Struct(">qhi")
_CRC_AT = 17
_PRODUCER_AT = 43
_EPOCH = 0


def stamp_producer(batch: bytes, producer_id: int, sequence: int) -> bytes:
    """A copy of a checked batch that says who sent it and as what, in epoch 0, with a CRC that is right again."""
    stamped = bytearray(batch)
    _PRODUCER.pack_into(stamped, _PRODUCER_AT, producer_id, _EPOCH, sequence)
    _CRC.pack_into(stamped, _CRC_AT, crc32c(memoryview(stamped)[CRC_START:]))
    return bytes(stamped)
