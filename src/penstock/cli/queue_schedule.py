"""`penstock queue schedule`: messages that a queue gets at times, each by a cron expression in a time zone."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import output_option, print_table, show, show_list
from penstock.cli.queue_leaders import Leaders, leaders_of, queue_argument
from penstock.cli.record_options import read_header
from penstock.cli.record_text import describe_content
from penstock.cli.verbs import Fields

_AT: Final = 0
"""Schedules are known to whoever leads this partition."""
_COLUMNS: Final = ("schedule", "cron", "zone", "next", "next in UTC", "last planned", "state")
_SHOWN_CRON: Final = 40


@click.group(
    "schedule",
    short_help="Publish messages at times.",
    help="""Have a queue get messages at times. A schedule is a cron expression in a time zone, and a message: whenever
    it fires, the message is published to the queue's topic, as if somebody had sent it.

    Each planned time is published once, also if brokers die in the middle of it. Of the times that passed while no
    broker ran, the last one is made up for, and no other. Header penstock-sys-planned-time-ms of a message says which
    time it is for, and penstock-sys-schedule which schedule it is of.""",
    epilog="""\b
Examples:
  penstock queue schedule add jobs nightly '30 3 * * *' 'make the report' --zone Europe/Berlin
  penstock queue schedule list jobs
  penstock queue schedule pause jobs nightly
  penstock queue schedule remove jobs nightly""",
)
def command() -> None:
    pass


_schedule_argument = click.argument("schedule", metavar="SCHEDULE")


@command.command(
    "add",
    short_help="Make a schedule.",
    help="""Make a schedule of a queue: at the times of CRON the queue gets MESSAGE, or what is in a file. Prints the
    next three times. It needs the right to alter the queue, and to write to its topic.

    CRON has five fields: minute (0-59), hour (0-23), day of the month (1-31, L for the last), month (1-12, JAN-DEC) and
    day of the week (0-7, SUN-SAT). Each is *, a number, a range 1-5, a list 1,15 or has a step */10. If both days are
    given, one of them is enough. A schedule fires at most once a minute.

    A time of day that the clocks skip in spring fires at the first minute after it, and one they show twice in autumn
    fires once, the first time. Schedules of every minute or hour (*, */5) go by the time that passes.""",
    epilog="""\b
Examples:
  penstock queue schedule add jobs nightly '30 3 * * *' 'make the report' --zone Europe/Berlin
  penstock queue schedule add jobs workdays '0 9-17 * * MON-FRI' poll --zone America/New_York
  penstock queue schedule add jobs month-end '0 22 L * *' --file invoice.json --key billing
  penstock queue schedule add mails often '*/5 * * * *' check -H penstock-ttl-ms=240000""",
)
@queue_argument
@_schedule_argument
@click.argument("cron", metavar="CRON")
@click.argument("message", metavar="[MESSAGE]", required=False)
@click.option("-f", "--file", "file", metavar="FILE", type=click.File("rb"), help="The message; - is standard input.")
@click.option("-z", "--zone", metavar="ZONE", default="UTC", show_default=True, help="Time zone, by its IANA name.")
@click.option("-k", "--key", metavar="KEY", help="The messages' key; their partition follows from it.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@output_option
@server_options
def add(
    queue: str,
    schedule: str,
    cron: str,
    message: str | None,
    file: Any,
    zone: str,
    key: str | None,
    headers: tuple[str, ...],
    output: str,
    server: Server,
) -> None:
    if (message is None) == (file is None):
        raise CommandError("say what the message is: either MESSAGE or --file", code=USAGE)
    content = file.read() if file is not None else _encode(message or "")
    said = describe_content(None if key is None else _encode(key), content, [read_header(word) for word in headers])
    with leaders_of(server, queue) as leaders:
        what = f"schedule {schedule!r} of queue {queue!r} cannot be made"
        told = leaders.ask(what, "queue.schedule.add", _AT, schedule=schedule, cron=cron, zone=zone, **said)

    def lines() -> None:
        click.echo(f"made schedule {schedule} of queue {queue}: {told['cron']} in {told['zone']}")
        _print_times(told)

    show(_shown(told), output, lines)


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


@command.command(
    "list",
    short_help="List a queue's schedules.",
    help="""List the schedules of a queue: when each fires next, in its own zone and in UTC, and which time it fired for
    last. With -o json also the messages, for who may read the topic.""",
    epilog="""\b
Examples:
  penstock queue schedule list jobs
  penstock queue schedule list jobs -o json""",
)
@queue_argument
@output_option
@server_options
def list_schedules(queue: str, output: str, server: Server) -> None:
    with leaders_of(server, queue) as leaders:
        rows = [_shown(row) for row in _rows(leaders)]

    def table() -> None:
        print_table([_cells(row) for row in rows], _COLUMNS)

    show_list(rows, output, "schedules", table, way_out=f"'penstock queue schedule add {queue} ...' makes one")


def _rows(leaders: Leaders) -> Sequence[Fields]:
    found: list[Fields] = []
    after = None
    while True:
        what = f"the schedules of queue {leaders.queue!r} cannot be listed"
        page = leaders.ask(what, "queue.schedule.list", _AT, after=after)
        found += page["rows"]
        if not page["more"]:
            return found
        after = page["rows"][-1]["schedule"]


def _cells(row: Fields) -> Sequence[object]:
    cron, following = row["cron"], row["next"]
    return (
        row["schedule"],
        cron if len(cron) <= _SHOWN_CRON else f"{cron[: _SHOWN_CRON - 3]}...",
        row["zone"],
        following[0]["local"] if following else None,
        following[0]["utc"] if following else None,
        row["last"]["local"] if row["last"] else None,
        row["state"],
    )


@command.command(
    "remove",
    short_help="Remove a schedule.",
    help="""Remove a schedule: it fires no more. What it has published stays in the queue. Asks first; without a
    terminal it needs --yes. 'pause' keeps it for later.""",
    epilog="""\b
Examples:
  penstock queue schedule remove jobs nightly
  penstock queue schedule remove jobs nightly --yes""",
)
@queue_argument
@_schedule_argument
@yes_option
@output_option
@server_options
def remove(queue: str, schedule: str, yes: bool, output: str, server: Server) -> int | None:
    if not yes and not confirm(f"Remove schedule {schedule} of queue {queue}?", "nothing was removed"):
        return FAILED
    with leaders_of(server, queue) as leaders:
        what = f"schedule {schedule!r} of queue {queue!r} cannot be removed"
        told = leaders.ask(what, "queue.schedule.remove", _AT, schedule=schedule)

    def line() -> None:
        rest = "; a message of it is on its way, and comes all the same" if told["under_way"] else ""
        click.echo(f"removed schedule {schedule} of queue {queue}{rest}")

    show(told, output, line)
    return None


@command.command(
    "pause",
    short_help="Have a schedule fire no more, for now.",
    help="""Have a schedule fire no more until it is resumed. The times that pass meanwhile are not made up for.""",
    epilog="""\b
Examples:
  penstock queue schedule pause jobs nightly""",
)
@queue_argument
@_schedule_argument
@output_option
@server_options
def pause(queue: str, schedule: str, output: str, server: Server) -> None:
    told = _change(server, queue, schedule, "pause")
    show(_shown(told), output, lambda: click.echo(f"paused schedule {schedule} of queue {queue}"))


@command.command(
    "resume",
    short_help="Have a paused schedule fire again.",
    help="""Have a paused schedule fire again, from its next time on. Prints the next three times.""",
    epilog="""\b
Examples:
  penstock queue schedule resume jobs nightly""",
)
@queue_argument
@_schedule_argument
@output_option
@server_options
def resume(queue: str, schedule: str, output: str, server: Server) -> None:
    told = _change(server, queue, schedule, "resume")

    def lines() -> None:
        click.echo(f"resumed schedule {schedule} of queue {queue}")
        _print_times(told)

    show(_shown(told), output, lines)


def _change(server: Server, queue: str, schedule: str, verb: str) -> Fields:
    with leaders_of(server, queue) as leaders:
        what = f"schedule {schedule!r} of queue {queue!r} cannot be {verb}d"
        told: Fields = leaders.ask(what, f"queue.schedule.{verb}", _AT, schedule=schedule)
    return told


# --- times


def _shown(told: Fields) -> Fields:
    """What a server says of a schedule, with its times in words."""
    zone = _zone(told["zone"])
    state = "paused" if told["paused"] else "active" if told["knows_zone"] else "zone unknown to the broker"
    last = None
    if told["planned_ms"] is not None:
        last = {**_moment(told["planned_ms"], zone), "fired_ms": told["fired_ms"]}
    hidden = ("paused", "knows_zone", "next_ms", "planned_ms", "fired_ms")
    return {
        **{name: said for name, said in told.items() if name not in hidden},
        "state": state,
        "next": [_moment(each, zone) for each in told["next_ms"]],
        "last": last,
    }


def _print_times(told: Fields) -> None:
    zone = _zone(told["zone"])
    rows = [list(_moment(each, zone).values())[1:] for each in told["next_ms"]]
    if rows:
        print_table(rows, [f"next in {told['zone']}", "in UTC"])


def _zone(name: str) -> tzinfo:
    """UTC where this machine does not know it."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def _moment(moment_ms: int, zone: tzinfo) -> Fields:
    moment = datetime.fromtimestamp(moment_ms / 1000, zone)
    utc = moment.astimezone(UTC)
    return {"ms": moment_ms, "local": moment.isoformat(" ", "minutes"), "utc": f"{utc:%Y-%m-%d %H:%M}Z"}


COMMANDS: Final = (command,)
