"""Decoded values to Arrow arrays, column by column, where a value that does not fit costs its own row and no other.

A format decodes each value to an object of its library, and describes by a tree of `Column`s how the object's parts
become arrays. A whole column is built at once. When that fails, halves are tried until the rows at fault stand
alone: one bad row costs about one more building of its column, and nothing but bad rows n·log n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_REASON = 160
"""Characters of an error's text; a peer's data can be quoted in it."""
MAX_SHOWN = 100

UNFIT = (pa.ArrowException, OverflowError, ValueError, TypeError, KeyError)
"""What a builder raises for values that do not fit its type."""

Values = Sequence[object]
Getter = Callable[[Any], object]


class Column(Protocol):
    """One column's builder; what a row becomes must not hang on the rows beside it."""

    @property
    def type(self) -> pa.DataType: ...

    def build(self, values: Values) -> pa.Array:
        """An array of `type` with one element for each value, None being null."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What pyarrow takes as it is: bool, int, float, str, bytes, Decimal; ints also as days or microseconds."""

    type: pa.DataType

    def build(self, values: Values) -> pa.Array:
        return pa.array(values, self.type)


@dataclass(frozen=True, slots=True)
class Narrow:
    """Python floats as FLOAT; a number that FLOAT cannot hold is refused, not made infinite."""

    type: pa.DataType = field(default_factory=pa.float32)

    def build(self, values: Values) -> pa.Array:
        wide = pa.array(values, pa.float64())
        narrow = wide.cast(pa.float32(), safe=False)
        if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py():
            raise ValueError("out of the range of FLOAT")
        return narrow


@dataclass(frozen=True, slots=True)
class Millis:
    """Milliseconds as a timestamp of microseconds."""

    type: pa.DataType

    def build(self, values: Values) -> pa.Array:
        return pc.multiply_checked(pa.array(values, pa.int64()), 1000).view(self.type)


@dataclass(frozen=True, slots=True)
class Named:
    """Numbers by their names, as enums have them."""

    names: Mapping[int, str]
    type: pa.DataType = field(default_factory=pa.string)

    def build(self, values: Values) -> pa.Array:
        names = self.names
        return pa.array([None if value is None else names[value] for value in values], self.type)  # type: ignore[index]


_ZONED = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
_BEYOND_MICROS = r"(\.\d{6})\d+"


@dataclass(frozen=True, slots=True)
class Instants:
    """ISO 8601 texts as timestamps: UTC without a zone, digits beyond microseconds cut off, as in Spark."""

    type: pa.DataType

    def build(self, values: Values) -> pa.Array:
        texts = pa.array(values, pa.string())
        if self.type.tz is not None:
            # Nearly all data is written one way. What this takes, the long way below takes alike.
            try:
                return texts.cast(self.type)
            except pa.ArrowInvalid:
                pass
        texts = pc.replace_substring_regex(texts, _BEYOND_MICROS, r"\1")
        if self.type.tz is None:
            return texts.cast(self.type)
        zoned = pc.match_substring_regex(texts, _ZONED)
        nothing = pa.scalar(None, pa.string())
        with_zone = pc.if_else(zoned, texts, nothing).cast(self.type)
        without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")).view(self.type)
        return pc.coalesce(with_zone, without)


@dataclass(frozen=True, slots=True)
class Dates:
    """Texts like 2024-02-29 as dates."""

    type: pa.DataType = field(default_factory=pa.date32)

    def build(self, values: Values) -> pa.Array:
        return pa.array(values, pa.string()).cast(self.type)


@dataclass(frozen=True, slots=True)
class ListOf:
    """Sequences."""

    type: pa.DataType
    item: Column

    def build(self, values: Values) -> pa.Array:
        if isinstance(self.item, Plain):
            return pa.array(values, self.type)
        items = [item for value in values if value is not None for item in value]  # type: ignore[attr-defined]
        return pa.ListArray.from_arrays(_offsets(values), self.item.build(items), type=self.type)


@dataclass(frozen=True, slots=True)
class MapOf:
    """Mappings; a library that sees a key twice keeps the last."""

    type: pa.DataType
    key: Column
    value: Column

    def build(self, values: Values) -> pa.Array:
        keys: list[object] = []
        items: list[object] = []
        for value in values:
            if value is not None:
                keys.extend(value.keys())  # type: ignore[attr-defined]
                items.extend(value.values())  # type: ignore[attr-defined]
        return pa.MapArray.from_arrays(_offsets(values), self.key.build(keys), self.value.build(items), type=self.type)


@dataclass(frozen=True, slots=True)
class Record:
    """Objects with parts, each found by its getter."""

    type: pa.DataType
    getters: tuple[Getter, ...]
    columns: tuple[Column, ...]

    def build(self, values: Values) -> pa.Array:
        missing = np.fromiter((value is None for value in values), np.bool_, len(values))
        parts = [
            column.build([None if value is None else get(value) for value in values])
            for get, column in zip(self.getters, self.columns, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(self.type), mask=pa.array(missing))


def _offsets(values: Values) -> pa.Array:
    """Where each list begins; a null offset makes its list null."""
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))  # type: ignore[arg-type]
    ends = np.concatenate(([0], np.cumsum(lengths)))
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("more list elements than one Arrow array holds")
    return pa.array(ends.astype(np.int32), mask=np.append(missing, False))


class Built(NamedTuple):
    """Arrays with an element for each row that fits, which rows those are, and why the others do not."""

    arrays: list[pa.Array]
    kept: list[int]
    unfit: dict[int, str]


def build_rows(rows: Sequence[object], names: Sequence[str], record: Record) -> Built:
    """The record's columns over all rows that fit every one of them."""
    kept = list(range(len(rows)))
    unfit: dict[int, str] = {}
    while True:
        arrays: list[pa.Array] = []
        before = len(unfit)
        for name, get, column in zip(names, record.getters, record.columns, strict=True):
            try:
                arrays.append(column.build(list(map(get, rows))))
            except UNFIT:
                for index, reason in _find_unfit(column, get, rows).items():
                    unfit.setdefault(kept[index], f"{name}: {reason}")
        if len(unfit) == before:
            return Built(arrays, kept, unfit)
        fitting = [(place, row) for place, row in zip(kept, rows, strict=True) if place not in unfit]
        kept = [place for place, _ in fitting]
        rows = [row for _, row in fitting]


def _find_unfit(column: Column, get: Getter, rows: Values) -> dict[int, str]:
    unfit: dict[int, str] = {}
    spans = [(0, len(rows))]
    while spans:
        start, end = spans.pop()
        try:
            column.build(list(map(get, rows[start:end])))
        except UNFIT as problem:
            if end - start == 1:
                unfit[start] = str(problem)
            else:
                middle = (start + end) // 2
                spans += [(start, middle), (middle, end)]
    assert unfit, "a column that fails whole and works in pieces"
    return unfit


def decode_each(
    kind: str,
    values: pa.BinaryArray,
    decode: Callable[[bytes], object],
    refusals: tuple[type[Exception], ...],
    names: Sequence[str],
    record: Record,
    *,
    errors: Mapping[int, str] | None = None,
    text: bool = False,
) -> tuple[list[pa.Array], pa.Array]:
    """The record's columns of all values, and why some have none.

    Args:
        kind: the format's name, for the reasons.
        values: null ones have null columns and no reason.
        decode: one value to an object for the record's getters.
        refusals: what `decode` raises for bad values.
        names: of the record's parts, for the reasons.
        record: how the objects become columns.
        errors: reasons already known, by row; these are not decoded.
        text: whether to show values as text.
    """
    raw = values.to_pylist()
    reasons = {row: reason_of(kind, why, raw[row], text=text) for row, why in (errors or {}).items()}
    asked = [place for place, value in enumerate(raw) if value is not None and place not in reasons]
    rows: list[object] = []
    failed: list[int] = []
    waiting = iter([raw[place] for place in asked])
    while True:
        # A loop in C: what was decoded before a refusal is in `rows`, what comes behind it is still waiting.
        try:
            rows.extend(map(decode, waiting))
            break
        except refusals as problem:
            place = asked[len(rows) + len(failed)]
            reasons[place] = reason_of(kind, str(problem), raw[place], text=text)
            failed.append(place)
    places = [place for place in asked if place not in reasons] if failed else asked
    built = build_rows(rows, names, record)
    for row, why in built.unfit.items():
        reasons[places[row]] = reason_of(kind, why, raw[places[row]], text=text)
    kept = np.array(places, np.int64)[built.kept]
    return spread(built.arrays, kept, len(raw)), error_texts(reasons, len(raw))


def spread(arrays: Sequence[pa.Array], places: Sequence[int] | np.ndarray, count: int) -> list[pa.Array]:
    """Each array's elements at `places` of `count` rows, null elsewhere."""
    if len(places) == count and (count == 0 or np.array_equal(places, np.arange(count))):
        return list(arrays)
    indices = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    indices[places] = np.arange(len(places))
    missing[places] = False
    chosen = pa.array(indices, mask=missing)
    return [array.take(chosen) for array in arrays]


def error_texts(errors: Mapping[int, str], count: int) -> pa.Array:
    """The `_error` column: the reason at each row that has one."""
    if not errors:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for row, reason in errors.items():
        texts[row] = reason
    return pa.array(texts, pa.string())


def reason_of(kind: str, problem: str, value: bytes, *, text: bool = False) -> str:
    """What is wrong with a value, in one line that shows where it begins."""
    flat = " ".join(problem.split()).encode("utf-8", "replace").decode()
    if len(flat) > MAX_REASON:
        flat = flat[: MAX_REASON - 1] + "…"
    head = value[: MAX_SHOWN // 2 if not text else MAX_SHOWN]
    shown = head.decode("utf-8", "backslashreplace") if text else head.hex()
    shown = shown[:MAX_SHOWN] + ("…" if len(shown) > MAX_SHOWN or len(head) < len(value) else "")
    return (
        f"{kind}: {flat}; the value ({len(value)} bytes) begins {shown}"
        if value
        else f"{kind}: {flat}; the value is empty"
    )
