"""What messages of stories say of themselves: as words of a line, as headers, and as a broker that looks finds them."""

from tests.message_log import MessageLog
from tests.unit.engine.queues.story_words import Words

from penstock.engine.queues.headers import DELAY_MS, DELIVER_AT, PRIORITY, TENANT, TTL_MS
from penstock.engine.queues.sorting.indexer import Looked, look_through
from penstock.records.build import build_batch
from penstock.records.record import Headers


def headers_of(words: Words) -> Headers:
    """Of `send ttl=5s delay=5s at=9s priority=high tenant=ann`."""
    said: dict[str, object] = {
        TTL_MS: words.ms("ttl"),
        DELAY_MS: words.ms("delay"),
        DELIVER_AT: words.ms("at"),
        PRIORITY: words.options.get("priority"),
        TENANT: words.options.get("tenant"),
    }
    return tuple((name, str(value).encode()) for name, value in said.items() if value is not None)


def look_at(log: MessageLog, begin: int, most: int, now: int, *, by_key: bool) -> Looked:
    """Messages from an offset on, each as a batch of its own. Offsets without any say nothing."""
    end = min(begin + most, log.end_offset)
    there = [log.messages[offset] for offset in range(begin, end) if offset in log.messages]
    batches = b"".join(
        build_batch([(each.key, each.value, each.headers, each.timestamp)], base_offset=each.offset) for each in there
    )
    return look_through(batches, now, by_key)._replace(last=end - 1)
