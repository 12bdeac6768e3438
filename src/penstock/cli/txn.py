"""`penstock txn`: list, describe and abort transactions, find those that hang.

A transaction hangs when a partition holds it open and no coordinator knows of it any more: nothing behind it can be
read with `read_committed`. librdkafka has none of these questions, so `wire` asks them.
"""

from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import transactions
from penstock.cli.connection import Server, TopicName, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import output_option, print_fields, print_table, show, show_list
from penstock.cli.position import now_ms
from penstock.cli.transactions import Duration, TransactionalId, format_age

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.cli.transactions import Hanging, Transaction

_PATIENCE_MS: Final = 15 * 60_000
"""Kafka's longest transaction, unless a server allows longer ones: what is open for longer than this may hang."""


@click.group("txn", help="List, describe and abort transactions, find those that hang.")
def command() -> None:
    pass


@command.command(
    "list",
    short_help="List transactional ids.",
    help="List transactional ids with their producer and the state of their last transaction.",
    epilog="""\b
Examples:
  penstock txn list
  penstock txn list --state ongoing --longer-than 10m
  penstock txn list --producer-id 4000 -o json""",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(transactions.STATES, case_sensitive=False),
    multiple=True,
    help="Only those in this state; may be repeated.",
)
@click.option(
    "--producer-id", "producer_ids", metavar="N", type=click.IntRange(0), multiple=True, help="Only of this producer."
)
@click.option(
    "--longer-than", "longer_than_ms", metavar="DURATION", type=Duration(), help="Only open for longer: 90s, 15m, 2h."
)
@output_option
@server_options
def list_transactions(
    states: tuple[str, ...], producer_ids: tuple[int, ...], longer_than_ms: int | None, output: str, server: Server
) -> None:
    now = now_ms()
    found = [
        each
        for each in transactions.fetch_transactions(server, states, producer_ids)
        if longer_than_ms is None or (each.age_ms(now) or 0) > longer_than_ms
    ]
    rows = [
        {
            "transactional_id": each.id,
            "state": each.state,
            "producer_id": each.producer_id,
            "age_ms": each.age_ms(now),
            "partitions": len(each.partitions) if each.is_open else None,
            "coordinator": each.coordinator,
        }
        for each in found
    ]

    def table() -> None:
        cells = [
            [each.id, each.state, each.producer_id, format_age(each.age_ms(now)), row["partitions"], each.coordinator]
            for each, row in zip(found, rows, strict=True)
        ]
        print_table(cells, ["transactional id", "state", "producer id", "age", "partitions", "coordinator"])

    narrowed = bool(states or producer_ids or longer_than_ms is not None)
    show_list(rows, output, "transactional ids", table, narrowed=narrowed)


@command.command(
    "describe",
    help="Show transactions in full: state, producer, timeout, age and partitions.",
    epilog="""\b
Examples:
  penstock txn describe payments-1
  penstock txn describe payments-1 payments-2 -o json""",
)
@click.argument("ids", metavar="TXN_ID...", nargs=-1, required=True, type=TransactionalId())
@output_option
@server_options
def describe(ids: tuple[str, ...], output: str, server: Server) -> None:
    now = now_ms()
    described = [_format_transaction(each, now) for each in transactions.describe_transactions(server, ids)]

    def table() -> None:
        for each in described:
            _print_transaction(each)

    show(described, output, table)


def _print_transaction(transaction: "Mapping[str, Any]") -> None:
    facts = {
        "state": transaction["state"],
        "producer id": transaction["producer_id"],
        "producer epoch": transaction["producer_epoch"],
        "timeout": format_age(transaction["timeout_ms"]),
        "age": format_age(transaction["age_ms"]),
        "coordinator": transaction["coordinator"],
    }
    print_fields(facts, title=transaction["transactional_id"])
    click.echo()
    if transaction["partitions"]:
        print_table([list(at.values()) for at in transaction["partitions"]], ["topic", "partition"])
        click.echo()


def _format_transaction(transaction: "Transaction", now: int) -> dict[str, Any]:
    return {
        "transactional_id": transaction.id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "age_ms": transaction.age_ms(now),
        "coordinator": transaction.coordinator,
        "partitions": [{"topic": topic, "partition": number} for topic, number in transaction.partitions],
    }


@command.command(
    "abort",
    short_help="Abort a transaction.",
    help="""Abort a transaction. By transactional id: its producer is fenced, so its open transaction is aborted and
    whatever it still sends is refused; a producer that starts again with the id goes on. By partition and first
    offset, as 'txn hanging' shows them: an abort marker is written into that partition, for a transaction that no
    coordinator knows any more. Asks first.""",
    epilog="""\b
Examples:
  penstock txn abort payments-1
  penstock txn abort --topic orders --partition 3 --start-offset 81234""",
)
@click.argument("transactional_id", metavar="[TXN_ID]", required=False, type=TransactionalId())
@click.option("--topic", type=TopicName(), metavar="TOPIC", help="The topic of a transaction that hangs.")
@click.option("--partition", metavar="N", type=click.IntRange(0), help="Its partition.")
@click.option("--start-offset", metavar="N", type=click.IntRange(0), help="The first offset of the transaction there.")
@yes_option
@output_option
@server_options
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    output: str,
    server: Server,
) -> int | None:
    place = (topic, partition, start_offset)
    if transactional_id is not None and place == (None, None, None):
        return _fence(server, transactional_id, yes, output)
    if transactional_id is not None or topic is None or partition is None or start_offset is None:
        raise CommandError("say what to abort: either TXN_ID, or --topic, --partition and --start-offset", code=USAGE)
    return _abort_hanging(server, topic, partition, start_offset, yes, output)


def _fence(server: Server, transactional_id: str, yes: bool, output: str) -> int | None:
    (found,) = transactions.describe_transactions(server, [transactional_id])
    if found.state == "prepare-commit":
        raise CommandError(
            f"transaction {transactional_id!r} is being committed and cannot be aborted any more; "
            f"'penstock txn describe {transactional_id}' shows the partitions that wait for it"
        )
    open_ = found.state == "ongoing"
    count = "1 partition" if len(found.partitions) == 1 else f"{len(found.partitions)} partitions"
    age = format_age(found.age_ms(now_ms()))
    what = (
        f"abort its transaction of {age} in {count}" if open_ else f"though it has no open transaction ({found.state})"
    )
    question = f"Fence producer {found.producer_id} of {transactional_id}, {what}?"
    if not yes and not confirm(question, "nothing was aborted"):
        return FAILED
    fenced = transactions.fence(server, transactional_id)
    done = {
        "transactional_id": transactional_id,
        "aborted": open_,
        "producer_id": fenced.producer_id,
        "producer_epoch": fenced.producer_epoch,
    }
    told = "aborted the transaction of" if open_ else "no transaction was open; fenced the producer of"
    now = f"the id is with producer {fenced.producer_id}, epoch {fenced.producer_epoch} now"
    show(done, output, lambda: click.echo(f"{told} {transactional_id}; {now}"))
    return None


def _abort_hanging(server: Server, topic: str, partition: int, start: int, yes: bool, output: str) -> int | None:
    found = transactions.find_open(server, topic, partition, start)
    age = format_age(found.idle_ms(now_ms()))
    question = (
        f"Abort the transaction of producer {found.producer_id} at offset {start} of {topic}:{partition}, "
        f"silent for {age}? Its records there are lost to whoever reads committed ones."
    )
    if not yes and not confirm(question, "nothing was aborted"):
        return FAILED
    transactions.write_abort_marker(server, found)
    done = {"topic": topic, "partition": partition, "start_offset": start, "producer_id": found.producer_id}
    told = f"aborted the transaction of producer {found.producer_id} at offset {start} of {topic}:{partition}"
    show(done, output, lambda: click.echo(told))
    return None


@command.command(
    "hanging",
    help="""Find transactions that hang: open in a partition, unknown to every coordinator. Looks into all topics, if
    none is named.""",
    epilog="""\b
Examples:
  penstock txn hanging
  penstock txn hanging --topic orders --longer-than 1h -o json""",
)
@click.option("--topic", "names", type=TopicName(), metavar="TOPIC", multiple=True, help="Only here; may be repeated.")
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    type=Duration(),
    default=_PATIENCE_MS,
    show_default="15m",
    help="Only those whose producer has been silent for longer.",
)
@output_option
@server_options
def hanging(names: tuple[str, ...], longer_than_ms: int, output: str, server: Server) -> None:
    now = now_ms()
    found = [each for each in transactions.find_hanging(server, names) if each.idle_ms(now) > longer_than_ms]
    rows = [_format_hanging(each, now) for each in found]

    def table() -> None:
        cells = [[*list(row.values())[:-1], format_age(row["idle_ms"])] for row in rows]
        print_table(cells, ["topic", "partition", "start offset", "producer id", "epoch", "silent for"])

    show_list(rows, output, "hanging transactions", table)


def _format_hanging(each: "Hanging", now: int) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start_offset,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "idle_ms": each.idle_ms(now),
    }
