"""What a coordinator's state machine answers with: records to be kept, replies to be sent when they are.

A machine is pure: it is told the time, changes itself at once and returns an `Outcome`. Whoever runs it (`shard.py`)
appends the records in one batch, and sends the replies when that batch and everything appended before it is durable.
If the append fails the machine is thrown away and made again from the log, as after a crash; so a machine never has
to take anything back.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.engine.coordination.schemas import Entry
from penstock.errors import PenstockError

Token = Hashable
"""Names a caller who waits; a machine only keeps it and gives it back."""


class Reply(NamedTuple):
    to: Token
    answer: Any
    """The result, or the PenstockError the caller is to get."""


@dataclass(frozen=True, slots=True)
class Outcome:
    records: Sequence[Entry] = ()
    replies: Sequence[Reply] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome((*self.records, *other.records), (*self.replies, *other.replies))


NOTHING = Outcome()


def refused(to: Token, error: PenstockError) -> Outcome:
    return Outcome(replies=(Reply(to, error),))
