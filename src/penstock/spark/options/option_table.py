"""Every option of reads and writes, its default and meaning: names are checked by it, and the manual is made of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Flag, auto

from penstock.spark.errors import OptionError
from penstock.spark.options.client_properties import IGNORED, SECURITY

_LONGEST_NAME = 100  # a search for names like it takes time with the square of this


class Use(Flag):
    """What Spark is asked to do."""

    BATCH_READ = auto()
    STREAM_READ = auto()
    BATCH_WRITE = auto()
    STREAM_WRITE = auto()

    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE

    @property
    def text(self) -> str:
        """As a person says it: "reads", "batch reads and writes"."""
        words = []
        for both, batch, stream, noun in (
            (Use.READ, Use.BATCH_READ, Use.STREAM_READ, "reads"),
            (Use.WRITE, Use.BATCH_WRITE, Use.STREAM_WRITE, "writes"),
        ):
            if both in self:
                words.append(noun)
            elif batch in self:
                words.append(f"batch {noun}")
            elif stream in self:
                words.append(f"streaming {noun}")
        return " and ".join(words)


_NOWHERE = Use(0)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `name` as the manual writes it, where it counts, what it is when left out, what it does.

    In `ignored` are the uses that accept it too, without effect. A name that ends in `*` is for the manual alone.
    """

    name: str
    use: Use
    default: str
    meaning: str
    ignored: Use = _NOWHERE


@dataclass(frozen=True, slots=True)
class Refusal:
    """An option that must not be set: ignoring it would do something else than its author wanted."""

    name: str
    use: Use
    reason: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers",
        Use.ALL,
        "",
        "Brokers to begin with, `host:port`, separated by commas. Required, except for batch reads with `path`.",
    ),
    Option(
        "subscribe",
        Use.READ,
        "",
        "Topics to read, separated by commas. One of `subscribe`, `subscribePattern` and `assign` is required.",
    ),
    Option(
        "subscribePattern", Use.READ, "", "Read topics whose name contains a match of this regular expression (RE2)."
    ),
    Option("assign", Use.READ, "", 'Read these partitions: `{"orders":[0,1],"bills":[0]}`.'),
    Option(
        "startingOffsets",
        Use.READ,
        "batch: `earliest`, streaming: `latest`",
        '`earliest`, `latest` (streaming only), or for each partition `{"orders":{"0":23,"1":-2}}` where -2 is the '
        "earliest and -1 the latest (streaming only). A stream that has a checkpoint goes on from there.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        Use.READ,
        "",
        "From the first record at or after a time in milliseconds, for each partition: "
        '`{"orders":{"0":1735689600000}}`. Wins over `startingOffsets`.',
    ),
    Option(
        "startingTimestamp",
        Use.READ,
        "",
        "The same time in milliseconds for all partitions. Wins over `startingOffsetsByTimestamp`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        Use.READ,
        "`error`",
        "What a partition without a record at or after the starting time means: `error`, or `latest`, its end.",
    ),
    Option(
        "endingOffsets",
        Use.READ,
        "batch: `latest`, streaming: none",
        '`latest`, or for each partition the offset to stop before: `{"orders":{"0":50,"1":-1}}`, -1 being the latest '
        "(batch reads). A stream reads no further than its end, but it ends by itself only with an `availableNow` "
        "trigger.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        Use.BATCH_READ,
        "",
        "Stop before the first record at or after a time in milliseconds, for each partition; at its end if there is "
        "none. Wins over `endingOffsets`.",
    ),
    Option(
        "endingTimestamp",
        Use.BATCH_READ,
        "",
        "The same time in milliseconds for all partitions. Wins over `endingOffsetsByTimestamp`.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        Use.STREAM_READ,
        "",
        "The most offsets one micro-batch takes, divided among partitions in proportion to what each has.",
        ignored=Use.BATCH_READ,
    ),
    Option(
        "maxBytesPerTrigger",
        Use.STREAM_READ,
        "",
        "About the most bytes one micro-batch takes. Cannot be used with `maxOffsetsPerTrigger`.",
        ignored=Use.BATCH_READ,
    ),
    Option("minPartitions", Use.READ, "", "Cut partitions into pieces until there are about this many tasks."),
    Option("maxRecordsPerPartition", Use.READ, "", "Cut partitions into pieces of at most this many offsets."),
    Option(
        "failOnDataLoss",
        Use.READ,
        "`true`",
        "Whether a query fails when records that it should read are gone. If not, it goes on with what is there.",
    ),
    Option("includeHeaders", Use.READ, "`false`", "Whether rows have a last column `headers`."),
    Option("includeHeaders", Use.WRITE, "`true`", "Whether a column `headers` is written, if there is one."),
    Option(
        "columns",
        Use.READ,
        "all but `headers`",
        "The columns that rows have, in this order: `offset,value`. Other columns are not decoded.",
    ),
    Option(
        "pushdown",
        Use.BATCH_READ,
        "`false`",
        "Whether filters on `partition`, `offset` and `timestamp` reduce what is fetched. Spark must allow it, too: "
        "`spark.sql.python.filterPushdown.enabled`.",
        ignored=Use.STREAM_READ,
    ),
    Option(
        "path",
        Use.READ,
        "",
        "A data directory of the broker: sealed segments are read from its files. A batch read then needs no broker.",
    ),
    Option(
        "value.format",
        Use.READ,
        "",
        "Decode values: `json`, `avro`, `protobuf` or `msgpack`. Rows get a column for each field, and `_error`.",
    ),
    Option(
        "value.schema", Use.READ, "", "The fields: for JSON and MessagePack as Spark's DDL, for Avro the schema's JSON."
    ),
    Option(
        "value.schema.file", Use.READ, "", "A file that has the schema: `.avsc`, or protobuf's file descriptor set."
    ),
    Option("value.message", Use.READ, "", "The full name of the protobuf message."),
    Option("value.prefix", Use.READ, "", "Put before the name of each field."),
    Option(
        "kafkaConsumer.pollTimeoutMs", Use.READ, "`120000`", "How long a task waits for records that the topic has."
    ),
    Option("topic", Use.WRITE, "", "The topic of all rows. Without it each row's column `topic` says where it goes."),
    Option(
        "delivery",
        Use.WRITE,
        "batch: `at-least-once`, streaming: `exactly-once`",
        "`exactly-once` writes in a transaction, so that a repeated batch is written once; or `at-least-once`.",
    ),
    Option(
        "transactional.id",
        Use.WRITE,
        "made from the checkpoint's path",
        "The name under which `exactly-once` writes. Two queries must not share it.",
    ),
    Option(
        "batch.query",
        Use.BATCH_WRITE,
        "",
        "Inside `foreachBatch`: the query's id; `batch.id` is its micro-batch. One that was written is not written "
        "again. Needs `delivery=exactly-once` and `transactional.id`.",
    ),
    Option("batch.id", Use.BATCH_WRITE, "", "The number that `foreachBatch` is called with."),
    Option(
        "checkRepeats",
        Use.WRITE,
        "`true`",
        "Whether a micro-batch that was written before must have the same rows when Spark repeats it. "
        "Switch it off for queries "
        "that produce different rows each time (`uuid()`, `rand()`).",
    ),
    Option("checkpointLocation", Use.STREAM_WRITE, "", "Spark's own option.", ignored=Use.READ | Use.BATCH_WRITE),
    Option("queryName", _NOWHERE, "", "Spark's own.", ignored=Use.ALL),
    Option("kafka.security.protocol", Use.ALL, "`PLAINTEXT`", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."),
    Option("kafka.ssl.*", Use.ALL, "", "Certificates and keys as PEM, under Java's names or librdkafka's."),
    Option("kafka.sasl.*", Use.ALL, "", "`PLAIN`, `SCRAM-SHA-256` and `SCRAM-SHA-512`."),
    Option(
        "kafka.sasl.password.file",
        Use.ALL,
        "`$PENSTOCK_PASSWORD`",
        "A file on the driver with the password in one line, readable by its owner alone. Better than "
        "`kafka.sasl.password`, which is an option that others may see.",
    ),
    Option(
        "context",
        Use.ALL,
        "",
        "A context of `penstock context add`, in `~/.penstock/config.yaml` on the driver: its properties, where "
        "options do not say otherwise, and its server, where `kafka.bootstrap.servers` is not set. Without both, "
        "`$PENSTOCK_SERVER` and `$PENSTOCK_CONTEXT` count.",
    ),
    Option(
        "kafka.isolation.level",
        Use.READ,
        "`read_committed`",
        "`read_committed` leaves out records of transactions that are aborted or not ended; `read_uncommitted` does "
        "not. Kafka's own default is the latter.",
        ignored=Use.WRITE,
    ),
    Option(
        "kafka.max.partition.fetch.bytes",
        Use.READ,
        "`8388608`",
        "About how many bytes one fetch asks for.",
        ignored=Use.WRITE,
    ),
    Option("kafka.request.timeout.ms", Use.ALL, "`30000`", "How long one request may take."),
    Option(
        "kafka.default.api.timeout.ms",
        Use.ALL,
        "`60000`",
        "How long a driver waits for brokers that do not answer; the start of a read or write does not wait.",
    ),
    Option("kafka.client.id", Use.ALL, "`penstock`", "What brokers call this client in their logs and quotas."),
    Option(
        "kafka.receive.buffer.bytes",
        Use.ALL,
        "`1048576`",
        "The receive buffer of a connection; -1 leaves it as the OS sets it.",
    ),
    Option(
        "kafka.acks",
        Use.WRITE,
        "`all`",
        "Which replicas must have a record before it counts as written: `all`, `1` or `0`. `exactly-once` needs `all`.",
        ignored=Use.READ,
    ),
    Option(
        "kafka.compression.type",
        Use.WRITE,
        "`none`",
        "`none`, `gzip`, `snappy`, `lz4` or `zstd`.",
        ignored=Use.READ,
    ),
    Option(
        "kafka.batch.size",
        Use.WRITE,
        "`900000`",
        "About how many bytes one record batch has before it is compressed; at least 16384.",
        ignored=Use.READ,
    ),
    Option(
        "kafka.delivery.timeout.ms",
        Use.WRITE,
        "`120000`",
        "How long a task tries to write a batch.",
        ignored=Use.READ,
    ),
    Option(
        "kafka.transaction.timeout.ms",
        Use.WRITE,
        "`900000`",
        "How long a transaction may be open before the broker aborts it.",
        ignored=Use.READ,
    ),
    Option("groupIdPrefix", _NOWHERE, "", "There is no consumer group.", ignored=Use.ALL),
    Option("kafka.group.id", _NOWHERE, "", "There is no consumer group.", ignored=Use.ALL),
    Option("fetchOffset.numRetries", _NOWHERE, "", "`kafka.request.timeout.ms` is the limit.", ignored=Use.ALL),
    Option("fetchOffset.retryIntervalMs", _NOWHERE, "", "`kafka.request.timeout.ms` is the limit.", ignored=Use.ALL),
)

_BYTES_ONLY = "keys and values are bytes here; convert them in the query, or read typed columns with value.format"
_NO_JAVA = "no Java class runs here"
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "minOffsetsPerTrigger", Use.READ, "it is not offered; a longer trigger interval gathers more in each batch"
    ),
    Refusal("maxTriggerDelay", Use.READ, "it is not offered; say how often a batch starts with the trigger interval"),
    Refusal("kafka.auto.offset.reset", Use.READ, "say where to start with startingOffsets"),
    Refusal("kafka.key.deserializer", Use.READ, _BYTES_ONLY),
    Refusal("kafka.value.deserializer", Use.READ, _BYTES_ONLY),
    Refusal(
        "kafka.enable.auto.commit", Use.READ, "the checkpoint keeps what was read; no offsets are committed to a group"
    ),
    Refusal("kafka.interceptor.classes", Use.ALL, f"{_NO_JAVA}; change rows in the query"),
    Refusal("kafka.key.serializer", Use.WRITE, "the column key must be a string or binary; convert it in the query"),
    Refusal(
        "kafka.value.serializer", Use.WRITE, "the column value must be a string or binary; convert it in the query"
    ),
    Refusal("kafka.partitioner.class", Use.WRITE, f"{_NO_JAVA}; choose partitions with a column partition"),
    Refusal("kafka.transactional.id", Use.WRITE, "name it with transactional.id, without kafka."),
    Refusal("paths", Use.READ, "path takes one directory"),
    Refusal(
        "provider",
        Use.ALL,
        "Spark does not keep the options of a table for a source written in Python; use CREATE TEMPORARY VIEW ... "
        "USING penstock OPTIONS (...)",
    ),
)

# A row for a whole family, such as `kafka.ssl.*`, is no name.
_ROWS = tuple(option for option in OPTIONS if not option.name.endswith("*"))
_KAFKA = frozenset(f"kafka.{name}" for name in SECURITY | IGNORED)


def check_names(names: Iterable[str], use: Use) -> None:
    """Refuse what nobody knows, what is for something else, and what must not be set.

    Args:
        names: of the options given, in any case.
        use: what they are given for; one of several is enough.

    Raises:
        OptionError: the first of them, with what to do about it.
    """
    given = sorted(names, key=str.lower)
    for name in given:
        for refusal in REFUSALS:
            if refusal.name.lower() == name.lower() and use in refusal.use:
                raise OptionError(f"option {refusal.name!r} cannot be set: {refusal.reason}")
    for name in given:
        _check_name(name, use)


def _check_name(name: str, use: Use) -> None:
    known = [option for option in _ROWS if option.name.lower() == name.lower()]
    if any((option.use | option.ignored) & use for option in known):
        return
    if known:
        others = " and ".join(dict.fromkeys((option.use or option.ignored).text for option in known))
        raise OptionError(
            f"option {known[0].name!r} is for {others}, and this is a {use.text.removesuffix('s')}{_instead(name, use)}"
        )
    if name.lower() not in _KAFKA:
        raise OptionError(f"there is no option {name[:_LONGEST_NAME]!r}{_near(name, use)}")


def _instead(name: str, use: Use) -> str:
    if name.lower() == "topic" and use & Use.READ:
        return "; say what to read with 'subscribe'"
    if name.lower() in ("subscribe", "assign", "subscribepattern"):
        return "; say where rows go with 'topic'"
    return "; leave it out"


def _near(name: str, use: Use) -> str:
    """What may have been meant, of what can be set."""
    settable = {option.name.lower(): option.name for option in _ROWS if (option.use | option.ignored) & use}
    refused = {refusal.name.lower() for refusal in REFUSALS if use & refusal.use}
    settable |= {each: each for each in _KAFKA if each not in refused}
    word = name.lower()[:_LONGEST_NAME]
    # A Kafka property without its prefix is the commonest slip of all.
    near = [f"kafka.{word}"] if f"kafka.{word}" in settable else get_close_matches(word, settable, 3, 0.75)
    if near:
        return "; did you mean " + " or ".join(repr(settable[each]) for each in near) + "?"
    return "; the manual's page on Spark options lists what there is"
