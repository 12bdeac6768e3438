"""What is kept of schedules: what each is, how far it has come, and which batch of messages is under way.

The log is compacted, so each entry says all of its key, and the last one counts.

    key      kind (1), number (8): of the schedule, or of the partition that the batch is for
    value    version (1), the fields of the kind; none takes the key back
"""

from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, NamedTuple

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.schedules.schedule import Definition, Progress
from penstock.errors import Code, PenstockError
from penstock.records.record import Headers

_VERSION: Final = 1


class EntryKind(IntEnum):
    DEFINED = 1
    PROGRESS = 2
    ROUND = 3


class Fire(NamedTuple):
    number: int
    """Of the schedule."""
    planned_ms: int


class Round(NamedTuple):
    """Messages are published to a partition as one batch of this producer, one for each planned time.

    Whoever leads next sends the same batch again: the log of that partition takes it once.

    Attributes:
        sequence: of the batch; where nothing is under way, of the next one.
        fires: none where it is done.
    """

    producer_id: int
    sequence: int
    fires: tuple[Fire, ...]


Value = Definition | Progress | Round

_KEY = Struct(">BQ")
_BYTE = Struct(">B")
_SIZE = Struct(">i")
_MADE = Struct(">q")
_PROGRESS = Struct(">qBqq")
_ROUND = Struct(">qiI")
_FIRE = Struct(">Qq")
_PAUSED, _REMOVED = 1, 2
_NONE: Final = -1


def _bytes(content: bytes | None) -> bytes:
    return _SIZE.pack(_NONE) if content is None else _SIZE.pack(len(content)) + content


def _text(text: str) -> bytes:
    return _bytes(text.encode(errors="surrogatepass"))


def _moment(moment_ms: int | None) -> int:
    return _NONE if moment_ms is None else moment_ms


class _Reader:
    """Takes fields out of an entry's bytes. Raises ValueError, `struct.error`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, struct: Struct) -> tuple[Any, ...]:
        values = struct.unpack_from(self._data, self._position)
        self._position += struct.size
        return values

    def content(self) -> bytes | None:
        (size,) = self.take(_SIZE)
        if size == _NONE:
            return None
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes at {self._position} of {len(self._data)}")
        found = self._data[self._position : end]
        self._position = end
        return found

    def text(self) -> str:
        return (self.content() or b"").decode(errors="surrogatepass")

    def count(self, struct: Struct, count: int) -> list[tuple[Any, ...]]:
        if count * struct.size > len(self._data) - self._position:
            raise ValueError(f"{count} of {struct.size} bytes in {len(self._data)}")
        return [self.take(struct) for _ in range(count)]


def _write(value: Value) -> bytes:
    if isinstance(value, Definition):
        texts = (value.group, value.name, value.cron, value.zone)
        headers = b"".join([_text(name) + _bytes(content) for name, content in value.headers])
        return b"".join(
            (
                _MADE.pack(value.made_ms),
                *map(_text, texts),
                _bytes(value.key),
                _bytes(value.value),
                _SIZE.pack(len(value.headers)),
                headers,
            )
        )
    if isinstance(value, Progress):
        flags = (_PAUSED if value.is_paused else 0) | (_REMOVED if value.is_removed else 0)
        return _PROGRESS.pack(value.base_ms, flags, _moment(value.planned_ms), _moment(value.fired_ms))
    fires = [_FIRE.pack(*fire) for fire in value.fires]
    return _ROUND.pack(value.producer_id, value.sequence, len(fires)) + b"".join(fires)


def _read(kind: EntryKind, reader: _Reader) -> Value:
    if kind is EntryKind.DEFINED:
        (made_ms,) = reader.take(_MADE)
        group, name, cron, zone = (reader.text() for _ in range(4))
        key, value = reader.content(), reader.content() or b""
        (count,) = reader.take(_SIZE)
        headers: Headers = tuple([(reader.text(), reader.content()) for _ in range(count)])
        return Definition(group, name, cron, zone, key, value, headers, made_ms)
    if kind is EntryKind.PROGRESS:
        base_ms, flags, planned_ms, fired_ms = reader.take(_PROGRESS)
        planned, fired = (None if each == _NONE else each for each in (planned_ms, fired_ms))
        return Progress(base_ms, bool(flags & _PAUSED), bool(flags & _REMOVED), planned, fired)
    producer_id, sequence, count = reader.take(_ROUND)
    return Round(producer_id, sequence, tuple([Fire(*each) for each in reader.count(_FIRE, count)]))


class ScheduleCodec:
    """Of the records of schedules; see `coordination.registry.Codec`."""

    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        key = _KEY.pack(EntryKind(entry.kind), entry.key[0])
        return key, None if entry.value is None else _BYTE.pack(_VERSION) + _write(entry.value)

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        try:
            kind, number = _KEY.unpack(key or b"")
            reader = _Reader(value or b"")
            version = _VERSION if value is None else reader.take(_BYTE)[0]
            if version > _VERSION or kind not in EntryKind._value2member_map_:
                raise PenstockError(
                    Code.CORRUPT_LOG,
                    f"schedules have an entry of kind {kind}, version {version}; this release knows version {_VERSION}",
                    help="run the release that wrote it, or a later one",
                )
            found = None if value is None else _read(EntryKind(kind), reader)
            return Entry(EntryKind(kind), (number,), found)
        except (StructError, ValueError) as error:
            raise PenstockError(Code.CORRUPT_LOG, f"an entry of schedules cannot be read: {error}") from None
