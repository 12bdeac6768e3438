"""What a `jdbc` sink is told: its keys, read and checked against each other."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipelines.errors import SinkError
from penstock.pipelines.keys import Key, Keys

if TYPE_CHECKING:
    from penstock.pipelines.model import SinkSpec

KEYS: Final[Keys] = (
    Key(
        "jdbc",
        "text",
        "The database: `jdbc:postgresql://HOST:PORT/DATABASE` or `jdbc:sqlite:PATH`; `jdbc:` may be left out.",
        required=True,
    ),
    Key(
        "table",
        "text",
        "The table, as `table` or `schema.table`; a name with a dot stands in double quotes. Case counts.",
        required=True,
    ),
    Key(
        "mode",
        "choice",
        "`insert` adds every row. `upsert` replaces the row with the same `keys`, or adds it.",
        default="insert",
        choices=("insert", "upsert"),
    ),
    Key(
        "keys", "texts", "`upsert`: the columns that tell rows apart; the table has a unique index on them.", default=()
    ),
    Key(
        "order_by",
        "texts",
        "`upsert`: of several rows with one key in a micro-batch the one with the greatest of these columns is kept. "
        "Without it several rows with one key stop the pipeline, as nobody knows which is the last.",
        default=(),
    ),
    Key(
        "delete_when",
        "text",
        "`upsert`: rows for which this SQL predicate holds delete the row with their key. The bare name of a boolean "
        "column does as well; that column is not written.",
        default="",
    ),
    Key(
        "without",
        "texts",
        "Columns that are not written; `order_by` and `delete_when` may use them.",
        default=(),
    ),
    Key("user", "text", "PostgreSQL: the role to log in as; the URL may name it too.", default=""),
    Key("password", "text", "PostgreSQL: its password, best as `${VARIABLE}`.", default="", secret=True),
    Key("create", "flag", "Make the table when it is missing.", default=True),
    Key("batch_rows", "number", "Rows that go to the database at once.", default=50_000, least=1),
    Key(
        "max_rejects",
        "number",
        "How many rows of a micro-batch the database may refuse; they go to the dead letters. More stop the pipeline.",
        default=10_000,
        least=0,
    ),
)

_NAME: Final = r'("(?:[^"]|"")+"|[^".]+)'
_TABLE: Final = re.compile(rf"(?:{_NAME}\.)?{_NAME}")


class TableName(NamedTuple):
    """A table; `schema` is "" where the database is to choose."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True, slots=True)
class Options:
    """A sink's keys. `sink` and `pipeline` are names for messages and marks."""

    sink: str
    pipeline: str
    table: TableName
    upsert: bool
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    delete_when: str
    without: tuple[str, ...]
    create: bool
    batch_rows: int
    max_rejects: int


def read_options(spec: "SinkSpec", pipeline: str) -> Options:
    """The keys of `spec`.

    Raises:
        SinkError: some of them do not go together.
    """
    given = {key.name: spec.options.get(key.name, key.default) for key in KEYS}
    upsert = given["mode"] == "upsert"
    keys = _names(given["keys"])
    if upsert and not keys:
        raise SinkError(f"sink {spec.name}: mode: upsert needs `keys`: the columns that tell rows apart, as keys: [id]")
    for name in ("keys", "order_by", "delete_when"):
        if not upsert and given[name]:
            raise SinkError(f"sink {spec.name}: `{name}` says nothing where rows are only added: give mode: upsert too")
    unwritten = [key for key in keys if key in _names(given["without"])]
    if unwritten:
        raise SinkError(f"sink {spec.name}: `without` leaves out {unwritten[0]}, which is among `keys`: take one away")
    return Options(
        sink=spec.name,
        pipeline=pipeline,
        table=parse_table(str(given["table"]), spec.name),
        upsert=upsert,
        keys=keys,
        order_by=_names(given["order_by"]),
        delete_when=str(given["delete_when"] or "").strip(),
        without=_names(given["without"]),
        create=bool(given["create"]),
        batch_rows=int(given["batch_rows"]),
        max_rejects=int(given["max_rejects"]),
    )


def parse_table(text: str, sink: str) -> TableName:
    """`table`, `schema.table`, `"a.b".table`."""
    found = _TABLE.fullmatch(text.strip())
    if found is None:
        raise SinkError(f"sink {sink}: table: {text!r}: give `table` or `schema.table`; a name with a dot in quotes")
    return TableName(_unquoted(found[1] or ""), _unquoted(found[2]))


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _names(value: object) -> tuple[str, ...]:
    if not value:
        return ()
    return (value,) if isinstance(value, str) else tuple(map(str, value))  # type: ignore[call-overload]
