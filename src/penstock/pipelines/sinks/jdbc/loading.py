"""Takes staged rows to their table in an open transaction, and finds those the database refuses.

A database refuses a statement, not a row. So all rows are tried at once; when they are refused, halves of halves, each
within a savepoint, until the guilty ones are alone. The others are written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.contract import Rejected

from .columns import Column
from .rendering import row_json
from .statements import COUNT, NUMBER, SORTED, Plan, quoted


class Session(Protocol):
    """An open transaction of a database."""

    def run(self, sql: str) -> int:
        """How many rows the statement changed."""
        ...

    def rows(self, sql: str) -> Sequence[Mapping[str, Any]]: ...

    def fault(self, error: Exception) -> str | None:
        """Why the database refuses a row, or None where the error is not about a row."""
        ...

    def index_temporary(self, table: str, column: str) -> None: ...


@dataclass(slots=True)
class Loaded:
    """How many rows of the table changed, and which rows it did not take."""

    rows: int = 0
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads one micro-batch.

    Attributes:
        columns: those of the table.
        most: how many rows may be rejected.
    """

    session: Session
    plan: Plan
    columns: tuple[Column, ...]
    sink: str
    most: int

    def load(self) -> Loaded:
        """Change the table.

        Raises:
            SinkError: several rows have one key and nothing says which is the last, or too many are refused.
        """
        loaded = Loaded()
        if self.plan.keys:
            self._reject_keyless(loaded)
            self._check_keys()
        if self._tried(self.plan.changes(self.plan.winners()), loaded) is not None:
            self._sift(loaded)
        return loaded

    def _reject_keyless(self, loaded: Loaded) -> None:
        for row in self.session.rows(self.plan.keyless()):
            missing = ", ".join(key for key in self.plan.keys if row[key] is None)
            self._reject(loaded, row, f"the key {missing} is null")

    def _check_keys(self) -> None:
        if self.plan.order_by:
            return
        for row in self.session.rows(self.plan.repeated()):
            key = ", ".join(f"{name} = {row[name]}" for name in self.plan.keys)
            raise SinkError(
                f"sink {self.sink}: {row[COUNT]} rows of one micro-batch have the key {key}, and nothing says which "
                "is the last: give `order_by`, a column that grows, or keep one of them in a step"
            )

    def _tried(self, statements: Sequence[str], loaded: Loaded) -> str | None:
        """Run statements within a savepoint; the reason where a row is refused, after which nothing has happened."""
        self.session.run("SAVEPOINT penstock")
        changed = 0
        try:
            for statement in statements:
                changed += self.session.run(statement)
        except Exception as error:
            reason = self.session.fault(error)
            if reason is None:
                raise
            self.session.run("ROLLBACK TO SAVEPOINT penstock")
            self.session.run("RELEASE SAVEPOINT penstock")
            return reason
        self.session.run("RELEASE SAVEPOINT penstock")
        loaded.rows += changed
        return None

    def _sift(self, loaded: Loaded) -> None:
        """Write what can be written, and reject the rest."""
        self.session.run(self.plan.numbered())
        self.session.index_temporary(SORTED, NUMBER)
        count = int(self.session.rows(self.plan.numbers())[0][COUNT])
        ranges = _halves(1, count + 1) if count > 1 else [(1, 2)]
        while ranges:
            first, end = ranges.pop()
            reason = self._tried(self.plan.changes_between(first, end), loaded)
            if reason is None:
                continue
            if end - first > 1:
                ranges += _halves(first, end)
                continue
            self._reject(loaded, self.session.rows(self.plan.row_at(first))[0], reason)
        self.session.run(f"DROP TABLE {quoted(SORTED)}")

    def _reject(self, loaded: Loaded, row: Mapping[str, Any], reason: str) -> None:
        if len(loaded.rejected) >= self.most:
            raise too_many(self.sink, self.most, reason)
        loaded.rejected.append(Rejected(row_json(row, self.columns), reason))


def _halves(first: int, end: int) -> list[tuple[int, int]]:
    """The upper one first: they are taken from the end."""
    middle = (first + end) // 2
    return [(middle, end), (first, middle)]


def too_many(sink: str, most: int, reason: str) -> SinkError:
    return SinkError(
        f"sink {sink}: the database refuses more than {most} rows of one micro-batch, one because: {reason}. "
        "Nothing of it was written. Change the rows in a step or the table's constraints, or raise `max_rejects`"
    )
