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
_CONDITION = re.compile(r"([^=!<>~]+)(==|!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)
_EQUAL: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_SIGNS = "=!<>~"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONGEST_NUMBER = 400  # a record may hold any text, and long ones take Python long to read
_SEVERAL = re.compile(rf"\s(and|or|&&|\|\|)\s[^{_SIGNS}]+[{_SIGNS}]", re.IGNORECASE)


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
    if not name or not set(name).isdisjoint(_SIGNS):
        raise ValueError(f"{word!r} is no header; expected NAME, or NAME=VALUE: headers are compared with = alone")
    wanted = text.removeprefix("=").encode(errors="surrogateescape")

    def matches(message: "Message") -> bool:
        return any(each == name and (not equals or value == wanted) for each, value in headers_of(message))

    return matches


def compile_condition(word: str) -> Matches:
    """`field=value` on a JSON value; a record without the field never matches. Raises `ValueError`."""
    import orjson

    parsed = _CONDITION.fullmatch(word)
    if parsed is None:
        raise ValueError(f"{word!r} is no condition; expected FIELD=VALUE, or !=, >, <, >=, <= or ~ in place of =")
    path, sign = _read_path(word, parsed[1]), parsed[2]
    holds = _pattern_test(parsed[3].strip()) if sign == "~" else _comparison(sign, _read_value(word, sign, parsed[3]))

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


def _read_path(word: str, text: str) -> list[str]:
    path = [step.strip() for step in text.split(".")]
    if "" in path or path[0] == "$" or "[" in text:
        raise ValueError(
            f"{word!r} is no condition: {text.strip()!r} is no field; expected name, user.name or items.0.id"
        )
    return path


def _read_value(word: str, sign: str, text: str) -> str:
    """What stands behind the operator, without quotes. What would never match, and looks like a slip, is refused."""
    if text.startswith(tuple(_SIGNS)):
        raise ValueError(
            f"{word!r} is no condition: there is no {sign + text[0]}, only =, !=, >, <, >=, <= and ~; "
            f"put a value that begins with {text[0]} in quotes"
        )
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if several := _SEVERAL.search(text):
        raise ValueError(
            f"{word!r} is more than one condition; say --where for each, and all must hold "
            f"(put a value that contains {several[1]!r} in quotes)"
        )
    return text


def _pattern_test(text: str) -> Callable[[Any], bool]:
    pattern = _compile(text)
    return lambda found: pattern.search(_as_text(found)) is not None


def _comparison(sign: str, text: str) -> Callable[[Any], bool]:
    """Numbers compare as numbers, all else as text; what has no order with the value is neither above nor below it."""
    number = _read_number(text)

    def is_equal(found: Any) -> bool:
        if number is not None and _is_number(found):
            return _EQUAL[sign](found, number)
        if found is None or isinstance(found, bool):
            return _EQUAL[sign](_as_text(found), text.lower())
        return _EQUAL[sign](_as_text(found), text)

    def is_ordered(found: Any) -> bool:
        told = _read_number(found) if isinstance(found, str) else found
        if number is not None and _is_number(told):
            return _ORDER[sign](told, number)
        return isinstance(found, str) and _ORDER[sign](found, text)

    return is_equal if sign in _EQUAL else is_ordered


def _read_number(text: str) -> int | float | None:
    """Whole numbers exactly: ids of 64 bits have more digits than a float keeps."""
    if len(text) > _LONGEST_NUMBER or _NUMBER.fullmatch(text) is None:
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _as_text(found: Any) -> str:
    import orjson

    return found if isinstance(found, str) else orjson.dumps(found).decode()
