"""A queue's messages as verbs tell of them, and what can be printed of each beside what any record has."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.record_text import RECORDS, Vocabulary, format_local, format_time
from penstock.cli.verbs import Fields

_CREATE_TIME: Final = 1
"""Kafka's number for a time that there is."""


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """It can be asked what librdkafka's messages can, as far as forms of records ask."""

    in_topic: str
    told: Fields
    """As the verb's answer has it."""

    def topic(self) -> str:
        return self.in_topic

    def partition(self) -> int:
        return int(self.told["partition"])

    def offset(self) -> int:
        return int(self.told["offset"])

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, int(self.told["timestamp"])

    def key(self) -> bytes | None:
        return _bytes_of(self.told, "key")

    def value(self) -> bytes | None:
        return _bytes_of(self.told, "value")

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [(each["name"], _bytes_of(each, "value")) for each in self.told["headers"]]


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes | None:
    if (encoded := fields.get(f"{name}_base64")) is not None:
        return b64decode(encoded)
    text = fields.get(name)
    return None if text is None else str(text).encode()


def _said(name: str) -> Callable[[QueueMessage], str]:
    def tell(message: QueueMessage) -> str:
        value = message.told.get(name)
        return "-" if value is None else str(value)

    return tell


def _piped(name: str) -> Callable[[QueueMessage], bytes]:
    tell = _said(name)
    return lambda message: tell(message).encode()


def _piped_until(message: QueueMessage) -> bytes:
    until_ms = message.told.get("until_ms")
    return b"-" if until_ms is None else (format_time(until_ms) or str(until_ms)).encode()


def _piped_due(message: QueueMessage) -> bytes:
    due_ms = int(message.told["due_ms"])
    return (format_time(due_ms) or str(due_ms)).encode()


def _shown_due(message: QueueMessage) -> str:
    from penstock.cli.transactions import format_age

    return f"due {format_local(message.told['due_ms'])} (in {format_age(message.told['in_ms'])})"


def _shown_until(message: QueueMessage) -> str:
    until_ms = message.told.get("until_ms")
    return "" if until_ms is None else f"until {format_local(until_ms)}"


def _shown_deliveries(message: QueueMessage) -> str:
    deliveries, attempts = message.told["deliveries"], message.told["attempts"]
    return "" if deliveries < 2 and not attempts else f"delivery {deliveries} ({attempts} failed)"


def _describe(*names: str) -> Callable[[QueueMessage], dict[str, Any]]:
    return lambda message: {name: message.told.get(name) for name in names} | RECORDS.describe(message)


_COUNTS_PIPED: Final = {"deliveries": _piped("deliveries"), "attempts": _piped("attempts"), "until": _piped_until}
_COUNTS_SHOWN: Final = {
    "deliveries": _shown_deliveries,
    "attempts": lambda message: f"{message.told['attempts']} failed" if message.told["attempts"] else "",
    "until": _shown_until,
}
_COUNT_TOKENS: Final = {"%d": _piped("deliveries"), "%a": _piped("attempts"), "%u": _piped_until}
LANES: Final = ("critical", "high", "normal", "low", "background")
"""What priorities are told apart by, from the highest to the lowest."""
LEASED: Final = Vocabulary(
    {"receipt": _piped("receipt"), **RECORDS.piped, **_COUNTS_PIPED},
    {"receipt": _said("receipt"), **RECORDS.people, **_COUNTS_SHOWN},
    {"%r": _piped("receipt"), **RECORDS.tokens, **_COUNT_TOKENS},
    _describe("receipt", "deliveries", "attempts", "until_ms"),
)
"""Of messages that were leased; `until` is when the lease ends."""
BROWSED: Final = Vocabulary(
    {"state": _piped("state"), **RECORDS.piped, **_COUNTS_PIPED},
    {"state": _said("state"), **RECORDS.people, **_COUNTS_SHOWN},
    {"%w": _piped("state"), **RECORDS.tokens, **_COUNT_TOKENS},
    _describe("state", "deliveries", "attempts", "until_ms"),
)
"""Of messages that are only looked at; `until` is when the lease ends, or when it is due."""
DELAYED: Final = Vocabulary(
    {"due": _piped_due, **RECORDS.piped, "id": _piped("id")},
    {
        "due": _shown_due,
        **RECORDS.people,
        "id": lambda message: f"id {message.told['id']}" if message.told["id"] else "",
    },
    {"%u": _piped_due, **RECORDS.tokens, "%i": _piped("id")},
    _describe("due_ms", "in_ms"),
)
"""Of messages that are not due yet; `due` is when they are."""
EXTRA_FIELDS: Final = frozenset({"receipt", "state", "deliveries", "attempts", "until_ms", "due_ms", "in_ms"})
"""What is printed of messages and is no part of them."""
