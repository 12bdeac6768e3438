"""`penstock group`: list, describe and delete consumer groups, see their lag, move their offsets.

Groups and topics are looked up before anything is changed, so a mistyped name changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import group_offsets, group_table, groups, topics
from penstock.cli.connection import Refused, Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.group_offsets import Aim, Change, Target, TopicChoice, TopicWord
from penstock.cli.groups import GroupName
from penstock.cli.moment import Moment
from penstock.cli.output import note, output_option, print_table, show, show_list
from penstock.cli.watch import WatchCommand, answer, watch_option

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_LARGEST: Final = 2**63 - 1

names_argument = click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=GroupName())
name_argument = click.argument("name", metavar="GROUP", type=GroupName())
topic_option = click.option(
    "--topic",
    "choices",
    metavar="TOPIC[:N,N]",
    type=TopicWord(),
    multiple=True,
    help="A topic, or some of its partitions, such as orders:0,2; may be repeated.",
)


@click.group("group", help="List, describe and delete consumer groups, see their lag, move their offsets.")
def command() -> None:
    pass


@command.command(
    "list",
    help="List consumer groups with their state.",
    epilog="""\b
Examples:
  penstock group list
  penstock group list --state empty --state dead
  penstock group list --type consumer -o json""",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(groups.STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; may be repeated.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(groups.TYPES, case_sensitive=False),
    help="Only groups of this protocol: 'consumer' is the one of KIP-848.",
)
@output_option
@server_options
def list_groups(states: tuple[str, ...], kind: str | None, output: str, server: Server) -> None:
    chosen = [
        each
        for each in groups.fetch_groups(server, server.admin()).values()
        if (not states or each.state in states) and (kind is None or each.type == kind)
    ]
    rows = [{"group": each.name, "state": each.state, "type": each.type} for each in chosen]

    def table() -> None:
        print_table([list(row.values()) for row in rows], ["group", "state", "type"])

    show_list(rows, output, "groups", table, narrowed=bool(states or kind))


@command.command(
    "describe",
    cls=WatchCommand,
    short_help="Show groups in full.",
    help="""Show groups in full: state, coordinator, members with their partitions, and how far each partition has been
    read. The epoch is known for groups of the consumer protocol, on a plaintext connection.""",
    epilog="""\b
Examples:
  penstock group describe billing
  penstock group describe billing --members
  penstock group describe billing audit --watch
  penstock group describe billing -o json""",
)
@names_argument
@click.option("--members", "only_members", is_flag=True, help="Only the members, with their ids; no offsets.")
@watch_option
@output_option
@server_options
def describe(names: tuple[str, ...], only_members: bool, interval_s: float | None, output: str, server: Server) -> None:
    def ask(admin: "AdminClient") -> list[dict[str, Any]]:
        found = groups.describe_groups(server, admin, names)
        if only_members:
            return [group_table.format_group(group, None) for group in found.values()]
        committed = groups.fetch_committed(server, admin, found)
        wanted = {
            name: {at: committed[name].get(at) for at in sorted({*committed[name], *group.owners})}
            for name, group in found.items()
        }
        progress = group_offsets.fetch_progress(server, admin, wanted)
        return [group_table.format_group(group, progress[name]) for name, group in found.items()]

    answer(server, interval_s, output, ask, lambda value: group_table.print_groups(value, only_members=only_members))


@command.command(
    "lag",
    cls=WatchCommand,
    short_help="Show how far groups are behind.",
    help="""Show how many records groups have still to read, furthest behind first: from the committed offset to the end
    of the partition. All groups, one row each, if none is named.""",
    epilog="""\b
Examples:
  penstock group lag
  penstock group lag billing
  penstock group lag --by topic --watch 5
  penstock group lag billing -o json""",
)
@click.argument("names", metavar="[GROUP...]", nargs=-1, type=GroupName())
@click.option(
    "--by",
    "level",
    type=click.Choice(group_table.LEVELS),
    help="A row for each of these (default: partition for groups that are named, else group).",
)
@watch_option
@output_option
@server_options
def lag(names: tuple[str, ...], level: str | None, interval_s: float | None, output: str, server: Server) -> None:
    shown = level or ("partition" if names else "group")

    def ask(admin: "AdminClient") -> dict[str, Any]:
        known = groups.fetch_groups(server, admin)
        if missing := [name for name in dict.fromkeys(names) if name not in known]:
            raise groups.unknown_groups(missing, known)
        committed = groups.fetch_committed(server, admin, names or known)
        return group_table.format_lag(group_offsets.fetch_progress(server, admin, committed))

    answer(server, interval_s, output, ask, lambda value: group_table.print_lag(value, shown))


@command.command(
    "reset-offsets",
    short_help="Move a group's offsets.",
    help="""Move the committed offsets of a group that has no members, to where they shall go on reading. Shows what
    changes, then asks. An offset beyond a partition's first or last record goes to that.""",
    epilog="""\b
WHEN is 2026-05-01, 2026-05-01T12:30:00Z, 90m or 7d (ago), or milliseconds since 1970.

\b
Examples:
  penstock group reset-offsets billing --all-topics --to-latest --dry-run
  penstock group reset-offsets billing --topic orders --to-time 2h
  penstock group reset-offsets billing --topic orders:0,2 --shift -100
  penstock group reset-offsets new --topic orders --to-earliest --create --yes""",
)
@name_argument
@topic_option
@click.option("--all-topics", is_flag=True, help="Every partition the group has committed an offset for.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end: only what comes from now on.")
@click.option("--to-time", metavar="WHEN", type=Moment(), help="To the first record not older than this.")
@click.option(
    "--shift", metavar="N", type=click.IntRange(-_LARGEST, _LARGEST), help="By so many records; a negative N goes back."
)
@click.option("--to-offset", metavar="N", type=click.IntRange(0, _LARGEST), help="To this offset in each partition.")
@click.option("--create", is_flag=True, help="Make the group if there is none; needs --topic.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@output_option
@server_options
def reset_offsets(
    name: str,
    choices: tuple[TopicChoice, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    shift: int | None,
    to_offset: int | None,
    create: bool,
    dry_run: bool,
    yes: bool,
    output: str,
    server: Server,
) -> int | None:
    target = group_offsets.read_target(to_earliest, to_latest, to_time, shift, to_offset)
    if bool(choices) == all_topics:
        raise CommandError("say which offsets: either --topic or --all-topics", code=USAGE)
    admin = server.admin()
    group = groups.describe_groups(server, admin, [name], missing_ok=create and bool(choices)).get(name)
    if group and group.members:
        if not dry_run:
            raise groups.busy_group(group)
        note(f"group {name} has members; only without them can its offsets be reset")
    planned = _plan(server, admin, name, choices, target)
    changes = [change for change in planned if change.old != change.new]
    done = {"group": name, "dry_run": dry_run, "changes": group_table.format_changes(planned)}
    count = "1 offset" if len(changes) == 1 else f"{len(changes)} offsets"
    if output == "table":
        group_table.print_changes(planned)
    if changes and not dry_run:
        if not yes and not confirm(f"Reset {count} of group {name}?", "nothing was reset"):
            return FAILED
        group_offsets.commit_changes(server, admin, name, changes)
    says = "nothing to change" if not changes else f"{count} would change" if dry_run else f"reset {count}"
    show(done, output, lambda: click.echo(f"{says} in group {name}"))
    return None


def _plan(
    server: Server, admin: "AdminClient", name: str, choices: Sequence[TopicChoice], target: Target
) -> list[Change]:
    committed = groups.fetch_committed(server, admin, [name])[name]
    wanted = {choice.name for choice in choices} or {topic for topic, _ in committed}
    if not wanted:
        raise CommandError(f"group {name!r} has committed nothing; say which topics with --topic")
    known = topics.describe_topics(server, admin, sorted(wanted), missing_ok=not choices)
    for gone in sorted(wanted - set(known)):
        note(f"topic {gone} does not exist any more; its offsets stay as they are")
    partitions = group_offsets.choose_partitions(choices, known, committed)
    spans = topics.fetch_spans(server, admin, partitions, strict=True)
    young = group_offsets.fetch_young(server, admin, partitions, target.value) if target.aim is Aim.TIME else None
    return group_offsets.plan_changes(target, spans, committed, young)


@command.command(
    "delete",
    help="Delete groups without members, with their offsets. Asks first; without a terminal it needs --yes.",
    epilog="""\b
Examples:
  penstock group delete billing
  penstock group delete billing audit --yes --if-exists""",
)
@names_argument
@click.option("--if-exists", is_flag=True, help="Groups that do not exist are no error.")
@yes_option
@output_option
@server_options
def delete(names: tuple[str, ...], if_exists: bool, yes: bool, output: str, server: Server) -> int | None:
    admin = server.admin()
    found = groups.describe_groups(server, admin, names, missing_ok=if_exists)
    for group in found.values():
        if group.members:
            raise groups.busy_group(group)
    if found and not yes:
        committed = groups.fetch_committed(server, admin, found)
        count = sum(map(len, committed.values()))
        offsets = "1 committed offset" if count == 1 else f"{count:,} committed offsets"
        if not confirm(f"Delete {', '.join(found)} with {offsets}?", "nothing was deleted"):
            return FAILED
    gone = admin.delete_consumer_groups(list(found), request_timeout=server.timeout_s) if found else {}
    done, refused = {}, []
    for name in dict.fromkeys(names):
        try:
            if name in gone:
                server.wait(gone[name])
            done[name] = "deleted" if name in gone else "missing"
        except Refused as error:
            refused.append(f"group {name!r} cannot be deleted: {error}")
    _show_done(done, output)
    if refused:
        raise CommandError("; ".join(refused))
    return None


def _show_done(done: Mapping[str, str], output: str) -> None:
    def lines() -> None:
        for name, status in done.items():
            click.echo(f"deleted group {name}" if status == "deleted" else f"no group {name}")

    show([{"group": name, "status": status} for name, status in done.items()], output, lines)


@command.command(
    "delete-offsets",
    short_help="Forget a group's offsets of a topic.",
    help="""Delete the offsets that a group has committed for topics it does not read any more. Members of the group may
    go on, unless they read the topic. Asks first. Works on a plaintext connection only.""",
    epilog="""\b
Examples:
  penstock group delete-offsets billing --topic old-orders
  penstock group delete-offsets billing --topic orders:7 --yes""",
)
@name_argument
@topic_option
@yes_option
@output_option
@server_options
def delete_offsets(name: str, choices: tuple[TopicChoice, ...], yes: bool, output: str, server: Server) -> int | None:
    if not choices:
        raise CommandError("say which offsets with --topic", code=USAGE)
    admin = server.admin()
    groups.describe_groups(server, admin, [name])
    committed = groups.fetch_committed(server, admin, [name])[name]
    chosen = [
        (topic, number)
        for topic, number in committed
        if any(topic == each.name and (not each.partitions or number in each.partitions) for each in choices)
    ]
    if not chosen:
        said = ", ".join(
            each.name + ":" * bool(each.partitions) + ",".join(map(str, each.partitions)) for each in choices
        )
        raise CommandError(
            f"group {name!r} has no offsets of {said}; 'penstock group describe {name}' shows what it has"
        )
    count = "1 offset" if len(chosen) == 1 else f"{len(chosen):,} offsets"
    if not yes and not confirm(f"Delete {count} of group {name}?", "nothing was deleted"):
        return FAILED
    group_offsets.delete_offsets(server, name, chosen)
    gone = group_table.format_partitions(chosen)
    show({"group": name, "deleted": gone}, output, lambda: click.echo(f"deleted {count} of group {name}"))
    return None
