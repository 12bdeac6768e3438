"""`penstock produce`: records from standard input or files into a topic, each one's delivery checked."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, TopicName, server_options
from penstock.cli.delivery import QUEUE_PROPERTIES, Sender
from penstock.cli.failure import CommandError
from penstock.cli.output import count_of, note, output_option
from penstock.cli.position import TimestampWord
from penstock.cli.record_input import Chunk, known_size, read_chunks
from penstock.cli.record_options import input_options, read_form
from penstock.cli.shipment import Patience, ask_topic, delivery_timeout_ms, limit, send, show_records

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import TopicMetadata

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
@input_options
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
    form = read_form(options, server)
    names = files or ("-",)
    chunks = limit(read_chunks(names, form), count)
    if dry_run:
        return show_records(chunks, topic, quiet=quiet)
    patience = Patience(server, quiet=quiet)
    producer = server.producer({**_properties(server, options), "error_cb": patience.hear})
    newcomers = _Newcomers(server, producer, quiet=quiet)
    newcomers.note([topic])
    _check_topic(server, producer, topic)
    newcomers.tell()
    if "-" in names and sys.stdin.isatty() and not quiet:
        note("one record a line; Ctrl+D ends")
    sender = Sender(producer, topic)
    end = send(sender, newcomers.watch(chunks) if form.route else chunks, known_size(names), rate)
    if end.is_well:
        newcomers.tell()
    return end.tell(output, quiet=quiet)


def _properties(server: Server, options: Mapping[str, Any]) -> dict[str, object]:
    properties = {
        **QUEUE_PROPERTIES,
        "acks": options["acks"],
        "enable.idempotence": options["acks"] == "all",
        "compression.type": options["compression"],
        "message.timeout.ms": delivery_timeout_ms(server),
    }
    if options["linger_ms"] is not None:
        properties["linger.ms"] = options["linger_ms"]
    if options["batch_size"] is not None:
        properties["batch.size"] = options["batch_size"]
    return properties


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
    error = ask_topic(server, producer, topic)
    if error is None:
        return
    if error.name() == "UNKNOWN_TOPIC_OR_PART":
        from penstock.cli import topics

        missing = topics.unknown_topics([topic], topics.fetch_topics(server, server.admin()))
        raise CommandError(f"{missing}; create it with 'penstock topic create {topic}'")
    raise CommandError(f"topic {topic!r}: {server.explain_refusal(error.name(), error.str())}")
