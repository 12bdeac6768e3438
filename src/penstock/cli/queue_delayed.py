"""`penstock queue delayed`: what is not due yet, and what becomes of it before it is."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, show
from penstock.cli.queue_leaders import Leaders, leaders_of, partitions_option, queue_argument
from penstock.cli.queue_messages import DELAYED, QueueMessage
from penstock.cli.queue_redrive import Place
from penstock.cli.queue_view import describe_queue
from penstock.cli.record_options import TOKENS_HELP, choose_form, form_options

_PAGE: Final = 100
_STEP: Final = 200
"""Places in one question."""


class _Deed(NamedTuple):
    """What can be done with what waits."""

    verb: str
    done: str
    cannot: str


_CANCEL: Final = _Deed("queue.cancel", "cancelled", "cannot be cancelled")
_DELIVER: Final = _Deed("queue.deliver", "delivered", "cannot be delivered now")


@click.command(
    "delayed",
    short_help="Look at what is not due yet; cancel it, or deliver it now.",
    help="""Look at messages that are not due yet, soonest first: when each is due, here and from now, and where it is.
    They were sent with --delay or --deliver-at. What waits for another attempt is shown by 'penstock queue browse
    --state delayed'.

    --cancel settles messages before anybody gets them; they become no dead letters. It asks first; without a terminal
    it needs --yes. --now has them be ready at once, whatever time they named. Both take places, as they are shown
    here, or --all there are now. What has fallen due meanwhile is left alone, and the command says so.

    In a queue with --delay every message waits; those are counted, and not listed: 'penstock queue alter --delay none'
    lets go of them, 'penstock queue purge' settles them.""",
    epilog=f"""\b
Examples:
  penstock queue delayed jobs
  penstock queue delayed jobs -n 20 -o json
  penstock queue delayed jobs --cancel 0:15 2:1045
  penstock queue delayed jobs --now --all

\b
{TOKENS_HELP}\
Also %u when the message is due, %i its id.""",
)
@queue_argument
@click.argument("places", metavar="[PARTITION:OFFSET]...", nargs=-1, type=Place())
@click.option("--cancel", is_flag=True, help="Nobody gets these messages. Asks first.")
@click.option("--now", "at_once", is_flag=True, help="These messages are ready now.")
@click.option("--all", "everything", is_flag=True, help="All there are now.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@partitions_option
@yes_option
@form_options(DELAYED)
@server_options
def delayed(
    queue: str,
    places: tuple[tuple[int, int], ...],
    cancel: bool,
    at_once: bool,
    everything: bool,
    count: int | None,
    partitions: tuple[int, ...],
    yes: bool,
    server: Server,
    **options: Any,
) -> int | None:
    if not cancel and not at_once:
        if places or everything:
            raise CommandError("say what is to become of them: --cancel or --now", code=USAGE)
        _show(server, queue, partitions, count, options)
        return None
    if cancel and at_once:
        raise CommandError("--cancel and --now exclude one another", code=USAGE)
    if bool(places) == everything:
        raise CommandError("say which messages: PARTITION:OFFSET as this command shows it, or --all", code=USAGE)
    if count is not None:
        raise CommandError("--count is for looking", code=USAGE)
    if places and partitions:
        raise CommandError("--partition is for looking, or with --all: places name theirs", code=USAGE)
    if cancel and not yes and not confirm(_question(server, queue, places, partitions), "nothing was cancelled"):
        return FAILED
    _change(server, queue, _CANCEL if cancel else _DELIVER, places, partitions, options["output"])
    return None


# --- looking


def _show(server: Server, queue: str, partitions: Sequence[int], count: int | None, options: Mapping[str, Any]) -> None:
    people = ("due", "partition", "offset", "id", "key", "headers")
    render = choose_form(options, people=people, piped=("due", "partition", "offset"), words=DELAYED)
    found, held = 0, 0
    with leaders_of(server, queue) as leaders:
        waiting = [_Waiting(leaders, number, count) for number in leaders.choose(partitions)]
        soonest = islice(merge(*waiting, key=lambda each: int(each.told["due_ms"])), count)
        while messages := list(islice(soonest, _PAGE)):
            found += len(messages)
            sys.stdout.buffer.write(render(messages))
            sys.stdout.buffer.flush()
        held = sum(each.held for each in waiting)
    if held:
        note(f"{held:,} more wait because every message of this queue does (setting delay)")
    elif not found and sys.stdout.isatty():
        note("no messages wait; all are due")


class _Waiting:
    """What waits in one partition, soonest first, as it is asked for.

    Attributes:
        held: how many wait because every message of the queue does, once the first was asked for.
    """

    def __init__(self, leaders: Leaders, number: int, count: int | None) -> None:
        self._leaders = leaders
        self._number = number
        self._most = _PAGE if count is None else min(count, _PAGE)
        self.held = 0

    def __iter__(self) -> Iterator[QueueMessage]:
        what = f"what is not due yet in partition {self._number} of queue {self._leaders.queue!r} cannot be looked at"
        place: Mapping[str, int] | None = {}
        while place is not None:
            told = self._leaders.ask(what, "queue.delayed", self._number, most=self._most, **place)
            self.held, place = told["held"], told["next"]
            for each in told["messages"]:
                yield QueueMessage(self._leaders.topic, {**each, "in_ms": max(each["due_ms"] - told["now_ms"], 0)})


# --- changing


def _question(server: Server, queue: str, places: Sequence[tuple[int, int]], partitions: Sequence[int]) -> str:
    if places:
        return f"Cancel {count_of(len(set(places)), 'message')} of queue {queue}?"
    rows = [
        row for row in describe_queue(server, queue)["partitions"] if not partitions or row["partition"] in partitions
    ]
    number = sum(row.get("not_due", 0) - row.get("held", 0) for row in rows)
    return f"Cancel all messages of queue {queue} that are not due yet ({number:,} now)?"


def _change(
    server: Server,
    queue: str,
    deed: _Deed,
    places: Sequence[tuple[int, int]],
    partitions: Sequence[int],
    output: str,
) -> None:
    with leaders_of(server, queue) as leaders:
        if places:
            numbers = leaders.choose([number for number, _ in places])
            told = [each for number in numbers for each in _named(leaders, deed, number, places)]
        else:
            told = [each for number in leaders.choose(partitions) for each in _all(leaders, deed, number)]
    done = sum(each["done"] for each in told)
    missed = [f"{each['partition']}:{offset}" for each in told for offset in each["missed"]]
    line = f"{deed.done} {count_of(done, 'message')} of queue {queue}{'' if deed is _CANCEL else ' before their time'}"
    show({"queue": queue, deed.done: done, "missed": missed}, output, lambda: click.echo(line))
    if places and done < len(set(places)):
        named = f": {', '.join(missed[:5])}{', ...' if len(missed) > 5 else ''}" if missed else ""
        count = count_of(len(set(places)) - done, "message")
        raise CommandError(f"{count} of those named: due by now, settled, or never delayed{named}")


def _named(leaders: Leaders, deed: _Deed, number: int, places: Sequence[tuple[int, int]]) -> Iterator[Any]:
    offsets = sorted({offset for at, offset in places if at == number})
    for start in range(0, len(offsets), _STEP):
        yield _ask(leaders, deed, number, offsets=offsets[start : start + _STEP])


def _all(leaders: Leaders, deed: _Deed, number: int) -> Iterator[Any]:
    """Those that are there when it begins."""
    told = _ask(leaders, deed, number, all=True)
    yield told
    while told["next"] is not None:
        told = _ask(leaders, deed, number, all=True, end=told["end"], **told["next"])
        yield told


def _ask(leaders: Leaders, deed: _Deed, number: int, **fields: Any) -> Any:
    what = f"messages in partition {number} of queue {leaders.queue!r} {deed.cannot}"
    return leaders.ask(what, deed.verb, number, **fields)


COMMANDS: Final = (delayed,)
