"""The keys of a pipeline's file, but for the sinks', which stand in their modules.

Files are checked by these tables, and the reference page is made of them.
"""

from typing import Final

from penstock.pipelines import sinks
from penstock.pipelines.keys import Key, Keys
from penstock.pipelines.model import Action

PIPELINE: Final[Keys] = (
    Key("name", "text", "What it is called: `[a-z0-9][a-z0-9._-]*`. Without it, the file's name without its ending."),
    Key("description", "text", "What it is for, in a line.", ""),
    Key("server", "text", "Brokers, `host:port,...`, for topics that name no other.", "127.0.0.1:9092"),
    Key(
        "context",
        "text",
        "A context of `penstock context add`: its server, where `server` is not set, and its properties, where "
        "`client` does not say otherwise.",
    ),
    Key(
        "client",
        "map",
        "Properties of the Kafka client, as `security.protocol`; a password comes by `sasl.password.file` or "
        "`$PENSTOCK_PASSWORD`.",
        {},
        secret=True,
    ),
    Key("every", "duration", "How often a micro-batch begins; 0: as soon as the last one is done.", 1.0, least=0),
    Key("limit", "number", "How many rows a micro-batch takes from each source at most.", 500_000, least=1),
    Key(
        "mode",
        "choice",
        "What a step with state gives: `append` only rows that will not change any more, `update` every "
        "row that changes.",
        "append",
        choices=("append", "update"),
    ),
    Key("patience", "duration", "How long to wait for a broker or sink that is away.", 600.0, least=0),
    Key("spark", "map", "Settings of the Spark session, as `spark.sql.shuffle.partitions`.", {}),
    Key("sources", "any", "Where rows come from: a name, and the keys of a source.", required=True),
    Key(
        "steps",
        "any",
        "Tables made of others, in order: a name, and the keys of a step. A step can read those above it.",
    ),
    Key("sinks", "any", "Where rows go: a name, and the keys of a sink.", required=True),
    Key(
        "dead_letters",
        "any",
        "Where rows go that cannot be decoded, are quarantined, or are refused by a sink: `{topic: NAME}`, "
        "`{file: DIR}`, `log` or `drop`. Without it, the topic `<name>.dead`.",
    ),
)

_EXPECT: Final = Key(
    "expect", "any", "What must be true for every row: `{NAME: PREDICATE}`, or a list with the keys of an expectation."
)
_WATERMARK: Final = Key("watermark", "any", "How late rows may be; keys below.")

TOPIC_SOURCE: Final[Keys] = (
    Key("topic", "texts", "A topic, or a list of them."),
    Key("pattern", "text", "Instead of `topic`: a regular expression that the whole name of a topic matches."),
    Key(
        "format",
        "choice",
        "The format of values. Without it, `key` and `value` are bytes.",
        choices=("json", "avro", "protobuf", "msgpack"),
    ),
    Key("schema", "text", "The fields: `id BIGINT, at TIMESTAMP` for JSON and MessagePack, a schema's JSON for Avro."),
    Key("schema_file", "text", "A file that has the schema: an `.avsc`, or protobuf's descriptor set."),
    Key("message", "text", "The full name of the protobuf message."),
    Key(
        "from",
        "any",
        "Where the first run begins: `earliest`, `latest`, an ISO time, or `{topic: {partition: offset}}`.",
        "earliest",
    ),
    Key("server", "text", "Brokers of these topics, if not the pipeline's."),
    _WATERMARK,
    _EXPECT,
    Key("options", "map", 'More options of `format("penstock")`.', {}),
)

FILES_SOURCE: Final[Keys] = (
    Key("files", "texts", "A directory, a pattern, or a list of them; relative to the pipeline's file.", required=True),
    Key(
        "format", "choice", "The format of the files.", required=True, choices=("csv", "json", "parquet", "orc", "text")
    ),
    Key("schema", "text", "The columns, as `id BIGINT, name STRING`. A stream of files needs it."),
    Key(
        "static",
        "flag",
        "Read all files for each micro-batch, to join with. Otherwise each file is read once, as a stream.",
        False,
    ),
    _WATERMARK,
    _EXPECT,
    Key("options", "map", "Options of Spark's reader, as `header`.", {}),
)

STEP: Final[Keys] = (
    Key("sql", "text", "A query over sources and steps above."),
    Key(
        "python",
        "text",
        "Instead of `sql`: `file.py:function` or `package.module:function`, from DataFrames to a DataFrame.",
    ),
    Key("inputs", "texts", "The tables it reads, if the query's tables or the function's parameters do not say it."),
    _WATERMARK,
    _EXPECT,
)

EXPECTATION: Final[Keys] = (
    Key("name", "text", "What it is called in figures and dead letters.", required=True),
    Key("that", "text", "An SQL predicate over a row's columns. Null is not true.", required=True),
    Key(
        "otherwise",
        "choice",
        "What happens to other rows: `warn` counts them, `drop` leaves them out, `quarantine` sends them to the dead "
        "letters, `fail` stops the pipeline.",
        Action.QUARANTINE.value,
        choices=tuple(Action),
    ),
)

WATERMARK: Final[Keys] = (
    Key("column", "text", "A column of timestamps.", required=True),
    Key(
        "delay",
        "text",
        "Do not wait for rows that are older than the newest by more than this: `10 minutes`.",
        required=True,
    ),
)

DEAD_LETTERS: Final[Keys] = (
    Key("topic", "text", "A topic; it is made if it is missing."),
    Key("file", "text", "A directory, for files of JSON lines."),
)

SINK_FROM: Final = Key(
    "from", "text", "The step or source whose rows it takes. Without it, the last step, or the only source."
)


def sink_keys(kind: str) -> Keys:
    """The keys of a kind of sink in `sinks.KINDS`."""
    return (SINK_FROM, *sinks.kind_of(kind).KEYS)
