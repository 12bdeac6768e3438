"""What a queue goes by: `QueueRules`, and the same as text, as people write it and the metadata store keeps it.

`SETTINGS` has a row for each key; reference pages can be made of it.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.engine.queues.backoff import Backoff, Growth
from penstock.engine.queues.sorting.lanes import LaneOrder
from penstock.engine.topic_names import check_name
from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean
from penstock.quantities import format_duration, format_size, parse_duration_ms, parse_size

LEAST_VISIBILITY_MS: Final = 1000
MOST_VISIBILITY_MS: Final = 12 * 3_600_000
"""Of a lease in all, however often it is renewed."""
MOST_ATTEMPTS: Final = 200
MOST_UNACKED: Final = 1_000_000
MOST_TTL_MS: Final = 36_500 * 86_400_000
LEAST_DEDUP_MS: Final = 1000
MOST_DEDUP_MS: Final = 7 * 86_400_000
MOST_MESSAGES: Final = 10**12
MOST_BYTES: Final = 1 << 50
MOST_DELAY_MS: Final = 365 * 86_400_000
MOST_WEIGHTS: Final = 100
LEAST_WEIGHT: Final = 0.01
MOST_WEIGHT: Final = 100
OWN_TARGET: Final = ""
"""Dead letters go to the topic that is named after the queue (`names.dead_letter_topic`)."""

DEDUP_WINDOW: Final = "dedup-window"
_NOTHING: Final = "none"
_OWN_TARGET_TEXT: Final = "default"
_BROKERS_OWN: Final = "__"
_SHOWN: Final = 60


class OnExpiry(StrEnum):
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class OnFull(StrEnum):
    REJECT = "reject"
    DROP_OLDEST = "drop-oldest"
    DEAD_LETTER = "dead-letter"


class QueueRules(NamedTuple):
    """What is in force for one queue.

    Attributes:
        visibility_ms: how long a lease lasts unless its consumer asks for another time or renews it.
        limit: after so many failed attempts a message becomes a dead letter.
        by_deliveries: the limit counts how often a message was leased instead, as share clients expect.
        max_unacked: messages of the queue that may be leased at a time, in each partition.
        max_unacked_consumer: those that one consumer may have.
        ttl_ms: how long a message may wait; its own time comes before that. None: for ever.
        max_messages: those of a partition that are not settled; None: no limit. Likewise `max_bytes`.
        dead_letter: the topic of dead letters; `OWN_TARGET`; or None: they are dropped.
        durable: retention spares what is not settled.
        is_fifo: of the messages of a key one is out at a time, in their order.
        blocks_keys: there, a message that fails too often is tried on, and its key waits; no dead letter is made of it.
        single_active: one consumer has all messages of a partition, until it leaves or falls silent.
        lanes: how priorities share a queue.
        tenant_weights: of tenants that get more or less than others.
        delay_ms: how long each message waits that does not say so itself.
        dedup_ms: for so long messages are dropped that have the id of one before; None: never. Of a topic's own queue.
    """

    visibility_ms: int = 30_000
    limit: int = 3
    by_deliveries: bool = False
    backoff: Backoff = Backoff(Growth.EXPONENTIAL, 1000, 300_000, 0.2)
    max_unacked: int = 20_000
    max_unacked_consumer: int = 2000
    ttl_ms: int | None = None
    on_expiry: OnExpiry = OnExpiry.DROP
    max_messages: int | None = None
    max_bytes: int | None = None
    on_full: OnFull = OnFull.REJECT
    dead_letter: str | None = OWN_TARGET
    durable: bool = True
    is_fifo: bool = False
    blocks_keys: bool = False
    single_active: bool = False
    lanes: LaneOrder = LaneOrder.WEIGHTED
    tenant_weights: tuple[tuple[str, float], ...] = ()
    delay_ms: int = 0
    dedup_ms: int | None = None


QUEUE_RULES: Final = QueueRules()
"""Of a queue that was made as one, where nothing else was said."""
SHARE_RULES: Final = QueueRules(limit=5, by_deliveries=True, backoff=Backoff(), max_unacked=2000, durable=False)
"""Of a group that a share client made: what Kafka's share groups do."""


class Setting(NamedTuple):
    """One key.

    Attributes:
        allowed: what may be given, for people.
        help: what it is for, in a sentence or two.
        parse: the rules with what a text says. Raises ValueError.
        format: what the rules say, as text; None where another key says it.
    """

    name: str
    allowed: str
    help: str
    parse: Callable[[str, QueueRules], QueueRules]
    format: Callable[[QueueRules], str | None]


def parse_rules(given: Mapping[str, str], base: QueueRules) -> QueueRules:
    """The rules with what was given in place of what they say. Raises PenstockError INVALID_CONFIG."""
    if "max-attempts" in given and "max-deliveries" in given:
        raise PenstockError(
            Code.INVALID_CONFIG,
            f"queue settings max-attempts ({given['max-attempts'][:_SHOWN]!r}) and max-deliveries "
            f"({given['max-deliveries'][:_SHOWN]!r}) exclude each other",
            help="a queue counts failed attempts, or deliveries as share groups do; give one of them",
        )
    rules = base
    for name, text in given.items():
        setting = SETTINGS.get(name)
        if setting is None:
            hint = did_you_mean(name, SETTINGS, f"there are {', '.join(SETTINGS)}")
            raise PenstockError(Code.INVALID_CONFIG, f"queue setting {name[:_SHOWN]!r} is unknown; {hint}")
        try:
            rules = setting.parse(text.strip(), rules)
        except ValueError:
            raise PenstockError(
                Code.INVALID_CONFIG, f"queue setting {name} is {text[:_SHOWN]!r}; allowed: {setting.allowed}"
            ) from None
    return rules


def format_rules(rules: QueueRules) -> dict[str, str]:
    """All of the rules by key. `parse_rules` makes the same ones of it, whatever its base is."""
    texts = {name: setting.format(rules) for name, setting in SETTINGS.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError
    return number


def _time(low: int, high: int) -> Callable[[str], int]:
    return lambda text: _within(parse_duration_ms(text), low, high)


def _count(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,15}", text):
            raise ValueError
        return _within(int(text), low, high)

    return parse


def _or_nothing(parse: Callable[[str], int]) -> Callable[[str], int | None]:
    return lambda text: None if text == _NOTHING else parse(text)


def _parse_target(text: str) -> str | None:
    if text == _NOTHING:
        return None
    if text == _OWN_TARGET_TEXT:
        return OWN_TARGET
    try:
        check_name(text)
    except PenstockError:
        raise ValueError from None
    if text.startswith(_BROKERS_OWN):
        raise ValueError
    return text


def _format_target(target: str | None) -> str:
    return _NOTHING if target is None else target or _OWN_TARGET_TEXT


def _parse_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _parse_kind(text: str) -> bool:
    if text not in ("standard", "fifo"):
        raise ValueError
    return text == "fifo"


def _parse_on_exhausted(text: str) -> bool:
    if text not in ("skip", "block"):
        raise ValueError
    return text == "block"


def _parse_weights(text: str) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for part in () if text == _NOTHING else text.split(","):
        name, equals, weight = part.strip().rpartition("=")
        if not name or not equals or name in found or not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,2})?", weight):
            raise ValueError
        found[name] = float(weight)
        if not LEAST_WEIGHT <= found[name] <= MOST_WEIGHT:
            raise ValueError
    if len(found) > MOST_WEIGHTS:
        raise ValueError
    return tuple(found.items())


def _format_weights(weights: tuple[tuple[str, float], ...]) -> str:
    return ",".join(f"{name}={weight:g}" for name, weight in weights) or _NOTHING


def _parse_size(text: str, rules: QueueRules) -> QueueRules:
    """A number of messages, of bytes, or one of each."""
    found: dict[str, int] = {}
    for part in () if text == _NOTHING else text.split(",", 2):
        is_count = part.strip().isdecimal()
        field = "max_messages" if is_count else "max_bytes"
        if field in found:
            raise ValueError
        number = _count(1, MOST_MESSAGES)(part.strip()) if is_count else parse_size(part)
        found[field] = _within(number, 1, MOST_MESSAGES if is_count else MOST_BYTES)
    return rules._replace(max_messages=found.get("max_messages"), max_bytes=found.get("max_bytes"))


def _format_size(rules: QueueRules) -> str:
    parts = [] if rules.max_messages is None else [str(rules.max_messages)]
    parts += [] if rules.max_bytes is None else [format_size(rules.max_bytes)]
    return ",".join(parts) or _NOTHING


def _limit(name: str, help: str, *, by_deliveries: bool) -> Setting:  # noqa: A002 - the word users see
    parse = _count(1, MOST_ATTEMPTS)
    return Setting(
        name,
        f"1 to {MOST_ATTEMPTS}",
        help,
        lambda text, rules: rules._replace(limit=parse(text), by_deliveries=by_deliveries),
        lambda rules: str(rules.limit) if rules.by_deliveries == by_deliveries else None,
    )


def _of(
    field: str,
    name: str,
    allowed: str,
    help: str,  # noqa: A002 - the word users see
    parse: Callable[[str], Any],
    format: Callable[[Any], str] = str,  # noqa: A002 - the verb for it
) -> Setting:
    """The setting that is one field of the rules."""
    return Setting(
        name,
        allowed,
        help,
        lambda text, rules: rules._replace(**{field: parse(text)}),
        lambda rules: format(getattr(rules, field)),
    )


_ROWS: Final = (
    _of(
        "visibility_ms",
        "visibility",
        f"{format_duration(LEAST_VISIBILITY_MS)} to {format_duration(MOST_VISIBILITY_MS)}",
        "How long a consumer has a message to itself. Then the message counts as failed, unless it was settled or its "
        "lease renewed.",
        _time(LEAST_VISIBILITY_MS, MOST_VISIBILITY_MS),
        format_duration,
    ),
    _limit(
        "max-attempts",
        "After so many failed attempts a message becomes a dead letter. Failed is what a consumer says has failed, or "
        "did not settle in time.",
        by_deliveries=False,
    ),
    _limit(
        "max-deliveries",
        "In place of max-attempts: after so many deliveries that were not settled a message becomes a dead letter.",
        by_deliveries=True,
    ),
    _of(
        "backoff",
        "backoff",
        "none, fixed:10s, linear:1s..1m or exponential:1s..5m, up to 7d, the first wait no longer than the last; with "
        "~0.2 behind it chance adds up to a fifth",
        "How long a message that failed waits until it is delivered again.",
        Backoff.parse,
        Backoff.format,
    ),
    _of(
        "dead_letter",
        "dead-letter",
        f"{_OWN_TARGET_TEXT}, {_NOTHING}, or the name of a topic that does not begin with {_BROKERS_OWN}",
        f"Where dead letters go: {_OWN_TARGET_TEXT} is a topic named after the queue, made when it is needed. With "
        f"{_NOTHING} they are dropped.",
        _parse_target,
        _format_target,
    ),
    _of(
        "max_unacked",
        "max-unacked",
        f"1 to {MOST_UNACKED}",
        "How many messages of a partition consumers may have at a time, all together.",
        _count(1, MOST_UNACKED),
    ),
    _of(
        "max_unacked_consumer",
        "max-unacked-consumer",
        f"1 to {MOST_UNACKED}",
        "How many messages of a partition one consumer may have at a time.",
        _count(1, MOST_UNACKED),
    ),
    _of(
        "ttl_ms",
        "ttl",
        f"{_NOTHING}, or 1ms to {format_duration(MOST_TTL_MS)}",
        "How long a message may wait for a consumer. The time a message has of its own comes first, be it longer.",
        _or_nothing(_time(1, MOST_TTL_MS)),
        lambda ttl_ms: _NOTHING if ttl_ms is None else format_duration(ttl_ms),
    ),
    _of(
        "on_expiry",
        "on-expiry",
        " or ".join(OnExpiry),
        "What becomes of a message whose time is over.",
        OnExpiry,
    ),
    Setting(
        "max-size",
        f"{_NOTHING}, a number of messages (10000), of bytes (512MiB, 1GiB), or both (10000,1GiB)",
        "How much of a partition may wait to be settled.",
        _parse_size,
        _format_size,
    ),
    _of(
        "on_full",
        "on-full",
        " or ".join(OnFull),
        "What happens when that much waits: what is new is refused, or what is oldest is dropped or becomes a dead "
        "letter.",
        OnFull,
    ),
    _of(
        "is_fifo",
        "kind",
        "standard or fifo",
        "With fifo, messages of a key are delivered one at a time and in their order: the next one waits until the one "
        "before is settled.",
        _parse_kind,
        lambda is_fifo: "fifo" if is_fifo else "standard",
    ),
    _of(
        "blocks_keys",
        "on-exhausted",
        "skip or block",
        "What becomes of a key in a fifo queue when a message of it has failed too often: skip makes that one a dead "
        "letter and goes on with the next; block tries it on, and the key waits.",
        _parse_on_exhausted,
        lambda blocks: "block" if blocks else "skip",
    ),
    _of(
        "single_active",
        "single-active",
        "true or false",
        "Whether one consumer at a time gets all messages of a partition. The next one takes over when it has left, or "
        "has neither messages nor asked for any for as long as a lease lasts.",
        _parse_flag,
        lambda single: str(single).lower(),
    ),
    _of(
        "lanes",
        "lanes",
        " or ".join(LaneOrder),
        "How priorities share the queue: weighted gives critical, high, normal, low and background 50, 25, 15, 7 and 3 "
        "of 100 messages where all have some; strict gives the highest first. No lane waits over 30s for a turn.",
        LaneOrder,
    ),
    _of(
        "tenant_weights",
        "tenant-weights",
        f"{_NOTHING}, or names with weights from {LEAST_WEIGHT} to {MOST_WEIGHT}: gold=4,trial=0.5",
        "How much tenants get of the queue beside each other; those not named have 1.",
        _parse_weights,
        _format_weights,
    ),
    _of(
        "delay_ms",
        "delay",
        f"{_NOTHING}, or 1ms to {format_duration(MOST_DELAY_MS)}",
        "How long each message waits after it was published, unless it says itself when it is due.",
        lambda text: 0 if text == _NOTHING else _time(1, MOST_DELAY_MS)(text),
        lambda delay_ms: format_duration(delay_ms) if delay_ms else _NOTHING,
    ),
    _of(
        "durable",
        "durable",
        "true or false",
        "Whether retention spares what the queue has not settled.",
        _parse_flag,
        lambda durable: str(durable).lower(),
    ),
    _of(
        "dedup_ms",
        DEDUP_WINDOW,
        f"{_NOTHING}, or {format_duration(LEAST_DEDUP_MS)} to {format_duration(MOST_DEDUP_MS)}",
        "For how long a message is dropped that has the penstock-id of one before. Of the queue that is named as its "
        "topic.",
        _or_nothing(_time(LEAST_DEDUP_MS, MOST_DEDUP_MS)),
        lambda dedup_ms: _NOTHING if dedup_ms is None else format_duration(dedup_ms),
    ),
)
SETTINGS: Final[Mapping[str, Setting]] = {setting.name: setting for setting in _ROWS}
