"""Which records a reader asked for: by key, value, headers, or fields of a JSON value. All conditions must hold."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Any

from penstock.cli.record_text import headers_of

if TYPE_CHECKING:
    from confluent_kafka import Message

Matches = Callable[["Message"], bool]

# The name ends at the first operator; of two that begin alike the longer one is meant.
_CONDITION = re.compile(r"([^=!<>~]+)(!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What was asked for, as it was typed."""

    key: str | None = None
    key_regex: str | None = None
    contains: str | None = None
    grep: str | None = None
    headers: Sequence[str] = ()
    where: Sequence[str] = ()


def compile_filter(asked: Conditions) -> Matches | None:
    """One test of a record, or None where nothing was asked. Raises `ValueError`."""
    tests: list[Matches] = []
    if asked.key is not None:
        tests.append(_key_matches(re.compile(translate(asked.key))))
    if asked.key_regex is not None:
        tests.append(_key_matches(_compile(asked.key_regex)))
    if asked.contains is not None:
        tests.append(_value_contains(asked.contains.encode(errors="surrogateescape")))
    if asked.grep is not None:
        tests.append(_value_matches(_compile(asked.grep)))
    tests += [_has_header(word) for word in asked.headers]
    tests += [compile_condition(word) for word in asked.where]
    if len(tests) <= 1:
        return tests[0] if tests else None
    return lambda message: all(test(message) for test in tests)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def _key_matches(pattern: re.Pattern[str]) -> Matches:
    def matches(message: "Message") -> bool:
        key = message.key()
        return key is not None and pattern.search(key.decode(errors="replace")) is not None

    return matches


def _value_contains(text: bytes) -> Matches:
    def matches(message: "Message") -> bool:
        value = message.value()
        return value is not None and text in value

    return matches


def _value_matches(pattern: re.Pattern[str]) -> Matches:
    def matches(message: "Message") -> bool:
        value = message.value()
        return value is not None and pattern.search(value.decode(errors="replace")) is not None

    return matches


def _has_header(word: str) -> Matches:
    name, equals, text = word.partition("=")
    wanted = text.encode(errors="surrogateescape")

    def matches(message: "Message") -> bool:
        return any(each == name and (not equals or value == wanted) for each, value in headers_of(message))

    return matches


def compile_condition(word: str) -> Matches:
    """`field=value` on a JSON value; a record without the field never matches. Raises `ValueError`."""
    import orjson

    parsed = _CONDITION.fullmatch(word)
    if parsed is None:
        raise ValueError(f"{word!r} is no condition; expected FIELD=VALUE, or !=, >, <, >=, <= or ~ in place of =")
    path, sign, text = parsed[1].strip().split("."), parsed[2], parsed[3].strip()
    holds = _pattern_test(text) if sign == "~" else _comparison(_COMPARE[sign], text)

    def matches(message: "Message") -> bool:
        try:
            found: Any = orjson.loads(message.value() or b"")
        except orjson.JSONDecodeError:
            return False
        for step in path:
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                return False
        return holds(found)

    return matches


def _pattern_test(text: str) -> Callable[[Any], bool]:
    pattern = _compile(text)
    return lambda found: pattern.search(_as_text(found)) is not None


def _comparison(compare: Callable[[Any, Any], bool], text: str) -> Callable[[Any], bool]:
    """Numbers compare as numbers where both sides are, everything else as text."""
    try:
        number = float(text)
    except ValueError:
        number = None

    def holds(found: Any) -> bool:
        if number is not None and isinstance(found, int | float) and not isinstance(found, bool):
            return compare(found, number)
        return compare(_as_text(found), text)

    return holds


def _as_text(found: Any) -> str:
    import orjson

    return found if isinstance(found, str) else orjson.dumps(found).decode()
