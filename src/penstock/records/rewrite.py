"""Batches that are looked into before they are kept: every record is whole and in its place, and as its topic wants it.

A topic may want another codec, or a key in each record.
"""

from collections.abc import Iterator
from contextlib import contextmanager

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
from penstock.records.compression import Codec, CompressionError, TooLarge, compress, opened
from penstock.records.record import RecordError, iterate
from penstock.records.walk import walk, walk_view

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
        walk_view(batch[HEADER_BYTES:], header.record_count, header.base_timestamp)
    except RecordError as error:
        raise PenstockError(Code.CORRUPT_BATCH, f"record batch: {error}") from None


def check_records(batch: memoryview, header: Header, *, keyed: bool = False, limit: int = LARGEST_OPENED_BYTES) -> None:
    """Open a batch and look at each of its records.

    Args:
        keyed: whether every record needs a key.
        limit: the most bytes a compressed batch may open to.

    Raises:
        PenstockError: CORRUPT_BATCH when the batch cannot be opened, or holds anything but as many whole records in
            order as it says; BATCH_TOO_LARGE when it opens to more than `limit`; INVALID_BATCH when a key is missing.
    """
    with _looked_into(batch, header, keyed, limit):
        pass


def read_section(batch: memoryview, header: Header) -> bytes:
    """The records of a batch as they are uncompressed, each looked at. Raises as `check_records`."""
    with _looked_into(batch, header, keyed=False, limit=LARGEST_OPENED_BYTES) as section:
        return bytes(section)


@contextmanager
def _looked_into(batch: memoryview, header: Header, keyed: bool, limit: int) -> Iterator[bytes | memoryview]:
    """The records of a batch as they are uncompressed, each looked at; see `opened`. Raises as `check_records`."""
    count = header.record_count
    if keyed and count > MOST_RECORDS:
        raise PenstockError(Code.INVALID_BATCH, f"{count} records in one batch; a compacted topic takes {MOST_RECORDS}")
    try:
        with opened(header.codec, batch[HEADER_BYTES:], max(limit, len(batch)), strict=True) as section:
            if _walk(section, header) and keyed:
                raise _keyless(section, count)
            yield section
    except (CompressionError, RecordError) as error:
        raise _refusal(error) from None


def _walk(section: bytes | memoryview, header: Header, last_delta: int = -1) -> int:
    if isinstance(section, bytes):
        return walk(section, header.record_count, header.base_timestamp, last_delta)
    return walk_view(section, header.record_count, header.base_timestamp, last_delta)


def _keyless(section: bytes | memoryview, count: int) -> PenstockError:
    at_fault = [at for at, record in enumerate(iterate(section, count)) if record.key is None]
    return PenstockError(
        Code.INVALID_BATCH,
        f"record {at_fault[0]} of the batch has no key; a compacted topic needs one",
        records=tuple(at_fault[:MOST_NAMED]),
    )


def _refusal(error: CompressionError | RecordError) -> PenstockError:
    if isinstance(error, TooLarge):
        return PenstockError(
            Code.BATCH_TOO_LARGE, f"record batch: {error}", help="send smaller batches, or compress them less"
        )
    if isinstance(error, CompressionError):
        return PenstockError(Code.CORRUPT_BATCH, f"record batch cannot be opened: {error}")
    return PenstockError(Code.CORRUPT_BATCH, f"record batch: {error}")


def check_copied(batch: memoryview, header: Header, *, limit: int = LARGEST_OPENED_BYTES) -> None:
    """Look at each record of a batch that a leader has kept, and may have compacted since: records may be missing.

    Args:
        limit: the most bytes a compressed batch may open to.

    Raises:
        PenstockError: as `check_records`.
    """
    if header.record_count < 1 and len(batch) == HEADER_BYTES:
        return  # all of it is gone, and only its offsets are left
    body = batch[HEADER_BYTES:]
    try:
        if not header.codec:
            walk_view(body, header.record_count, header.base_timestamp, header.last_offset_delta)
            return
        with opened(header.codec, body, max(limit, len(batch))) as section:
            _walk(section, header, header.last_offset_delta)
    except (CompressionError, RecordError) as error:
        raise _refusal(error) from None


def rewrite(batch: memoryview, header: Header, codec: Codec | None, *, keyed: bool) -> tuple[memoryview, Header]:
    """The batch as the topic wants it, looked at record by record; the same one when nothing is to be changed.

    Args:
        codec: how it is to be compressed; None leaves that to its producer.
        keyed: whether every record needs a key.

    Raises:
        PenstockError: as `check_records`.
    """
    with _looked_into(batch, header, keyed, LARGEST_OPENED_BYTES) as section:
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
