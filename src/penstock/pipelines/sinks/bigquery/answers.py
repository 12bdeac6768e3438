"""What a task says to the driver: what it wrote and refused, or why it could not.

A failure is an answer too: raised, it would reach the driver as text, and nobody could tell what passes from what
stays.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote.

    Attributes:
        stream: the stream that holds its rows; "": none, they are in the table.
    """

    stream: str
    rows: int
    rejected: tuple[Rejected, ...] = ()


def encode(answer: Written | SinkError) -> bytes:
    if isinstance(answer, SinkError):
        return orjson.dumps({"failed": str(answer), "passing": answer.retriable})
    refused = [[each.row.decode(), each.reason] for each in answer.rejected]
    return orjson.dumps({"stream": answer.stream, "rows": answer.rows, "rejected": refused})


def decode(answers: "Iterable[bytes]") -> list[Written]:
    """What the tasks wrote.

    Raises:
        SinkError: one of them could not; what stays comes before what passes.
    """
    fields = [orjson.loads(each) for each in answers]
    failed = sorted((each for each in fields if "failed" in each), key=lambda each: bool(each["passing"]))
    if failed:
        raise (SinkUnavailable if failed[0]["passing"] else SinkError)(failed[0]["failed"])
    return [
        Written(each["stream"], each["rows"], tuple(Rejected(row.encode(), reason) for row, reason in each["rejected"]))
        for each in fields
    ]
