"""`penstock queue receive` and `browse`: messages, leased or only looked at."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from penstock.cli import wire
from penstock.cli.connection import Server, server_options
from penstock.cli.failure import CommandError
from penstock.cli.output import count_of, note
from penstock.cli.queue_leaders import Leaders, is_passing, leaders_of, partitions_option, queue_argument
from penstock.cli.queue_messages import BROWSED, LANES, LEASED, QueueMessage
from penstock.cli.queue_settlement import failures, settle
from penstock.cli.queue_times import VISIBILITY
from penstock.cli.queue_view import COUNTS
from penstock.cli.record_options import TOKENS_HELP, choose_form, form_options
from penstock.cli.record_text import Render
from penstock.cli.transactions import Duration

_AT_ONCE: Final = 100
_WAIT_S: Final = 1.0  # of one question: a message that is leased when Ctrl+C comes in between is nobody's for a while
_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.1


@click.command(
    "receive",
    short_help="Lease messages and print them with their receipts.",
    help="""Lease messages and print them. Nobody else gets them until you settle them by their receipts ('penstock
    queue ack', 'nack', 'release') or their time is over: then they count as failed. --ack settles each as soon as it
    is printed.

    On a terminal each message is a line; into a pipe go the receipt and the value with a tab between, with --ack the
    value alone, unless --show or -o asks for more. Ends with 0 also if there was none.

    Priorities come in the order that the queue is made for; --lane takes the messages of one alone: critical has
    priorities 8 and 9, high 6 and 7, normal 4 and 5 and what says nothing, low 2 and 3, background 0 and 1.""",
    epilog=f"""\b
Examples:
  penstock queue receive jobs
  penstock queue receive jobs --max 10 --wait 30s --ack -o json
  penstock queue receive jobs --visibility 10m --format '%r %s\\n'
  penstock queue receive jobs --max 100000 --ack > jobs.txt
  penstock queue receive jobs --lane critical --wait 30s

\b
{TOKENS_HELP}\
Also %r receipt, %d deliveries, %a failed attempts, %u when the lease ends.""",
)
@queue_argument
@click.option(
    "-n", "--max", "most", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many at most."
)
@click.option(
    "--wait",
    "wait_ms",
    metavar="TIME",
    type=Duration(),
    default="0s",
    help="Wait so long for them, such as 30s.",
)
@click.option(
    "--visibility", "visibility_ms", metavar="TIME", type=VISIBILITY, help="How long they are yours; else the queue's."
)
@click.option("--ack", is_flag=True, help="Acknowledge each after it was printed.")
@click.option("--lane", type=click.Choice(LANES), help="Only messages of this priority; they are waited for.")
@partitions_option
@form_options(LEASED)
@server_options
def receive(
    queue: str,
    most: int,
    wait_ms: int,
    visibility_ms: int | None,
    ack: bool,
    lane: str | None,
    partitions: tuple[int, ...],
    server: Server,
    **options: Any,
) -> None:
    usual = ("partition", "offset", "timestamp", "deliveries", "key", "headers")
    render = choose_form(
        options,
        people=usual if ack else ("receipt", *usual),
        piped=() if ack else ("receipt",),
        words=LEASED,
    )
    with leaders_of(server, queue) as leaders:
        leasing = _Leasing(leaders, leaders.choose(partitions), bool(partitions), most, visibility_ms, lane)
        found, late = 0, []
        for messages in leasing.batches(time.monotonic() + wait_ms / 1000):
            found += len(messages)
            _print(leaders, messages, render)
            if ack:
                late += failures(settle(leaders, "ack", [each.told["receipt"] for each in messages]))
    if late:
        count = count_of(len(late), "message")
        raise CommandError(f"{count} of those printed could not be acknowledged, and may come again: {late[0]['text']}")
    if not found and sys.stdout.isatty():
        note("no messages are ready; 'penstock queue describe' tells what waits for what")


class _Leasing:
    """What is still to be leased. One broker is asked after the other; the last one may wait.

    Args:
        is_choice: whether somebody has chosen the partitions, and they are asked one by one.
    """

    def __init__(
        self,
        leaders: Leaders,
        partitions: Sequence[int],
        is_choice: bool,
        most: int,
        visibility_ms: int | None,
        lane: str | None = None,
    ) -> None:
        from secrets import SystemRandom, token_hex

        self._leaders = leaders
        self._partitions = partitions
        self._is_choice = is_choice
        self._left = most
        self._shuffle = SystemRandom().shuffle
        name = f"penstock-cli-{token_hex(8)}"
        self._fields = {"visibility_ms": visibility_ms, "lane": lane, "max_bytes": _BYTES, "consumer": name}

    def batches(self, deadline: float) -> Iterator[list[QueueMessage]]:
        """As they come, until there are enough, or there is none and the time is over."""
        while self._left > 0:
            is_any = False
            for at, partition in self._places():
                for messages in self._drain(at, partition, 0):
                    is_any = True
                    yield messages
            left_s = deadline - time.monotonic()
            if not is_any and left_s <= 0:
                return
            if not is_any:
                yield from self._await(min(left_s, _WAIT_S))

    def _places(self) -> list[tuple[wire.Address | None, int | None]]:
        """In any order: what is at the end would not get its turn while there is enough at the beginning."""
        by_broker = self._leaders.by_broker(self._partitions)
        places: list[tuple[wire.Address | None, int | None]] = [(at, None) for at in by_broker]
        if self._is_choice:
            places = [(at, number) for at, numbers in by_broker.items() for number in numbers]
        self._shuffle(places)
        return places

    def _await(self, wait_s: float) -> Iterator[list[QueueMessage]]:
        """Wait at all places, for so long in all."""
        places = self._places()
        if not places:
            time.sleep(min(wait_s, _PAUSE_S))
            self._leaders.forget()
        for at, partition in places:
            if messages := self._ask(at, partition, round(wait_s * 1000 / len(places))):
                yield messages
                return

    def _drain(self, at: wire.Address | None, partition: int | None, wait_ms: int) -> Iterator[list[QueueMessage]]:
        while self._left > 0 and (messages := self._ask(at, partition, wait_ms)):
            yield messages

    def _ask(self, at: wire.Address | None, partition: int | None, wait_ms: int) -> list[QueueMessage]:
        leaders = self._leaders
        what = f"no messages of queue {leaders.queue!r} can be received"
        most = min(self._left, _AT_ONCE)
        try:
            told = leaders.ask_at(
                at, what, "queue.lease", partition=partition, most=most, wait_ms=wait_ms, **self._fields
            )
        except CommandError as error:
            if not is_passing(error, at):
                raise
            leaders.forget()
            time.sleep(_PAUSE_S)
            return []
        self._left -= len(told["messages"])
        return [QueueMessage(leaders.topic, each) for each in told["messages"]]


def _print(leaders: Leaders, messages: Sequence[QueueMessage], render: Render) -> None:
    """What nobody could see, as the reader has gone, is given back untouched."""
    out = sys.stdout.buffer
    try:
        out.write(render(messages))
        out.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        with suppress(CommandError):
            settle(leaders, "release", [each.told["receipt"] for each in messages])
        raise


@click.command(
    "browse",
    short_help="Look at messages without leasing them.",
    help="""Look at messages that are not settled, oldest first in each partition, with what is the matter with each:
    ready, leased, delayed or dying. Nothing is leased, and nothing changes; it takes the right to read the topic.""",
    epilog=f"""\b
Examples:
  penstock queue browse jobs
  penstock queue browse jobs --state delayed --state dying -n 20
  penstock queue browse jobs -p 2 --from 1045 -o json

\b
{TOKENS_HELP}\
Also %w state, %d deliveries, %a failed attempts, %u when the lease ends or the
message is due.""",
)
@queue_argument
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option(
    "--state", "states", type=click.Choice(COUNTS), multiple=True, help="Only messages in this state; may be repeated."
)
@click.option("--from", "first", type=click.IntRange(0), metavar="OFFSET", help="Where to begin in each partition.")
@partitions_option
@form_options(BROWSED)
@server_options
def browse(
    queue: str,
    count: int | None,
    states: tuple[str, ...],
    first: int | None,
    partitions: tuple[int, ...],
    server: Server,
    **options: Any,
) -> None:
    people = ("state", "partition", "offset", "timestamp", "deliveries", "until", "key", "headers")
    render = choose_form(options, people=people, piped=("state", "partition", "offset"), words=BROWSED)
    found = 0
    with leaders_of(server, queue) as leaders:
        for number in leaders.choose(partitions):
            for messages in _pages(leaders, number, first, list(states)):
                shown = messages if count is None else messages[: count - found]
                found += len(shown)
                sys.stdout.buffer.write(render(shown))
                sys.stdout.buffer.flush()
                if found == count:
                    return
    if not found and sys.stdout.isatty():
        note("no messages like that" if states or partitions or first else "no messages; all are settled")


def _pages(leaders: Leaders, number: int, first: int | None, states: Sequence[str]) -> Iterator[list[QueueMessage]]:
    """Up to where the partition ended when it was first asked."""
    what = f"partition {number} of queue {leaders.queue!r} cannot be looked at"
    offset, end = first, None
    while True:
        told = leaders.ask(what, "queue.browse", number, offset=offset, end=end, states=states, max_bytes=_BYTES)
        if told["messages"]:
            yield [QueueMessage(leaders.topic, each) for each in told["messages"]]
        if told["next"] is None:
            return
        offset, end = told["next"], told["end"]


COMMANDS: Final = (receive, browse)
