"""Spark's schema strings ("id BIGINT, tags ARRAY<STRING>") to types, without a JVM.

Spark parses these in Scala only (`StructType.fromDDL` needs a running session), but a data source is planned in a
Python process that has none. The grammar, as Spark's own parser takes it:

    schema   := field ("," field)*                     or one STRUCT<...>, or the JSON that StructType.json() prints
    field    := name [":"] type [NOT NULL] [COMMENT 'text']
    name     := letters, digits, "_"                   or anything in backticks, a backtick doubled
    type     := word ["(" number ["," number] ")"]     as in DECIMAL(10,2)
              | ARRAY "<" type ">" | MAP "<" type "," type ">" | STRUCT "<" [field ("," field)*] ">"
              | INTERVAL unit [TO unit]
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from pyspark.sql import types as t

from penstock.spark.errors import FormatError

MAX_DEPTH = 50
"""How deep types may nest; Spark's planner gets slow long before."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>[A-Za-z0-9_]+)
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<mark>[<>(),:])
      | (?P<end>$)
    )""",
    re.VERBOSE | re.DOTALL,
)

_PLAIN: Mapping[str, Callable[[], t.DataType]] = {
    "boolean": t.BooleanType,
    "tinyint": t.ByteType,
    "byte": t.ByteType,
    "smallint": t.ShortType,
    "short": t.ShortType,
    "int": t.IntegerType,
    "integer": t.IntegerType,
    "bigint": t.LongType,
    "long": t.LongType,
    "float": t.FloatType,
    "real": t.FloatType,
    "double": t.DoubleType,
    "string": t.StringType,
    "binary": t.BinaryType,
    "date": t.DateType,
    "timestamp": t.TimestampType,
    "timestamp_ltz": t.TimestampType,
    "timestamp_ntz": t.TimestampNTZType,
    "variant": t.VariantType,
    "void": t.NullType,
}
_DECIMALS = ("decimal", "dec", "numeric")
_TYPES = (*_PLAIN, *_DECIMALS, "array", "map", "struct", "interval", "char", "character", "varchar", "time")
_DAY_UNITS = {"day": 0, "hour": 1, "minute": 2, "second": 3}
_YEAR_UNITS = {"year": 0, "month": 1}


class UnknownTypeError(FormatError):
    """A column of a type that nobody knows; `nearest` is the one that may be meant, or ""."""

    def __init__(self, column: str, word: str) -> None:
        close = difflib.get_close_matches(word.lower(), _TYPES, 1)
        self.nearest = close[0].upper() if close else ""
        hint = f"did you mean {self.nearest}?" if close else "types are BIGINT, STRING, TIMESTAMP, ARRAY<...> and so on"
        super().__init__(f"value.schema: column {column!r}: there is no type {word[:100]} in Spark; {hint}")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_schema(text: str) -> t.StructType:
    """The columns that a DDL string or a StructType's JSON describes.

    Raises:
        FormatError: it is neither, or has no columns.
    """
    schema = _parse_json(text) if text.lstrip().startswith("{") else _Parser(text).schema()
    if not schema.fields:
        raise FormatError("value.schema has no columns; write them as in: id BIGINT, name STRING")
    return schema


def _parse_json(text: str) -> t.StructType:
    try:
        return t.StructType.fromJson(json.loads(text))
    except Exception as problem:
        # pyspark raises whatever the shape of the JSON leads it to
        raise FormatError(f"value.schema is not the JSON of a StructType: {problem!r}") from problem


class _Parser:
    """Recursive descent over the tokens of one schema string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0
        self._depth = 0
        self._column: list[str] = []

    def schema(self) -> t.StructType:
        if self._peek("struct") and self._tokens[1].text == "<":
            kind = self._type()
            assert isinstance(kind, t.StructType)
            fields = kind.fields
        else:
            fields = [] if self._at.kind == "end" else self._fields()
        if self._at.kind != "end":
            self._fail("a comma or the end")
        return t.StructType(fields)

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        position = 0
        while not tokens or tokens[-1].kind != "end":
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise FormatError(
                    f"value.schema cannot be read at {text[position : position + 20]!r} (character {position}); "
                    "names with other characters than letters, digits and _ go in backticks"
                )
            kind = match.lastgroup
            tokens.append(_Token(kind, match.group(kind), match.start(kind)))
            position = match.end()
        return tokens

    @property
    def _at(self) -> _Token:
        return self._tokens[self._next]

    def _peek(self, *words: str) -> bool:
        return self._at.kind in ("word", "mark") and self._at.text.lower() in words

    def _take(self, *words: str) -> bool:
        if self._peek(*words):
            self._next += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._fail(repr(word))

    def _fail(self, wanted: str) -> NoReturn:
        found = repr(self._at.text) if self._at.kind != "end" else "the end"
        raise FormatError(
            f"value.schema: {wanted} wanted at character {self._at.at}, found {found} in {self._text[:200]!r}"
        )

    def _fields(self) -> list[t.StructField]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        return fields

    def _field(self) -> t.StructField:
        token = self._at
        if token.kind not in ("word", "quoted"):
            self._fail("a column's name")
        self._next += 1
        name = token.text.replace("``", "`") if token.kind == "quoted" else token.text
        self._take(":")
        self._column.append(name)
        kind = self._type()
        self._column.pop()
        nullable, metadata = True, {}
        if self._take("not"):
            self._expect("null")
            nullable = False
        if self._take("comment"):
            if self._at.kind != "text":
                self._fail("a text in quotes")
            metadata["comment"] = _unquote(self._at.text)
            self._next += 1
        return t.StructField(name, kind, nullable, metadata)

    def _type(self) -> t.DataType:
        if self._at.kind != "word":
            self._fail("a type")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormatError(f"value.schema nests types deeper than {MAX_DEPTH}; flatten it")
        word = self._at.text.lower()
        known = self._known(word)
        self._depth -= 1
        return known

    def _known(self, word: str) -> t.DataType:
        if word not in _TYPES:
            raise UnknownTypeError(".".join(self._column), self._at.text)
        self._next += 1
        match word:
            case "array" | "map" | "struct":
                return self._nested(word)
            case "interval":
                return self._interval()
            case "char" | "character":
                return t.CharType(*self._numbers(1, 1))
            case "varchar":
                return t.VarcharType(*self._numbers(1, 1))
            case "time":
                return t.TimeType(*self._numbers(0, 1))
            case _ if word in _DECIMALS:
                return self._decimal()
        return _PLAIN[word]()

    def _nested(self, word: str) -> t.DataType:
        self._expect("<")
        kind: t.DataType
        if word == "array":
            kind = t.ArrayType(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            kind = t.MapType(key, self._type())
        else:
            kind = t.StructType([] if self._peek(">") else self._fields())
        self._expect(">")
        return kind

    def _decimal(self) -> t.DecimalType:
        numbers = self._numbers(0, 2) or [10]
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise FormatError(
                f"value.schema: DECIMAL({precision},{scale}) is not 1 to 38 digits with a scale within them"
            )
        return t.DecimalType(precision, scale)

    def _interval(self) -> t.DataType:
        first = self._at.text.lower()
        if first not in _DAY_UNITS and first not in _YEAR_UNITS:
            return t.CalendarIntervalType()
        self._next += 1
        last = first
        if self._take("to"):
            last = self._at.text.lower()
            self._next += 1
        for units, kind in ((_DAY_UNITS, t.DayTimeIntervalType), (_YEAR_UNITS, t.YearMonthIntervalType)):
            if first in units and last in units and units[first] <= units[last]:
                return kind(units[first], units[last])
        raise FormatError(f"value.schema: there is no INTERVAL {first.upper()} TO {last.upper()} in Spark")

    def _numbers(self, least: int, most: int) -> list[int]:
        numbers: list[int] = []
        if self._take("("):
            while True:
                if not (self._at.kind == "word" and self._at.text.isascii() and self._at.text.isdigit()):
                    self._fail("a number")
                numbers.append(int(self._at.text[:9]))
                self._next += 1
                if len(numbers) == most or not self._take(","):
                    break
            self._expect(")")
        if len(numbers) < least:
            self._fail("a length in brackets")
        return numbers


def _unquote(text: str) -> str:
    quote, inner = text[0], text[1:-1]
    escapes = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0"}
    return re.sub(
        r"\\(.)", lambda match: escapes.get(match[1], match[1]), inner.replace(quote * 2, quote), flags=re.DOTALL
    )
