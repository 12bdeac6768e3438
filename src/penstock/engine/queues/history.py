"""What became of one message, step by step, as the ledger's log still has it.

The ledger's state forgets how a message was settled; its log knows until the state is saved anew and the log begins
there. So the history of a message that was settled long ago is empty, or lacks its beginning.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

from penstock.engine.coordination.schemas import Entry
from penstock.engine.partition import Partition
from penstock.engine.queues import entries
from penstock.engine.queues.entries import Cause, How, LedgerCodec, Value
from penstock.engine.queues.window import Run
from penstock.engine.reading import Cursor
from penstock.errors import Code, PenstockError
from penstock.records.batch import LARGEST_OPENED_BYTES, decode_header
from penstock.records.compression import CompressionError
from penstock.records.control import Marker, decode_marker
from penstock.records.record import RecordError, iterate_batch
from penstock.turns import Turns

_READ_BYTES: Final = 64 * 1024
"""Decoded on the event loop."""
MOST_EVENTS: Final = 500
"""Of one message; the last ones are told."""


class What(StrEnum):
    LEASED = "leased"
    EXTENDED = "extended"
    FAILED = "failed"
    """Its consumer gave it back as not done, was lost, or let its time run out."""
    RELEASED = "released"
    UNREAD = "not read"
    """It was leased and did not fit the answer."""
    DYING = "dying"
    BURYING = "written to dead letters"
    ACKNOWLEDGED = "acknowledged"
    ACKNOWLEDGED_IN = "acknowledged in a transaction"
    """Which has not ended yet."""
    ABORTED = "transaction aborted"
    NO_MESSAGE = "no message"
    EXPIRED = "expired"
    DROPPED = "dropped"
    DEAD = "dead letter"
    REMOVED = "removed"
    """It was purged, or went with its record."""
    BEGUN_ANEW = "queue begun anew"


OUTCOMES: Final = frozenset({What.ACKNOWLEDGED, What.NO_MESSAGE, What.EXPIRED, What.DROPPED, What.DEAD, What.REMOVED})
"""Nothing comes after these, unless the queue begins anew."""
_ENDS: Final = {
    How.ACKED: What.ACKNOWLEDGED,
    How.GONE: What.NO_MESSAGE,
    How.EXPIRED: What.EXPIRED,
    How.REJECTED: What.DROPPED,
    How.EXHAUSTED: What.DROPPED,
    How.BURIED: What.DEAD,
    How.OVERFLOWED: What.DROPPED,
    How.CANCELLED: What.DROPPED,
}
_WHY: Final = {
    How.REJECTED: "rejected",
    How.EXHAUSTED: "tried too often",
    How.OVERFLOWED: "the queue was full",
    How.CANCELLED: "cancelled before it was due",
}
_CAUSES: Final = {
    Cause.REJECTED: "rejected",
    Cause.ATTEMPTS: "failed too often",
    Cause.DELIVERIES: "delivered too often",
    Cause.EXPIRED: "expired",
    Cause.OVERFLOW: "the queue was full",
    Cause.REDRIVEN: "goes back to its queue",
}


class Event(NamedTuple):
    """Attributes:
    at_ms: when the leader noted it.
    until_ms: of a lease, or how long it waits before it is ready again.
    why: in words.
    target: id of the topic it is written to.
    """

    at_ms: int
    what: What
    consumer: str | None = None
    until_ms: int | None = None
    why: str = ""
    target: UUID | None = None


async def read_history(ledger: Partition, number: int, offset: int, turns: Turns) -> list[Event]:
    """What a group's entries say of an offset, the oldest first. Raises PenstockError.

    Args:
        number: by which the ledger calls the group.
    """
    cursor = Cursor(ledger, ledger.log_start, committed=False)
    events: list[Event] = []
    producer: int | None = None
    """In whose transaction it is acknowledged."""
    while True:
        await turns.next()
        try:
            found = await cursor.next(_READ_BYTES, 0)
        except PenstockError as error:
            if error.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            return events[-MOST_EVENTS:]  # the state was saved meanwhile, and the log begins there
        if found.data is None:
            return events[-MOST_EVENTS:]
        for at_ms, said in _said_in(found.data.file.read_at(found.data.size, found.data.position), cursor):
            if isinstance(said, _Ended):
                if said.producer_id == producer:
                    events.append(Event(at_ms, What.ACKNOWLEDGED if said.committed else What.ABORTED))
                    producer = None
                continue
            if said.key != (number,):
                continue
            if isinstance(said.value, entries.SettledIn) and _has(said.value.runs, offset):
                producer = said.value.producer_id
            event = _event(at_ms, said.value, offset)
            is_over = bool(events) and events[-1].what in OUTCOMES
            if event is not None and not (is_over and event.what is What.REMOVED):
                events.append(event)


class _Ended(NamedTuple):
    """A transaction, by its marker."""

    producer_id: int
    committed: bool


def _said_in(batches: bytes, cursor: Cursor) -> Iterator[tuple[int, Entry | _Ended]]:
    """What a part of the ledger's log says, and when, from where the cursor is on, which moves behind it."""
    codec, position = LedgerCodec(), 0
    while position < len(batches):
        header = decode_header(batches, position)
        batch = batches[position : position + header.size]
        position += header.size
        if header.is_control:
            marker = decode_marker(batch)
            if marker is not None and header.last_offset >= cursor.offset:
                yield header.max_timestamp, _Ended(header.producer_id, marker is Marker.COMMIT)
        else:
            try:
                records = list(iterate_batch(batch, LARGEST_OPENED_BYTES))
            except (RecordError, CompressionError) as error:
                raise PenstockError(
                    Code.CORRUPT_LOG, f"a batch of a ledger at offset {header.base_offset} cannot be read: {error}"
                ) from None
            for at, timestamp, record in records:
                entry = codec.decode(record.key, record.value) if at >= cursor.offset else None
                if entry is not None:
                    yield timestamp, entry
        cursor.offset = header.last_offset + 1


def _event(at_ms: int, value: Value, offset: int) -> Event | None:
    if isinstance(value, entries.Moved):
        if value.is_anew:
            return Event(at_ms, What.BEGUN_ANEW)
        return Event(at_ms, What.REMOVED) if offset < value.start else None
    if not _has(getattr(value, "runs", ()), offset) or getattr(value, "is_saved", False):
        return None
    match value:
        case entries.Leased():
            return Event(at_ms, What.LEASED, value.consumer, value.deadline)
        case entries.Renewed():
            return Event(at_ms, What.EXTENDED, until_ms=value.deadline)
        case entries.Returned():
            what = What.UNREAD if value.is_unread else What.FAILED if value.attempts else What.RELEASED
            return Event(at_ms, what, until_ms=value.due or None)
        case entries.Dying():
            why = ": ".join(each for each in (_CAUSES[value.cause], value.reason) if each)
            return Event(at_ms, What.DYING, why=why)
        case entries.Burying():
            return Event(at_ms, What.BURYING, target=value.topic_id)
        case entries.SettledIn():
            return Event(at_ms, What.ACKNOWLEDGED_IN)
        case entries.Settled():
            return Event(at_ms, _ENDS[value.how], why=_WHY.get(value.how, ""))
        case _:
            return None


def _has(runs: Sequence[Run], offset: int) -> bool:
    return any(first <= offset <= last for first, last in runs)
