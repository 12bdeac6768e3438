"""`penstock queue redrive`: dead letters back into their queue.

They lie in a topic of their own, which is a queue as any other; the leaders of its partitions move them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from penstock.cli.connection import Refused, Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import CANCELLED, FAILED, USAGE, CommandError
from penstock.cli.output import count_of, output_option, progress, show
from penstock.cli.queue_leaders import Leaders, QueueWord, is_unknown, leaders_of, queue_argument
from penstock.cli.queue_view import describe_queue, read_place
from penstock.cli.verbs import Verbs

_STEP: Final = 100


class Place(click.ParamType[tuple[int, int]]):
    """A message by its partition and offset: `0:15`."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        place = read_place(str(value))
        if place is None:
            self.fail(f"{value!r} is no PARTITION:OFFSET.", param, ctx)
        return place


@click.command(
    "redrive",
    short_help="Bring dead letters back.",
    help="""Bring a queue's dead letters back into it, where they begin anew, as if they had never been tried: some by
    their place in the topic of dead letters, the oldest N of each of its partitions in turn, or all there are now.
    What is brought back is settled among the dead letters. Other queues of the same topic get it once more, too. --to
    brings it into another queue, --rate spares whoever has to handle it.""",
    epilog="""\b
Examples:
  penstock queue redrive jobs 0:15 0:17
  penstock queue redrive jobs --max 100
  penstock queue redrive jobs --all --rate 50
  penstock queue redrive jobs --all --to jobs-by-hand --yes""",
)
@queue_argument
@click.argument("places", metavar="[PARTITION:OFFSET]...", nargs=-1, type=Place())
@click.option("-n", "--max", "most", metavar="N", type=click.IntRange(1), help="The oldest N.")
@click.option("--all", "everything", is_flag=True, help="All there are now. Asks first.")
@click.option("--to", "target", metavar="QUEUE", type=QueueWord(), help="Another queue than theirs.")
@click.option("--from", "source", metavar="TOPIC", help="Another topic of dead letters than the queue has now.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N messages a second.")
@yes_option
@output_option
@server_options
def redrive(
    queue: str,
    places: tuple[tuple[int, int], ...],
    most: int | None,
    everything: bool,
    target: str | None,
    source: str | None,
    rate: float | None,
    yes: bool,
    output: str,
    server: Server,
) -> int | None:
    if sum((bool(places), most is not None, everything)) != 1:
        raise CommandError("say which dead letters: PARTITION:OFFSET, --max N or --all", code=USAGE)
    back_to = target or queue
    letters = source or describe_queue(server, queue)["dead_letter_topic"]
    if letters is None:
        raise CommandError(f"queue {queue!r} drops its dead letters; --from names a topic in which some may be")
    if target is not None:
        with leaders_of(server, target) as leaders:
            leaders.ask_at(None, f"queue {target!r} cannot be used", "queue.describe")
    question = f"Bring all dead letters of queue {queue} in topic {letters} back into {back_to}?"
    if everything and not yes and not confirm(question, "nothing was moved"):
        return FAILED
    with Verbs(server) as verbs:
        redriving = _Redriving(Leaders(server, verbs, letters), {"origin": queue, "to": target}, most, rate)
        is_any = _has_letters(redriving)
        if source is not None and not is_any:
            raise CommandError(f"there is no topic {source!r} of dead letters; 'penstock topic list' shows all topics")
        interrupted = is_any and redriving.run(places)
    told = {"queue": queue, "from": letters, "to": back_to, "moved": redriving.moved}
    count = count_of(redriving.moved, "dead letter")
    show(told, output, lambda: click.echo(f"{count} of topic {letters} brought back into queue {back_to}"))
    if places and redriving.moved < len(set(places)) and not interrupted:
        missing = count_of(len(set(places)) - redriving.moved, "message")
        raise CommandError(f"{missing} of those named: no dead letter of queue {queue!r}, leased, or settled already")
    return CANCELLED if interrupted else None


def _has_letters(redriving: "_Redriving") -> bool:
    """Whether there is a topic of dead letters: it is made for the first one."""
    try:
        return bool(redriving.letters.partitions)
    except Refused as error:
        if is_unknown(error):
            return False
        raise


class _Redriving:
    """Asks for a few at a time, so that a rate can be kept and Ctrl+C leaves nothing half done.

    Args:
        letters: the leaders of the topic of dead letters.
        fields: what each question says.
        most: how many in all; None: all there are when a partition is first asked.
    """

    def __init__(self, letters: Leaders, fields: Mapping[str, Any], most: int | None, rate: float | None) -> None:
        self.moved = 0
        self.letters = letters
        self._fields = fields
        self._most = most
        self._rate = rate

    def run(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether Ctrl+C ended it.

        Args:
            places: those that are named; else the oldest.
        """
        began = time.monotonic()
        try:
            with progress("bringing back", len(places) or self._most, unit="messages") as bar:
                for moved in self._named(places) if places else self._oldest():
                    self.moved += moved
                    bar.advance(moved)
                    if self._rate is not None:
                        time.sleep(max(0.0, began + self.moved / self._rate - time.monotonic()))
        except KeyboardInterrupt:
            return True
        return False

    def _named(self, places: Sequence[tuple[int, int]]) -> Iterator[int]:
        step = self._step()
        for number in self.letters.choose([number for number, _ in places]):
            offsets = sorted({offset for at, offset in places if at == number})
            for start in range(0, len(offsets), step):
                yield self._ask(number, offsets=offsets[start : start + step])["moved"]

    def _oldest(self) -> Iterator[int]:
        for number in self.letters.partitions:
            after = end = None
            while self._left() > 0:
                told = self._ask(number, most=min(self._step(), self._left()), offset=after, end=end)
                yield told["moved"]
                after, end = told["next"], told["end"]
                if after is None:
                    break

    def _left(self) -> int:
        return _STEP if self._most is None else self._most - self.moved

    def _step(self) -> int:
        return _STEP if self._rate is None else max(1, min(_STEP, int(self._rate / 10)))

    def _ask(self, number: int, **more: Any) -> Any:
        what = f"dead letters of queue {self._fields['origin']!r} cannot be brought back"
        return self.letters.ask(what, "queue.redrive", number, **self._fields, **more)


COMMANDS: Final = (redrive,)
