"""Which topics a read is of: a list, a pattern, or partitions by number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import re2

from penstock.spark.errors import OptionError
from penstock.spark.options.positions import parse_map, parse_partition

_KINDS: tuple[Literal["subscribe", "assign", "subscribePattern"], ...] = ("subscribe", "assign", "subscribePattern")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is set is what `kind` names; a pattern means topics in whose name it is found."""

    kind: Literal["subscribe", "assign", "subscribePattern"]
    topics: tuple[str, ...] = ()
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str = ""


def parse_subscription(options: Mapping[str, str]) -> Subscription:
    """The one of three options that says what to read; names of `options` are in lower case.

    Raises:
        OptionError: none of them is set, or several, or the one is empty or not valid.
    """
    given = [kind for kind in _KINDS if kind.lower() in options]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none of them is set"
        raise OptionError(f"say what to read with one of subscribe, assign and subscribePattern; {found}")
    kind = given[0]
    text = options[kind.lower()]
    if kind == "subscribe":
        return Subscription(kind, topics=_parse_topics(text))
    if kind == "assign":
        return Subscription(kind, assigned=_parse_assigned(text))
    return Subscription(kind, pattern=_parse_pattern(text))


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = dict.fromkeys(name for name in map(str.strip, text.split(",")) if name)
    if not topics:
        raise OptionError(f"subscribe = {text!r} names no topic; give one, or several with commas between")
    return tuple(topics)


def _parse_assigned(text: str) -> dict[str, tuple[int, ...]]:
    assigned = {}
    for topic, numbers in parse_map("assign", text).items():
        if not isinstance(numbers, list):
            raise OptionError(f'assign: topic {topic!r} has no list of partitions; an example is {{"orders":[0,1]}}')
        if numbers:
            assigned[topic] = tuple(sorted({parse_partition("assign", topic, number) for number in numbers}))
    if not assigned:
        raise OptionError(f'assign = {text!r} names no partition; an example is {{"orders":[0,1]}}')
    return assigned


def _parse_pattern(text: str) -> str:
    pattern = text.strip()
    if not pattern:
        raise OptionError("subscribePattern is empty; give a regular expression to be found in topics' names")
    settings = re2.Options()
    settings.log_errors = False
    try:
        re2.compile(pattern, options=settings)
    except re2.error as error:
        reason = error.args[0]
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise OptionError(
            f"subscribePattern = {pattern!r} is not valid: {why}; the syntax is that of RE2, without look-around and "
            "back-references"
        ) from None
    return pattern
