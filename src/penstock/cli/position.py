"""Places in a log and moments in time as a person types them: `start`, `42`, `-10`, `2026-03-01T12:00`, `-5m`."""

import re
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import click

from penstock.cli.moment import Moment

TIME_FORMS: Final = "2026-05-01T12:30 (this machine's zone unless it names one), -5m, 2h (ago), +10s, @MILLISECONDS"

_SIGNED: Final = re.compile(r"([+-])(\d+)([smhdw])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LARGEST: Final = 2**63 - 1


class Kind(Enum):
    START = auto()
    END = auto()
    OFFSET = auto()
    LAST = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log. `value` is an offset, a number of records before the end, or milliseconds since 1970."""

    kind: Kind
    value: int = 0


def parse_position(word: str) -> Position:
    """Raises `ValueError` saying what was expected."""
    if word == "start":
        return Position(Kind.START)
    if word == "end":
        return Position(Kind.END)
    try:
        if word.removeprefix("-").isdecimal():
            number = int(word)
            if not -_LARGEST <= number <= _LARGEST:
                raise ValueError
            return Position(Kind.LAST, -number) if word.startswith("-") else Position(Kind.OFFSET, number)
        return Position(Kind.TIME, parse_time(word))
    except ValueError:
        raise ValueError(
            f"{word!r} is no place in a log; expected start, end, an offset, -N for the last N records, "
            f"or a time: {TIME_FORMS}"
        ) from None


def parse_time(word: str) -> int:
    """Milliseconds since 1970. Raises `ValueError` saying what was expected."""
    if word.startswith("@") and word[1:].isdecimal():
        moment_ms = int(word[1:])
    elif signed := _SIGNED.fullmatch(word):
        distance_ms = int(signed[2]) * _UNIT_MS[signed[3]]
        moment_ms = now_ms() + (distance_ms if signed[1] == "+" else -distance_ms)
    else:
        try:
            moment_ms = Moment().convert(word, None, None)
        except click.BadParameter:
            raise ValueError(f"{word!r} is no time; expected {TIME_FORMS}") from None
    return min(max(0, moment_ms), _LARGEST)


class PositionWord(click.ParamType[Position]):
    """An option's value that is a place in a log."""

    name = "position"

    def convert(self, value: str | Position, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimestampWord(Moment):
    """An option's value that is a record's timestamp."""

    name = "timestamp"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        moment_ms = super().convert(value, param, ctx)
        if not 0 < moment_ms <= _LARGEST:  # librdkafka takes 0 for the time of sending
            self.fail(f"{moment_ms} ms is out of range; the earliest is 1", param, ctx)
        return moment_ms


class BytesWord(click.ParamType[bytes]):
    """An option's value that is bytes, with the escapes a shell makes hard to type: \\n, \\t, \\0, \\xNN."""

    name = "text"

    def convert(self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            return parse_escapes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def parse_escapes(word: str) -> bytes:
    """Raises `ValueError` naming an escape that is none."""

    def unescape(found: re.Match[bytes]) -> bytes:
        name = found[1]
        if len(name) == 3:
            return bytes.fromhex(name[1:].decode())
        if name not in _ESCAPED:
            shown = found[0].decode(errors="replace")
            raise ValueError(f"{shown!r} is no escape; there are \\n, \\r, \\t, \\0, \\xNN and \\\\")
        return _ESCAPED[name]

    return _ESCAPE.sub(unescape, word.encode(errors="surrogateescape"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000
