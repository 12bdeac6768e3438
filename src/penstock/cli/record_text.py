"""Records as text: bare values, JSON, YAML, a template of the user's, or lines for people.

What a person's terminal gets is escaped: a record is written by somebody else, and must neither move the cursor nor
change the title nor turn letters round. What a pipe gets are the bytes as they are. JSON and YAML have `key` and
`value` as text, or `key_base64` and `value_base64` where they are no UTF-8; `penstock produce --json` reads that back.

What can be told of a record is in a `Vocabulary`; commands whose messages are more than records have one of their own.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from penstock.cli.position import parse_escapes


class Message(Protocol):
    """A record as librdkafka has it, and whatever can be asked the same."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...


Render = Callable[[Sequence[Any]], bytes]
Headers = Sequence[tuple[str, bytes | None]]

# C0 and C1 controls drive terminals; the others change the direction of what follows or break lines.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LINE_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_DIM, _KEY, _PLAIN = "\x1b[2m", "\x1b[36m", "\x1b[0m"


def describe_message(message: Message) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    described: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,
        "time": format_time(timestamp_ms) if kind else None,
    }
    return described | describe_content(message.key(), message.value(), headers_of(message))


def describe_content(key: bytes | None, value: bytes | None, headers: Headers) -> dict[str, Any]:
    return {
        **_describe_bytes("key", key),
        **_describe_bytes("value", value),
        "headers": [{"name": name, **_describe_bytes("value", content)} for name, content in headers],
    }


def _describe_bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content).decode()}


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """A record's headers; one named U+FFFD in their place where a name is no UTF-8, which the client cannot tell."""
    try:
        headers: Any = message.headers()
    except (SystemError, UnicodeDecodeError):
        return [("\ufffd", None)]
    return headers or []


@lru_cache(maxsize=4096)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def format_time(timestamp_ms: int) -> str | None:
    """ISO 8601 in UTC; None for a time beyond what a calendar holds."""
    second, ms = divmod(timestamp_ms, 1000)
    try:
        return f"{_format_second(second)}.{ms:03d}Z"
    except (ValueError, OverflowError, OSError):
        return None


def format_local(timestamp_ms: int) -> str:
    second, ms = divmod(timestamp_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(second).isoformat(' ')}.{ms:03d}"
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def escape(text: str) -> str:
    """What a terminal may be shown; lines and tabs stay."""
    return _CONTROL.sub(_as_escape, text)


def _as_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escape_json(text: bytes) -> bytes:
    """The same JSON, fit for a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text.decode()).encode()


def _escape_bytes(content: bytes) -> str:
    return escape(content.decode(errors="backslashreplace"))


def _escape_line(content: bytes) -> str:
    return _LINE_CONTROL.sub(_as_escape, content.decode(errors="backslashreplace"))


# --- what can be told of a record, for a pipe and for people


def _timestamp_bytes(message: Message) -> bytes:
    kind, timestamp_ms = message.timestamp()
    return b"%d" % timestamp_ms if kind else b"-1"


def _time_bytes(message: Message) -> bytes:
    kind, timestamp_ms = message.timestamp()
    return (format_time(timestamp_ms) or str(timestamp_ms)).encode() if kind else b"-"


def _headers_bytes(message: Message) -> bytes:
    pairs = headers_of(message)
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in pairs)


def _number_bytes(number: int | None) -> bytes:
    return b"%d" % (-1 if number is None else number)


def _length(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


def _local_time(message: Message) -> str:
    kind, timestamp_ms = message.timestamp()
    return format_local(timestamp_ms) if kind else "no time"


def _shown_key(message: Message) -> str:
    key = message.key()
    return "-" if key is None else _escape_line(key) or '""'


def _shown_headers(message: Message) -> str:
    headers = headers_of(message)
    pairs = [
        f"{_escape_line(name.encode())}={'null' if value is None else _escape_line(value)}" for name, value in headers
    ]
    return f"{{{', '.join(pairs)}}}" if pairs else ""


_PIPED: Final[Mapping[str, Callable[[Message], bytes]]] = {
    "topic": lambda message: (message.topic() or "").encode(),
    "timestamp": _time_bytes,
    "partition": lambda message: _number_bytes(message.partition()),
    "offset": lambda message: _number_bytes(message.offset()),
    "key": lambda message: message.key() or b"",
    "headers": _headers_bytes,
}
_PEOPLE: Final[Mapping[str, Callable[[Message], str]]] = {
    "topic": lambda message: message.topic() or "",
    "timestamp": _local_time,
    "partition": lambda message: f"p{message.partition()}",
    "offset": lambda message: f"@{message.offset()}",
    "key": _shown_key,
    "headers": _shown_headers,
}
_TOKENS: Final[Mapping[str, Callable[[Message], bytes]]] = {
    "%t": _PIPED["topic"],
    "%p": _PIPED["partition"],
    "%o": _PIPED["offset"],
    "%k": _PIPED["key"],
    "%s": lambda message: message.value() or b"",
    "%h": _headers_bytes,
    "%T": _timestamp_bytes,
    "%K": lambda message: _length(message.key()),
    "%S": lambda message: _length(message.value()),
}


class Vocabulary(NamedTuple):
    """What can be told of a message beside its value: by name in a pipe and for people, by token in a template."""

    piped: Mapping[str, Callable[[Any], bytes]]
    people: Mapping[str, Callable[[Any], str]]
    tokens: Mapping[str, Callable[[Any], bytes]]
    describe: Callable[[Any], dict[str, Any]]
    """As JSON and YAML have it."""


RECORDS: Final = Vocabulary(_PIPED, _PEOPLE, _TOKENS, describe_message)
FIELDS: Final = tuple(RECORDS.piped)


# --- forms


def render_raw(delimiter: bytes) -> Render:
    """Values and nothing else; a tombstone is an empty one."""

    def render(messages: Sequence[Message]) -> bytes:
        return b"".join([(message.value() or b"") + delimiter for message in messages])

    return render


def render_json(*, terminal: bool, words: Vocabulary = RECORDS) -> Render:
    import orjson

    describe = words.describe

    def render(messages: Sequence[Message]) -> bytes:
        lines = b"".join([orjson.dumps(describe(each), option=orjson.OPT_APPEND_NEWLINE) for each in messages])
        return escape_json(lines) if terminal else lines

    return render


def render_yaml(*, terminal: bool, words: Vocabulary = RECORDS) -> Render:
    """A document for each record."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def render(messages: Sequence[Message]) -> bytes:
        text: str = yaml.dump_all(
            map(words.describe, messages), Dumper=dumper, sort_keys=False, allow_unicode=True, explicit_start=True
        )
        return (escape(text) if terminal else text).encode()

    return render


def render_lines(fields: Sequence[str], delimiter: bytes, words: Vocabulary = RECORDS) -> Render:
    """For a pipe: the fields, then the value, with tabs between."""
    if not fields:
        return render_raw(delimiter)
    columns = [words.piped[name] for name in fields]

    def render(messages: Sequence[Message]) -> bytes:
        out = bytearray()
        for message in messages:
            for column in columns:
                out += column(message)
                out += b"\t"
            out += message.value() or b""
            out += delimiter
        return bytes(out)

    return render


def render_people(fields: Sequence[str], *, colour: bool, words: Vocabulary = RECORDS) -> Render:
    """For a terminal: the fields in a quiet colour, then the value. Lines of a value after its first are indented."""

    def paint(style: str, text: str) -> str:
        return f"{style}{text}{_PLAIN}" if colour else text

    columns = [(words.people[name], _KEY if name == "key" else _DIM) for name in fields]

    def render(messages: Sequence[Message]) -> bytes:
        lines = []
        for message in messages:
            value = message.value()
            shown = paint(_DIM, "null") if value is None else _escape_bytes(value).replace("\n", "\n    ")
            parts = [paint(style, text) for column, style in columns if (text := column(message))]
            lines.append("  ".join([*parts, shown]))
        return "".join(f"{line}\n" for line in lines).encode()

    return render


def render_template(template: str, *, terminal: bool, words: Vocabulary = RECORDS) -> Render:
    """kcat's tokens: %t %p %o %k %s %h %T, %K and %S for lengths (-1: null), %% for itself. Raises `ValueError`."""
    parts = [_parse_token(word, words.tokens) for word in re.split(r"(%.?)", template) if word]

    def render(messages: Sequence[Message]) -> bytes:
        if terminal:
            return "".join([_render_part(part, message) for message in messages for part in parts]).encode()
        return b"".join([part if isinstance(part, bytes) else part(message) for message in messages for part in parts])

    return render


def _parse_token(word: str, tokens: Mapping[str, Callable[[Any], bytes]]) -> bytes | Callable[[Any], bytes]:
    if word == "%%":
        return b"%"
    if not word.startswith("%"):
        return parse_escapes(word)
    if word not in tokens:
        raise ValueError(f"{word!r} is no token; there are {', '.join(tokens)} and %%")
    return tokens[word]


def _render_part(part: bytes | Callable[[Any], bytes], message: Message) -> str:
    """The template's own bytes are the user's and stay; what a record says is escaped."""
    return part.decode(errors="replace") if isinstance(part, bytes) else _escape_bytes(part(message))


def parse_fields(said: Iterable[str], words: Vocabulary = RECORDS) -> tuple[str, ...]:
    """`key,offset` as fields; `all` and `none` are words too. Raises `ValueError`."""
    names = [name.strip() for word in said for name in word.split(",")]
    if names == ["all"]:
        return tuple(words.piped)
    if names == ["none"]:
        return ()
    for name in names:
        if name not in words.piped:
            raise ValueError(f"{name!r} is no field; there are {', '.join(words.piped)}, all and none")
    return tuple(names)
