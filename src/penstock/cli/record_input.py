"""Records as they come in: lines, JSON lines or whole files, in chunks no larger than one read of the input.

Bytes pass as they are; only JSON must be UTF-8. A mistake in the input is raised after the records before it were
handed on, and names file and line.
"""

import os
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.cli.failure import CommandError

_READ_BYTES = 64 * 1024
_TEXT_SHOWN = 60
_FIELDS = frozenset({"key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp", "topic"})
_MISSING = object()


class Record(NamedTuple):
    """A record to send, and where in the input it was found."""

    source: str
    line: int
    """Counts from 1; 0 is a file as a whole."""
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = -1
    """-1 leaves the choice to the client: by the key if there is one."""
    timestamp_ms: int = 0
    """0 is the time of sending."""
    topic: str | None = None

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source

    @property
    def size(self) -> int:
        size = len(self.key or b"") + len(self.value or b"")
        if self.headers:
            size += sum(len(name) + len(value or b"") for name, value in self.headers)
        return size


class Chunk(NamedTuple):
    """What one read gave."""

    records: list[Record]
    size: int
    """Bytes of input they took."""


@dataclass(frozen=True, slots=True)
class Form:
    """How records lie in the input, and what all of them get."""

    delimiter: bytes = b"\n"
    crlf: bool = False
    key_separator: bytes | None = None
    empty_is_null: bool = False
    json: bool = False
    whole: bool = False
    route: bool = False
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    passed: frozenset[str] = frozenset({"offset", "time"})
    """What JSON may have beside a record's content; read past, so that what `consume` prints is good input."""
    limit: int = 6_000_000
    """Bytes of one record's text at most: without an end in sight, an input must not fill the memory."""


def read_chunks(names: Sequence[str], form: Form) -> Iterator[Chunk]:
    """Everything in the files, `-` being standard input. Raises `CommandError` and `OSError`."""
    for name in names:
        with _open(name) as (source, read):
            if form.whole:
                yield _read_whole(source, read, form)
            else:
                yield from _read_pieces(source, read, form)


def read_words(words: Sequence[str], form: Form) -> Iterator[Chunk]:
    """The same of words of the command line, each a record. Raises `CommandError`."""
    parse = _parse_json if form.json else _parse_line
    for number, word in enumerate(words, 1):
        piece = word.encode(errors="surrogateescape")
        record = parse(piece, "message", number, form)
        yield Chunk([] if record is None else [record], len(piece))


def known_size(names: Sequence[str]) -> int | None:
    """Bytes of all files together; None if one of them has no size of its own."""
    total = 0
    for name in names:
        if name == "-" or not os.path.isfile(name):
            return None
        total += os.stat(name).st_size
    return total


@contextmanager
def _open(name: str) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    if name == "-":
        standard: Any = sys.stdin.buffer
        yield "stdin", standard.read1  # returns what is there: a line must not wait for the next one
        return
    with open(name, "rb", buffering=0) as file:
        yield name, lambda size: file.read(size) or b""


def _read_whole(source: str, read: Callable[[int], bytes], form: Form) -> Chunk:
    parts, size = [], 0
    while part := read(_READ_BYTES * 16):
        parts.append(part)
        size += len(part)
        if size > form.limit:
            raise CommandError(_too_long(source, form.limit))
    content = b"".join(parts)
    return Chunk([_apply(Record(source, 0, content), form)], size)


def _read_pieces(source: str, read: Callable[[int], bytes], form: Form) -> Iterator[Chunk]:
    parse = _parse_json if form.json else _parse_line
    line, tail = 0, b""
    while True:
        part = read(_READ_BYTES)
        pieces = (tail + part).split(form.delimiter)
        tail = pieces.pop()
        if not part and tail:  # a last line needs no end
            pieces, tail = [*pieces, tail], b""
        records: list[Record] = []
        try:
            for piece in pieces:
                line += 1
                if (record := parse(piece, source, line, form)) is not None:
                    records.append(record)
            if len(tail) > form.limit:
                raise CommandError(_too_long(f"{source}:{line + 1}", form.limit))
        except CommandError:
            yield Chunk(records, len(part))
            raise
        if not part:
            yield Chunk(records, 0)
            return
        yield Chunk(records, len(part))


def _parse_line(piece: bytes, source: str, line: int, form: Form) -> Record:
    if form.crlf and piece.endswith(b"\r"):
        piece = piece[:-1]
    if form.key_separator is None:
        return _apply(Record(source, line, piece), form)
    key, separator, value = piece.partition(form.key_separator)
    if not separator:
        raise CommandError(
            f"{source}:{line}: no key separator {_show(form.key_separator)} in {_show(piece)}; "
            "nothing from here on was sent"
        )
    return _apply(Record(source, line, value, key), form)


def _apply(record: Record, form: Form) -> Record:
    """What was said for all records goes before what a record says itself; headers are added."""
    if form.empty_is_null and (record.value == b"" or record.key == b""):
        record = record._replace(value=record.value or None, key=record.key or None)
    if form.key is None and not form.headers and form.partition is None and form.timestamp_ms is None:
        return record
    return record._replace(
        key=record.key if form.key is None else form.key,
        headers=(*record.headers, *form.headers),
        partition=record.partition if form.partition is None else form.partition,
        timestamp_ms=record.timestamp_ms if form.timestamp_ms is None else form.timestamp_ms,
    )


def _parse_json(piece: bytes, source: str, line: int, form: Form) -> Record | None:
    if not piece.strip():
        return None
    import orjson

    try:
        read = orjson.loads(piece)
        record = _read_object(read, piece, source, line, form.passed)
    except ValueError as error:  # orjson's own is one
        raise CommandError(f"{source}:{line}: {error}, in {_show(piece)}; nothing from here on was sent") from None
    return _apply(record if form.route else record._replace(topic=None), form)


def _read_object(read: Any, piece: bytes, source: str, line: int, passed: frozenset[str]) -> Record:
    if not isinstance(read, dict):
        raise ValueError("expected a JSON object with value, key, headers, partition or timestamp")
    if unknown := read.keys() - _FIELDS - passed:
        raise ValueError(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}")
    if not all(content is None or isinstance(content, str) for content in _contents(read)):
        read = _read_exactly(piece)
    value = _bytes_of(read, "value")
    if value is _MISSING:
        raise ValueError("neither value nor value_base64; a tombstone says value: null")
    key = _bytes_of(read, "key")
    return Record(
        source,
        line,
        value,
        None if key is _MISSING else key,
        _headers_of(read.get("headers")),
        _number_of(read, "partition", -1, 0),
        _number_of(read, "timestamp", 0, 1),
        _topic_of(read),
    )


def _contents(read: dict[str, Any]) -> Iterator[Any]:
    """All that becomes bytes."""
    yield read.get("key")
    yield read.get("value")
    headers = read.get("headers")
    for pair in headers if isinstance(headers, list) else [headers]:
        yield from pair.values() if isinstance(pair, dict) else pair if isinstance(pair, list) else [pair]


def _read_exactly(piece: bytes) -> dict[str, Any]:
    """The same object with its numbers as they were written: a float would lose digits of long ones."""
    import json

    import orjson

    def number(text: str) -> orjson.Fragment:
        return orjson.Fragment(text)

    read: dict[str, Any] = json.loads(piece, parse_int=number, parse_float=number)
    for name in ("partition", "timestamp"):
        if isinstance(read.get(name), orjson.Fragment):
            read[name] = orjson.loads(orjson.dumps(read[name]))
    return read


def _bytes_of(read: dict[str, Any], name: str) -> Any:
    """Bytes, None for null, or `_MISSING`. Text is its UTF-8; any other JSON is stored as compact JSON."""
    encoded = read.get(f"{name}_base64")
    if encoded is not None:
        if read.get(name) is not None:
            raise ValueError(f"both {name} and {name}_base64")
        if not isinstance(encoded, str):
            raise ValueError(f"{name}_base64 is no text")
        try:
            return b64decode(encoded, validate=True)
        except ValueError:
            raise ValueError(f"{name}_base64 is no base64") from None
    content = read.get(name, _MISSING)
    if content is None or content is _MISSING:
        return content
    if isinstance(content, str):
        return content.encode()
    import orjson

    return orjson.dumps(content)


def _headers_of(read: Any) -> list[tuple[str, bytes | None]]:
    """From {"name": "value"}, [["name", "value"]], or [{"name": ..., "value" or "value_base64": ...}]."""
    if read is None:
        return []
    pairs = list(read.items()) if isinstance(read, dict) else read
    if not isinstance(pairs, list):
        raise ValueError("headers are no object and no list")
    headers = []
    for pair in pairs:
        if isinstance(pair, dict) and pair.keys() <= {"name", "value", "value_base64"}:
            name, value = pair.get("name"), _bytes_of(pair, "value")
        elif isinstance(pair, list | tuple) and len(pair) == 2:
            name, value = pair[0], _bytes_of({"value": pair[1]}, "value")
        else:
            raise ValueError("a header is neither [name, value] nor {name, value}")
        if not isinstance(name, str):
            raise ValueError("a header's name is no text")
        headers.append((name, None if value is _MISSING else value))
    return headers


def _number_of(read: dict[str, Any], name: str, absent: int, least: int) -> int:
    number = read.get(name)
    if number is None:
        return absent
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**63:
        raise ValueError(f"{name} is no whole number from {least} on")
    return number


def _topic_of(read: dict[str, Any]) -> str | None:
    topic = read.get("topic")
    if topic is None or isinstance(topic, str):
        return topic
    raise ValueError("topic is no text")


def _too_long(place: str, limit: int) -> str:
    return (
        f"{place}: no end within {limit:,} bytes, more than a record may have; "
        "another --delimiter? -X message.max.bytes=N raises the limit"
    )


_UNPRINTABLE = re.compile(r"[^\x20-\x7e\u00a1-\u02ff\u0370-\u058f\u3040-\u9fff\uac00-\ud7a3]")


def _show(piece: bytes) -> str:
    """The beginning of some input, safe to print."""
    text = piece[:_TEXT_SHOWN].decode(errors="backslashreplace")
    shown = _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return f"'{shown}{'…' if len(piece) > _TEXT_SHOWN else ''}'"
