"""`penstock cluster cordon`, `uncordon`, `drain`, `decommission`, `replace`, `config`: one broker, or all of them."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import click

from penstock.cli.cluster_changes import alter_config, check_refusals, elect, unregister
from penstock.cli.cluster_execution import BrokerIds, Manner, carry_out, format_outcome, manner_options, propose
from penstock.cli.cluster_patience import CATCH_UP_S, POLL_S, Patience, patience_option
from penstock.cli.cluster_plan import check_room, make_layout
from penstock.cli.cluster_progress import list_names, why_nobody_decides
from penstock.cli.cluster_view import CORDON, CORDONED, DRAINED, Partition, Picture, Place, View
from penstock.cli.connection import Server, read_properties, server_options
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, note_none, output_option, print_table, progress, show
from penstock.cluster.plans import Layout, Move, evacuate, substitute

_PATIENCE: Final = 20
"""Pictures in a row in which nobody else can lead what a broker leads, before that is told."""

id_argument = click.argument("broker_id", metavar="ID", type=click.IntRange(0))


@click.command(
    "cordon",
    help="""Give a broker no new replicas: not of new topics, not by plans. It keeps what it has, and leads.""",
    epilog="""\b
Examples:
  penstock cluster cordon 3
  penstock cluster uncordon 3""",
)
@id_argument
@output_option
@server_options
def cordon(broker_id: int, output: str, server: Server) -> None:
    with View(server) as view:
        was = view.fetch(sizes=False).broker(broker_id).cordon
        if was != DRAINED:  # which is more
            alter_config(view, broker_id, {CORDON: CORDONED})
    _show_cordon(broker_id, was, was if was == DRAINED else CORDONED, output)


@click.command(
    "uncordon",
    help="Let a broker have replicas again, and lead.",
    epilog="""\b
Examples:
  penstock cluster uncordon 3""",
)
@id_argument
@output_option
@server_options
def uncordon(broker_id: int, output: str, server: Server) -> None:
    with View(server) as view:
        was = view.fetch(sizes=False).broker(broker_id).cordon
        alter_config(view, broker_id, {CORDON: None})
    _show_cordon(broker_id, was, "", output)


def _show_cordon(broker_id: int, was: str, is_: str, output: str) -> None:
    says = f"broker {broker_id} takes replicas and leads" if not is_ else f"broker {broker_id} is {is_}"
    fields = {"broker": broker_id, "was": was or None, "cordon": is_ or None}
    show(fields, output, lambda: click.echo(says + (" already" if was == is_ else "")))


@click.command(
    "drain",
    short_help="Have a broker lead nothing.",
    help="""Make a broker lead nothing and get no new replicas, before work on its machine: other brokers lead its
    partitions, and it stays in sync until it is stopped. Returns when it leads nothing. --undo lets it lead again, and
    gives back the partitions it should lead.""",
    epilog="""\b
Examples:
  penstock cluster drain 2
  penstock cluster drain 2 --wait-at-most 120
  penstock cluster drain 2 --undo""",
)
@id_argument
@click.option("--undo", is_flag=True, help="Let it lead and have replicas again.")
@patience_option
@output_option
@server_options
def drain(broker_id: int, undo: bool, most_s: float | None, output: str, server: Server) -> None:
    with View(server) as view:
        picture = view.fetch(sizes=False)
        picture.broker(broker_id)
        alter_config(view, broker_id, {CORDON: None if undo else DRAINED})
        if undo:
            _hand_back(view, picture, broker_id, output)
            return
        _wait_for_handover(view, broker_id, Patience(most_s))
    fields = {"broker": broker_id, "cordon": DRAINED, "leaders": 0}
    show(fields, output, lambda: click.echo(f"broker {broker_id} leads nothing"))


def _hand_back(view: View, picture: Picture, broker_id: int, output: str) -> None:
    """Have a broker lead what it should, and tell what it does not lead. Raises `CommandError` where that stays so."""
    _, refused = elect(view, [each.place for each in picture.partitions if _should_lead(each, broker_id)])
    now = _fetch_after(view, broker_id, refused)
    count, is_up = len(now.led_by(broker_id)), now.broker(broker_id).is_up
    waiting = [each.name for each in now.held_by(broker_id) if _waits_for(each, broker_id)]
    fields = {"broker": broker_id, "cordon": None, "up": is_up, "leaders": count, "not_in_sync": len(waiting)}
    says = f"broker {broker_id} leads {count_of(count, 'partition')} again"
    show(fields, output, lambda: click.echo(says) if is_up else None)
    missing = count_of(len(refused), "partition")
    check_refusals(refused, f"broker {broker_id} may lead again, and does not lead {missing}")
    if not is_up:
        raise CommandError(f"broker {broker_id} may lead again, and is not running; start it, and it does when in sync")
    if waiting:
        note(f"it is not in sync yet for {list_names(waiting)}, and leads them when it is ('penstock cluster elect')")


def _fetch_after(view: View, broker_id: int, refused: Collection[Place]) -> Picture:
    """A picture that knows of the election: who is asked may hear of it a moment later than who was told."""
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        picture = view.fetch(sizes=False)
        late = [each for each in picture.partitions if _should_lead(each, broker_id) and each.place not in refused]
        if not late or time.monotonic() >= deadline:
            return picture
        time.sleep(POLL_S)


def _waits_for(partition: Partition, broker_id: int) -> bool:
    return partition.replicas[0] == broker_id and broker_id not in partition.isr and not partition.is_moving


def _should_lead(partition: Partition, broker_id: int) -> bool:
    return partition.replicas[0] == broker_id and broker_id in partition.isr and partition.leader != broker_id


def _wait_for_handover(view: View, broker_id: int, patience: Patience) -> None:
    first = view.fetch(sizes=False)
    stuck_for = 0
    left = len(first.led_by(broker_id))
    label = f"broker {broker_id} hands over"
    stays = f"broker {broker_id} stays drained; 'penstock cluster drain {broker_id} --undo' takes it back"
    wait = patience.wait(label, stays)
    with _ending(stays), progress(label, left, unit="partitions") as bar:
        for picture in wait.pictures(lambda: view.fetch(sizes=False)):
            led = picture.led_by(broker_id)
            bar.advance(left - len(led))
            left = len(led)
            if not led:
                return
            stuck_for = stuck_for + 1 if not any(_has_heir(picture, each, broker_id) for each in led) else 0
            if stuck_for >= _PATIENCE:
                raise _alone(broker_id, led)
            wait.see(left, partial(_explain, view, picture, broker_id))


def _explain(view: View, picture: Picture, broker_id: int) -> str:
    """Why a broker still leads."""
    led = picture.led_by(broker_id)
    heirless = [each.name for each in led if not _has_heir(picture, each, broker_id)]
    others = [each.name for each in led if each.name not in heirless]
    reasons = why_nobody_decides(view, picture)
    if others:
        reasons.append(f"nobody has elected another leader for {list_names(others)}")
    if heirless:
        reasons.append(f"nobody else has {list_names(heirless)} in sync")
    return "; ".join(reasons)


def _has_heir(picture: Picture, partition: Partition, broker_id: int) -> bool:
    others = [picture.brokers[each] for each in partition.isr if each != broker_id]
    return any(each.is_up and each.cordon != DRAINED for each in others)


def _alone(broker_id: int, led: Sequence[Partition]) -> CommandError:
    count, names = count_of(len(led), "partition"), list_names([each.name for each in led])
    return CommandError(
        f"broker {broker_id} is drained and still leads {count} that nobody else has in sync: {names}; "
        "wait for others to be in sync, or give them more replicas ('penstock cluster reassign --plan')"
    )


@click.command(
    "decommission",
    short_help="Empty a broker and forget it.",
    help="""Take a broker out for good: it is cordoned, everything it holds moves to others (plan first), and when it
    is stopped the cluster forgets it. One broker at a time. If you call it again, it continues where it was, so Ctrl+C
    does no harm; 'reassign --cancel' and 'uncordon' undo it.""",
    epilog="""\b
Examples:
  penstock cluster decommission 4 --dry-run
  penstock cluster decommission 4 --throttle 50MB
  penstock cluster decommission 4 --yes --no-wait""",
)
@id_argument
@manner_options
@server_options
def decommission(broker_id: int, manner: Manner, server: Server) -> int | None:
    with View(server) as view:
        again = f"penstock cluster decommission {broker_id}"
        return _empty(view, broker_id, lambda layout: evacuate(layout, broker_id), again, manner)


@click.command(
    "replace",
    short_help="Give what a lost broker held to another one.",
    help="""A machine or its disk is lost: everything that OLD held goes to NEW (plan first), copied from the brokers
    that have it, and OLD is forgotten. NEW is a broker that runs, usually an empty one. A broker that comes back under
    its old id with an empty disk needs no command: it copies what it lacks by itself.""",
    epilog="""\b
Examples:
  penstock cluster replace 2 5
  penstock cluster replace 2 5 --throttle 100MB --yes""",
)
@click.argument("old", metavar="OLD", type=click.IntRange(0))
@click.argument("new", metavar="NEW", type=click.IntRange(0))
@manner_options
@server_options
def replace(old: int, new: int, manner: Manner, server: Server) -> int | None:
    with View(server) as view:
        view.fetch(sizes=False).broker(new)
        again = f"penstock cluster replace {old} {new}"
        return _empty(view, old, lambda layout: substitute(layout, old, new), again, manner)


def _empty(view: View, broker_id: int, plan: Callable[[Layout], list[Move]], again: str, manner: Manner) -> int | None:
    """Cordon a broker, move all it holds as planned, and forget it when it is stopped; `again` goes on with that."""
    picture = view.fetch()
    picture.broker(broker_id)
    _check_alone(picture, broker_id)
    layout = make_layout(picture)
    moves = plan(layout)
    held = bool(picture.held_by(broker_id))
    agreed = not held and not manner.dry_run
    if held:
        agreed = propose(picture, layout, moves, f"Move everything off broker {broker_id}", manner)
        if not agreed and not manner.dry_run:
            return FAILED
    became = "dry-run"
    if agreed:
        now = view.fetch()
        _check_alone(now, broker_id)
        _check_shown(now, broker_id, moves, again)
        if now.broker(broker_id).cordon != DRAINED:
            alter_config(view, broker_id, {CORDON: CORDONED})
        became = _move_off(view, now, broker_id, moves, plan, manner)
        if became == "empty" and (manner.wait or not _is_up(view.fetch(sizes=False), broker_id)):
            _forget(view, broker_id, again, manner.patience)
            became = "forgotten"
    outcome = {**format_outcome(layout, moves, manner, agreed=agreed), "broker": broker_id, "status": became}
    show(outcome, manner.output, lambda: click.echo(_say(broker_id, became, again, len(moves))))
    return None


def _check_alone(picture: Picture, broker_id: int) -> None:
    """One at a time: two plans made apart may give the same broker more than it can hold."""
    for other in picture.brokers.values():
        leaving = [each for each in picture.moving if other.id in each.removing]
        if other.id != broker_id and other.cordon and leaving:
            raise CommandError(
                f"broker {other.id} is being emptied, {count_of(len(leaving), 'partition')} to go; one at a time. "
                f"Wait for it ('penstock cluster decommission {other.id}'), or take it back "
                f"('penstock cluster reassign --cancel', 'penstock cluster uncordon {other.id}')"
            )


def _check_shown(picture: Picture, broker_id: int, moves: Sequence[Move], again: str) -> None:
    """What was agreed to is what is done: raise `CommandError` where it cannot be done any more as it was shown.

    A question may stay open for hours, and meanwhile partitions come and go, and brokers stop taking replicas.
    """
    held = {each.place: each.replicas for each in picture.held_by(broker_id) if not each.is_moving}
    reason = ""
    if held != {move.place: move.old for move in moves}:
        reason = f"broker {broker_id} holds other partitions now, or others hold them with it"
    elif refusing := sorted({each for move in moves for each in move.adding if not _takes(picture, each)}):
        reason = f"broker {refusing[0]} takes nothing any more: it is cordoned, drained or down"
    if reason:
        raise CommandError(
            f"nothing was done, since the plan that was shown is out of date: {reason}; again: '{again}'"
        )
    check_room(picture, make_layout(picture), moves)


def _takes(picture: Picture, broker_id: int) -> bool:
    found = picture.brokers.get(broker_id)
    return found is not None and found.takes


def _move_off(
    view: View,
    picture: Picture,
    broker_id: int,
    moves: Sequence[Move],
    plan: Callable[[Layout], list[Move]],
    manner: Manner,
) -> str:
    """First the moves that were agreed to.

    What was made while the broker was not cordoned yet, or was on its way to it, goes in the next round.
    """
    while held := picture.held_by(broker_id):
        under_way = [each for each in held if each.is_moving]
        carry_out(view, moves, f"emptying broker {broker_id}", manner, under_way)
        if not manner.wait:
            return "started"
        picture = view.fetch()
        moves = plan(make_layout(picture))
    return "empty"


def _forget(view: View, broker_id: int, again: str, patience: Patience) -> None:
    told = False
    stays = f"broker {broker_id} is empty and still known; stop it, then '{again}' has it forgotten"
    with _ending(stays):
        for picture in patience.wait(f"forgetting broker {broker_id}", stays).pictures(lambda: view.fetch(sizes=False)):
            if not _is_up(picture, broker_id):
                break
            if not told:
                note(f"broker {broker_id} is empty: stop it now; it is forgotten when it is gone")
                told = True
    unregister(view, broker_id)


def _is_up(picture: Picture, broker_id: int) -> bool:
    found = picture.brokers.get(broker_id)
    return found is not None and found.is_up


def _say(broker_id: int, became: str, again: str, moved: int) -> str:
    if became == "forgotten":
        return f"broker {broker_id} is forgotten; {count_of(moved, 'partition')} moved off it"
    if became == "empty":
        return f"broker {broker_id} is empty; stop it, then '{again}' has it forgotten"
    if became == "started":
        return f"moves of {count_of(moved, 'partition')} have begun; '{again}' goes on when they are done"
    return f"{count_of(moved, 'partition')} would move off broker {broker_id}"


@contextmanager
def _ending(text: str) -> Iterator[None]:
    """What to know after Ctrl+C."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"\n{text}")
        raise


@click.command(
    "config",
    short_help="Settings of brokers that act at once.",
    help="""Show or change settings that act while brokers run: for one broker (--broker), or the defaults for all of
    them. Without --broker everything that is set is shown, the defaults and what single brokers have. What is not
    changed here is as the broker's file says; 'penstock config show' explains that.""",
    epilog="""\b
Examples:
  penstock cluster config
  penstock cluster config --broker 3
  penstock cluster config --set log.retention.ms=86400000
  penstock cluster config --broker 3 --set follower.replication.throttled.rate=50000000
  penstock cluster config --broker 3 --unset follower.replication.throttled.rate

\b
What can be set for one broker, and all but penstock.cordon for all of them:
  penstock.cordon, follower.replication.throttled.rate; without effect, for Kafka's tools:
  leader.replication.throttled.rate, replica.alter.log.dirs.io.max.bytes.per.second

\b
For all of them, the defaults of topics that do not say otherwise:
  compression.type, log.cleaner.delete.retention.ms, log.cleaner.max.compaction.lag.ms,
  log.cleaner.min.cleanable.ratio, log.cleaner.min.compaction.lag.ms, log.cleanup.policy, log.flush,
  log.flush.interval.messages, log.flush.interval.ms, log.index.interval.bytes, log.index.size.max.bytes,
  log.message.timestamp.after.max.ms, log.message.timestamp.before.max.ms, log.message.timestamp.type,
  log.preallocate, log.records.check, log.retention.bytes, log.retention.ms, log.roll.jitter.ms, log.roll.ms,
  log.segment.bytes, log.segment.delete.delay.ms, message.max.bytes, min.insync.replicas,
  unclean.leader.election.enable""",
)
@click.option("--broker", "broker_ids", metavar="ID,ID...", type=BrokerIds(), help="These brokers; else all of them.")
@click.option("--set", "sets", metavar="NAME=VALUE", multiple=True, help="Set it; may be repeated.")
@click.option("--unset", "unsets", metavar="NAME", multiple=True, help="As it was before; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Let the server check it, but change nothing.")
@output_option
@server_options
def config(
    broker_ids: tuple[int, ...] | None,
    sets: tuple[str, ...],
    unsets: tuple[str, ...],
    dry_run: bool,
    output: str,
    server: Server,
) -> None:
    changes: dict[str, str | None] = {**dict.fromkeys(unsets), **read_properties(sets)}
    if len(changes) < len(sets) + len(unsets):
        raise CommandError("a setting is changed twice; say each once", code=USAGE)
    rows: list[dict[str, Any]] = []
    with View(server) as view:
        for each in _whose(view, broker_ids, only_shown=not changes):
            if changes:
                alter_config(view, each, changes, dry_run=dry_run)
            found = view.ask_config(each)
            rows += [{"broker": each, "name": name, "value": value} for name, value in sorted(found.items())]

    def table() -> None:
        if changes and dry_run:
            click.echo(f"{', '.join(changes)} could be changed")
        if not rows:
            note_none("settings made at run time")
            return
        cells = [["all" if row["broker"] is None else row["broker"], row["name"], row["value"]] for row in rows]
        print_table(cells, ["broker", "name", "value"])

    show(rows, output, table)


def _whose(view: View, broker_ids: Sequence[int] | None, *, only_shown: bool) -> list[int | None]:
    """Whose settings are meant; None stands for the defaults. What is only looked for may be set for any broker."""
    if broker_ids is None:
        return [None, *(view.fetch(sizes=False).brokers if only_shown else ())]
    picture = view.fetch(sizes=False)
    return [picture.broker(each).id for each in broker_ids]


COMMANDS: Final = (cordon, uncordon, drain, decommission, replace, config)
