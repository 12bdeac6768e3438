"""`penstock cluster restart`: one broker after the other, the next only when the cluster is whole again.

That a broker has really been away shows in the leader epochs of what it led: every hand-over raises them. A command
that returns before it has stopped anything therefore does not pass for a restart.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from penstock.cli.cluster_changes import elect
from penstock.cli.cluster_execution import BrokerIds
from penstock.cli.cluster_health import problems
from penstock.cli.cluster_progress import POLL_S, try_again
from penstock.cli.cluster_view import DRAINED, Broker, Partition, Picture, View
from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import note, output_option, print_table, show

_GATE_S: Final = 300.0


@click.command(
    "restart",
    short_help="Restart one broker after the other.",
    help="""Restart brokers one after the other, for new settings or a new version. Before each: the cluster is healthy
    ('check'). Then the command runs. After each: the broker was away and is back, everything is in sync, and it leads
    again what it should. The first thing that goes wrong ends it, with what is left to do.

    In COMMAND, {id}, {host}, {port} and {rack} stand for the broker's own. It runs here, without a shell; what it
    prints goes to standard error.""",
    epilog="""\b
Examples:
  penstock cluster restart --command 'systemctl restart penstock@{id}'
  penstock cluster restart --command 'ssh {host} systemctl restart penstock' --brokers 1,2,3 --yes
  penstock cluster restart --command 'kubectl delete pod penstock-{id}' --gate 600""",
)
@click.option("--command", "words", metavar="COMMAND", required=True, help="What restarts one broker.")
@click.option(
    "--brokers", "broker_ids", metavar="ID,ID...", type=BrokerIds(), help="Which, in this order (default: all)."
)
@click.option(
    "--gate",
    "gate_s",
    metavar="SECONDS",
    type=click.FloatRange(1, 86_400),
    default=_GATE_S,
    show_default=True,
    help="How long the cluster may take to be whole, before and after each.",
)
@click.option("--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@yes_option
@output_option
@server_options
def restart(
    words: str,
    broker_ids: tuple[int, ...] | None,
    gate_s: float,
    dry_run: bool,
    yes: bool,
    output: str,
    server: Server,
) -> int | None:
    with View(server) as view:
        picture = view.fetch(sizes=False)
        brokers = _choose(picture, broker_ids)
        plan = [{"broker": each.id, "command": shlex.join(_command(words, each))} for each in brokers]
        if output == "table":
            print_table([list(row.values()) for row in plan], ["broker", "command"])
        if not dry_run:
            if not yes and not confirm(f"Restart {len(brokers)} brokers, one after the other?", "nothing was done"):
                return FAILED
            _restart_all(view, brokers, words, gate_s)
    done = "would be restarted" if dry_run else "restarted"
    fields: dict[str, Any] = {"dry_run": dry_run, "restarted": [] if dry_run else [each.id for each in brokers]}
    show({**fields, "plan": plan}, output, lambda: click.echo(f"{len(brokers)} brokers {done}"))
    return None


def _choose(picture: Picture, broker_ids: Sequence[int] | None) -> list[Broker]:
    """All of them if none are named, the controller last: it elects while the others are away."""
    if broker_ids is not None:
        return [picture.broker(each) for each in broker_ids]
    found = sorted(picture.brokers.values(), key=lambda each: (each.id == picture.controller, each.id))
    if down := [each.id for each in found if not each.is_up]:
        raise CommandError(f"broker {down[0]} is not running; start it first, or name others with --brokers")
    return found


def _command(words: str, broker: Broker) -> list[str]:
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise CommandError(f"--command {words!r}: {error}", code=USAGE) from None
    if not split:
        raise CommandError("--command is empty", code=USAGE)
    fields = {"{id}": str(broker.id), "{host}": broker.host, "{port}": str(broker.port), "{rack}": broker.rack or ""}
    return [_fill(word, fields) for word in split]


def _fill(word: str, fields: dict[str, str]) -> str:
    for name, value in fields.items():
        word = word.replace(name, value)
    return word


def _restart_all(view: View, brokers: Sequence[Broker], words: str, gate_s: float) -> None:
    for at, broker in enumerate(brokers):
        left = ",".join(str(each.id) for each in brokers[at:])
        try:
            _restart_one(view, broker, words, gate_s)
        except CommandError as error:
            raise CommandError(f"{error}; when that is mended, go on with --brokers {left}", code=error.code) from None
        except KeyboardInterrupt:
            note(f"\nbroker {broker.id} may be restarting; to go on: --brokers {left}")
            raise


def _restart_one(view: View, broker: Broker, words: str, gate_s: float) -> None:
    before = _wait(view, gate_s, f"before broker {broker.id} is restarted", _why_unhealthy)
    led = {each.place: each for each in before.led_by(broker.id)}
    note(f"broker {broker.id}: restarting")
    began = time.monotonic()
    command = _command(words, broker)
    try:
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode  # noqa: S603 - the operator's own
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be run: {error.strerror}", code=USAGE) from None
    if code:
        raise CommandError(f"{shlex.join(command)} ended with {code}")
    seen_away: list[bool] = []

    def why_not(picture: Picture) -> str:
        if _was_away(picture, broker.id, led):
            seen_away.append(True)
        if led and not seen_away:
            return f"broker {broker.id} was not away since the command ran"
        return _why_unhealthy(picture)

    _wait(view, gate_s, f"after broker {broker.id} was restarted", why_not)
    _wait(
        view, gate_s, f"after broker {broker.id} was restarted", lambda picture: _lead_again(view, picture, broker.id)
    )
    note(f"broker {broker.id}: back and in sync after {time.monotonic() - began:.1f} s")


def _was_away(picture: Picture, broker_id: int, led: dict[tuple[str, int], Partition]) -> bool:
    found = picture.brokers.get(broker_id)
    if found is None or not found.is_up:
        return True
    return any(each.place in led and each.epoch > led[each.place].epoch for each in picture.partitions)


def _why_unhealthy(picture: Picture) -> str:
    return "; ".join(each.text for each in problems(picture))


def _lead_again(view: View, picture: Picture, broker_id: int) -> str:
    """Have it lead what it should; what is still missing."""
    broker = picture.brokers.get(broker_id)
    if broker is not None and broker.cordon == DRAINED:
        return ""
    strayed = [
        each
        for each in picture.partitions
        if each.replicas[0] == broker_id and each.leader != broker_id and not each.is_moving
    ]
    if strayed:
        elect(view, [each.place for each in strayed])
        return f"{len(strayed)} partitions that broker {broker_id} should lead are led by others"
    return ""


def _wait(view: View, gate_s: float, when: str, why_not: Callable[[Picture], str]) -> Picture:
    """The first picture with nothing against it. Raises `CommandError` with the last reason."""
    deadline = time.monotonic() + gate_s
    reason = "no broker answers"
    while True:
        picture = try_again(lambda: view.fetch())
        if picture is not None:
            reason = why_not(picture)
            if not reason:
                return picture
        if time.monotonic() >= deadline:
            raise CommandError(f"the cluster is not whole {when}, {gate_s:g} s long: {reason}")
        time.sleep(POLL_S)


COMMANDS: Final = (restart,)
