"""`penstock topic`: create, list, describe, alter, delete and trim topics.

Names are looked up before anything is changed, so a mistyped one changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import alteration, topics
from penstock.cli.connection import Refused, Server, TopicName, read_properties, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.moment import Moment
from penstock.cli.output import note, output_option, print_fields, print_table, show, show_list

if TYPE_CHECKING:
    from confluent_kafka import TopicPartitionInfo
    from confluent_kafka.admin import AdminClient, ConfigEntry

_MAX_PARTITIONS: Final = 100_000  # librdkafka's own limit, as is the next
_MAX_REPLICAS: Final = 10_000
_END: Final = -1
"""What librdkafka says for the end of a partition, and where no record is young enough."""

_URL_SAFE: Final = str.maketrans("+/", "-_")  # as Kafka writes ids; librdkafka does not


class _Offset(click.ParamType[int]):
    name = "offset"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "end" or value == _END:
            return _END
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number nor 'end'.", param, ctx)
        return int(str(value))


dry_run_option = click.option("--dry-run", is_flag=True, help="Let the server check it, but change nothing.")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TopicName())
name_argument = click.argument("name", type=TopicName())


@click.group("topic", help="Create, list, describe, alter, delete and trim topics.")
def command() -> None:
    pass


@command.command(
    "create",
    help="Create topics. For what you do not name, the server's defaults apply.",
    epilog="""\b
Examples:
  penstock topic create orders payments
  penstock topic create orders --partitions 12 --set retention.ms=86400000
  penstock topic create users --set cleanup.policy=compact --if-not-exists""",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "-p", "--partitions", metavar="N", type=click.IntRange(1, _MAX_PARTITIONS), help="How many partitions each gets."
)
@click.option(
    "-r", "--replication-factor", metavar="N", type=click.IntRange(1, _MAX_REPLICAS), help="On how many brokers."
)
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A topic setting; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Leave topics that exist as they are, without an error.")
@dry_run_option
@output_option
@server_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    output: str,
    server: Server,
) -> None:
    from confluent_kafka.admin import NewTopic

    config = read_properties(settings)
    admin = server.admin()
    wanted = [
        NewTopic(name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, config=config)
        for name in dict.fromkeys(names)
    ]
    done, refused = {}, []
    for name, future in admin.create_topics(wanted, validate_only=dry_run, request_timeout=server.timeout_s).items():
        try:
            server.wait(future)
            done[name] = "valid" if dry_run else "created"
        except Refused as error:
            if error.name != "TOPIC_ALREADY_EXISTS":
                refused.append(f"topic {name!r} cannot be created: {error}")
            elif if_not_exists:
                done[name] = "exists"
            else:
                refused.append(f"topic {name!r} exists already; --if-not-exists leaves it as it is")
    says = {"created": "created topic {}", "valid": "topic {} could be created", "exists": "topic {} exists already"}
    _show_done(done, says, output)
    if refused:
        raise CommandError("; ".join(refused))


@command.command(
    "list",
    help="List topics with their size. Those whose names begin with __ belong to the server and stay hidden.",
    epilog="""\b
Examples:
  penstock topic list
  penstock topic list --pattern 'orders.*' -o json""",
)
@click.option("--pattern", metavar="GLOB", help="Only names that match, such as 'orders.*' or '*-dlq'.")
@click.option("--internal", is_flag=True, help="Show the server's own topics too.")
@output_option
@server_options
def list_topics(pattern: str | None, internal: bool, output: str, server: Server) -> None:
    from fnmatch import fnmatchcase

    admin = server.admin()
    chosen = {
        name: topic
        for name, topic in sorted(topics.fetch_topics(server, admin).items())
        if (internal or not name.startswith("__")) and (pattern is None or fnmatchcase(name, pattern))
    }
    settings = topics.fetch_settings(server, admin, list(chosen))
    partitions = {name: [(name, number) for number in topic.partitions] for name, topic in chosen.items()}
    spans = topics.fetch_spans(server, admin, [at for each in partitions.values() for at in each])
    rows = []
    for name, topic in chosen.items():
        policy = settings[name].get("cleanup.policy")
        rows.append(
            {
                "name": name,
                "partitions": len(topic.partitions),
                "replicas": max((len(each.replicas) for each in topic.partitions.values()), default=0),
                "records": topics.count_records(partitions[name], spans),
                "cleanup_policy": policy.value if policy else None,
                "internal": name.startswith("__"),
            }
        )

    def table() -> None:
        columns = ["name", "partitions", "replicas", "records", "cleanup policy"]
        print_table([list(row.values())[: len(columns)] for row in rows], columns)

    show_list(rows, output, "topics", table, narrowed=pattern is not None, way_out=topics.MAKE_A_TOPIC)


@command.command(
    "describe",
    short_help="Show topics in full.",
    help="Show topics in full: id, partitions, offsets, and the settings made for them.",
    epilog="""\b
Examples:
  penstock topic describe orders
  penstock topic describe orders --all
  penstock topic describe orders -o json""",
)
@names_argument
@click.option("--all", "everything", is_flag=True, help="Every setting, with its default, not only those made for it.")
@output_option
@server_options
def describe(names: tuple[str, ...], everything: bool, output: str, server: Server) -> None:
    admin = server.admin()
    found = topics.describe_topics(server, admin, names)
    settings = topics.fetch_settings(server, admin, list(found), strict=True)
    spans = topics.fetch_spans(server, admin, topics.partitions_of(found))
    eligible = topics.fetch_eligible(server, list(found))
    described: list[dict[str, Any]] = [
        {
            "name": name,
            "id": str(topic.topic_id).translate(_URL_SAFE),
            "internal": topic.is_internal,
            "partitions": [
                _format_partition(each, spans.get((name, each.id)), eligible.get((name, each.id), []))
                for each in topic.partitions
            ],
            "settings": [
                _format_setting(each)
                for each in sorted(settings[name].values(), key=lambda entry: entry.name)
                if everything or topics.is_own(each)
            ],
        }
        for name, topic in found.items()
    ]

    def table() -> None:
        for each in described:
            _print_topic(each, everything)

    show(described, output, table)


@command.command(
    "alter",
    help="Change a topic's settings, or give it more partitions. If any part is refused, nothing changes.",
    epilog="""\b
Examples:
  penstock topic alter orders --set retention.ms=3600000
  penstock topic alter orders --unset retention.ms
  penstock topic alter users --add cleanup.policy=compact
  penstock topic alter orders --partitions 24 --dry-run""",
)
@name_argument
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Set a value; may be repeated.")
@click.option("--unset", "unsets", metavar="KEY", multiple=True, help="Go back to the server's default.")
@click.option("--add", "adds", metavar="KEY=VALUE", multiple=True, help="Add to a setting that is a list.")
@click.option("--remove", "removes", metavar="KEY=VALUE", multiple=True, help="Take out of a setting that is a list.")
@click.option(
    "-p", "--partitions", metavar="N", type=click.IntRange(1, _MAX_PARTITIONS), help="The new number of partitions."
)
@dry_run_option
@output_option
@server_options
def alter(
    name: str,
    sets: tuple[str, ...],
    unsets: tuple[str, ...],
    adds: tuple[str, ...],
    removes: tuple[str, ...],
    partitions: int | None,
    dry_run: bool,
    output: str,
    server: Server,
) -> None:
    steps = alteration.read_steps(sets, unsets, adds, removes)
    if not steps and partitions is None:
        raise CommandError("nothing to change; say --set, --unset, --add, --remove or --partitions", code=USAGE)
    admin = server.admin()
    topic = topics.describe_topics(server, admin, [name])[name]
    before = topics.fetch_settings(server, admin, [name], strict=True)[name] if steps else {}
    both = bool(steps) and partitions is not None
    # Settings and partitions are two requests: both are checked before either is carried out.
    for only_check in [True] if dry_run else [True, False] if both else [False]:
        if steps:
            alteration.alter_settings(server, admin, name, steps, dry_run=only_check)
        if partitions is not None:
            alteration.add_partitions(server, admin, name, partitions, dry_run=only_check)
    after = topics.fetch_settings(server, admin, [name])[name] if unsets and not dry_run else {}
    changes = [alteration.describe_change(step, before.get(step.key), after.get(step.key)) for step in steps]
    if partitions is not None:
        changes.append({"name": "partitions", "operation": "set", "old": len(topic.partitions), "new": partitions})

    def lines() -> None:
        click.echo(f"topic {name} would change:" if dry_run else f"altered topic {name}:")
        print_fields({each["name"]: alteration.format_change(each) for each in changes})
        if partitions is not None:
            note("records with a key may go to another partition than before")

    show({"topic": name, "dry_run": dry_run, "changes": changes}, output, lines)


@command.command(
    "delete",
    help="Delete topics and all their records. Asks first; without a terminal it needs --yes.",
    epilog="""\b
Examples:
  penstock topic delete orders
  penstock topic delete orders payments --yes --if-exists""",
)
@names_argument
@yes_option
@click.option("--if-exists", is_flag=True, help="Pass over topics that do not exist, without an error.")
@output_option
@server_options
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, output: str, server: Server) -> int | None:
    admin = server.admin()
    found = topics.describe_topics(server, admin, names, missing_ok=if_exists)
    if found and not yes:
        partitions = topics.partitions_of(found)
        count = topics.count_records(partitions, topics.fetch_spans(server, admin, partitions))
        if not confirm(f"Delete {', '.join(found)} with {_format_count(count)}?", "nothing was deleted"):
            return FAILED
    gone = admin.delete_topics(list(found), request_timeout=server.timeout_s) if found else {}
    done, refused = {}, []
    for name in dict.fromkeys(names):
        try:
            if name in gone:
                server.wait(gone[name])
            done[name] = "deleted" if name in gone else "missing"
        except Refused as error:
            refused.append(f"topic {name!r} cannot be deleted: {error}")
    _show_done(done, {"deleted": "deleted topic {}", "missing": "no topic {}"}, output)
    if refused:
        raise CommandError("; ".join(refused))
    return None


@command.command(
    "trim",
    short_help="Delete a topic's oldest records.",
    help="""Delete a topic's oldest records: those before an offset, or before a time. The topic and all later
    records stay, and keep their offsets. Asks first.""",
    epilog="""\b
A time is 2026-05-01, 2026-05-01T12:30:00Z, 90m or 7d (ago), or milliseconds since 1970.

\b
Examples:
  penstock topic trim orders --before-time 7d
  penstock topic trim orders --partition 3 --before-offset 5000
  penstock topic trim orders --before-offset end --yes""",
)
@name_argument
@click.option("--before-offset", metavar="N|end", type=_Offset(), help="The first offset to keep; 'end' keeps nothing.")
@click.option("--before-time", metavar="TIME", type=Moment(), help="Keep what is not older than this.")
@click.option(
    "--partition", "numbers", metavar="N", type=click.IntRange(0), multiple=True, help="Only this one; may be repeated."
)
@yes_option
@output_option
@server_options
def trim(
    name: str,
    before_offset: int | None,
    before_time: int | None,
    numbers: tuple[int, ...],
    yes: bool,
    output: str,
    server: Server,
) -> int | None:
    if (before_offset is None) == (before_time is None):
        raise CommandError("say where to trim: either --before-offset or --before-time", code=USAGE)
    admin = server.admin()
    topic = topics.describe_topics(server, admin, [name])[name]
    partitions = [(name, number) for number in _choose(name, [each.id for each in topic.partitions], numbers)]
    spans = topics.fetch_spans(server, admin, partitions, strict=True)
    if before_offset is not None:
        keeps = _at_offset(spans, before_offset)
    else:
        keeps = _at_time(server, admin, spans, before_time or 0)
    old = {at: keep for at, keep in keeps.items() if keep > spans[at].start}
    count = sum(keep - spans[at].start for at, keep in old.items())
    if old and not yes and not confirm(f"Delete {_format_count(count)} from {name}?", "nothing was deleted"):
        return FAILED
    starts = topics.delete_before(server, admin, old)
    rows = [
        {"partition": at[1], "old_start": span.start, "start": starts.get(at, span.start), "end": span.end}
        for at, span in spans.items()
    ]

    def table() -> None:
        click.echo(f"trimmed {_format_count(count)} from topic {name}" if count else f"nothing to trim in topic {name}")
        if count:
            print_table([list(row.values()) for row in rows], ["partition", "old start", "start", "end"])

    show({"topic": name, "records": count, "partitions": rows}, output, table)
    return None


def _choose(name: str, existing: Sequence[int], wanted: Sequence[int]) -> list[int]:
    for number in wanted:
        if number not in existing:
            raise CommandError(f"topic {name!r} has no partition {number}; it has 0 to {max(existing)}")
    return sorted(set(wanted)) or list(existing)


def _at_offset(spans: Mapping[topics.Partition, topics.Span], offset: int) -> dict[topics.Partition, int]:
    for (name, number), span in spans.items():
        if offset > span.end:
            raise CommandError(
                f"--before-offset {offset}: partition {number} of topic {name!r} ends at {span.end}; "
                "choose partitions with --partition, or say 'end'"
            )
    return {at: span.end if offset == _END else offset for at, span in spans.items()}


def _at_time(
    server: Server, admin: "AdminClient", spans: Mapping[topics.Partition, topics.Span], time_ms: int
) -> dict[topics.Partition, int]:
    """Asked after the ends were: where no record is young enough, all before those ends are too old."""
    from confluent_kafka.admin import OffsetSpec

    young = topics.fetch_offsets(server, admin, list(spans), OffsetSpec.for_timestamp(time_ms), strict=True)
    return {at: span.end if young[at].offset == _END else young[at].offset for at, span in spans.items()}


def _format_partition(each: "TopicPartitionInfo", span: topics.Span | None, eligible: list[int]) -> dict[str, Any]:
    return {
        "partition": each.id,
        "leader": each.leader.id if each.leader else None,
        "replicas": [node.id for node in each.replicas],
        "in_sync": [node.id for node in each.isr],
        "start": span.start if span else None,
        "end": span.end if span else None,
        "records": span.records if span else None,
        "leader_epoch": span.leader_epoch if span else None,
        "eligible": eligible,
    }


def _format_setting(entry: "ConfigEntry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": topics.source_of(entry),
        "default": topics.default_of(entry),
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
    }


def _print_topic(topic: Mapping[str, Any], everything: bool) -> None:
    counts = [each["records"] for each in topic["partitions"]]
    facts = {
        "id": topic["id"],
        "partitions": len(counts),
        "replicas": max((len(each["replicas"]) for each in topic["partitions"]), default=0),
        "records": None if None in counts else sum(counts),
    }
    print_fields(facts, title=topic["name"])
    click.echo()
    heads = ["partition", "leader", "replicas", "in sync", "start", "end", "records", "epoch"]
    if any(each["eligible"] for each in topic["partitions"]):
        heads.append("eligible")
    rows = [
        [",".join(map(str, cell)) if isinstance(cell, list) else cell for cell in each.values()][: len(heads)]
        for each in topic["partitions"]
    ]
    print_table(rows, heads)
    click.echo()
    if not topic["settings"]:
        click.echo("no settings of its own; --all shows the server's")
    else:
        columns = ["name", "value", "source", "default"] if everything else ["name", "value", "source"]
        cells = [
            ["(secret)" if column == "value" and each["sensitive"] else each[column] for column in columns]
            for each in topic["settings"]
        ]
        print_table(cells, ["setting", *columns[1:]])
        unchecked = next((each for each in topic["settings"] if each["name"] == "records.check"), None)
        if unchecked is not None and unchecked["value"] != unchecked["default"]:
            click.echo(
                f"records.check={unchecked['value']}: other batches are kept as they come; a producer can write ones "
                "that stop every reader"
            )
    click.echo()


def _show_done(done: Mapping[str, str], says: Mapping[str, str], output: str) -> None:
    def lines() -> None:
        for name, status in done.items():
            click.echo(says[status].format(name))

    show([{"topic": name, "status": status} for name, status in done.items()], output, lines)


def _format_count(count: int | None) -> str:
    if count is None:
        return "an unknown number of records"
    return "1 record" if count == 1 else f"{count:,} records"
