"""Carrying out a plan: show it, ask, start the moves, wait for them, see that they arrived."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from penstock.cli.cluster_changes import alter_config, check_refusals, start_moves
from penstock.cli.cluster_patience import CATCH_UP_S, POLL_S, GaveUp, Patience, patience_option
from penstock.cli.cluster_plan import check_room, format_plan, print_plan, summarize, warn
from penstock.cli.cluster_progress import list_names, wait_for_moves
from penstock.cli.cluster_view import THROTTLE, Partition, Picture, Place, View
from penstock.cli.consent import confirm
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import count_of, note
from penstock.cluster.plans import Layout, Move

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class Rate(click.ParamType[int]):
    """Bytes a second: 50MB, 1.5GiB, 1000000."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        word = str(value).strip().lower().removesuffix("/s").removesuffix("b")
        number = word.rstrip("kmgi")
        try:
            rate = int(float(number) * _UNITS[word[len(number) :].strip()])
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is no number of bytes a second, such as 50MB or 1GiB.", param, ctx)
        if rate < 1:
            self.fail(f"{value!r}: nothing would move.", param, ctx)
        return rate


class BrokerIds(click.ParamType[tuple[int, ...]]):
    """1,2,3"""

    name = "ids"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isdecimal() for word in words):
            self.fail(f"{value!r} is no list of broker ids, such as 1,2,3.", param, ctx)
        found = tuple(map(int, words))
        if len(set(found)) < len(found):
            self.fail(f"{value!r} names a broker twice.", param, ctx)
        return found


@dataclass(frozen=True, slots=True)
class Manner:
    """How a plan is carried out."""

    dry_run: bool = False
    yes: bool = False
    throttle: int | None = None
    wait: bool = True
    output: str = "table"
    patience: Patience = field(default_factory=Patience)


def manner_options(command: F) -> F:
    """Adds --dry-run, --throttle, --no-wait, --wait-at-most, --yes and --output, as one `manner: Manner`."""
    import functools

    from penstock.cli.consent import yes_option
    from penstock.cli.output import output_option

    @click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
    @click.option(
        "--throttle",
        metavar="RATE",
        type=Rate(),
        help="Bytes a second that each broker copies at most, such as 50MB; lifted when all has arrived.",
    )
    @click.option("--no-wait", is_flag=True, help="Return when the moves have begun.")
    @patience_option
    @yes_option
    @output_option
    @functools.wraps(command)
    def with_manner(
        *args: Any,
        dry_run: bool,
        throttle: int | None,
        no_wait: bool,
        most_s: float | None,
        yes: bool,
        output: str,
        **kwargs: Any,
    ) -> Any:
        if no_wait and most_s is not None:
            raise CommandError("--no-wait waits for nothing; leave out --wait-at-most", code=USAGE)
        manner = Manner(dry_run, yes, throttle, not no_wait, output, Patience(most_s))
        return command(*args, manner=manner, **kwargs)

    return with_manner  # type: ignore[return-value]  # the wrapper takes what click hands it


def propose(picture: Picture, layout: Layout, moves: Sequence[Move], question: str, manner: Manner) -> bool:
    """Show a plan and ask; whether it shall be carried out."""
    if manner.output == "table" and moves:
        print_plan(layout, moves)
        click.echo()
    warn(picture, moves)
    check_room(picture, layout, moves)
    if manner.dry_run:
        return False
    return manner.yes or confirm(f"{question} ({summarize(moves)})?", "nothing was moved")


def carry_out(
    view: View, moves: Sequence[Move], label: str, manner: Manner, under_way: Sequence[Partition] = ()
) -> None:
    """Start moves and, unless the manner says otherwise, wait until they have arrived. Raises `CommandError`.

    Args:
        under_way: partitions whose moves somebody began before; they are throttled and waited for as well.
    """
    copying = {broker_id for move in moves for broker_id in move.adding}
    copying |= {broker_id for each in under_way for broker_id in each.adding if broker_id not in each.isr}
    sizes = {
        **dict.fromkeys((each.place for each in under_way), 0),
        **{move.place: move.copied_bytes for move in moves},
    }
    with _throttled(view, sorted(copying), sizes, manner):
        refused = start_moves(view, moves) if moves else {}
        started = [move for move in moves if move.place not in refused]
        awaited = {place: size for place, size in sizes.items() if place not in refused}
        if manner.wait and awaited:
            wait_for_moves(view, awaited, label, manner.patience)
            _check_arrived(view, started, label, manner.patience)
    check_refusals(refused, f"{len(refused)} of {count_of(len(moves), 'partition')} cannot be moved")


@contextmanager
def _throttled(view: View, copying: Sequence[int], places: Collection[Place], manner: Manner) -> Iterator[None]:
    """Slow down whoever copies; afterwards all is as it was, unless something is on its way still, or may be."""
    targets = copying if manner.throttle else []
    before = {each: view.ask_config(each).get(THROTTLE) for each in targets}
    try:
        for broker_id in targets:
            alter_config(view, broker_id, {THROTTLE: str(manner.throttle)})
        yield
    except (KeyboardInterrupt, GaveUp):
        _tell_throttle(before)
        raise
    except CommandError:
        if before and _is_still(view, places):
            with suppress(CommandError):
                _lift_throttle(view, before)
        else:
            _tell_throttle(before)
        raise
    if manner.wait:
        _lift_throttle(view, before)
    else:
        _tell_throttle(before)


def _is_still(view: View, places: Collection[Place]) -> bool:
    """Whether none of them is on its way; without a picture nobody knows."""
    try:
        return not any(each.place in places for each in view.fetch(sizes=False).moving)
    except CommandError:
        return False


def _lift_throttle(view: View, before: Mapping[int, str | None]) -> None:
    """Raises `CommandError` when all were tried and those that keep it are named."""
    kept: dict[int, str | None] = {}
    failure = None
    for broker_id, rate in before.items():
        try:
            alter_config(view, broker_id, {THROTTLE: rate})
        except CommandError as error:
            kept[broker_id], failure = rate, error
    _tell_throttle(kept)
    if failure is not None:
        raise failure


def _tell_throttle(before: Mapping[int, str | None]) -> None:
    for rate in dict.fromkeys(before.values()):
        listed = ",".join(str(each) for each, had in before.items() if had == rate)
        change = f"--unset {THROTTLE}" if rate is None else f"--set {THROTTLE}={rate}"
        note(f"the throttle stays; when all is done: 'penstock cluster config --broker {listed} {change}'")


def _check_arrived(view: View, moves: Sequence[Move], label: str, patience: Patience) -> None:
    """Raise `CommandError` for what stays elsewhere; a broker that hears late may show what was before the move."""
    deadline = time.monotonic() + CATCH_UP_S
    while strayed := _find_strayed(view.fetch(sizes=False), moves):
        if moving := {each.place: 0 for each in strayed if each.is_moving}:
            wait_for_moves(view, moving, label, patience)
        elif time.monotonic() > deadline:
            raise CommandError(
                f"{len(strayed)} of {count_of(len(moves), 'partition')} elsewhere than planned "
                f"({list_names([each.name for each in strayed])}): "
                "somebody took the move back or moved them again; 'penstock cluster status' shows what is"
            )
        time.sleep(POLL_S)


def _find_strayed(picture: Picture, moves: Sequence[Move]) -> list[Partition]:
    planned = {move.place: set(move.new) for move in moves}
    return [each for each in picture.partitions if set(each.replicas) != planned.get(each.place, set(each.replicas))]


def format_outcome(layout: Layout, moves: Sequence[Move], manner: Manner, *, agreed: bool) -> dict[str, Any]:
    """For scripts: the plan, and what became of it."""
    became = "moved" if manner.wait else "started"
    status = "dry-run" if manner.dry_run else "nothing" if not moves else became if agreed else "refused"
    return {"status": status, **format_plan(layout, moves)}
