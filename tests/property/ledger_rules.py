"""The queues of the ledger's world: between them they have every setting that changes what comes of a step."""

from penstock.engine.queues.backoff import Backoff, Growth
from penstock.engine.queues.settings import QUEUE_RULES, SHARE_RULES, OnExpiry, OnFull

HOUR_MS = 3_600_000
RULES = {
    "plain": QUEUE_RULES._replace(
        visibility_ms=10_000,
        backoff=Backoff(Growth.EXPONENTIAL, 1000, 60_000, 0.2),
        max_unacked=30,
        max_messages=20,
    ),
    "share": SHARE_RULES._replace(limit=4, max_unacked_consumer=12),
    "drop": QUEUE_RULES._replace(
        limit=2,
        backoff=Backoff(Growth.FIXED, 1000, 1000),
        ttl_ms=20_000,
        max_messages=15,
        max_bytes=1500,
        on_full=OnFull.DROP_OLDEST,
        dead_letter=None,
        durable=False,
    ),
    "bulk": QUEUE_RULES._replace(
        backoff=Backoff(),
        ttl_ms=HOUR_MS,
        on_expiry=OnExpiry.DEAD_LETTER,
        max_bytes=2500,
        on_full=OnFull.DEAD_LETTER,
    ),
    "slow": QUEUE_RULES._replace(
        limit=6, backoff=Backoff(Growth.LINEAR, 2000, 5000), max_bytes=3000, on_expiry=OnExpiry.DEAD_LETTER
    ),
    "steady": QUEUE_RULES._replace(limit=200, backoff=Backoff(Growth.EXPONENTIAL, 100, 1500), ttl_ms=5 * HOUR_MS),
}
DURABLE = ("plain", "bulk")
