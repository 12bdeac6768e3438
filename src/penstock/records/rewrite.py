"""Batches that are looked into before they are kept: every record is whole and in its place, and as its topic wants it.

A topic may want another codec, or a key in each record.
"""

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
from penstock.records.compression import Codec, CompressionError, TooLarge, compress, decompress
from penstock.records.record import RecordError, iterate
from penstock.records.walk import walk

MOST_RECORDS = 500_000
"""What a batch of a compacted topic may hold."""
MOST_NAMED = 1000
"""Records at fault that one error names."""


def check_uncompressed(batch: memoryview, header: Header) -> None:
    """Look at each record of a batch that is not compressed: the hot path of `check_records`.

    Raises:
        PenstockError: CORRUPT_BATCH.
    """
    try:
        walk(bytes(batch[HEADER_BYTES:]), header.record_count, header.base_timestamp)
    except RecordError as error:
        raise PenstockError(Code.CORRUPT_BATCH, f"record batch: {error}") from None


def check_records(
    batch: memoryview, header: Header, *, keyed: bool = False, limit: int = LARGEST_OPENED_BYTES
) -> bytes:
    """Open a batch and look at each of its records; returns them as they are uncompressed.

    Args:
        keyed: whether every record needs a key.
        limit: the most bytes a compressed batch may open to.

    Raises:
        PenstockError: CORRUPT_BATCH when the batch cannot be opened, or holds anything but as many whole records in
            order as it says; BATCH_TOO_LARGE when it opens to more than `limit`; INVALID_BATCH when a key is missing.
    """
    count = header.record_count
    if keyed and count > MOST_RECORDS:
        raise PenstockError(Code.INVALID_BATCH, f"{count} records in one batch; a compacted topic takes {MOST_RECORDS}")
    try:
        section = decompress(header.codec, batch[HEADER_BYTES:], max(limit, len(batch)), strict=True)
        keyless = walk(section, count, header.base_timestamp)
    except TooLarge as error:
        raise PenstockError(
            Code.BATCH_TOO_LARGE, f"record batch: {error}", help="send smaller batches, or compress them less"
        ) from None
    except CompressionError as error:
        raise PenstockError(Code.CORRUPT_BATCH, f"record batch cannot be opened: {error}") from None
    except RecordError as error:
        raise PenstockError(Code.CORRUPT_BATCH, f"record batch: {error}") from None
    if keyed and keyless:
        at_fault = [at for at, record in enumerate(iterate(section, count)) if record.key is None]
        raise PenstockError(
            Code.INVALID_BATCH,
            f"record {at_fault[0]} of the batch has no key; a compacted topic needs one",
            records=tuple(at_fault[:MOST_NAMED]),
        )
    return section


def rewrite(batch: memoryview, header: Header, codec: Codec | None, *, keyed: bool) -> tuple[memoryview, Header]:
    """The batch as the topic wants it, looked at record by record; the same one when nothing is to be changed.

    Args:
        codec: how it is to be compressed; None leaves that to its producer.
        keyed: whether every record needs a key.

    Raises:
        PenstockError: as `check_records`.
    """
    section = check_records(batch, header, keyed=keyed)
    if codec is None or codec == header.codec:
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
