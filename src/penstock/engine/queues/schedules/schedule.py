"""What a schedule is: an expression in a zone, the message it publishes, and how far it has come.

What it is never changes; who wants another one removes it. How far it has come is small, and kept by itself.
"""

from typing import Final, NamedTuple

from penstock.engine.queues.headers import MESSAGE_ID, SYSTEM, strip_reserved
from penstock.engine.queues.schedules.cron import Cron
from penstock.engine.topic_names import check_name
from penstock.errors import Code, PenstockError
from penstock.records.record import Headers

MOST_OF_QUEUE: Final = 1_000
MOST_OF_TOPIC: Final = 10_000
MOST_BYTES_OF_TOPIC: Final = 64 << 20
"""Of all messages of all schedules of a topic: its leader has them in memory."""
LONGEST_VALUE: Final = 64 << 10
LONGEST_KEY: Final = 4 << 10
MOST_HEADERS: Final = 100
LONGEST_HEADERS: Final = 16 << 10
"""Names and values together."""
NAME: Final = f"{SYSTEM}schedule"
PLANNED_TIME: Final = f"{SYSTEM}planned-time-ms"
_AROUND_RECORD: Final = 128
"""At most so many bytes of a record are neither key, value nor headers; with the headers a broker writes."""
_AROUND_HEADER: Final = 10


class Definition(NamedTuple):
    """Attributes:
    group: of the queue it was made for.
    made_ms: it fires after that.
    """

    group: str
    name: str
    cron: str
    zone: str
    key: bytes | None
    value: bytes
    headers: Headers
    made_ms: int

    @property
    def size_bytes(self) -> int:
        """No less than its record takes."""
        headers = sum(_AROUND_HEADER + 4 * len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value) + headers + len(self.name) + _AROUND_RECORD

    def record_headers(self, planned_ms: int) -> Headers:
        """Of the message for a planned time."""
        return (*self.headers, (NAME, self.name.encode()), (PLANNED_TIME, b"%d" % planned_ms))


class Progress(NamedTuple):
    """Attributes:
    base_ms: the next time is the first one that is planned after this: the last one, or when it was made or resumed.
    is_removed: it is gone, but for a message of its own that is under way.
    planned_ms: the time it fired for last, None before the first; `fired_ms` is when that was done.
    """

    base_ms: int
    is_paused: bool = False
    is_removed: bool = False
    planned_ms: int | None = None
    fired_ms: int | None = None


class Schedule:
    """One of a topic's, as its machine has it.

    Attributes:
        number: by which what is kept calls it.
        cron: None until the machine has looked for its zone, or if nobody knows that.
        due_ms: the planned time that has come, while it is ready.
    """

    __slots__ = ("cron", "definition", "due_ms", "number", "progress")

    def __init__(self, number: int, definition: Definition) -> None:
        self.number = number
        self.definition = definition
        self.progress = Progress(definition.made_ms)
        self.cron: Cron | None = None
        self.due_ms = 0


def check_definition(definition: Definition) -> None:
    """Whether a client may have such a one; not whether its expression and zone can be read. Raises PenstockError."""
    try:
        check_name(definition.name)
    except PenstockError as error:
        raise _invalid(str(error).replace("topic name", "schedule name", 1)) from None
    name = definition.name
    if len(definition.value) > LONGEST_VALUE:
        raise _invalid(f"schedule {name!r}: a value of {len(definition.value)} bytes; allowed: {LONGEST_VALUE}")
    if len(definition.key or b"") > LONGEST_KEY:
        raise _invalid(f"schedule {name!r}: a key of {len(definition.key or b'')} bytes; allowed: {LONGEST_KEY}")
    if len(definition.headers) > MOST_HEADERS:
        raise _invalid(f"schedule {name!r}: {len(definition.headers)} headers; allowed: {MOST_HEADERS}")
    size = sum(len(name.encode(errors="replace")) + len(value or b"") for name, value in definition.headers)
    if size > LONGEST_HEADERS:
        raise _invalid(f"schedule {name!r}: headers of {size} bytes; allowed: {LONGEST_HEADERS}")
    if len(strip_reserved(definition.headers)) < len(definition.headers):
        raise _invalid(f"schedule {name!r}: headers that begin with {SYSTEM} are written by brokers only")
    if any(each == MESSAGE_ID for each, _ in definition.headers):
        raise _invalid(f"schedule {name!r}: with header {MESSAGE_ID} all of its messages would have the same id")


def _invalid(text: str) -> PenstockError:
    return PenstockError(Code.INVALID_SCHEDULE, text)
