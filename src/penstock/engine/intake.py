"""What a client's records have to be like: as many as their batch says, whole, and of a time that the topic takes."""

from penstock.compiled import is_compiled
from penstock.engine.topic_config import TopicConfig
from penstock.errors import Code, PenstockError
from penstock.records import rewrite
from penstock.records.batch import CODEC_MASK, Header

# What one request has looked at on the event loop, half a millisecond's work; the rest goes through the opener, which
# costs two changes of threads for each batch.
MOST_RECORDS_AT_ONCE = 100_000 if is_compiled() else 1_000
MOST_BYTES_AT_ONCE = 256 * 1024  # of compressed batches
MOST_OPENED_AT_ONCE = 512 * 1024


def check_records(config: TopicConfig, batch: memoryview, header: Header, most_bytes: int = MOST_BYTES_AT_ONCE) -> bool:
    """Look at the records of a batch; False leaves that to the engine's opener, because it may take long.

    Args:
        most_bytes: of a compressed batch that is opened here.

    Raises:
        PenstockError: as `rewrite.check_records`.
    """
    if config.opens_batches:
        return False
    codec = header.attributes & CODEC_MASK
    if codec not in config.checked:
        return True
    if header.record_count > MOST_RECORDS_AT_ONCE:
        return False
    if not codec:
        rewrite.check_uncompressed(batch, header)
        return True
    if len(batch) > most_bytes:
        return False
    try:
        rewrite.check_records(batch, header, limit=MOST_OPENED_AT_ONCE)
    except PenstockError as error:
        if error.code is Code.BATCH_TOO_LARGE:
            return False
        raise
    return True


def check_timestamp(config: TopicConfig, topic: str, timestamp_ms: int, now_ms: int) -> None:
    """Whether the topic takes a record of that time. Raises PenstockError."""
    ahead = timestamp_ms - now_ms
    if ahead > config.timestamp_after_ms or -ahead > config.timestamp_before_ms:
        raise PenstockError(
            Code.INVALID_TIMESTAMP,
            f"record time {timestamp_ms} is {abs(ahead)} ms {'ahead of' if ahead > 0 else 'behind'} the "
            f"broker's clock; see message.timestamp.after.max.ms and .before.max.ms of {topic}",
        )
