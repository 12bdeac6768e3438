"""The SQL that takes staged rows to their table; PostgreSQL and SQLite understand the same words.

    staged rows ── with a key, the last of each ── winners ── DELETE of flagged keys, INSERT of the others

Names are quoted, and nothing but names, numbers and marks of our own is put into a text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final

from .columns import DELETE

SORTED: Final = "_penstock_sorted"
"""A temporary table of the winners, numbered from 1 in the column `NUMBER`."""
NUMBER: Final = "_penstock_number"
COUNT: Final = "_penstock_count"
_RANK: Final = "_penstock_rank"

_PICK = Template("(SELECT $columns FROM $stage WHERE $counts) AS winners")
_PICK_LAST = Template(
    "(SELECT $columns FROM (SELECT $columns, row_number() OVER (PARTITION BY $keys $order) AS $rank "
    "FROM $stage WHERE $counts) AS ranked WHERE $rank = 1) AS winners"
)
_ROWS = Template("SELECT $columns FROM $source WHERE $condition")
_REPEATED = Template(
    "SELECT $keys, count(*) AS $count FROM $stage WHERE $counts GROUP BY $keys HAVING count(*) > 1 LIMIT 1"
)
_DELETE = Template("DELETE FROM $table WHERE ($keys) IN (SELECT $keys FROM $source WHERE $condition)")
_INSERT = Template("INSERT INTO $table ($columns) SELECT $columns FROM $source WHERE $condition $order $conflict")
_NUMBERED = Template("CREATE TEMPORARY TABLE $sorted AS SELECT row_number() OVER () AS $number, $columns FROM $source")
_NUMBERS = Template("SELECT coalesce(max($number), 0) AS $count FROM $sorted")


def quoted(name: str) -> str:
    """An identifier, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Identifiers with commas between."""
    return ", ".join(map(quoted, names))


@dataclass(frozen=True, slots=True)
class Plan:
    """Which staged rows go where.

    Attributes:
        table, stage: quoted.
        counts: a condition that holds for staged rows of tasks that count.
        columns: the table's, in order.
        keys: () where rows are only added.
        extra: columns beside them that `order_by` needs.
        deletes: whether staged rows carry the flag `DELETE`.
    """

    table: str
    stage: str
    counts: str
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    deletes: bool = False

    @property
    def _staged(self) -> str:
        return listed((*self.columns, *self.extra, *((DELETE,) if self.deletes else ())))

    def _with_key(self) -> str:
        return " AND ".join([self.counts, *(f"{quoted(key)} IS NOT NULL" for key in self.keys)])

    def winners(self) -> str:
        """What stands after FROM: the rows that go to the table, one for each key."""
        if not self.order_by:
            return _PICK.substitute(columns=self._staged, stage=self.stage, counts=self._with_key())
        order = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in self.order_by)
        return _PICK_LAST.substitute(
            columns=self._staged,
            keys=listed(self.keys),
            order=f"ORDER BY {order}",
            rank=quoted(_RANK),
            stage=self.stage,
            counts=self._with_key(),
        )

    def keyless(self) -> str:
        """Rows that lack a part of the key: no row of the table could ever be told to be theirs."""
        lacks = " OR ".join(f"{quoted(key)} IS NULL" for key in self.keys)
        return _ROWS.substitute(
            columns=listed(self.columns), source=self.stage, condition=f"{self.counts} AND ({lacks})"
        )

    def repeated(self) -> str:
        """A key that several rows have, and in `COUNT` how many."""
        return _REPEATED.substitute(
            keys=listed(self.keys), count=quoted(COUNT), stage=self.stage, counts=self._with_key()
        )

    def changes(self, source: str, condition: str = "true") -> list[str]:
        """The statements that bring the rows of `source` to the table, in order."""
        if not self.deletes:
            return [self._insert(source, condition)]
        flag = quoted(DELETE)
        delete = _DELETE.substitute(
            table=self.table, keys=listed(self.keys), source=source, condition=f"{condition} AND {flag}"
        )
        return [delete, self._insert(source, f"{condition} AND NOT {flag}")]

    def _insert(self, source: str, condition: str) -> str:
        conflict = ""
        if self.keys:
            changed = [name for name in self.columns if name not in self.keys]
            new = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in changed)
            conflict = f"ON CONFLICT ({listed(self.keys)}) DO " + (f"UPDATE SET {new}" if changed else "NOTHING")
        return _INSERT.substitute(
            table=self.table,
            columns=listed(self.columns),
            source=source,
            condition=condition,
            # Two writers that change the same rows in the same order wait for each other instead of locking up.
            order=f"ORDER BY {listed(self.keys)}" if self.keys else "",
            conflict=conflict,
        ).strip()

    def numbered(self) -> str:
        """Makes `SORTED`."""
        return _NUMBERED.substitute(
            sorted=quoted(SORTED), number=quoted(NUMBER), columns=self._staged, source=self.winners()
        )

    def changes_between(self, first: int, end: int) -> list[str]:
        """As `changes`, of the rows of `SORTED` from number `first` to before `end`."""
        number = quoted(NUMBER)
        return self.changes(quoted(SORTED), f"{number} >= {first} AND {number} < {end}")

    def numbers(self) -> str:
        """How many rows `SORTED` has, in `COUNT`."""
        return _NUMBERS.substitute(number=quoted(NUMBER), count=quoted(COUNT), sorted=quoted(SORTED))

    def row_at(self, number: int) -> str:
        """One row of `SORTED`."""
        return _ROWS.substitute(
            columns=listed(self.columns), source=quoted(SORTED), condition=f"{quoted(NUMBER)} = {number}"
        )


def create_table(table: str, definitions: Sequence[tuple[str, str]], keys: Sequence[str]) -> str:
    """The statement that makes a table of (column, type)."""
    parts = [f"{quoted(name)} {kind}" for name, kind in definitions]
    parts += [f"PRIMARY KEY ({listed(keys)})"] if keys else []
    return f"CREATE TABLE {table} ({', '.join(parts)})"
