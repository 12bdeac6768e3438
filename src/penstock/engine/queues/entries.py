"""What a ledger keeps: its entries, and how each is written.

An entry says what has become of ranges of offsets, so the ledger is its entries in their order: nothing is merged, and
no number wins over another. Which group an entry is about is a number that `Opened` gives to its name.

    bytes    version (1), kind (1), group (4), the fields of the kind
"""

import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from penstock.engine.coordination.schemas import Entry
from penstock.engine.queues.window import CHUNK, Run
from penstock.errors import Code, PenstockError

_VERSION: Final = 1


class EntryKind(IntEnum):
    OPENED = 1
    LEASED = 2
    SETTLED = 3
    RETURNED = 4
    RENEWED = 5
    DYING = 6
    MOVED = 7
    DELETED = 8
    LED = 9
    CHUNK = 10
    RESTORED = 11
    BURYING = 12
    SETTLED_IN = 13


class How(IntEnum):
    """How offsets were settled."""

    ACKED = 1
    GONE = 2
    """There is no record that anybody could have had: a marker, a hole, an aborted one."""
    EXPIRED = 3
    REJECTED = 4
    """Dropped, as it would have been buried if there were dead letters."""
    EXHAUSTED = 5
    BURIED = 6
    OVERFLOWED = 7
    CANCELLED = 8
    """Before it was due."""


class Cause(IntEnum):
    """Why a message becomes a dead letter."""

    REJECTED = 1
    ATTEMPTS = 2
    DELIVERIES = 3
    EXPIRED = 4
    OVERFLOW = 5
    REDRIVEN = 6
    """It is a dead letter, and goes back to the queue that `Dying.reason` names."""


class Opened(NamedTuple):
    """A group is known from now on, or is saved: its chunks and leases follow until `Restored`."""

    name: str
    start: int
    next: int
    is_saved: bool = False
    state_epoch: int = 0
    """Of a share group: by which word of its coordinator it is where it is; 0 for any other queue."""


class Leased(NamedTuple):
    """Attributes:
    is_bound: it ends with its consumer's session on the broker that leads, and has no receipts.
    began: when it was first given; it cannot be renewed for ever.
    is_saved: it was leased before, and this says no more than that.
    """

    lease_id: int
    consumer: str
    began: int
    deadline: int
    is_bound: bool
    is_saved: bool
    runs: Sequence[Run]


class Settled(NamedTuple):
    how: How
    runs: Sequence[Run]


class SettledIn(NamedTuple):
    """Offsets that are acknowledged if a producer's transaction commits; its marker follows in the ledger's log.

    Attributes:
    producer_id: `leases.ABORTED`, in a saved state alone, for what an aborted one has just left.
    """

    producer_id: int
    is_saved: bool
    runs: Sequence[Run]


class Returned(NamedTuple):
    """Attributes:
    attempts: that have failed with it; 0 or 1.
    at: when that was.
    due: ready from then on; 0 for at once.
    is_shaken: its consumer was lost with it, and nobody knows by which of its messages.
    is_unread: nobody has seen it; the lease does not count.
    """

    attempts: int
    at: int
    due: int
    is_shaken: bool
    is_unread: bool
    is_saved: bool
    runs: Sequence[Run]


class Renewed(NamedTuple):
    lease_id: int
    deadline: int
    runs: Sequence[Run]


class Dying(NamedTuple):
    """Attributes:
    attempts: that have failed with it; 0 or 1.
    """

    cause: Cause
    attempts: int
    reason: str
    is_saved: bool
    runs: Sequence[Run]


class Burying(NamedTuple):
    """Dying offsets are written to a topic of dead letters, as one batch of this producer, one record for each.

    Whoever leads next sends the same batch again: the log there takes it once.

    Attributes:
        runs: offsets below 0 stand for messages that were lost since, with the log they were in.
    """

    topic_id: UUID
    partition: int
    producer_id: int
    sequence: int
    runs: Sequence[Run]

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)


class Moved(NamedTuple):
    """Attributes:
    is_anew: the group begins anew at `start`, wherever it was; otherwise what lies below is settled.
    """

    start: int
    is_anew: bool
    state_epoch: int = 0
    """As in `Opened`."""


class Deleted(NamedTuple):
    pass


class Led(NamedTuple):
    """A broker has begun to lead.

    Attributes:
    at: when, by its own clock. Whoever led before may have had one that was ahead: what is to wait waits no longer
        than was meant then.
    data_end: what lies there and beyond is not what was spoken of before.
    ends_bound: bound leases are over.
    """

    epoch: int
    at: int
    data_end: int
    ends_bound: bool


class ChunkSaved(NamedTuple):
    base: int
    states: bytes
    deliveries: bytes
    attempts: bytes


class Restored(NamedTuple):
    """The end of what was saved of a group."""


Value = (
    Opened
    | Leased
    | Settled
    | SettledIn
    | Returned
    | Renewed
    | Dying
    | Burying
    | Moved
    | Deleted
    | Led
    | ChunkSaved
    | Restored
)

_HEAD = Struct(">BBI")
_RUN = Struct(">qI")
_COUNT = Struct(">I")
_OPENED = Struct(">qqB")
_LEASED = Struct(">qqqBB")
_SETTLED_IN = Struct(">qB")
_RETURNED = Struct(">BqqBBB")
_RENEWED = Struct(">qq")
_DYING = Struct(">BBB")
_BURYING = Struct(">16siqi")
_MOVED = Struct(">qB")
_LED = Struct(">qqqB")
_BASE = Struct(">q")
_EPOCH = Struct(">i")


def _text(text: str) -> bytes:
    encoded = text.encode(errors="replace")
    return _COUNT.pack(len(encoded)) + encoded


def _runs(runs: Sequence[Run]) -> bytes:
    return _COUNT.pack(len(runs)) + b"".join([_RUN.pack(first, last - first) for first, last in runs])


def _epoch(epoch: int) -> bytes:
    """Behind all else, where earlier releases do not look."""
    return _EPOCH.pack(epoch) if epoch else b""


class _Reader:
    """Takes fields out of an entry's bytes. Raises ValueError, `struct.error`."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def take(self, struct: Struct) -> Any:
        values = struct.unpack_from(self._data, self._position)
        self._position += struct.size
        return values

    def text(self) -> str:
        (size,) = self.take(_COUNT)
        found = self.rest(size)
        return found.decode()

    def runs(self) -> tuple[Run, ...]:
        (count,) = self.take(_COUNT)
        if count * _RUN.size > len(self._data) - self._position:
            raise ValueError(f"{count} ranges in {len(self._data)} bytes")
        found = []
        for _ in range(count):
            first, more = self.take(_RUN)
            found.append(Run(first, first + more))
        return tuple(found)

    def epoch(self) -> int:
        """0 where none is written."""
        if self._position == len(self._data):
            return 0
        (epoch,) = self.take(_EPOCH)
        return cast(int, epoch)

    def rest(self, size: int | None = None) -> bytes:
        end = len(self._data) if size is None else self._position + size
        if end > len(self._data):
            raise ValueError(f"{size} bytes at {self._position} of {len(self._data)}")
        found = self._data[self._position : end]
        self._position = end
        return found


def _write_chunk(value: ChunkSaved) -> bytes:
    return _BASE.pack(value.base) + zlib.compress(value.states + value.deliveries + value.attempts, 1)


def _read_chunk(reader: _Reader) -> ChunkSaved:
    (base,) = reader.take(_BASE)
    opener = zlib.decompressobj()
    found = opener.decompress(reader.rest(), 3 * CHUNK)
    if len(found) != 3 * CHUNK:
        raise ValueError(f"a chunk of {len(found)} bytes")
    return ChunkSaved(base, found[:CHUNK], found[CHUNK : 2 * CHUNK], found[2 * CHUNK :])


def _read_opened(reader: _Reader) -> Opened:
    start, following, is_saved = reader.take(_OPENED)
    return Opened(reader.text(), start, following, bool(is_saved), reader.epoch())


def _read_leased(reader: _Reader) -> Leased:
    lease_id, began, deadline, is_bound, is_saved = reader.take(_LEASED)
    return Leased(lease_id, reader.text(), began, deadline, bool(is_bound), bool(is_saved), reader.runs())


def _read_settled_in(reader: _Reader) -> SettledIn:
    producer_id, is_saved = reader.take(_SETTLED_IN)
    return SettledIn(producer_id, bool(is_saved), reader.runs())


def _read_returned(reader: _Reader) -> Returned:
    attempts, at, due, *flags = reader.take(_RETURNED)
    is_shaken, is_unread, is_saved = map(bool, flags)
    return Returned(attempts, at, due, is_shaken, is_unread, is_saved, reader.runs())


def _read_renewed(reader: _Reader) -> Renewed:
    lease_id, deadline = reader.take(_RENEWED)
    return Renewed(lease_id, deadline, reader.runs())


def _read_dying(reader: _Reader) -> Dying:
    cause, attempts, is_saved = reader.take(_DYING)
    return Dying(Cause(cause), attempts, reader.text(), bool(is_saved), reader.runs())


def _read_burying(reader: _Reader) -> Burying:
    topic_id, partition, producer_id, sequence = reader.take(_BURYING)
    return Burying(UUID(bytes=topic_id), partition, producer_id, sequence, reader.runs())


def _read_moved(reader: _Reader) -> Moved:
    start, is_anew = reader.take(_MOVED)
    return Moved(start, bool(is_anew), reader.epoch())


def _read_led(reader: _Reader) -> Led:
    epoch, at, data_end, ends_bound = reader.take(_LED)
    return Led(epoch, at, data_end, bool(ends_bound))


class _Form(NamedTuple):
    value: type
    write: Callable[[Any], bytes]
    read: Callable[[_Reader], Value]


_FORMS: Final[dict[EntryKind, _Form]] = {
    EntryKind.OPENED: _Form(
        Opened,
        lambda v: _OPENED.pack(v.start, v.next, v.is_saved) + _text(v.name) + _epoch(v.state_epoch),
        _read_opened,
    ),
    EntryKind.LEASED: _Form(
        Leased,
        lambda v: (
            _LEASED.pack(v.lease_id, v.began, v.deadline, v.is_bound, v.is_saved) + _text(v.consumer) + _runs(v.runs)
        ),
        _read_leased,
    ),
    EntryKind.SETTLED: _Form(
        Settled,
        lambda v: bytes([v.how]) + _runs(v.runs),
        lambda r: Settled(How(r.rest(1)[0]), r.runs()),
    ),
    EntryKind.SETTLED_IN: _Form(
        SettledIn,
        lambda v: _SETTLED_IN.pack(v.producer_id, v.is_saved) + _runs(v.runs),
        _read_settled_in,
    ),
    EntryKind.RETURNED: _Form(
        Returned,
        lambda v: _RETURNED.pack(v.attempts, v.at, v.due, v.is_shaken, v.is_unread, v.is_saved) + _runs(v.runs),
        _read_returned,
    ),
    EntryKind.RENEWED: _Form(
        Renewed,
        lambda v: _RENEWED.pack(v.lease_id, v.deadline) + _runs(v.runs),
        _read_renewed,
    ),
    EntryKind.DYING: _Form(
        Dying,
        lambda v: _DYING.pack(v.cause, v.attempts, v.is_saved) + _text(v.reason) + _runs(v.runs),
        _read_dying,
    ),
    EntryKind.BURYING: _Form(
        Burying,
        lambda v: _BURYING.pack(v.topic_id.bytes, v.partition, v.producer_id, v.sequence) + _runs(v.runs),
        _read_burying,
    ),
    EntryKind.MOVED: _Form(Moved, lambda v: _MOVED.pack(v.start, v.is_anew) + _epoch(v.state_epoch), _read_moved),
    EntryKind.DELETED: _Form(Deleted, lambda v: b"", lambda r: Deleted()),
    EntryKind.LED: _Form(Led, lambda v: _LED.pack(v.epoch, v.at, v.data_end, v.ends_bound), _read_led),
    EntryKind.CHUNK: _Form(ChunkSaved, _write_chunk, _read_chunk),
    EntryKind.RESTORED: _Form(Restored, lambda v: b"", lambda r: Restored()),
}
_KINDS: Final = {form.value: kind for kind, form in _FORMS.items()}


def entry(group: int, value: Value) -> Entry:
    return Entry(_KINDS[type(value)], (group,), value)


class LedgerCodec:
    """Of the records of ledgers; see `coordination.registry.Codec`."""

    def encode(self, entry: Entry) -> tuple[bytes, bytes | None]:
        kind = EntryKind(entry.kind)
        return b"", _HEAD.pack(_VERSION, kind, entry.key[0]) + _FORMS[kind].write(entry.value)

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        try:
            version, number, group = _HEAD.unpack_from(value or b"")
            if version > _VERSION or number not in EntryKind._value2member_map_:
                raise PenstockError(
                    Code.CORRUPT_LOG,
                    f"a ledger has an entry of kind {number}, version {version}; this release knows version {_VERSION}",
                    help="run the release that wrote it, or a later one",
                )
            kind = EntryKind(number)
            return Entry(kind, (group,), _FORMS[kind].read(_Reader(value or b"", _HEAD.size)))
        except (StructError, ValueError, zlib.error) as error:
            raise PenstockError(Code.CORRUPT_LOG, f"an entry of a ledger cannot be read: {error}") from None
