"""`penstock produce`: records from standard input or files into a topic, each one's delivery checked."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, TopicName, server_options
from penstock.cli.delivery import QUEUE_PROPERTIES, Account, Sender, Written
from penstock.cli.failure import CANCELLED, FAILED, UNREACHABLE, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, progress, show
from penstock.cli.position import BytesWord, TimestampWord
from penstock.cli.record_input import Chunk, Form, Record, known_size, read_chunks

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.admin import TopicMetadata

_DELIVERY_TIMEOUT_S = 60.0  # a broker that restarts is back by then; --timeout may say more
_LIST_AT_MOST = 12

_HELP = """Write records to a topic: one for each line of standard input, or of FILEs ('-' is standard input).

Bytes go as they are; they need not be UTF-8. Empty lines are empty records, and a last line needs no end. If the topic
does not exist, the server creates it, if it is set up to.

The command checks every delivery. The first failure ends it: the error names file and line, and says how many
records were delivered. Ctrl+C sends what was read so far, then ends with 130.
"""

_EPILOG = """\
\b
Examples:
  echo hello | penstock produce greetings
  penstock produce users --key-separator : users.txt
  penstock produce images --whole -H type=png *.png
  tail -f app.log | penstock produce logs --compression zstd
  penstock consume orders -o json | penstock produce copy --json

\b
JSON lines (--json), one object a line:
  {"key": "k", "value": "text", "headers": {"trace": "1"},
   "partition": 0, "timestamp": 1777593600000}
Only value is required. A value that is no string is stored as compact JSON;
null is a tombstone. key_base64 and value_base64 carry bytes that are no text.
headers may also be a list of {"name": ..., "value": ...}, so that a name can
repeat. offset and time are ignored; so is topic, without --route.
"""


@click.command("produce", help=_HELP, epilog=_EPILOG)
@click.argument("topic", type=TopicName())
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object; see below.")
@click.option("--whole", is_flag=True, help="Each file is one record.")
@click.option(
    "-D", "--delimiter", type=BytesWord(), default="\\n", show_default=True, metavar="TEXT", help="What ends a record."
)
@click.option("--crlf", is_flag=True, help="Take a carriage return before the end of a line for a part of the end.")
@click.option("-K", "--key-separator", type=BytesWord(), metavar="TEXT", help="What separates key and value.")
@click.option("-k", "--key", metavar="KEY", help="The key of all records.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header for all records.")
@click.option("-p", "--partition", type=click.IntRange(0), metavar="N", help="The partition of all records.")
@click.option("--timestamp", "timestamp_ms", type=TimestampWord(), metavar="TIME", help="Milliseconds, or ISO 8601.")
@click.option("-Z", "--empty-is-null", is_flag=True, help="Send empty values as tombstones, empty keys as no key.")
@click.option("--route", is_flag=True, help="With --json: a record that names a topic goes there.")
@click.option("-n", "--count", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N records a second.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Pack batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Who must have a record before it counts as delivered; only with 'all' can no retry double one.",
)
@click.option("--linger-ms", type=click.FloatRange(0, 900_000), metavar="MS", help="Wait so long to fill a batch.")
@click.option("--batch-size", type=click.IntRange(1, 2**31 - 1), metavar="BYTES", help="The largest batch.")
@click.option("--dry-run", is_flag=True, help="Send nothing; print the records as JSON lines.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all went well.")
@output_option
@server_options
def command(
    topic: str,
    files: tuple[str, ...],
    server: Server,
    output: str,
    count: int | None,
    rate: float | None,
    dry_run: bool,
    quiet: bool,
    **options: Any,
) -> int:
    form = _read_form(options, server)
    names = files or ("-",)
    chunks = _limit(read_chunks(names, form), count)
    if dry_run:
        return _show_records(chunks, topic, quiet=quiet)
    patience = _Patience(server, quiet=quiet)
    producer = server.producer({**_properties(server, options), "error_cb": patience.hear})
    newcomers = _Newcomers(server, producer, quiet=quiet)
    newcomers.note([topic])
    _check_topic(server, producer, topic)
    newcomers.tell()
    if "-" in names and sys.stdin.isatty() and not quiet:
        note("one record a line; Ctrl+D ends")
    sender = Sender(producer, topic)
    error, interrupted = _send(sender, newcomers.watch(chunks) if form.route else chunks, names, rate)
    account = sender.account
    if error is None and account.failure is None:
        newcomers.tell()
    if not quiet or output != "table":
        show(_summarize(account), output, lambda: note(_format_summary(account)))
    _raise(account, error)
    return CANCELLED if interrupted else 0


def _read_form(options: Mapping[str, Any], server: Server) -> Form:
    given = {name for name in ("is_json", "whole", "key_separator", "crlf", "route") if options[name]}
    for one, others in (("is_json", {"whole", "key_separator", "crlf"}), ("whole", {"key_separator", "crlf"})):
        if one in given and (clash := given & others):
            words = [f"--{name.removeprefix('is_').replace('_', '-')}" for name in (one, min(clash))]
            raise CommandError(f"{' and '.join(words)} exclude one another", code=USAGE)
    if "route" in given and "is_json" not in given:
        raise CommandError("--route needs --json: only such records name a topic", code=USAGE)
    if options["key"] is not None and "key_separator" in given:
        raise CommandError("--key and --key-separator exclude one another", code=USAGE)
    for name in ("delimiter", "key_separator"):
        if options[name] == b"":
            raise CommandError(f"--{name.replace('_', '-')} is empty", code=USAGE)
    return Form(
        delimiter=options["delimiter"],
        crlf=options["crlf"],
        key_separator=options["key_separator"],
        empty_is_null=options["empty_is_null"],
        json=options["is_json"],
        whole=options["whole"],
        route=options["route"],
        key=None if options["key"] is None else options["key"].encode(errors="surrogateescape"),
        headers=[_read_header(word) for word in options["headers"]],
        partition=options["partition"],
        timestamp_ms=options["timestamp_ms"],
        limit=_text_limit(server),
    )


def _read_header(word: str) -> tuple[str, bytes]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise CommandError(f"header {word!r} is no NAME=VALUE", code=USAGE)
    return name, value.encode(errors="surrogateescape")


def _text_limit(server: Server) -> int:
    """The longest text a record can have: JSON needs up to six letters for a byte."""
    largest = str(server.properties.get("message.max.bytes", ""))
    return 6 * (int(largest) if largest.isdecimal() else 1_000_000) + 65_536


def _properties(server: Server, options: Mapping[str, Any]) -> dict[str, object]:
    properties = {
        **QUEUE_PROPERTIES,
        "acks": options["acks"],
        "enable.idempotence": options["acks"] == "all",
        "compression.type": options["compression"],
        "message.timeout.ms": round(max(server.timeout_s, _DELIVERY_TIMEOUT_S) * 1000),
    }
    if options["linger_ms"] is not None:
        properties["linger.ms"] = options["linger_ms"]
    if options["batch_size"] is not None:
        properties["batch.size"] = options["batch_size"]
    return properties


class _Patience:
    """Says once that the server went away and is waited for."""

    def __init__(self, server: Server, *, quiet: bool) -> None:
        self._server = server
        self._told = quiet

    def hear(self, error: "KafkaError") -> None:
        if error.name() == "_ALL_BROKERS_DOWN" and not self._told:
            self._told = True
            note(f"no server at {self._server.address} any more; waiting for it")


class _Newcomers:
    """Topics that the server makes because records go to them, which a mistyped name would hide."""

    def __init__(self, server: Server, producer: "Producer", *, quiet: bool) -> None:
        self._server = server
        self._producer = producer
        # It asks without having a topic made, which the producer's own questions do.
        self._scout = None if quiet else server.producer({"allow.auto.create.topics": False})
        self._seen: set[str] = set()
        self._unknown: list[str] = []

    def note(self, names: Iterable[str]) -> None:
        """Remember those that do not exist yet; to be asked before anything is sent to them."""
        if self._scout is None:
            return
        fresh = [name for name in names if name not in self._seen]
        self._seen.update(fresh)
        for name in fresh:
            error = self._find(self._scout, name).error
            if error is not None and error.name() == "UNKNOWN_TOPIC_OR_PART":
                self._unknown.append(name)

    def watch(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            self.note(dict.fromkeys(record.topic for record in chunk.records if record.topic is not None))
            yield chunk

    def tell(self) -> None:
        """Say which of them are there now."""
        for name in self._unknown:
            found = self._find(self._producer, name)
            if found.error is None:
                count = count_of(len(found.partitions), "partition")
                note(f"topic {name} did not exist; the server has created it, with {count}")
        self._unknown = []

    def _find(self, client: "Producer", name: str) -> "TopicMetadata":
        found: TopicMetadata = self._server.run(
            lambda: client.list_topics(name, timeout=self._server.timeout_s).topics[name]
        )
        return found


def _check_topic(server: Server, producer: "Producer", topic: str) -> None:
    """Learn of an unreachable server or an impossible topic before any input is read."""

    def ask() -> "KafkaError | None":
        producer.list_topics(topic, timeout=server.timeout_s)
        # The second question goes through the connection the records will take. Up by then, it also gets the producer
        # its id; librdkafka would look for one again only after half a second.
        error: KafkaError | None = producer.list_topics(topic, timeout=server.timeout_s).topics[topic].error
        return error

    error = server.run(ask)
    if error is None or error.name() == "LEADER_NOT_AVAILABLE":  # just made: librdkafka waits for it
        return
    if error.name() == "UNKNOWN_TOPIC_OR_PART":
        from penstock.cli import topics

        missing = topics.unknown_topics([topic], topics.fetch_topics(server, server.admin()))
        raise CommandError(f"{missing}; create it with 'penstock topic create {topic}'")
    raise CommandError(f"topic {topic!r}: {server.explain_refusal(error.name(), error.str())}")


def _limit(chunks: Iterator[Chunk], count: int | None) -> Iterator[Chunk]:
    if count is None:
        yield from chunks
        return
    while count > 0 and (chunk := next(chunks, None)) is not None:
        yield Chunk(chunk.records[:count], chunk.size)
        count -= len(chunk.records)


def _send(
    sender: Sender, chunks: Iterator[Chunk], names: Sequence[str], rate: float | None
) -> tuple[Exception | None, bool]:
    """Send everything; the result is what stopped it, if anything, and whether that was Ctrl+C."""
    total = known_size(names)
    pace = None if rate is None else _Pace(sender, rate)
    try:
        with progress("sending", total, unit="records" if total is None else "bytes") as bar:
            for chunk in chunks:
                for records in [chunk.records] if pace is None else pace.admit(chunk.records):
                    sender.send(records)
                bar.advance(len(chunk.records) if total is None else chunk.size)
            sender.flush()
    except KeyboardInterrupt:
        sender.flush()
        return None, True
    except (CommandError, OSError) as error:
        sender.flush()
        return error, False
    return None, False


class _Pace:
    """Lets records through at a steady rate, a few at a time."""

    def __init__(self, sender: Sender, rate: float) -> None:
        self._sender = sender
        self._rate = rate
        self._step = max(1, int(rate / 20))
        self._admitted = 0
        self._started = time.monotonic()

    def admit(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        for at in range(0, len(records), self._step):
            due = self._started + self._admitted / self._rate
            while (wait_s := due - time.monotonic()) > 0:
                self._sender.poll(min(wait_s, 0.1))
            part = records[at : at + self._step]
            self._admitted += len(part)
            yield part


def _raise(account: Account, error: Exception | None) -> None:
    """What went wrong, as one error with what went well."""
    from penstock.obstacles import is_lasting

    if account.failure is None and error is None:
        return
    # A failed delivery that stopped the reading is the account's failure already.
    texts = [account.failure] if account.failure else []
    if error is not None and str(error) != account.failure:
        strerror = getattr(error, "strerror", None)
        texts.append(f"{getattr(error, 'filename', '')}: {strerror}" if strerror else str(error))
    lost = f", {account.failed:,} not" if account.failed else ""
    texts.append(f"{_format_records(account.delivered)} delivered{lost}")
    code = UNREACHABLE if account.unreachable else FAILED
    if isinstance(error, OSError) and is_lasting(error) and not account.delivered and not account.failed:
        code = USAGE
    raise CommandError("; ".join(texts), code=code)


def _summarize(account: Account) -> dict[str, Any]:
    return {
        "records": account.delivered,
        "bytes": account.size,
        "failed": account.failed,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "records": written.records,
                "first_offset": written.first_offset,
                "last_offset": written.last_offset,
            }
            for (topic, partition), written in sorted(account.partitions.items())
        ],
    }


def _format_summary(account: Account) -> str:
    text = f"{_format_records(account.delivered)}, {account.size:,} byte{'' if account.size == 1 else 's'}"
    places = sorted(account.partitions.items())
    shown = [f"{topic}/{partition}{_format_offsets(written)}" for (topic, partition), written in places[:_LIST_AT_MOST]]
    if len(places) > _LIST_AT_MOST:
        shown.append(f"and {len(places) - _LIST_AT_MOST} more")
    return f"{text}, to partition{'s' if len(places) > 1 else ''} {', '.join(shown)}" if shown else text


def _format_records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _format_offsets(written: Written) -> str:
    if written.first_offset is None:
        return ""
    if written.first_offset == written.last_offset:
        return f" (offset {written.first_offset})"
    return f" (offsets {written.first_offset} to {written.last_offset})"


def _show_records(chunks: Iterator[Chunk], topic: str, *, quiet: bool) -> int:
    """What would be sent, in the form --json reads."""
    import orjson

    from penstock.cli.record_text import describe_content, escape_json

    terminal, count = sys.stdout.isatty(), 0
    for chunk in chunks:
        for record in chunk.records:
            described = {
                "topic": record.topic or topic,
                "partition": record.partition if record.partition >= 0 else None,
                "timestamp": record.timestamp_ms or None,
                **describe_content(record.key, record.value, record.headers),
            }
            line = orjson.dumps(described, option=orjson.OPT_APPEND_NEWLINE)
            sys.stdout.buffer.write(escape_json(line) if terminal else line)
        count += len(chunk.records)
    sys.stdout.buffer.flush()
    if not quiet:
        note(f"{_format_records(count)} would be sent")
    return 0
