"""What a task says when it is done: under which name its rows wait, how many, which it could not hand over, and what
stopped it. A task never raises for the database's sake: Spark would turn the error into text and try again at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import Rejected


@dataclass(frozen=True, slots=True)
class Part:
    """A task's answer.

    Attributes:
        attempt: the name its rows wait under, no other attempt's.
        trouble: why it gave up; "" when it did not.
        retriable: whether the trouble may pass.
        size: bytes of its file, where rows wait in one.
    """

    attempt: str
    rows: int = 0
    refused: tuple[Rejected, ...] = ()
    trouble: str = ""
    retriable: bool = False
    size: int = 0

    def encode(self) -> bytes:
        refused = [(each.row.decode(), each.reason) for each in self.refused]
        return orjson.dumps((self.attempt, self.rows, refused, self.trouble, self.retriable, self.size))

    @classmethod
    def decode(cls, data: bytes) -> "Part":
        attempt, rows, refused, trouble, retriable, size = orjson.loads(data)
        rejected = tuple(Rejected(row.encode(), reason) for row, reason in refused)
        return cls(attempt, rows, rejected, trouble, retriable, size)


def decode_parts(answers: Sequence[bytes]) -> list[Part]:
    """The parts of all tasks.

    Raises:
        SinkError: a task gave up.
    """
    parts = [Part.decode(answer) for answer in answers]
    # What needs a person goes before what may pass.
    for part in sorted((each for each in parts if each.trouble), key=lambda each: each.retriable):
        raise (SinkUnavailable if part.retriable else SinkError)(part.trouble)
    return parts
