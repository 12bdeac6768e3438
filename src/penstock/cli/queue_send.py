"""`penstock queue send`: messages from the command line, standard input or files into a queue."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import click

from penstock.cli.connection import Refused, Server, server_options
from penstock.cli.delivery import QUEUE_PROPERTIES, Sender
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import note, output_option
from penstock.cli.queue_leaders import explain, is_unknown, queue_argument, topic_of
from penstock.cli.queue_messages import EXTRA_FIELDS
from penstock.cli.queue_times import TIME_TO_LIVE
from penstock.cli.queue_view import describe_queue
from penstock.cli.record_input import Chunk, Form, known_size, read_chunks, read_words
from penstock.cli.record_options import input_options, read_form
from penstock.cli.shipment import Patience, ask_topic, delivery_timeout_ms, limit, send, show_records
from penstock.cli.transactions import Duration
from penstock.cli.verbs import Verbs

_THING: Final = "message"
_IDS_BY_LINE: Final = 'with --json each line has its own: {"value": ..., "headers": {"penstock-id": ...}}'


class Due(click.ParamType[int]):
    """Milliseconds since 1970 from a moment to come: `2026-05-01T12:30`, `1777593600000`.

    A time without a zone is in this machine's.
    """

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        try:
            moment_ms = int(text) if text.isdecimal() else round(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            moment_ms = -1
        if moment_ms < 0:
            self.fail(
                f"{text!r} is no point in time; write 2026-05-01T12:30:00Z or milliseconds since 1970. "
                "A time from now is --delay.",
                param,
                ctx,
            )
        return moment_ms


@click.command(
    "send",
    short_help="Send messages.",
    help="""Send messages to a queue: each MESSAGE, or each line of --file or of standard input. Every delivery is
    checked; the first failure ends the command, and says how many messages were delivered.

    A message may bring a time to live, an id, a priority and the like as headers (penstock-ttl-ms, penstock-id, ...);
    with --json each line may have its own. Queues made with 'penstock queue create' go by them: what is urgent comes
    first, tenants have their turns, and what is not due yet is given to nobody ('penstock queue delayed' shows it).
    Groups that share clients made themselves get messages as they come.""",
    epilog="""\b
Examples:
  penstock queue send jobs 'resize cat.png'
  penstock queue send jobs --id order-4711 --ttl 1h 'pay 4711'
  penstock queue send jobs --priority high --tenant gold 'render 12'
  penstock queue send jobs --delay 10m 'remind ann'
  cat jobs.txt | penstock queue send jobs
  penstock queue receive jobs --max 100 -o json | penstock queue send copy --json

\b
JSON lines (--json) are those of 'penstock produce': {"value": "text",
"key": "k", "headers": {"penstock-id": "4711"}}. Only value is required.
Priorities are 0 to 9, the highest, or critical, high, normal, low, background.""",
)
@queue_argument
@click.argument("messages", metavar="[MESSAGE]...", nargs=-1)
@click.option("-f", "--file", "files", metavar="FILE", multiple=True, help="Read a file; - is standard input.")
@click.option(
    "--id", "message_id", metavar="ID", help="The message's id; a queue with a dedup-window takes it once in that time."
)
@click.option("--ttl", "ttl_ms", metavar="TIME", type=TIME_TO_LIVE, help="How long it may wait, such as 1h.")
@click.option("--priority", metavar="0-9|WORD", help="How urgent it is; 4, or normal, unless said.")
@click.option("--delay", "delay_ms", metavar="TIME", type=Duration(), help="Not before so long, such as 10m.")
@click.option(
    "--deliver-at", "due_ms", metavar="TIME", type=Due(), help="Not before this moment, such as 2026-05-01T12:30."
)
@click.option("--tenant", metavar="NAME", help="Whose it is, where several share a queue and have turns.")
@input_options
@click.option("-n", "--count", type=click.IntRange(0), metavar="N", help="Stop after N messages.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--dry-run", is_flag=True, help="Send nothing; print the messages as JSON lines.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when all went well.")
@output_option
@server_options
def send_messages(
    queue: str,
    messages: tuple[str, ...],
    files: tuple[str, ...],
    count: int | None,
    rate: float | None,
    dry_run: bool,
    quiet: bool,
    output: str,
    server: Server,
    **options: Any,
) -> int:
    form = _read_form(options, server)
    if messages and (files or form.whole):
        raise CommandError("messages on the command line exclude --file and --whole", code=USAGE)
    if len(messages) > 1 and options["message_id"] is not None:
        raise CommandError(f"{len(messages)} messages would have the same --id; {_IDS_BY_LINE}", code=USAGE)
    names = files or ("-",)
    chunks = limit(_read(messages, names, form, has_id=options["message_id"] is not None), count)
    topic = topic_of(queue)
    if dry_run:
        return show_records(chunks, topic, quiet=quiet, thing=_THING)
    _check_queue(server, queue)
    patience = Patience(server, quiet=quiet)
    properties = {
        **QUEUE_PROPERTIES,
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "message.timeout.ms": delivery_timeout_ms(server),
    }
    producer = server.producer({**properties, "error_cb": patience.hear})
    if (error := ask_topic(server, producer, topic)) is not None:
        raise CommandError(f"topic {topic!r}: {server.explain_refusal(error.name(), error.str())}")
    if not messages and "-" in names and sys.stdin.isatty() and not quiet:
        note("one message a line; Ctrl+D ends")
    total = None if messages else known_size(names)
    return send(Sender(producer, topic), chunks, total, rate, _THING).tell(output, quiet=quiet, thing=_THING)


def _read_form(options: Mapping[str, Any], server: Server) -> Form:
    """How messages lie in the input, with the headers that flags stand for. Raises `CommandError`."""
    from penstock.engine.queues import headers

    if options["delay_ms"] is not None and options["due_ms"] is not None:
        raise CommandError("--delay and --deliver-at exclude one another", code=USAGE)
    said = {
        headers.MESSAGE_ID: options["message_id"],
        headers.TTL_MS: options["ttl_ms"],
        headers.PRIORITY: options["priority"],
        headers.DELAY_MS: options["delay_ms"],
        headers.DELIVER_AT: options["due_ms"],
        headers.TENANT: options["tenant"],
    }
    made = [(name, str(value).encode(errors="surrogateescape")) for name, value in said.items() if value is not None]
    for wrong in headers.read_headers(tuple(made)).unread:
        raise CommandError(f"{_FLAGS[wrong.name]}: {wrong.why}", code=USAGE)
    form = read_form(options, server)
    return replace(form, headers=(*form.headers, *made), passed=form.passed | EXTRA_FIELDS)


_FLAGS: Final = {
    "penstock-id": "--id",
    "penstock-ttl-ms": "--ttl",
    "penstock-priority": "--priority",
    "penstock-delay-ms": "--delay",
    "penstock-deliver-at": "--deliver-at",
    "penstock-tenant": "--tenant",
}
"""What each header is said by."""


def _read(messages: Sequence[str], names: Sequence[str], form: Form, *, has_id: bool) -> Iterator[Chunk]:
    """Everything there is to send. Raises `CommandError` before a second message would get the same id."""
    seen = 0
    for chunk in read_words(messages, form) if messages else read_chunks(names, form):
        seen += len(chunk.records)
        if has_id and seen > 1:
            raise CommandError(
                f"{chunk.records[-1].place}: a second message would have the same --id; {_IDS_BY_LINE}", code=USAGE
            )
        yield chunk


def _check_queue(server: Server, queue: str) -> None:
    """Whether it is there, as far as we may know. Raises `CommandError`."""
    with Verbs(server) as verbs:
        try:
            told = verbs.ask(f"nothing can be sent to queue {queue!r}", "queue.describe", queue=queue)
        except Refused as error:
            if is_unknown(error):
                raise explain(verbs, queue, error) from None
            if not error.name.endswith("_AUTHORIZATION_FAILED"):
                raise
            return
    if told["made_by"] == "share":  # who leads a partition knows whether there is such a group
        describe_queue(server, queue)


COMMANDS: Final = (send_messages,)
