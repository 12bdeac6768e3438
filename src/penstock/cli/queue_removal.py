"""`penstock queue purge` and `delete`: what empties queues, and what ends them."""

from collections.abc import Sequence
from typing import Final

import click

from penstock.cli.connection import Refused, Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, CommandError
from penstock.cli.output import count_of, output_option, print_table, show
from penstock.cli.queue_leaders import (
    Leaders,
    fetch_names,
    leaders_of,
    partitions_option,
    queue_argument,
    queues_argument,
    topic_of,
    unknown_queues,
)
from penstock.cli.queue_view import describe_queue, sum_unsettled
from penstock.cli.verbs import Verbs


@click.command(
    "purge",
    short_help="Empty a queue.",
    help="""Settle everything that is in a queue now, also what is leased or delayed: nobody gets it any more, and it
    becomes no dead letter. What is sent from now on stays. The topic's records stay, too, for other queues and for
    streams; 'penstock topic trim' deletes those. Asks first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock queue purge jobs
  penstock queue purge jobs --partition 2 --before 1045 --yes""",
)
@queue_argument
@click.option("--before", type=click.IntRange(0), metavar="OFFSET", help="Only what is before this offset.")
@partitions_option
@yes_option
@output_option
@server_options
def purge(
    queue: str, before: int | None, partitions: tuple[int, ...], yes: bool, output: str, server: Server
) -> int | None:
    if not yes:
        count = count_of(sum_unsettled([describe_queue(server, queue)]), "message")
        part = "some of " if before is not None or partitions else ""
        if not confirm(f"Purge queue {queue} of {part}{count}?", "nothing was purged"):
            return FAILED
    with leaders_of(server, queue) as leaders:
        rows = []
        for number in leaders.choose(partitions):
            what = f"partition {number} of queue {queue!r} cannot be purged"
            rows.append(
                {"partition": number, "purged": leaders.ask(what, "queue.purge", number, before=before)["purged"]}
            )
    total = sum(row["purged"] for row in rows)

    def table() -> None:
        click.echo(f"purged {count_of(total, 'message')} from queue {queue}")
        if total:
            print_table([list(row.values()) for row in rows], ["partition", "purged"])

    show({"queue": queue, "purged": total, "partitions": rows}, output, table)
    return None


@click.command(
    "delete",
    short_help="Delete queues.",
    help="""Delete queues: what is known of who has leased and settled what, and their settings. The topic and its
    records stay, and retention spares nothing for the queue any more; --with-topic deletes them, too, and all other
    queues of that topic. Asks first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock queue delete orders:billing
  penstock queue delete jobs --with-topic
  penstock queue delete jobs mails --yes --if-exists""",
)
@queues_argument
@click.option("--with-topic", is_flag=True, help="Delete the topic and all its records, too.")
@click.option("--if-exists", is_flag=True, help="Pass over queues that do not exist, without an error.")
@yes_option
@output_option
@server_options
def delete(
    queues: tuple[str, ...], with_topic: bool, if_exists: bool, yes: bool, output: str, server: Server
) -> int | None:
    wanted = list(dict.fromkeys(queues))
    with Verbs(server) as verbs:
        known = fetch_names(verbs)
        found = [queue for queue in wanted if queue in known]
        if len(found) < len(wanted) and not if_exists:
            raise unknown_queues([queue for queue in wanted if queue not in known], known)
        if found and not yes:
            lost = count_of(sum_unsettled(describe_queue(server, queue) for queue in found), "message")
            if not confirm(_question(found, known, lost, with_topic=with_topic), "nothing was deleted"):
                return FAILED
        refused = _delete_topics(server, found) if with_topic else _delete(server, verbs, found)
    left = [queue for queue in wanted if queue not in refused]
    rows = [{"queue": queue, "status": "deleted" if queue in found else "missing"} for queue in left]

    def lines() -> None:
        for row in rows:
            click.echo(f"deleted queue {row['queue']}" if row["status"] == "deleted" else f"no queue {row['queue']}")

    show(rows, output, lines)
    if refused:
        raise CommandError("; ".join(dict.fromkeys(refused.values())))
    return None


def _question(found: Sequence[str], known: Sequence[str], lost: str, *, with_topic: bool) -> str:
    question = f"Delete queue {', '.join(found)} with {lost} that nobody has settled"
    if not with_topic:
        return f"{question}?"
    topics = list(dict.fromkeys(map(topic_of, found)))
    others = [queue for queue in known if topic_of(queue) in topics and queue not in found]
    also = f", and with that queue {', '.join(others)}" if others else ""
    return f"{question}, and topic {', '.join(topics)} with all records{also}?"


def _delete(server: Server, verbs: Verbs, queues: Sequence[str]) -> dict[str, str]:
    """What was refused, by queue.

    Leaders forget it before it is deleted, as only all of them together can, and once more after that: a consumer may
    have come in between.
    """
    refused = {}
    for queue in queues:
        leaders = Leaders(server, verbs, queue)
        what = f"queue {queue!r} cannot be deleted"
        try:
            _forget(leaders, what)
            verbs.ask(what, "queue.delete", queue=queue)
            _forget(leaders, f"queue {queue!r} is deleted, but a broker still knows what it has leased")
        except CommandError as error:
            refused[queue] = str(error)
    return refused


def _forget(leaders: Leaders, what: str) -> None:
    for number in leaders.partitions:
        leaders.ask(what, "queue.forget", number)


def _delete_topics(server: Server, queues: Sequence[str]) -> dict[str, str]:
    """What was refused, by queue."""
    of_topic: dict[str, list[str]] = {}
    for queue in queues:
        of_topic.setdefault(topic_of(queue), []).append(queue)
    refused: dict[str, str] = {}
    admin = server.admin()  # kept: a client that nobody holds ends, and its question with it
    gone = admin.delete_topics(list(of_topic), request_timeout=server.timeout_s) if of_topic else {}
    for name, future in gone.items():
        try:
            server.wait(future)
        except Refused as error:
            refused |= dict.fromkeys(of_topic[name], f"topic {name!r} cannot be deleted: {error}")
    return refused


COMMANDS: Final = (purge, delete)
