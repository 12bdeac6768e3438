"""`penstock consume`: records of topics, up to where they end now, or as they come.

Partitions are assigned by hand from offsets that were looked up: no group, nothing committed, nothing changed on the
server. Records are read, tested and printed a batch at a time.
"""

import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, TopicName, server_options
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import note
from penstock.cli.position import Kind, Position, PositionWord, now_ms
from penstock.cli.record_filter import Conditions, Matches, compile_filter
from penstock.cli.record_options import TOKENS_HELP, choose_form, form_options
from penstock.cli.record_range import Range, find_partitions, find_ranges
from penstock.cli.record_text import FIELDS, Render
from penstock.cli.topics import Partition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

_BATCH = 10_000
_IDLE_S = 0.1

_HELP = """Read records of one topic or several, from the start to where they end now; with --follow, go on.

On a terminal each record is a line with its time, partition, offset, key and headers; into a pipe go the values alone,
as 'cat' would print them, unless --show or -o asks for more. What a terminal gets is escaped, so that no record can
send it commands; pipes and -o raw get the bytes as they are.

The command joins no group and commits nothing: reading changes nothing, and creates no topic. Records of one partition
come in order; between partitions there is no order.
"""

_EPILOG = f"""\
\b
Examples:
  penstock consume orders
  penstock consume orders --from -10 --follow
  penstock consume orders --from -2h --until -1h --where 'total>100'
  penstock consume orders --key 'user-*' -n 5 -o json
  penstock consume orders --format '%p:%o %k=%s\\n'

\b
Places for --from and --until:
  start, end        the first record there is; behind the last
  42                the offset 42, in every partition
  -10               ten records before the end, in every partition
  2026-05-01T12:30  a time, in this machine's zone unless it names one
  -5m, 2h, +10s     a time from now, back unless it has a plus (s, m, h, d, w)
  @1777593600000    a time in milliseconds
--until stops before the place it names.

\b
{TOKENS_HELP}
\b
Conditions for --where, on values that are JSON: FIELD=VALUE, or !=, >, <, >=,
<=, ~ (a regular expression). FIELD may be a path: user.name, items.0.id. VALUE
may stand in quotes. Numbers compare as numbers, all else as text; a record
without the field never matches. All filters must hold; --count counts the
records that pass.
"""


@click.command("consume", help=_HELP, epilog=_EPILOG)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TopicName())
@click.option(
    "--from",
    "first",
    type=PositionWord(),
    default="start",
    show_default=True,
    metavar="PLACE",
    help="Where to begin; see below.",
)
@click.option("--until", type=PositionWord(), metavar="PLACE", help="Where to stop  [default: the end as it is now]")
@click.option("-f", "--follow", is_flag=True, help="Go on with new records, until Ctrl+C.")
@click.option("-n", "--count", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be repeated.",
)
@form_options()
@click.option("-k", "--key", metavar="GLOB", help="Keys like user-*.")
@click.option("--key-regex", metavar="REGEX", help="Keys in which this is found.")
@click.option("--value-contains", "contains", metavar="TEXT", help="Values that contain this.")
@click.option("-g", "--grep", metavar="REGEX", help="Values in which this is found.")
@click.option("-H", "--header", "headers", metavar="NAME[=VALUE]", multiple=True, help="Records with this header.")
@click.option("-w", "--where", metavar="CONDITION", multiple=True, help="A field of a JSON value; see below.")
@click.option(
    "--committed/--uncommitted",
    default=True,
    show_default=True,
    help="Pass over records of open and aborted transactions.",
)
@server_options
def command(
    topics: tuple[str, ...],
    first: Position,
    until: Position | None,
    follow: bool,
    count: int | None,
    partitions: tuple[int, ...],
    committed: bool,
    server: Server,
    **options: Any,
) -> None:
    if follow and until is not None and until.kind in (Kind.START, Kind.END, Kind.LAST):
        raise CommandError("--follow goes on behind the end; --until may name an offset or a time", code=USAGE)
    render = choose_form(options, people=FIELDS if len(set(topics)) > 1 else FIELDS[1:])
    matches = _read_filter(options)
    admin = server.admin()
    chosen = find_partitions(server, admin, topics, partitions)
    ranges = find_ranges(server, admin, chosen, first, until, follow=follow)
    absence = _Absence(server, follow=follow)
    consumer = server.consumer(_properties(absence, committed=committed))
    reading = _Reading(consumer, ranges, absence, matches, count)
    if until is not None and until.kind is Kind.TIME:
        reading.until_ms = until.value
    written = _copy(reading, render)
    consumer.close()
    if not written and sys.stdout.isatty():
        note("no records" + (" match" if matches else ""))


def _properties(absence: "_Absence", *, committed: bool) -> dict[str, object]:
    return {
        "allow.auto.create.topics": False,
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": 10,  # how long it stops fetching once enough is queued; a second, unless told
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "error_cb": absence.hear,
    }


def _read_filter(options: Mapping[str, Any]) -> Matches | None:
    names = ("key", "key_regex", "contains", "grep", "headers", "where")
    try:
        return compile_filter(Conditions(**{name: options[name] for name in names}))
    except ValueError as error:
        raise CommandError(str(error), code=USAGE) from None


class _Absence:
    """A server that went away: who follows is told once and waits, who does not waits no longer than the timeout."""

    def __init__(self, server: Server, *, follow: bool) -> None:
        self.follow = follow
        self.server = server
        self._told = False
        self._heard = time.monotonic()

    def hear(self, error: "KafkaError") -> None:
        if self.follow and not self._told and error.name() in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            self._told = True
            note(f"no server at {self.server.address} any more; waiting for it")

    def over(self) -> None:
        self._heard = time.monotonic()

    def check(self) -> None:
        """Raises `CommandError`."""
        if not self.follow and time.monotonic() - self._heard > self.server.timeout_s:
            raise self.server.unreachable()


class _Reading:
    """What is still to be read: the end of each partition that has not reached it."""

    def __init__(
        self,
        consumer: "Consumer",
        ranges: Mapping[Partition, Range],
        absence: _Absence,
        matches: Matches | None,
        count: int | None,
    ) -> None:
        from confluent_kafka import TopicPartition

        self.until_ms: int | None = None
        """Where no record was as late as that yet, the first one that is ends its partition."""
        self._left = count
        self._consumer = consumer
        self._absence = absence
        self._matches = matches
        self._ends = {at: wanted.end for at, wanted in ranges.items() if wanted.start < wanted.end}
        consumer.assign([TopicPartition(*at, ranges[at].start) for at in self._ends])

    @property
    def done(self) -> bool:
        return not self._ends or self._left == 0

    def read(self) -> list["Message"]:
        """What has arrived, else what arrives within a moment. Raises `CommandError`."""
        # A whole batch would wait for its last record; so only the first one is waited for.
        messages = self._consumer.consume(_BATCH, timeout=0) or self._consumer.consume(1, timeout=_IDLE_S)
        if messages:
            self._absence.over()
        else:
            self._absence.check()
            if self.until_ms is not None and now_ms() > self.until_ms:
                self._ends.clear()
        chosen = self._choose(messages)
        if self._left is not None:
            chosen = chosen[: self._left]
            self._left -= len(chosen)
        return chosen

    def _choose(self, messages: Sequence["Message"]) -> list["Message"]:
        chosen = []
        ends, matches, until_ms = self._ends, self._matches, self.until_ms
        for message in messages:
            at: Any = (message.topic(), message.partition())
            error = message.error()
            if error is not None:
                self._hear(at, message, error)
                continue
            end, offset = ends.get(at, -1), message.offset() or 0
            if offset >= end or (until_ms is not None and message.timestamp()[1] >= until_ms):
                self._finish(at)
                continue
            if matches is None or matches(message):
                chosen.append(message)
            if offset + 1 == end:
                self._finish(at)
        return chosen

    def _finish(self, at: Partition) -> None:
        from confluent_kafka import TopicPartition

        if self._ends.pop(at, None) is not None:
            self._consumer.incremental_unassign([TopicPartition(*at)])

    def _hear(self, at: Partition, message: "Message", error: "KafkaError") -> None:
        name = error.name()
        if name == "_PARTITION_EOF":
            if not self._absence.follow:
                self._finish(at)
        elif name == "_AUTO_OFFSET_RESET":
            raise CommandError(
                f"{at[0]}/{at[1]}: offset {message.offset()} is gone since it was to be read ({error.str()}); "
                "--from start begins with what is left"
            )
        elif name in ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
            raise CommandError(f"{at[0]}/{at[1]}: deleted while it was read")
        elif name == "GROUP_AUTHORIZATION_FAILED":
            return  # librdkafka looks for the coordinator of a group that nothing is read or committed for
        elif error.retriable() or name in ("_ALL_BROKERS_DOWN", "_TRANSPORT"):
            self._absence.hear(error)
        else:
            raise self._absence.server.explain(error)


def _copy(reading: _Reading, render: Render) -> int:
    """Print until all is read; returns the number of records."""
    out, gone, written = sys.stdout.buffer, _watch_reader(), 0
    while not reading.done:
        if messages := reading.read():
            out.write(render(messages))
            out.flush()
            written += len(messages)
        elif gone():
            raise BrokenPipeError
    return written


def _watch_reader() -> Callable[[], bool]:
    """Whether nobody reads our output any more, which a follower with nothing to write would never notice."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # something that is no file, in a test
        return lambda: False
    watch = select.poll()
    watch.register(descriptor, 0)  # errors are always told
    return lambda: bool(watch.poll(0))
