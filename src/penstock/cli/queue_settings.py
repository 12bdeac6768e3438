"""`penstock queue create` and `alter`: what a queue goes by. The server reads the values, and says what is allowed."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from penstock.cli.connection import Refused, Server, read_properties, server_options
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import count_of, output_option, print_fields, show
from penstock.cli.queue_leaders import QueueWord, explain, queue_argument
from penstock.cli.verbs import Verbs

F = TypeVar("F", bound=Callable[..., Any])

_MAX_PARTITIONS: Final = 10_000
_MAX_REPLICAS: Final = 100
_Form = str | tuple[str, ...] | None
"""What a flag takes: a word for people, one of several, or nothing, as it is said or not."""
_FLAGS: Final[tuple[tuple[str, _Form, str], ...]] = (
    ("visibility", "TIME", "How long a consumer has a message to itself, such as 30s."),
    ("max-attempts", "N", "After so many failed attempts a message becomes a dead letter."),
    ("backoff", "WAITS", "How long a failed message waits: none, fixed:10s, linear:1s..1m, exponential:1s..5m~0.2."),
    ("dead-letter", "TOPIC", "Where dead letters go: a topic, default (one named after the queue), or none."),
    ("max-unacked", "N", "Messages of a partition that may be leased at a time."),
    ("ttl", "TIME", "How long a message may wait for a consumer, such as 1d; none: for ever."),
    ("on-expiry", ("drop", "dead-letter"), "What becomes of a message whose time is over."),
    ("max-size", "SIZE", "What may wait in a partition: messages (10000), bytes (1GiB), both (10000,1GiB), or none."),
    ("dedup-window", "TIME", "For how long messages with the same penstock-id are dropped, such as 5m; or none."),
    ("on-full", ("reject", "drop-oldest", "dead-letter"), "What happens when that much waits."),
    ("kind", ("standard", "fifo"), "With fifo, messages of a key come one at a time, in their order."),
    ("on-exhausted", ("skip", "block"), "Fifo: a key whose message failed too often goes on without it, or waits."),
    ("single-active", None, "Whether one consumer at a time gets all messages of a partition."),
    ("lanes", ("weighted", "strict"), "How priorities share the queue: by weights, or the highest always first."),
    ("tenant-weights", "NAME=N,...", "How much tenants get beside each other, such as gold=4,trial=0.5; or none."),
    ("delay", "TIME", "How long each message waits that does not say itself when it is due; or none."),
)
_VALUES_HELP: Final = """\
Times have a unit: 250ms, 30s, 5m, 12h, 14d. A queue keeps what it has not
settled, whatever the topic's retention says; --set durable=false lets go of it.
--set knows max-unacked-consumer and max-deliveries as well.
"""


def settings_options(command: F) -> F:
    """Adds a flag for each setting, and --set; the command gets what was given as `settings`."""
    import functools

    @functools.wraps(command)
    def with_settings(*args: Any, pairs: tuple[str, ...], **words: Any) -> Any:
        given = {name: words.pop(_field(name)) for name, _, _ in _FLAGS}
        settings = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in given.items()
            if value is not None
        }
        for name, value in read_properties(pairs).items():
            if name in settings:
                raise CommandError(f"{name} is said twice: by its flag and by --set", code=USAGE)
            settings[name] = value
        return command(*args, settings=settings, **words)

    made: Any = click.option(
        "--set", "pairs", metavar="KEY=VALUE", multiple=True, help="Any setting; may be repeated."
    )(with_settings)
    for name, form, told in reversed(_FLAGS):
        made = click.option(*_words(name, form), _field(name), help=told, **_kind(form))(made)
    return made  # type: ignore[no-any-return]  # the wrapper takes what click hands it


def _words(name: str, form: _Form) -> tuple[str, ...]:
    return (f"--{name}/--no-{name}",) if form is None else (f"--{name}",)


def _kind(form: _Form) -> Mapping[str, Any]:
    if form is None:
        return {"default": None}
    return {"metavar": form} if isinstance(form, str) else {"type": click.Choice(form)}


def _field(name: str) -> str:
    return f"setting_{name.replace('-', '_')}"


@click.command(
    "create",
    short_help="Make a queue.",
    help="""Make a queue. If there is no topic of its name, it is made, too. The queue of a topic that is there begins
    with the oldest message. NAME:GROUP makes one more queue of topic NAME: each of them gets every message. For what
    you do not say the server's defaults apply, which 'penstock queue describe' shows: visibility 30s, max-attempts 3,
    backoff exponential:1s..5m~0.2, dead letters in topic dlq.QUEUE, no ttl and no max-size.

    Which message comes next: the oldest, unless messages bring a priority or a tenant ('penstock queue send') or the
    queue is told more. --kind fifo keeps the messages of a key in order, --single-active those of a partition. --lanes
    strict has the highest priority always go first. --delay has every message wait.""",
    epilog=f"""\b
Examples:
  penstock queue create jobs
  penstock queue create jobs --partitions 6 --visibility 5m --max-attempts 5
  penstock queue create mails --ttl 1d --on-expiry dead-letter --backoff fixed:1m
  penstock queue create orders:billing --dead-letter billing-failed --if-not-exists
  penstock queue create payments --kind fifo --on-exhausted block
  penstock queue create reminders --delay 10m --lanes strict
  penstock queue create renders --tenant-weights gold=4,trial=0.5

\b
{_VALUES_HELP}""",
)
@click.argument("queue", metavar="NAME[:GROUP]", type=QueueWord())
@settings_options
@click.option(
    "-p",
    "--partitions",
    metavar="N",
    type=click.IntRange(1, _MAX_PARTITIONS),
    help="How many the topic gets, if it is made.",
)
@click.option(
    "-r", "--replication", metavar="N", type=click.IntRange(1, _MAX_REPLICAS), help="On how many brokers, likewise."
)
@click.option("--if-not-exists", is_flag=True, help="Leave a queue that exists as it is, without an error.")
@output_option
@server_options
def create(
    queue: str,
    settings: Mapping[str, str],
    partitions: int | None,
    replication: int | None,
    if_not_exists: bool,
    output: str,
    server: Server,
) -> None:
    what = f"queue {queue!r} cannot be created"
    with Verbs(server) as verbs:
        try:
            asked: Any = {"settings": settings, "partitions": partitions, "replication": replication}
            told = {"status": "created", **verbs.ask(what, "queue.create", queue=queue, **asked)}
        except Refused as error:
            if error.name != "DUPLICATE_RESOURCE":
                raise
            if not if_not_exists:
                raise CommandError(
                    f"queue {queue!r} exists already; --if-not-exists leaves it as it is, "
                    f"'penstock queue alter {queue}' changes it"
                ) from None
            told = {"status": "exists", "queue": queue}

    def line() -> None:
        if told["status"] == "exists":
            click.echo(f"queue {queue} exists already")
            return
        made = "made with it" if told["made_topic"] else "which is there"
        click.echo(f"created queue {queue}: topic {told['topic']}, {made}, {count_of(told['partitions'], 'partition')}")

    show(told, output, line)


@click.command(
    "alter",
    short_help="Change what a queue goes by.",
    help="""Change settings of a queue. They act at once, also on messages that wait already; leases that are held keep
    their time. If one setting is refused, nothing changes.""",
    epilog=f"""\b
Examples:
  penstock queue alter jobs --visibility 10m
  penstock queue alter jobs --max-size 100000 --on-full reject
  penstock queue alter jobs --unset ttl --unset backoff
  penstock queue alter jobs --lanes strict --no-single-active

\b
{_VALUES_HELP}""",
)
@queue_argument
@settings_options
@click.option("--unset", "unsets", metavar="KEY", multiple=True, help="Go back to the default; may be repeated.")
@output_option
@server_options
def alter(queue: str, settings: Mapping[str, str], unsets: tuple[str, ...], output: str, server: Server) -> None:
    if not settings and not unsets:
        raise CommandError("nothing to change; say a setting's flag, --set or --unset", code=USAGE)
    if both := sorted(set(settings) & set(unsets)):
        raise CommandError(f"{both[0]} is both set and unset", code=USAGE)
    with Verbs(server) as verbs:
        try:
            told = verbs.ask(
                f"queue {queue!r} cannot be altered", "queue.alter", queue=queue, settings=settings, unset=list(unsets)
            )
        except Refused as error:
            raise explain(verbs, queue, error) from None

    def lines() -> None:
        click.echo(f"altered queue {queue}:")
        print_fields({each["name"]: f"{each['old'] or '-'} → {each['new'] or '-'}" for each in told["changes"]})

    show(told, output, lines)


COMMANDS: Final = (create, alter)
