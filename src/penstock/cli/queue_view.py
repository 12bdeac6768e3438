"""`penstock queue list`, `describe` and `where`: what is in queues, and where one message is.

What waits and what is leased is known to the leader of each partition alone, so all of them are asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import topics
from penstock.cli.connection import Server, server_options
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import format_bytes, note, output_option, print_fields, print_table, show, show_list
from penstock.cli.queue_leaders import (
    CANNOT_LIST,
    MAKE_A_QUEUE,
    Leaders,
    is_passing,
    leaders_of,
    not_there,
    queue_argument,
    queues_argument,
)
from penstock.cli.record_text import format_local
from penstock.cli.verbs import Fields, Verbs
from penstock.cli.watch import WatchCommand, answer, watch_option

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

COUNTS: Final = ("ready", "leased", "delayed", "dying")
"""What a message that is not settled may be; `dying` ones become dead letters."""
_SUMS: Final = (*COUNTS, "in_transactions", "held_bytes", "not_due", "unseen")
_LANE_SUMS: Final = ("ready", "leased", "arrived", "delivered")
_PLAIN_LANE: Final = "normal"
"""Of what says nothing."""


@click.command(
    "list",
    short_help="List queues.",
    help="""List queues, with the settings made for them. How many messages wait is told by 'penstock queue describe'.
    Share groups that were not made as queues are listed by 'penstock group list'.""",
    epilog="""\b
Examples:
  penstock queue list
  penstock queue list --pattern 'orders*' -o json""",
)
@click.option("--pattern", metavar="GLOB", help="Only names that match, such as 'orders:*'.")
@output_option
@server_options
def list_queues(pattern: str | None, output: str, server: Server) -> None:
    from fnmatch import fnmatchcase

    with Verbs(server) as verbs:
        rows = [
            row
            for row in verbs.rows(CANNOT_LIST, "queue.list", by="queue")
            if pattern is None or fnmatchcase(row["queue"], pattern)
        ]

    def table() -> None:
        cells = [(row["queue"], row["partitions"], _list_settings(row["settings"])) for row in rows]
        print_table(cells, ["queue", "partitions", "settings"])

    show_list(rows, output, "queues", table, narrowed=pattern is not None, way_out=MAKE_A_QUEUE)


def _list_settings(settings: Mapping[str, str]) -> str | None:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or None


@click.command(
    "describe",
    cls=WatchCommand,
    short_help="Show queues in full.",
    help="""Show queues in full: for each partition how many messages are ready, leased, delayed (waiting for another
    attempt, or not due yet) and dying (about to become dead letters), how long ago the oldest was sent, and how much
    retention leaves on the disk for the queue's sake alone; how many dead letters there are; and the settings in force.

    Where messages have priorities, each lane is told apart: what is ready and leased of it, and how many messages
    arrived and were delivered since the partition has its leader. -o json has that for each partition, too.""",
    epilog="""\b
Examples:
  penstock queue describe jobs
  penstock queue describe jobs orders:billing --watch
  penstock queue describe jobs -o json""",
)
@queues_argument
@watch_option
@output_option
@server_options
def describe(queues: tuple[str, ...], interval_s: float | None, output: str, server: Server) -> None:
    def ask(admin: "AdminClient") -> list[Fields]:
        return [_count_dead(server, admin, describe_queue(server, queue)) for queue in dict.fromkeys(queues)]

    def table(described: Sequence[Fields]) -> None:
        for each in described:
            _print_queue(each)

    answer(server, interval_s, output, ask, table)


def describe_queue(server: Server, queue: str) -> Fields:
    """What all leaders say of it. Raises `CommandError`.

    A partition has no figures if its leader is silent, or if a group has not come to it yet.
    """
    with leaders_of(server, queue) as leaders:
        told = _ask_leaders(leaders)
        # Settings are the same on every broker, and any can tell them if nothing is led.
        head = told[0] if told else leaders.ask_at(None, _cannot(queue), "queue.describe")
        led = {row["partition"]: row for each in told for row in each["partitions"]}
        rows = [led.get(number) or {"partition": number} for number in leaders.partitions]
        if head["made_by"] == "share" and led and not any("ready" in row for row in rows):
            raise not_there(queue)
    totals = {name: sum(row.get(name) or 0 for row in rows) for name in _SUMS}
    oldest = [row["oldest_ms"] for row in rows if row.get("oldest_ms") is not None]
    return {
        **{name: head[name] for name in ("queue", "topic", "group", "made_by", "dead_letter_topic")},
        **totals,
        "lanes": _sum_lanes(rows),
        "tenants": max((row.get("tenants", 0) for row in rows), default=0),
        "oldest_ms": max(oldest, default=None),
        "silent": [row["partition"] for row in rows if "leader" not in row],
        "partitions": rows,
        "settings": head["settings"],
    }


def _sum_lanes(rows: Iterable[Mapping[str, Any]]) -> list[Fields]:
    """Over the partitions that tell of lanes; nothing where nobody does."""
    sums: dict[str, Fields] = {}
    for row in rows:
        for lane in row.get("lanes", ()):
            each = sums.setdefault(lane["lane"], {"lane": lane["lane"], **dict.fromkeys(_LANE_SUMS, 0)})
            for name in _LANE_SUMS:
                each[name] += lane[name]
    return list(sums.values())


def _count_dead(server: Server, admin: "AdminClient", queue: Fields) -> Fields:
    """With the number of its dead letters, which others may share the topic of; None if nobody tells us."""
    topic = queue["dead_letter_topic"]
    try:
        return {**queue, "dead": None if topic is None else _count_letters(server, admin, topic)}
    except CommandError:
        return {**queue, "dead": None}


def _count_letters(server: Server, admin: "AdminClient", topic: str) -> int | None:
    """What is not settled of them; where nobody has settled any, all there are."""
    partitions = topics.partitions_of(topics.describe_topics(server, admin, [topic], missing_ok=True))
    if not partitions:
        return 0
    try:
        rows = describe_queue(server, topic)["partitions"]
    except CommandError:
        rows = []
    known = {(topic, row["partition"]): sum(row[name] for name in COUNTS) for row in rows if "ready" in row}
    others = [at for at in partitions if at not in known]
    count = topics.count_records(others, topics.fetch_spans(server, admin, others))
    return None if count is None else sum(known.values()) + count


def _cannot(queue: str) -> str:
    return f"queue {queue!r} cannot be described"


def _ask_leaders(leaders: Leaders) -> list[Fields]:
    told = []
    for at in leaders.by_broker(leaders.partitions):
        try:
            told.append(leaders.ask_at(at, _cannot(leaders.queue), "queue.describe"))
        except CommandError as error:
            if not is_passing(error, at):
                raise
    return told


def _print_queue(queue: Mapping[str, Any]) -> None:
    from penstock.cli.transactions import format_age

    facts = {
        "topic": queue["topic"],
        "group": queue["group"],
        "made by": queue["made_by"],
        "kind": _format_kind(queue["settings"]),
        **{name: f"{queue[name]:,}" for name in COUNTS},
        **_format_pending(queue["in_transactions"]),
        **({"not due yet": f"{queue['not_due']:,} of those delayed"} if queue["not_due"] else {}),
        **({"tenants waiting": queue["tenants"]} if queue["tenants"] > 1 else {}),
        **({"not looked at": f"{queue['unseen']:,} of those ready"} if queue["unseen"] else {}),
        "dead": _format_dead(queue["dead"], queue["dead_letter_topic"]),
        "oldest": format_age(queue["oldest_ms"]),
        "held back": format_bytes(queue["held_bytes"]),
    }
    print_fields(facts, title=queue["queue"])
    click.echo()
    rows = [
        [
            row["partition"],
            row.get("leader"),
            *(row.get(name) for name in COUNTS),
            format_age(row.get("oldest_ms")),
            None if row.get("held_bytes") is None else format_bytes(row["held_bytes"]),
        ]
        for row in queue["partitions"]
    ]
    print_table(rows, ["partition", "leader", *COUNTS, "oldest", "held back"])
    click.echo()
    if any(each[name] for each in queue["lanes"] for name in _LANE_SUMS if each["lane"] != _PLAIN_LANE):
        lanes = [[each["lane"], *(each[name] for name in _LANE_SUMS)] for each in queue["lanes"]]
        print_table(lanes, ["lane", *_LANE_SUMS])
        click.echo()
    print_table(
        [(each["name"], each["value"], "queue" if each["own"] else "default") for each in queue["settings"]],
        ["setting", "value", "source"],
    )
    click.echo()
    if queue["silent"]:
        numbers = ", ".join(map(str, queue["silent"]))
        note(f"nobody answers for partition {numbers} of topic {queue['topic']}; the sums are without it")


def _format_pending(count: int) -> dict[str, str]:
    """Of what is leased; nothing for most queues."""
    return {"in a transaction": f"{count:,} of what is leased, until it commits or aborts"} if count else {}


def _format_kind(settings: Iterable[Mapping[str, Any]]) -> str | None:
    """`fifo, one active consumer, lanes strict`; brokers of an earlier release say nothing of it."""
    said = {each["name"]: each["value"] for each in settings}
    parts = [said["kind"]] if "kind" in said else []
    parts += ["one active consumer"] if said.get("single-active") == "true" else []
    parts += [f"lanes {said['lanes']}"] if "lanes" in said else []
    return ", ".join(parts) or None


def _format_dead(count: int | None, topic: str | None) -> str | None:
    if topic is None:
        return "dropped"
    return None if count is None else f"{count:,} in topic {topic}"


@click.command(
    "where",
    short_help="Find one message.",
    help="""Find a message by its partition and offset, or by the id it was sent with (--id, header penstock-id), and
    say what is the matter with it: not safe yet, ready, leased by whom until when, delayed, dying, or how it ended;
    how often it was delivered, and how often that failed. What became of it step by step comes behind, as far back as
    the queue's ledger has it. By its id it is looked for among what is not settled.""",
    epilog="""\b
Examples:
  penstock queue where jobs 2:1045
  penstock queue where jobs order-4711
  penstock queue where jobs --id 2:1045""",
)
@queue_argument
@click.argument("wanted", metavar="PARTITION:OFFSET|ID", required=False)
@click.option("--id", "message_id", metavar="ID", help="An id that looks like a partition and an offset.")
@output_option
@server_options
def where(queue: str, wanted: str | None, message_id: str | None, output: str, server: Server) -> None:
    if (wanted is None) == (message_id is None):
        raise CommandError("say which message: PARTITION:OFFSET, or its id", code=USAGE)
    with leaders_of(server, queue) as leaders:
        place = None if wanted is None else read_place(wanted)
        if place is not None:
            leaders.choose([place[0]])
            what = f"message {wanted} of queue {queue!r} cannot be found"
            found = leaders.ask(what, "queue.where", place[0], offset=place[1])["found"]
        else:
            found = _find_id(leaders, str(message_id or wanted))
    if found is None:
        raise CommandError(f"queue {queue!r} has no message {wanted or message_id!r} that is not settled")
    show(found, output, lambda: _print_place(queue, found))


def read_place(word: str) -> tuple[int, int] | None:
    """Partition and offset of `2:1045`; None for what is an id."""
    partition, colon, offset = word.partition(":")
    if colon and partition.isdecimal() and offset.isdecimal() and len(word) <= 30:
        return int(partition), int(offset)
    return None


def _find_id(leaders: Leaders, message_id: str) -> Fields | None:
    what = f"message {message_id!r} of queue {leaders.queue!r} cannot be found"
    for number in leaders.partitions:
        after: int | None = None
        while True:
            told = leaders.ask(what, "queue.where", number, id=message_id, offset=after)
            if told["found"] is not None:
                found: Fields = told["found"]
                return found
            if told["next"] is None:
                break
            after = told["next"]
    return None


def _print_place(queue: str, found: Mapping[str, Any]) -> None:
    until = {"leased": "leased until", "delayed": "due"}.get(found["state"], "until")
    copies = f"{found['in_sync']} of {found['replicas']} brokers have it" if "in_sync" in found else None
    pending = ", acknowledged in a transaction that has not ended" * bool(found.get("in_transaction"))
    facts = {
        "state": _outcome(found) or found["state"] + pending,
        "leased by": found.get("consumer") or None,
        "id": found.get("id"),
        "published": _format_moment(found.get("timestamp")),
        "deliveries": found.get("deliveries"),
        "failed attempts": found.get("attempts"),
        until: _format_moment(found.get("until_ms")),
        "copies": copies,
    }
    title = f"queue {queue}, partition {found['partition']}, offset {found['offset']}"
    print_fields({name: fact for name, fact in facts.items() if fact is not None}, title=title)
    for each in found.get("unread", ()):
        note(f"header {each['name']} counts for nothing: {each['why']}")
    history = found.get("history", ())
    if history:
        print_table([(_format_moment(each["at_ms"]), _format_event(each)) for each in history], ("at", "what"))


def _outcome(found: Mapping[str, Any]) -> str | None:
    """How it ended, if the ledger still has that."""
    history = found.get("history")
    if found["state"] != "settled" or not history:
        return None
    return _format_event(history[-1])


def _format_event(event: Mapping[str, Any]) -> str:
    words = event["what"]
    if event["consumer"]:
        words += f" by {event['consumer']}"
    if event["topic"]:
        words += f", to topic {event['topic']}"
    if event["until_ms"] is not None:
        words += f" until {_format_moment(event['until_ms'])}"
    return f"{words}: {event['why']}" if event["why"] else str(words)


def _format_moment(moment_ms: int | None) -> str | None:
    return None if moment_ms is None else format_local(moment_ms)


def sum_unsettled(described: Iterable[Mapping[str, Any]]) -> int:
    return sum(each[name] for each in described for name in COUNTS)


COMMANDS: Final = (list_queues, describe, where)
