"""What a log tells of the ids of the last while, when a broker begins to lead its partition.

Only leaders decide, so nothing about ids is kept on a disk but the records themselves, and what was cut off a log is
forgotten with it. Batches that came while there was a window bear the time at which their leader took them
(`Leader.append_checked`), whatever their producers said; for older ones their producers are believed.
"""

from typing import Final, NamedTuple

from penstock.engine.offset_lookup import find_by_time
from penstock.engine.once.ids import read_kept_ids
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.records.batch import decode_header
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError
from penstock.storage.log.log import Log
from penstock.storage.log.reading import read_batches

log_ = get_logger("duplicates")
_READ_BYTES: Final = 256 * 1024


class Recalled(NamedTuple):
    """Ids of a few batches, in their order.

    Attributes:
        next_offset: where to go on.
        batches: the time of each, and its ids with the offsets of their records.
    """

    next_offset: int
    batches: list[tuple[int, list[tuple[bytes, int]]]]


def find_start(log: Log, since_ms: int, limit: int) -> int:
    """The first offset that may have come since then; `limit` if none has. Blocking. Raises PenstockError, OSError."""
    try:
        found = find_by_time(log, since_ms, limit)
    except PenstockError as error:
        if error.code is not Code.CORRUPT_LOG:
            raise
        return log.log_start  # batches tell their times one by one, as far as they can be read
    return limit if found is None else max(found.offset, log.log_start)


def recall(log: Log, offset: int, limit: int, since_ms: int) -> Recalled:
    """Ids from an offset on, of some batches that came since then. Blocking. Raises PenstockError, OSError."""
    offset = max(offset, log.log_start)
    if offset >= limit:
        return Recalled(limit, [])
    try:
        stretch = read_batches(log, offset, limit, _READ_BYTES)
    except PenstockError as error:
        if error.code is not Code.CORRUPT_LOG:
            raise
        beyond = min((each.base for each in list(log.segments) if each.base > offset), default=limit)
        log_.error(
            "part of a log cannot be read: duplicates of messages in it may come to be there twice",
            log=log.name,
            offsets=f"{offset} to {beyond - 1}",
            error=str(error),
        )
        return Recalled(min(beyond, limit), [])
    found = []
    for batch in stretch.batches:
        header = decode_header(batch)
        if header.is_control or header.is_transactional or not header.record_count or header.max_timestamp < since_ms:
            continue
        try:
            ids = [(each, header.base_offset + at) for at, each in read_kept_ids(batch, header)]
        except (CompressionError, RecordError) as error:
            log_.limited("recall").error(
                "a batch cannot be opened: duplicates of messages in it may come to be there twice",
                log=log.name,
                offset=header.base_offset,
                error=str(error),
            )
            continue
        if ids:
            found.append((header.max_timestamp, ids))
    return Recalled(stretch.next_offset, found)
