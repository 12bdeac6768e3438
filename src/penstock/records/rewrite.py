"""What a topic may ask of a batch before it is kept, at the cost of opening it: another codec, a key in each record."""

from crc32c import crc32c

from penstock.errors import Code, PenstockError
from penstock.records.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    LARGEST_OPENED_BYTES,
    PREFIX_BYTES,
    Header,
)
from penstock.records.compression import Codec, CompressionError, compress, decompress
from penstock.records.record import RecordError, iterate

MOST_RECORDS = 500_000
"""What a batch may hold when each of its records is looked at."""
MOST_NAMED = 1000
"""Records at fault that one error names."""
_LEAST_TIME, _LARGEST_TIME = -1 << 63, (1 << 63) - 1


def rewrite(batch: memoryview, header: Header, codec: Codec | None, *, keyed: bool) -> tuple[memoryview, Header]:
    """The batch as the topic wants it; the same one when nothing is to be changed.

    Args:
        codec: how it is to be compressed; None leaves that to its producer.
        keyed: whether every record needs a key.

    Raises:
        PenstockError: INVALID_BATCH when it cannot be opened within the limits above, a key is missing, or compaction
            could not take it apart later.
    """
    recompress = codec is not None and codec != header.codec
    if not recompress and not keyed:
        return batch, header
    section = _open(batch, header)
    if keyed:
        _check_keyed(section, header)
    if codec is None or not recompress:
        return batch, header
    body = compress(codec, section)
    fields = header._replace(
        batch_length=HEADER_BYTES - PREFIX_BYTES + len(body),
        attributes=header.attributes & ~CODEC_MASK | codec,
        crc=0,
    )
    made = memoryview(bytearray(HEADER_BYTES + len(body)))
    made[HEADER_BYTES:] = body
    BATCH_HEADER.pack_into(made, 0, *fields)
    fields = fields._replace(crc=crc32c(made[CRC_START:]))
    BATCH_HEADER.pack_into(made, 0, *fields)
    return made, fields


def _open(batch: memoryview, header: Header) -> bytes | memoryview:
    section = batch[HEADER_BYTES:]
    if header.codec == Codec.NONE:
        return section
    try:
        return decompress(header.codec, section, LARGEST_OPENED_BYTES)
    except CompressionError as error:
        raise PenstockError(
            Code.INVALID_BATCH,
            f"record batch cannot be opened: {error}",
            help="with compression.type=producer and cleanup.policy=delete it is kept unopened",
        ) from None


def _check_keyed(section: bytes | memoryview, header: Header) -> None:
    """A batch whose records compaction cannot place would end every pass, so it is not let in."""
    count = header.record_count
    if count > MOST_RECORDS:
        raise PenstockError(Code.INVALID_BATCH, f"{count} records in one batch; a compacted topic takes {MOST_RECORDS}")
    keyless = []
    try:
        for at, record in enumerate(iterate(section, count)):
            if record.key is None:
                keyless.append(at)
            if record.offset_delta != at:
                raise RecordError(f"record {at} has offset delta {record.offset_delta}")
            if not _LEAST_TIME <= header.base_timestamp + record.timestamp_delta <= _LARGEST_TIME:
                raise RecordError(f"the timestamp of record {at} does not fit in 64 bits")
    except RecordError as error:
        raise PenstockError(Code.INVALID_BATCH, f"record batch cannot be compacted: {error}") from None
    if keyless:
        raise PenstockError(
            Code.INVALID_BATCH,
            f"record {keyless[0]} of the batch has no key; a compacted topic needs one",
            records=tuple(keyless[:MOST_NAMED]),
        )
