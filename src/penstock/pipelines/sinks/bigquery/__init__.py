"""Sink `bigquery`: rows into a table of Google BigQuery, by the Storage Write API or by `insertAll`.

Importing this package imports none of Google's clients.

sink.py      the driver's side           tasks.py    the tasks' side: gather and send
fields.py    types, table and columns    mapping.py  which column fills which field    projection.py  the same in Arrow
streams.py   pending streams             commits.py  their end                         intents.py     noted before it
inserts.py   insertAll                   rows_json.py  rows as JSON                    batcher.py     when to send
access.py    clients and credentials     trouble.py  what passes and what stays        answers.py     tasks → driver
"""

from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.sinks.bigquery import inserts, streams
from penstock.pipelines.sinks.bigquery.access import Access, parse_table
from penstock.pipelines.sinks.bigquery.batcher import Limits
from penstock.pipelines.sinks.bigquery.intents import Intents
from penstock.pipelines.sinks.bigquery.sink import BigQuerySink
from penstock.pipelines.sinks.bigquery.trouble import Backoff

if TYPE_CHECKING:
    from penstock.pipelines.model import SinkSpec
    from penstock.pipelines.sinks.contract import Context

KEYS: Final[Keys] = (
    Key("bigquery", "text", "The table, `project.dataset.table`.", required=True),
    Key(
        "method",
        "choice",
        "`storage_write`: each micro-batch exactly once, by pending streams. `insert_all`: at least once, and rows are "
        "there before the micro-batch is done.",
        default="storage_write",
        choices=("storage_write", "insert_all"),
    ),
    Key(
        "mapping",
        "map",
        "Field of the table: column of the rows; both may be paths (`customer.address.city: order.city`). Structs and "
        "arrays are passed whole. Without it every column goes to the field of its name.",
    ),
    Key(
        "defaults",
        "map",
        "Field of the table, or a path to one: the value where the column is null or missing.",
    ),
    Key("ignore_unknown", "flag", "Leave out columns that the table has no field for.", default=False),
    Key("create", "flag", "Make the table of the rows' columns when it is missing.", default=False),
    Key(
        "credentials",
        "text",
        "JSON file of a service account, at the same path on every machine of the cluster. Without it: Application "
        "Default Credentials.",
    ),
    Key("batch_rows", "number", "Rows in one request.", default=1000, least=1),
    Key("batch_bytes", "size", "Bytes in one request; BigQuery takes 10 MB.", default=10_000_000, least=1024),
    Key("batch_wait", "duration", "How long rows gather before they are sent.", default=1.0, least=0),
    Key("at_once", "number", "Requests that a task has under way.", default=10, least=1),
    Key("retries", "number", "How often a request is tried again after trouble that may pass.", default=3, least=0),
    Key("retry_from", "duration", "The shortest wait before a retry; it doubles each time.", default=1.0, least=0),
    Key("retry_to", "duration", "The longest wait before a retry.", default=30.0, least=0),
    Key("timeout", "duration", "How long an answer is waited for.", default=60.0, least=0.1),
    Key(
        "streams",
        "number",
        "Tasks that write, at most; 0 as many as Spark has. Each makes a stream per micro-batch, and BigQuery counts "
        "streams made per hour.",
        default=0,
        least=0,
    ),
    Key(
        "unsure",
        "choice",
        "What to do where nobody can tell whether the last micro-batch was committed: `stop` and ask, `write` it again "
        "or `skip` it.",
        default="stop",
        choices=("stop", "write", "skip"),
    ),
    Key("endpoint", "text", "URL of the REST API in place of Google's; `http://` is plain, without credentials."),
    Key("grpc_endpoint", "text", "URL of the gRPC API in place of Google's; `http://` is plain, without credentials."),
)
ABOUT: Final = """\
Writes rows into a table of Google BigQuery through Google's Python clients. **This sink was tested against a stand-in
server that speaks the same API (REST `tables.get`, `tables.insert`, `tabledata.insertAll`; gRPC `BigQueryWrite`), not
against BigQuery itself**; try it on a table of your own first.

`method: storage_write` writes each micro-batch once. Every task writes Arrow rows into a pending stream of its own,
which readers do not see. The driver notes which streams it is about to commit, commits all of them in one step, and
notes that it did. After a crash the driver reads the note, asks BigQuery about the streams, and commits those that can
still be committed.
BigQuery keeps uncommitted rows for at least four hours. If a pipeline died between note and commit and is started
after BigQuery has forgotten the streams, it stops and asks (`unsure`). The note is in the pipeline's home. If the note
and the checkpoint are lost, the pipeline begins anew and writes everything it reads; if only the note is lost, the
last micro-batch may be written twice. BigQuery limits how many streams are made per hour: each task with rows makes
one per micro-batch, so set the pipeline's `every` to some seconds and limit `streams`.

`method: insert_all` is at least once. Rows are visible as soon as they are sent, also those of a micro-batch that fails
later and is written again. Each row has an insertId made of query, micro-batch, task and content, with which BigQuery
drops repeats for about a minute, but does not promise it.

In both methods a task gathers rows up to `batch_rows`, `batch_bytes` or `batch_wait`, whichever comes first, and sends
what is left at the end of its rows. A row that BigQuery refuses, that is larger than a request, or that has null inside
an array goes to the dead letters with the reason; the others are written. After quota, throttling and server errors
the task tries again.

| Spark | BigQuery |
|---|---|
| boolean; tinyint, smallint, int, bigint; float, double | BOOL; INT64 (also NUMERIC, BIGNUMERIC); FLOAT64 |
| decimal(p, s) | NUMERIC up to 29 digits before and 9 after the point, else BIGNUMERIC |
| string; binary | STRING (also JSON, GEOGRAPHY, INTERVAL, with `insert_all` TIME); BYTES |
| date; timestamp; timestamp_ntz | DATE; TIMESTAMP; DATETIME |
| array; struct; map | REPEATED; RECORD; REPEATED RECORD of key and value |

BigQuery has no null arrays, so a null array becomes an empty one, and no arrays of arrays.
"""
EXAMPLE: Final = """\
warehouse:
  bigquery: my-project.sales.orders
  mapping:
    id: order.id
    customer.address.city: city
    amount: amount
  defaults:
    customer.address.city: unknown
"""


def open_sink(spec: "SinkSpec", context: "Context") -> BigQuerySink:
    options = {key.name: key.default for key in KEYS} | dict(spec.options)
    for name in ("mapping", "defaults"):
        if not isinstance(options[name] or {}, dict):
            raise SinkError(f"sink {spec.name}: {name} is {options[name]!r}; write one line per field, `field: ...`")
    if options["retry_to"] < options["retry_from"]:
        raise SinkError(
            f"sink {spec.name}: retry_to ({options['retry_to']:g} s) is less than retry_from "
            f"({options['retry_from']:g} s)"
        )
    request_bytes = (streams if options["method"] == "storage_write" else inserts).REQUEST_BYTES
    limits = Limits(
        rows=int(options["batch_rows"]),
        size_bytes=min(int(options["batch_bytes"]), request_bytes),
        wait_s=options["batch_wait"],
        at_once=int(options["at_once"]),
    )
    backoff = Backoff(int(options["retries"]), options["retry_from"], options["retry_to"])
    return BigQuerySink(
        spec.name, _access(spec, options, context), options, limits, backoff, Intents(context.state, spec.name)
    )


def _access(spec: "SinkSpec", options: dict[str, Any], context: "Context") -> Access:
    project, dataset, table = parse_table(str(options["bigquery"]), spec.name)
    for name in ("endpoint", "grpc_endpoint"):
        if options[name] and not str(options[name]).startswith(("http://", "https://")):
            raise SinkError(f"sink {spec.name}: {name} is {options[name]!r}; write http://host:port or https://host")
    credentials = options["credentials"]
    return Access(
        project=project,
        dataset=dataset,
        table=table,
        credentials=str(context.directory / credentials) if credentials else "",
        endpoint=options["endpoint"] or "",
        grpc_endpoint=options["grpc_endpoint"] or "",
        timeout_s=options["timeout"],
    )
