"""`penstock cluster status`, `check`, `brokers` and `topics`: how the cluster does."""

import os
import time
from collections.abc import Mapping
from typing import Any, Final

import click

from penstock.cli.cluster_health import BROKER_AWAY, Finding, blockers, examine
from penstock.cli.cluster_patience import POLL_S, try_again
from penstock.cli.cluster_view import NOBODY, Partition, Picture, View
from penstock.cli.connection import Server, server_options
from penstock.cli.failure import FAILED
from penstock.cli.output import count_of, format_bytes, note, note_none, output_option, print_table, show
from penstock.cli.topics import MAKE_A_TOPIC
from penstock.cli.watch import WatchCommand, answer, watch_option


@click.command(
    "status",
    cls=WatchCommand,
    short_help="One screen: brokers, health, what to do next.",
    help="""Show the cluster on one screen: every broker with what it leads and holds, whether the cluster is healthy,
    and if not, what is wrong and which command helps. The exit code is 0 either way; 'check' tells them apart.""",
    epilog="""\b
Examples:
  penstock cluster status
  penstock cluster status --watch 5
  penstock cluster status -o json""",
)
@watch_option
@output_option
@server_options
def status(interval_s: float | None, output: str, server: Server) -> None:
    with View(server) as view:
        answer(server, interval_s, output, lambda _: format_status(view.fetch(store=True)), print_status)


@click.command(
    "brokers",
    cls=WatchCommand,
    short_help="List brokers.",
    help="List brokers with what they lead, what they hold, their disks and settings made at run time.",
    epilog="""\b
Examples:
  penstock cluster brokers
  penstock cluster brokers -o json""",
)
@watch_option
@output_option
@server_options
def brokers(interval_s: float | None, output: str, server: Server) -> None:
    with View(server) as view:
        answer(server, interval_s, output, lambda _: format_brokers(view.fetch()), print_brokers)


@click.command(
    "topics",
    cls=WatchCommand,
    short_help="List topics with what is the matter with them.",
    help="""List topics: partitions, replication, and how many partitions are under-replicated, below
    min.insync.replicas (acks=all waits), without a leader, or on their way to other brokers.""",
    epilog="""\b
Examples:
  penstock cluster topics
  penstock cluster topics --troubled
  penstock cluster topics -o json""",
)
@click.option("--troubled", is_flag=True, help="Only topics of which something is wrong.")
@watch_option
@output_option
@server_options
def topics(troubled: bool, interval_s: float | None, output: str, server: Server) -> None:
    def ask(view: View) -> list[dict[str, Any]]:
        found = format_topics(view.fetch())
        return [row for row in found if any(row[key] for key in _TROUBLES)] if troubled else found

    with View(server) as view:
        answer(server, interval_s, output, lambda _: ask(view), lambda rows: print_topics(rows, troubled=troubled))


@click.command(
    "check",
    short_help="Exit 0 if the cluster is healthy, 1 if not.",
    help="""Say whether the cluster is healthy: every broker that holds something is there and answers, every partition
    has its leader and all its replicas in sync, there is a controller, and the metadata store answers. Moves, cordons
    and drained brokers do not count; a broker that is down and holds nothing is only mentioned.

    The exit code is 0 if it is, 1 if not, 3 if no broker answers. Use it in scripts and probes; 'restart' uses it,
    too.""",
    epilog="""\b
Examples:
  penstock cluster check
  penstock cluster check --wait 300
  penstock cluster check --stopping 2 && systemctl stop penstock@2
  penstock cluster check -o json""",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="Wait this long for it to become healthy.",
)
@click.option(
    "--stopping",
    metavar="ID",
    type=click.IntRange(0),
    help="Ask instead whether this broker can be stopped now and every partition goes on.",
)
@output_option
@server_options
def check(wait_s: float, stopping: int | None, output: str, server: Server) -> int:
    deadline = time.monotonic() + wait_s
    with View(server) as view:

        def fetch() -> Picture:
            return view.fetch(store=True)

        while True:
            picture = try_again(fetch) if time.monotonic() < deadline else fetch()
            found = _find(picture, stopping) if picture is not None else None
            if found == [] or (found is not None and time.monotonic() >= deadline):
                break
            time.sleep(POLL_S)
    fields = {"healthy": not found, "problems": [_format_finding(each) for each in found]}
    show(fields, output, lambda: _print_check(found, stopping))
    if stopping is None and picture is not None:
        _tell_away(picture)
    return FAILED if found else 0


def _tell_away(picture: Picture) -> None:
    """Harmless, and an alert goes off for it: who compares the two shall find it here."""
    for each in examine(picture):
        if each.kind == BROKER_AWAY:
            note(f"{each.text}; {each.next_step}")


def _find(picture: Picture, stopping: int | None) -> list[Finding]:
    if stopping is None:
        return [each for each in examine(picture) if each.is_problem]
    picture.broker(stopping)
    return blockers(picture, stopping)


def _print_check(found: list[Finding], stopping: int | None) -> None:
    if not found:
        click.echo("healthy" if stopping is None else f"broker {stopping} can be stopped")
    for each in found:
        click.echo(f"{each.text}; {each.next_step}")


# --- forms

_TROUBLES: Final = ("under_replicated", "below_min_isr", "without_leader")


def format_status(picture: Picture) -> dict[str, Any]:
    found = examine(picture)
    return {
        "cluster": picture.cluster_id,
        "controller": picture.controller,
        "store_answers": picture.store_answers,
        "healthy": not any(each.is_problem for each in found),
        "brokers": format_brokers(picture),
        "partitions": {"total": len(picture.partitions), **_count(picture.partitions)},
        "findings": [_format_finding(each) for each in found],
    }


def format_brokers(picture: Picture) -> list[dict[str, Any]]:
    return [
        {
            "broker": each.id,
            "host": each.host or None,
            "port": each.port or None,
            "rack": each.rack,
            "up": each.is_up,
            "answers": each.answers,
            "controller": each.id == picture.controller and each.is_up,
            "leaders": len(picture.led_by(each.id)),
            "replicas": len(picture.held_by(each.id)),
            "bytes": sum(each.sizes.values()) if each.answers else None,
            "disk_bytes": each.disk_bytes or None,
            "free_bytes": each.free_bytes if each.disk_bytes else None,
            "cordon": each.cordon or None,
            "throttle": each.throttle,
        }
        for each in picture.brokers.values()
    ]


def format_topics(picture: Picture) -> list[dict[str, Any]]:
    by_name: dict[str, list[Partition]] = {}
    for each in picture.partitions:
        by_name.setdefault(each.topic, []).append(each)
    return [
        {
            "topic": name,
            "partitions": len(partitions),
            "replication": max(len(each.expected) for each in partitions),
            "min_isr": partitions[0].min_isr,
            "bytes": sum(picture.size_of(each) for each in partitions),
            **_count(partitions),
        }
        for name, partitions in sorted(by_name.items())
    ]


def _count(partitions: "list[Partition] | tuple[Partition, ...]") -> dict[str, int]:
    return {
        "under_replicated": sum(each.is_behind for each in partitions),
        "below_min_isr": sum(each.is_below_min for each in partitions),
        "without_leader": sum(each.leader == NOBODY for each in partitions),
        "moving": sum(each.is_moving for each in partitions),
    }


def _format_finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "problem": finding.is_problem,
        "text": finding.text,
        "next": finding.next_step,
    }


# --- for people


def print_status(status: Mapping[str, Any]) -> None:
    count = status["partitions"]
    verdict = _colour("healthy", "green") if status["healthy"] else _colour("NOT HEALTHY", "red")
    up = sum(broker["up"] for broker in status["brokers"])
    click.echo(
        f"cluster {status['cluster']}: {verdict} · {up} of {count_of(len(status['brokers']), 'broker')} up · "
        f"{count_of(count['total'], 'partition')} · "
        f"controller {'none' if status['controller'] == NOBODY else status['controller']}"
    )
    print_brokers(status["brokers"])
    for finding in sorted(status["findings"], key=lambda each: not each["problem"]):
        sign = _colour("✗", "red") if finding["problem"] else "·"
        click.echo(f"{sign} {finding['text']}")
        click.echo(f"  → {finding['next']}")


def _colour(text: str, colour: str) -> str:
    """click takes it out again where there is no terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def print_brokers(rows: list[dict[str, Any]]) -> None:
    cells = [
        [
            f"{row['broker']}{'*' if row['controller'] else ''}",
            f"{row['host']}:{row['port']}" if row["host"] else None,
            row["rack"],
            "DOWN" if not row["up"] else "up" if row["answers"] else "SILENT",
            row["leaders"],
            row["replicas"],
            None if row["bytes"] is None else format_bytes(row["bytes"]),
            None if row["disk_bytes"] is None else f"{1 - row['free_bytes'] / row['disk_bytes']:.0%}",
            row["cordon"] or "",
            f"{format_bytes(row['throttle'])}/s" if row["throttle"] else "",
        ]
        for row in rows
    ]
    heads = ["broker", "address", "rack", "state", "leaders", "replicas", "bytes", "disk", "cordon"]
    if any(row["throttle"] for row in rows):
        heads.append("throttle")
    print_table([row[: len(heads)] for row in cells], heads)


def print_topics(rows: list[dict[str, Any]], *, troubled: bool = False) -> None:
    if not rows:
        note_none("topics", narrowed=troubled, way_out=MAKE_A_TOPIC)
        return
    cells = [
        [
            row["topic"],
            row["partitions"],
            row["replication"],
            row["min_isr"],
            format_bytes(row["bytes"]),
            *(row[key] or "" for key in (*_TROUBLES, "moving")),
        ]
        for row in rows
    ]
    print_table(
        cells,
        ["topic", "partitions", "replicas", "min ISR", "bytes", "under-replicated", "below min", "no leader", "moving"],
    )


COMMANDS: Final = (status, check, brokers, topics)
