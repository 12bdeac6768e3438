"""`penstock queue ack`, `nack`, `extend` and `release`: what became of messages, by their receipts."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import count_of, output_option, show
from penstock.cli.queue_leaders import leaders_of, queue_argument
from penstock.cli.queue_settlement import extend as extend_leases
from penstock.cli.queue_settlement import failures, settle
from penstock.cli.queue_times import RETURN_DELAY, VISIBILITY
from penstock.cli.verbs import Fields

_LIST_AT_MOST: Final = 3
_RECEIPTS_HELP: Final = """\
- for the receipts reads them from standard input, one a line; what follows a tab
is ignored, so that what 'receive' has printed can be given back as it is.
"""

receipts_argument = click.argument("receipts", metavar="RECEIPT...", nargs=-1, required=True)


@click.command(
    "ack",
    short_help="Messages are done.",
    help="""Say that messages are done: they are settled, and nobody gets them any more. When the command has ended
    well, that is on the disks. A receipt whose lease is over is refused, as somebody else may have the message by
    now.""",
    epilog=f"""\b
Examples:
  penstock queue ack jobs AQAAAAAAAAAAAAAAKgAAAAAAAAAJBBfJ-A
  penstock queue receive jobs --max 10 > taken && penstock queue ack jobs - < taken

\b
{_RECEIPTS_HELP}""",
)
@queue_argument
@receipts_argument
@output_option
@server_options
def ack(queue: str, receipts: tuple[str, ...], output: str, server: Server) -> None:
    with leaders_of(server, queue) as leaders:
        results = settle(leaders, "ack", _read(receipts))
    _tell(results, output, "acknowledged", "ack")


@click.command(
    "nack",
    short_help="Messages have failed, for now or for good.",
    help="""Say that messages have failed. They come again when the queue's backoff is over, or after --delay; after the
    last attempt that the queue allows they become dead letters. --reject makes dead letters of them at once; --reason
    goes with them.""",
    epilog=f"""\b
Examples:
  penstock queue nack jobs RECEIPT --delay 5m
  penstock queue nack jobs RECEIPT --reject --reason 'no such customer'

\b
{_RECEIPTS_HELP}""",
)
@queue_argument
@receipts_argument
@click.option("--delay", "delay_ms", metavar="TIME", type=RETURN_DELAY, help="Not before so long, such as 5m.")
@click.option("--reject", is_flag=True, help="Never again: dead letters at once.")
@click.option("--reason", metavar="TEXT", help="Why; dead letters carry it.")
@output_option
@server_options
def nack(
    queue: str,
    receipts: tuple[str, ...],
    delay_ms: int | None,
    reject: bool,
    reason: str | None,
    output: str,
    server: Server,
) -> None:
    if reject and delay_ms is not None:
        raise CommandError("--reject and --delay exclude one another: what is rejected never comes again", code=USAGE)
    with leaders_of(server, queue) as leaders:
        results = settle(leaders, "reject" if reject else "nack", _read(receipts), delay_ms, reason)
    _tell(results, output, "rejected" if reject else "returned as failed", "nack")


@click.command(
    "extend",
    short_help="Keep messages for longer.",
    help="""Have leases end later: --visibility from now, else as long as the queue gives a consumer. No lease lasts
    longer than 12 hours in all.""",
    epilog=f"""\b
Examples:
  penstock queue extend jobs RECEIPT
  penstock queue extend jobs RECEIPT --visibility 1h

\b
{_RECEIPTS_HELP}""",
)
@queue_argument
@receipts_argument
@click.option("--visibility", "visibility_ms", metavar="TIME", type=VISIBILITY, help="How long from now, such as 10m.")
@output_option
@server_options
def extend(queue: str, receipts: tuple[str, ...], visibility_ms: int | None, output: str, server: Server) -> None:
    with leaders_of(server, queue) as leaders:
        results = extend_leases(leaders, _read(receipts), visibility_ms)
    _tell(results, output, "extended", "extend")


@click.command(
    "release",
    short_help="Give messages back untouched.",
    help="""Give messages back as if they had not been leased: they are ready at once, and it counts as no failed
    attempt. The hundredth release of a message does.""",
    epilog=f"""\b
Examples:
  penstock queue release jobs RECEIPT
  penstock queue release jobs - < taken

\b
{_RECEIPTS_HELP}""",
)
@queue_argument
@receipts_argument
@output_option
@server_options
def release(queue: str, receipts: tuple[str, ...], output: str, server: Server) -> None:
    with leaders_of(server, queue) as leaders:
        results = settle(leaders, "release", _read(receipts))
    _tell(results, output, "released", "release")


def _read(words: Sequence[str]) -> list[str]:
    """Each receipt once, in order. Raises `CommandError` where none is left."""
    found = list(dict.fromkeys(receipt for word in words for receipt in _read_word(word)))
    if not found:
        raise CommandError("no receipts on standard input", code=USAGE)
    return found


def _read_word(word: str) -> Iterator[str]:
    if word != "-":
        yield word
        return
    for line in sys.stdin.buffer:
        if receipt := line.partition(b"\t")[0].strip():
            yield receipt.decode(errors="replace")


def _tell(results: Sequence[Fields], output: str, done: str, verb: str) -> None:
    """What was done, and an error for what was not."""
    failed = failures(results)
    well = len(results) - len(failed)
    if well or output != "table":
        show(list(results), output, lambda: click.echo(f"{count_of(well, 'message')} {done}"))
    if not failed:
        return
    told = [f"{row['text']}; {row['help']}" if row["help"] else row["text"] for row in failed[:_LIST_AT_MOST]]
    if (more := len(failed) - len(told)) > 0:
        told.append(f"and {more:,} more")
    raise CommandError(f"cannot {verb}: {'; '.join(told)}")


COMMANDS: Final = (ack, nack, extend, release)
