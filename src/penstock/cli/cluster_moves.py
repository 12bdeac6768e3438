"""`penstock cluster reassign`, `balance` and `elect`: where partitions are and who leads them."""

from collections.abc import Sequence
from typing import Any, Final

import click

from penstock.cli.cluster_changes import cancel_moves, check_refusals
from penstock.cli.cluster_changes import elect as ask_elect
from penstock.cli.cluster_execution import BrokerIds, Manner, carry_out, format_outcome, manner_options, propose
from penstock.cli.cluster_load import measure as measure_load
from penstock.cli.cluster_load import with_load
from penstock.cli.cluster_plan import Written, check_replication, make_layout, print_loads, read_plan, summarize
from penstock.cli.cluster_progress import format_moves, measure, print_moves, wait_for_moves
from penstock.cli.cluster_view import NOBODY, Partition, Picture, Place, View
from penstock.cli.connection import Server, TopicName, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, show
from penstock.cli.watch import WatchCommand, answer, watch_option
from penstock.cluster.plans import Layout, Move, replace_all, to_brokers
from penstock.cluster.rebalancing import COPIES_NOTHING, KINDS, By
from penstock.cluster.rebalancing import balance as plan_balance


class TopicNames(TopicName):
    """a,b,c"""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


topics_option = click.option(
    "--topics",
    "words",
    metavar="NAME[,NAME...]",
    type=TopicNames(),
    multiple=True,
    help="Topics, with commas; may be repeated.",
)


@click.command(
    "reassign",
    cls=WatchCommand,
    short_help="Move partitions, see how far that is, take it back.",
    help="""Move partitions to other brokers. Replicas that can stay do, so as little as possible is copied. Clients can
    write and read all the time; old replicas are removed when the new ones are in sync.

    Shows the plan, asks, and waits. Ctrl+C ends the waiting only: the move goes on.""",
    epilog="""\b
FILE is what Kafka's kafka-reassign-partitions takes, or what --dry-run -o json prints here; - is standard input:
  {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}
With "old_replicas" beside them it is refused where others hold the partition by now.

\b
Examples:
  penstock cluster reassign --topics orders,payments --to 1,2,3
  penstock cluster reassign --topics orders --to 4,5,6 --throttle 50MB
  penstock cluster reassign --topics orders --to 4,5,6 --dry-run -o json > plan.json
  penstock cluster reassign --plan plan.json --yes --no-wait
  penstock cluster reassign --status --watch
  penstock cluster reassign --cancel --topics orders""",
)
@topics_option
@click.option("--to", "broker_ids", metavar="ID,ID...", type=BrokerIds(), help="Brokers that shall hold them.")
@click.option("--plan", "file", metavar="FILE", help="Do what a file says.")
@click.option("--fewer-replicas", is_flag=True, help="The file may give partitions fewer replicas than they have.")
@click.option("--status", "only_status", is_flag=True, help="Show how far partitions on their way are.")
@click.option("--cancel", is_flag=True, help="Take moves back, of all topics or those named.")
@watch_option
@manner_options
@server_options
def reassign(
    words: tuple[str, ...],
    broker_ids: tuple[int, ...] | None,
    file: str | None,
    fewer_replicas: bool,
    only_status: bool,
    cancel: bool,
    interval_s: float | None,
    manner: Manner,
    server: Server,
) -> int | None:
    names = split_names(words)
    if sum((broker_ids is not None, file is not None, only_status, cancel)) != 1:
        raise CommandError("say one of --to, --plan, --status and --cancel", code=USAGE)
    if interval_s is not None and not only_status:
        raise CommandError("--watch goes with --status", code=USAGE)
    if broker_ids is not None and not names:
        raise CommandError("--to needs --topics", code=USAGE)
    if fewer_replicas and file is None:
        raise CommandError("--fewer-replicas goes with --plan", code=USAGE)
    with View(server) as view:
        if only_status:
            answer(server, interval_s, manner.output, lambda _: _progress(view, names), print_moves)
            return None
        if cancel:
            return _cancel(view, names, manner)
        written = read_plan(file) if file is not None else Written({}, {})
        picture = view.fetch()
        layout = make_layout(picture)
        if broker_ids is not None:
            _check_still(picture.of_topics(names))
            moves = to_brokers(layout, [each.place for each in picture.of_topics(names)], broker_ids)
        else:
            moves = replace_all(layout, written.targets, written.old)
            check_replication(moves, may_fall=fewer_replicas, dry_run=manner.dry_run)
        return _move(view, picture, layout, moves, "Move them", "moving", manner)


def _progress(view: View, names: Sequence[str]) -> list[dict[str, Any]]:
    picture = view.fetch()
    wanted = {each.place for each in picture.of_topics(names)}
    return format_moves(each for each in measure(picture) if each.partition.place in wanted)


def _check_still(partitions: Sequence[Partition]) -> None:
    moving = [each.name for each in partitions if each.is_moving]
    if moving:
        raise CommandError(
            f"{moving[0]} is being moved already ({len(moving)} in all); wait for it "
            "('penstock cluster reassign --status'), or take it back ('penstock cluster reassign --cancel')"
        )


def _move(
    view: View, picture: Picture, layout: Layout, moves: Sequence[Move], question: str, label: str, manner: Manner
) -> int | None:
    agreed = bool(moves) and propose(picture, layout, moves, question, manner)
    if agreed:
        carry_out(view, moves, label, manner)
    elif moves and not manner.dry_run:
        return FAILED
    says = "nothing to move" if not moves else summarize(moves)
    if agreed:
        says = f"moved {says.partition(',')[0]}" if manner.wait else f"moves have begun: {says}"
    outcome = format_outcome(layout, moves, manner, agreed=agreed)
    show(outcome, manner.output, lambda: click.echo(says))
    return None


def _cancel(view: View, names: Sequence[str], manner: Manner) -> int | None:
    picture = view.fetch(sizes=False)
    wanted = {each.place for each in picture.of_topics(names)}
    moving = [each for each in picture.moving if each.place in wanted]
    if moving and manner.output == "table":
        rows = [[each.name, _listed(each.adding), _listed(each.removing)] for each in moving]
        print_table(rows, ["partition", "not to", "stays on"])
    if moving and not manner.dry_run:
        if not manner.yes and not confirm(f"Take back {_count(moving)}?", "nothing was changed"):
            return FAILED
        check_refusals(cancel_moves(view, [each.place for each in moving]), "moves cannot be taken back")
        if manner.wait:
            places = dict.fromkeys((each.place for each in moving), 0)
            otherwise = "brokers go on taking them back: 'penstock cluster reassign --status'"
            wait_for_moves(view, places, "taking back", manner.patience, otherwise)
    now = {each.place: each for each in view.fetch(sizes=False).partitions}
    late = [each for each in moving if not manner.dry_run and _has_arrived(now.get(each.place), each)]
    back = [each for each in moving if each not in late]

    def lines() -> None:
        if late:
            click.echo(f"{_count(late)} had arrived already: {', '.join(each.name for each in late)}")
        done = "would be taken back" if manner.dry_run else "taken back"
        click.echo(f"{_count(back)} {done}" if moving else "nothing is on its way")

    forms = [[{"topic": each.topic, "partition": each.index} for each in some] for some in (back, late)]
    show({"dry_run": manner.dry_run, "cancelled": forms[0], "arrived": forms[1]}, manner.output, lines)
    return None


def _has_arrived(now: Partition | None, moving: Partition) -> bool:
    return now is not None and not now.is_moving and set(moving.adding) <= set(now.replicas) and bool(moving.adding)


def _count(partitions: Sequence[Partition]) -> str:
    return count_of(len(partitions), "move")


@click.command(
    "balance",
    short_help="Even out bytes, leaders, disks or CPU.",
    help="""Make brokers more alike: by the bytes they hold, by the partitions they should lead, by how full their disks
    are, or by their CPU. Shows each broker before and after, and asks. Copies as little as brings all within a tenth of
    what would be even; never makes the fullest broker fuller, nor brings replicas into fewer racks. Brokers that are
    cordoned, drained or down keep what they have.

    Leaders and CPU are evened out without copying: other replicas lead. CPU is measured first, for as long as --over
    says, and shared out among partitions by how often they are written and read; do it while the load is as usual.""",
    epilog="""\b
Examples:
  penstock cluster balance
  penstock cluster balance --by leaders --yes
  penstock cluster balance --by disk --throttle 100MB
  penstock cluster balance --by cpu --over 60
  penstock cluster balance --dry-run -o json > plan.json""",
)
@click.option("--by", type=click.Choice(KINDS), default="bytes", show_default=True, help="What is evened out.")
@click.option(
    "--over",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    help="How long CPU is measured.",
)
@manner_options
@server_options
def balance(by: By, seconds: float, manner: Manner, server: Server) -> int | None:
    with View(server) as view:
        picture = view.fetch()
        if silent := [each.id for each in picture.brokers.values() if each.is_up and not each.answers]:
            raise CommandError(f"broker {silent[0]} does not answer, so nobody knows what it holds; see its log")
        layout = make_layout(picture)
        if by == "cpu":
            note(f"measuring for {seconds:g} s")
            layout = with_load(layout, picture, measure_load(view, picture, seconds))
        moves = plan_balance(layout, by)
        if not moves and manner.output == "table":
            if by == "cpu":
                print_loads(layout, moves)
            click.echo(f"brokers are alike by {by}, as far as replicas can be moved")
            return None
        code = _move(view, picture, layout, moves, f"Balance by {by}", "balancing", manner)
        if code is None and by in COPIES_NOTHING and manner.wait and not manner.dry_run:
            ask_elect(view, [move.place for move in moves])
        return code


@click.command(
    "elect",
    short_help="Let preferred brokers lead.",
    help="""Let the preferred broker lead each partition: the first of its replicas. The controller does so by itself
    after a while; this does it now.

    With --unclean it gives a leader to partitions that have none because all replicas that hold everything are lost:
    the most complete replica that is there leads. Records that only the others have are lost.""",
    epilog="""\b
Examples:
  penstock cluster elect
  penstock cluster elect --topics orders
  penstock cluster elect --unclean --topics orders --yes-lose-records""",
)
@topics_option
@click.option("--unclean", is_flag=True, help="Give partitions without a leader one that may lack records.")
@click.option("--yes-lose-records", is_flag=True, help="Do not ask whether records may be lost.")
@yes_option
@output_option
@server_options
def elect(
    words: tuple[str, ...], unclean: bool, yes_lose_records: bool, yes: bool, output: str, server: Server
) -> int | None:
    names = split_names(words)
    with View(server) as view:
        picture = view.fetch(sizes=False)
        partitions = picture.of_topics(names)
        if unclean:
            partitions = [each for each in partitions if each.leader == NOBODY]
            if partitions and not yes_lose_records and not _agree_to_lose(partitions, yes):
                return FAILED
        done: list[Place] = []
        refused: dict[Place, str] = {}
        if partitions:
            asked = [each.place for each in partitions] if names or unclean else None
            done, refused = ask_elect(view, asked, unclean=unclean)
            picture = view.fetch(sizes=False)
        leaders = {each.place: each.leader for each in picture.partitions}
        rows = [{"topic": topic, "partition": index, "leader": leaders.get((topic, index))} for topic, index in done]
        show(
            {
                "elected": rows,
                "refused": [{"topic": t, "partition": i, "reason": why} for (t, i), why in refused.items()],
            },
            output,
            lambda: _print_elected(rows),
        )
        check_refusals(refused, f"{count_of(len(refused), 'partition')} got no other leader")
    return None


def _agree_to_lose(partitions: Sequence[Partition], yes: bool) -> bool:
    note(f"nobody leads {', '.join(each.name for each in partitions[:5])}{', …' if len(partitions) > 5 else ''}")
    if yes:
        raise CommandError("records may be lost by it, which --yes does not cover: say --yes-lose-records", code=USAGE)
    return confirm("Records that only brokers have which are away will be lost. Go on?", "nothing was changed")


def _print_elected(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        click.echo("no leader changed")
        return
    print_table([[f"{row['topic']}-{row['partition']}", row["leader"]] for row in rows], ["partition", "leader"])


def split_names(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.strip() for word in words for name in word.split(",") if name.strip()))


def _listed(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


COMMANDS: Final = (reassign, balance, elect)
