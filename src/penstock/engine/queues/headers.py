"""The headers queues know: what a message says of itself, and what a broker says of a dead letter.

Who publishes writes `penstock-*` headers, as UTF-8 text. A value that cannot be read is as if it were not there, and is
told of with the reason: a message is never lost for it. Of several headers of a name the last one counts, as it does
for Kafka's clients.

What a broker writes into dead letters is `penstock-sys-*`, and `__dlq.errors.*` in Kafka's words (KIP-1191) beside it.
Whoever publishes has no say in these, so a door strips them of what clients send.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.records.record import Headers

TTL_MS: Final = "penstock-ttl-ms"
MESSAGE_ID: Final = "penstock-id"
PRIORITY: Final = "penstock-priority"
DELIVER_AT: Final = "penstock-deliver-at"
DELAY_MS: Final = "penstock-delay-ms"
TENANT: Final = "penstock-tenant"

LONGEST_MS: Final = 36_500 * 86_400_000
"""Of a time to live and of a delay: a hundred years."""
LAST_MOMENT_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that has a name in RFC 3339."""
LONGEST_ID_BYTES: Final = 256
LONGEST_TENANT_BYTES: Final = 128
LANES: Final[Mapping[str, int]] = {"critical": 8, "high": 6, "normal": 4, "low": 2, "background": 0}
"""The lower of the two priorities that each lane has, 9 being the highest. A message that says nothing has 4, too."""

SYSTEM: Final = "penstock-sys-"
REASON: Final = "penstock-sys-reason"
DETAIL: Final = "penstock-sys-detail"
TOPIC: Final = "penstock-sys-topic"
TOPIC_ID: Final = "penstock-sys-topic-id"
PARTITION: Final = "penstock-sys-partition"
OFFSET: Final = "penstock-sys-offset"
GROUP: Final = "penstock-sys-group"
ATTEMPTS: Final = "penstock-sys-attempts"
DELIVERIES: Final = "penstock-sys-deliveries"
FIRST_TIME: Final = "penstock-sys-first-time-ms"
DEAD_TIME: Final = "penstock-sys-dead-time-ms"
RETURN_TIME: Final = "penstock-sys-return-time-ms"
KAFKA_SYSTEM: Final = "__dlq.errors."
KAFKA_TOPIC: Final = "__dlq.errors.topic"
KAFKA_PARTITION: Final = "__dlq.errors.partition"
KAFKA_OFFSET: Final = "__dlq.errors.offset"
KAFKA_GROUP: Final = "__dlq.errors.group"
KAFKA_DELIVERIES: Final = "__dlq.errors.delivery.count"
KAFKA_MESSAGE: Final = "__dlq.errors.message"
LONGEST_DETAIL: Final = 1000
"""In characters; whoever rejects a message may say why at any length."""

_RESERVED: Final = (SYSTEM, KAFKA_SYSTEM)
_LONGEST_NUMBER_BYTES: Final = 64
_SHOWN: Final = 40
_NUMBER: Final = re.compile("[0-9]{1,15}")
_MOMENT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_PRIORITIES: Final = f"0 to 9, or {', '.join(LANES)}"
_MOMENTS: Final = "a time such as 2026-05-01T12:30:00Z, or milliseconds since 1970"
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class Unread(NamedTuple):
    """A header that counts for nothing, and why."""

    name: str
    why: str


class QueueHeaders(NamedTuple):
    """What a message says of itself; None for what it does not say.

    Attributes:
        ttl_ms: how long it may wait for a consumer.
        message_id: by which its publisher knows it.
        priority: from 0 to 9, the highest.
        deliver_at_ms: not before then, in epoch milliseconds.
        delay_ms: not before so long after it was published.
        tenant: whose it is, where several share a queue.
        unread: what could not be read, each name once.
    """

    ttl_ms: int | None = None
    message_id: str | None = None
    priority: int | None = None
    deliver_at_ms: int | None = None
    delay_ms: int | None = None
    tenant: str | None = None
    unread: tuple[Unread, ...] = ()


NOTHING_SAID: Final = QueueHeaders()


class Reason(StrEnum):
    """Why a message became a dead letter."""

    REJECTED = "rejected"
    ATTEMPTS = "attempts"
    DELIVERIES = "deliveries"
    EXPIRED = "expired"
    OVERFLOW = "overflow"


_KAFKA_MESSAGES: Final[Mapping[Reason, str]] = {
    Reason.REJECTED: "Offset rejected by client.",
    Reason.ATTEMPTS: "Offset delivery count exceeded the threshold.",
    Reason.DELIVERIES: "Offset delivery count exceeded the threshold.",
    Reason.EXPIRED: "Offset expired.",
    Reason.OVERFLOW: "Offset removed from a full queue.",
}
"""As Kafka words it, where it knows the reason; it does not tell attempts from deliveries."""


class Death(NamedTuple):
    """Attributes:
    topic: where the message was, with `topic_id`, `partition` and `offset`.
    group: whose dead letter it is; for other groups the message lives on.
    first_ms: when it was published, in epoch milliseconds.
    dead_ms: when it became a dead letter.
    detail: what its consumer said.
    """

    reason: Reason
    topic: str
    topic_id: UUID
    partition: int
    offset: int
    group: str
    attempts: int
    deliveries: int
    first_ms: int
    dead_ms: int
    detail: str = ""


def read_headers(headers: Headers) -> QueueHeaders:
    """What a message says of itself. Never raises."""
    for name, _ in headers:
        if name in _READERS:
            return _read(headers)
    return NOTHING_SAID


@lru_cache(maxsize=4096)
def read_value(name: str, value: bytes | None) -> int | str | None:
    """What one of these headers says, None if that cannot be read. Of several of a name the last one counts."""
    reader = _READERS[name]
    try:
        return reader.parse(_text_of(value, reader.longest_bytes))
    except ValueError:
        return None


def routing_key(key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """What a message's partition is chosen by: its key, or else its id, so that one sent again finds itself there."""
    if key is not None:
        return key
    for name, value in reversed(headers):
        if name == MESSAGE_ID:
            try:
                _text_of(value, LONGEST_ID_BYTES)
            except ValueError:
                return None
            return value
    return None


def make_death_headers(death: Death) -> Headers:
    """What a dead letter has besides the headers of its message."""
    texts: dict[str, object] = {
        REASON: death.reason,
        **({DETAIL: death.detail[:LONGEST_DETAIL]} if death.detail else {}),
        TOPIC: death.topic,
        TOPIC_ID: death.topic_id,
        PARTITION: death.partition,
        OFFSET: death.offset,
        GROUP: death.group,
        ATTEMPTS: death.attempts,
        DELIVERIES: death.deliveries,
        FIRST_TIME: death.first_ms,
        DEAD_TIME: death.dead_ms,
        KAFKA_TOPIC: death.topic,
        KAFKA_PARTITION: death.partition,
        KAFKA_OFFSET: death.offset,
        KAFKA_GROUP: death.group,
        KAFKA_DELIVERIES: death.deliveries,
        KAFKA_MESSAGE: _KAFKA_MESSAGES[death.reason],
    }
    return tuple((name, str(text).encode(errors="replace")) for name, text in texts.items())


def make_return_headers(headers: Headers, now_ms: int) -> Headers:
    """Of a dead letter that goes back to its queue: it tells how it died, and that it was brought back.

    They are for people. Nothing goes by them: in the topic it comes to anybody may write them.
    """
    kept = tuple(each for each in headers if not each[0].startswith(KAFKA_SYSTEM) and each[0] != RETURN_TIME)
    return (*kept, (RETURN_TIME, str(now_ms).encode()))


def strip_reserved(headers: Headers) -> Headers:
    """Without what only brokers may write; the same object where there is nothing of it."""
    for name, _ in headers:
        if name.startswith(_RESERVED):
            return tuple(each for each in headers if not each[0].startswith(_RESERVED))
    return headers


class _Reader(NamedTuple):
    field: str
    longest_bytes: int
    parse: Callable[[str], int | str]
    """Raises ValueError with what is wanted."""


def _read(headers: Headers) -> QueueHeaders:
    said: dict[str, Any] = {}
    unread: list[Unread] = []
    for name, value in reversed(headers):
        reader = _READERS.get(name)
        if reader is None or reader.field in said:  # so a message with thousands of them costs no more than one of each
            continue
        try:
            said[reader.field] = reader.parse(_text_of(value, reader.longest_bytes))
        except ValueError as error:
            said[reader.field] = None
            unread.append(Unread(name, str(error)))
    return QueueHeaders(**said, unread=tuple(reversed(unread)))


def _text_of(value: bytes | None, longest_bytes: int) -> str:
    if not value:
        raise ValueError("it has no value")
    if len(value) > longest_bytes:
        raise ValueError(f"it has {len(value)} bytes, {longest_bytes} at most are allowed")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _parse_number(text: str, low: int, high: int, wanted: str) -> int:
    if _NUMBER.fullmatch(text) and low <= (number := int(text)) <= high:
        return number
    raise ValueError(f"{text[:_SHOWN]!r} is not {wanted}")


def _milliseconds(low: int) -> Callable[[str], int]:
    wanted = f"a number of milliseconds from {low} to {LONGEST_MS}"
    return lambda text: _parse_number(text, low, LONGEST_MS, wanted)


def _parse_priority(text: str) -> int:
    lane = LANES.get(text)
    return _parse_number(text, 0, 9, _PRIORITIES) if lane is None else lane


def _parse_moment(text: str) -> int:
    """Epoch milliseconds, a fraction of one rounded up: nothing comes before it is due."""
    found = _MOMENT.fullmatch(text)
    if not found:
        return _parse_number(text, 0, LAST_MOMENT_MS, _MOMENTS)
    day, time, fraction, zone = found.groups(default="0")
    try:
        since = datetime.fromisoformat(f"{day}T{time}{zone.upper()}") - _EPOCH
    except ValueError:
        raise ValueError(f"{text[:_SHOWN]!r} is not {_MOMENTS}") from None
    parts: int = 10 ** len(fraction)
    moment = (since.days * 86_400 + since.seconds) * 1000 - (-1000 * int(fraction) // parts)
    if not 0 <= moment <= LAST_MOMENT_MS:
        raise ValueError(f"{text[:_SHOWN]!r} is before 1970 or after 9999")
    return moment


# No time to live of 0: for JMS and STOMP that is for ever, for AMQP it is none at all.
_READERS: Final[Mapping[str, _Reader]] = {
    TTL_MS: _Reader("ttl_ms", _LONGEST_NUMBER_BYTES, _milliseconds(1)),
    MESSAGE_ID: _Reader("message_id", LONGEST_ID_BYTES, str),
    PRIORITY: _Reader("priority", _LONGEST_NUMBER_BYTES, _parse_priority),
    DELIVER_AT: _Reader("deliver_at_ms", _LONGEST_NUMBER_BYTES, _parse_moment),
    DELAY_MS: _Reader("delay_ms", _LONGEST_NUMBER_BYTES, _milliseconds(0)),
    TENANT: _Reader("tenant", LONGEST_TENANT_BYTES, str),
}
