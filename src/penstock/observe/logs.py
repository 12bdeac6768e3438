"""Structured logs on the standard library: an event and its fields, as one line of text or JSON.

structlog would do the same, but importing it brings in rich where that is installed and takes a quarter of a
second, a good part of what a start may take. Whatever a peer sends ends up inside a quoted value: nothing can
start a line of its own or move a terminal's cursor.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import TextIO

ROOT = "penstock"
MAX_VALUE_CHARS = 4096
MAX_LIMIT_KEYS = 1024

_RESERVED = frozenset({"ts", "level", "subsystem", "event", "exception"})
_FIELDS = "penstock_fields"


class _Bucket:
    """Tokens of one limited key: a burst of one second's worth, then a steady rate."""

    __slots__ = ("at_s", "suppressed", "tokens")

    def __init__(self, now_s: float, burst: float) -> None:
        self.at_s = now_s
        self.tokens = burst
        self.suppressed = 0

    def take(self, now_s: float, per_second: float, burst: float) -> bool:
        self.tokens = min(burst, self.tokens + (now_s - self.at_s) * per_second)
        self.at_s = now_s
        if self.tokens < 1.0:
            self.suppressed += 1
            return False
        self.tokens -= 1.0
        return True


class Logger:
    """Writes events of one subsystem: `log.warning("frame refused", peer=address, size_bytes=n)`."""

    __slots__ = ("_buckets", "_clock", "_fields", "_logger")

    def __init__(
        self,
        logger: logging.Logger,
        fields: dict[str, object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._fields = fields or {}
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def bind(self, **fields: object) -> "Logger":
        """The same logger with fields that every line carries. It shares the limits of this one."""
        bound = Logger(self._logger, self._fields | fields, clock=self._clock)
        bound._buckets = self._buckets
        return bound

    def limited(self, key: str, per_second: float = 1.0) -> "Logger":
        """This logger while `key` is within its rate, else a silent one.

        For lines a peer can cause at will. The next line that gets through says how many were left out
        (`suppressed=n`). Keys come from the code, not from peers; past `MAX_LIMIT_KEYS` the oldest is
        forgotten.
        """
        now_s, burst = self._clock(), max(1.0, per_second)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_LIMIT_KEYS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[key] = _Bucket(now_s, burst)
        if not bucket.take(now_s, per_second, burst):
            return _SILENT
        if bucket.suppressed:
            suppressed, bucket.suppressed = bucket.suppressed, 0
            return self.bind(suppressed=suppressed)
        return self

    def debug(self, event: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def critical(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        """With `error`, its traceback too."""
        self._write(logging.CRITICAL, event, fields, error)

    def exception(self, event: str, /, *, error: BaseException | None = None, **fields: object) -> None:
        """An error with its traceback: the one given, or the one being handled."""
        self._write(logging.ERROR, event, fields, error or sys.exc_info()[1])

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            exc_info = (type(error), error, error.__traceback__) if error is not None else None
            record = self._logger.makeRecord(
                self._logger.name, level, "", 0, event, (), exc_info, extra={_FIELDS: self._fields | fields}
            )
            self._logger.handle(record)


def _silent() -> Logger:
    logger = logging.Logger("silent", level=logging.CRITICAL + 1)
    logger.addHandler(logging.NullHandler())
    return Logger(logger)


_SILENT = _silent()


def get_logger(subsystem: str) -> Logger:
    """The logger of one room, such as `storage` or `protocols.kafka`."""
    return Logger(logging.getLogger(f"{ROOT}.{subsystem}"))


def configure(level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send every log line of the process to one stream; libraries speak from warning up, and not often.

    Args:
        level: debug, info, warning or error.
        format: text or json.
        stream: standard error when not given.
    """
    handler = _Handler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.addFilter(ForeignLimit())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


def flush() -> None:
    """Hand what is buffered to the system, before a process ends without its usual farewell."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A closed or full standard error is no reason to stop serving, and nowhere is left to say so."""


class ForeignLimit(logging.Filter):
    """Libraries log what peers do (a malformed HTTP request) without any limit: five a second each."""

    def __init__(self, *, per_second: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._per_second = per_second
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == ROOT or record.name.startswith(ROOT + "."):
            return True
        now_s = self._clock()
        bucket = self._buckets.setdefault(record.name, _Bucket(now_s, self._per_second))
        if not bucket.take(now_s, self._per_second, self._per_second):
            return False
        if bucket.suppressed:
            setattr(record, _FIELDS, {"suppressed": bucket.suppressed})
            bucket.suppressed = 0
        return True


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _subsystem(record: logging.LogRecord) -> str:
    return record.name.removeprefix(ROOT + ".")


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, _FIELDS, {})
    return fields


def _clip(text: str) -> str:
    extra = len(text) - MAX_VALUE_CHARS
    return text if extra <= 0 else f"{text[:MAX_VALUE_CHARS]}...(+{extra})"


def format_value(value: object) -> str:
    """One value of a text line: bare when it is a plain word, else quoted, the unprintable escaped."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _clip(value if isinstance(value, str) else str(value))
    if not text.isprintable():
        return json.dumps(text)
    if not text or any(char in text for char in ' "=\\'):
        return json.dumps(text, ensure_ascii=False)
    return text


def _format_event(record: logging.LogRecord) -> str:
    event = _clip(record.getMessage())
    return event if event.isprintable() else json.dumps(event)[1:-1]


class TextFormatter(logging.Formatter):
    """`2026-05-01T12:00:00.123Z info     storage  segment rolled topic=orders partition=3`."""

    def format(self, record: logging.LogRecord) -> str:
        level, event = record.levelname.lower(), _format_event(record)
        line = f"{_timestamp(record)} {level:8} {_subsystem(record):8} {event}"
        for name, value in _fields_of(record).items():
            line += f" {name}={format_value(value)}"
        if record.exc_info and record.exc_info[1] is not None:
            # Every line behind a bar: an error's text may quote a peer, and must not pass for a log line.
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            line += "".join(f"\n  | {_printable(part)}" for part in trace.splitlines())
        return line


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, subsystem, event, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "subsystem": _subsystem(record),
            "event": _clip(record.getMessage()),
        }
        for name, value in _fields_of(record).items():
            plain = value if isinstance(value, bool | int | float) or value is None else _clip(str(value))
            line[f"field_{name}" if name in _RESERVED else name] = plain
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line)
