"""Rows into a table of PostgreSQL or SQLite, by URL. Imports psycopg and pyarrow where they are used; no JVM driver.

options.py    the keys                         address.py    which database a URL means
columns.py    what leaves Spark                rendering.py  Arrow as text
statements.py loading.py                       staged rows → table, the refused ones found
parts.py      what a task answers
postgres.py   staging.py  postgres_table.py  postgres_errors.py
sqlite.py     spool.py    sqlite_table.py
"""

from typing import TYPE_CHECKING, Final

from penstock.pipelines.sinks.contract import Context, Sink

from .address import PostgresAddress, parse_address
from .options import KEYS, read_options

if TYPE_CHECKING:
    from penstock.pipelines.model import SinkSpec

__all__ = ["ABOUT", "EXAMPLE", "KEYS", "open_sink"]

ABOUT: Final = """\
Writes rows into a table of **PostgreSQL** or **SQLite**. The URL is JDBC's; no JDBC driver is needed.

*Once*: the table `_penstock_commits`, beside the table, holds the last micro-batch of every query and sink. It
changes in the same transaction as the rows, so a micro-batch that is repeated after a crash is recognised.
PostgreSQL: tasks `COPY` their rows into an unlogged table `_penstock_stage_…`, and one transaction moves them.
SQLite: tasks write their rows beside the database file, so all workers must be on the driver's machine; then one
transaction inserts them.

*Types*: the sink makes a missing table (unless `create: false`): `decimal` becomes `numeric`, `timestamp`
`timestamptz`, `timestamp_ntz` `timestamp`, `binary` `bytea`; arrays, maps and structs become `jsonb`. In SQLite
decimals, dates and times are text (an instant is UTC and ends in `Z`), nested values are JSON text, and NaN, which
SQLite does not know, is null. In an existing table values go to the columns with the same names. A string can go into
any column that reads text (`uuid`, `inet`, an enum, `json`), but not into numbers and dates: cast it in a step.

*Rows the database refuses* (a constraint, a number too large, a NUL character, an `upsert` key that is null) go to
the dead letters with the database's reason, and the rest of the micro-batch is written. If there are more than
`max_rejects`, the pipeline stops before it writes anything of the micro-batch.

*Upserts* keep one row for each key of a micro-batch: the last by `order_by`. For change data capture, `delete_when`
names the rows that delete: `keys: [id]`, `order_by: [lsn]`, `delete_when: op = 'd'`, `without: [op, lsn]`.
"""

EXAMPLE: Final = """\
customers:
  from: changes
  jdbc: jdbc:postgresql://db.example.com:5432/shop
  table: public.customers
  user: penstock
  password: ${SHOP_PASSWORD}
  mode: upsert
  keys: [id]
  order_by: [lsn]
  delete_when: op = 'd'
  without: [op, lsn]
"""


def open_sink(spec: "SinkSpec", context: Context) -> Sink:
    """The sink of `spec`.

    Raises:
        SinkError: the URL is of another database, or keys do not go together.
    """
    options = read_options(spec, context.pipeline)
    address = parse_address(
        str(spec.options["jdbc"]),
        sink=spec.name,
        user=str(spec.options.get("user") or ""),
        password=str(spec.options.get("password") or ""),
        directory=context.directory,
    )
    if isinstance(address, PostgresAddress):
        from .postgres import PostgresSink

        return PostgresSink(options, address)
    from .sqlite import SqliteSink

    return SqliteSink(options, address)
