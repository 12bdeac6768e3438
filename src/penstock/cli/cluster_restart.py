"""`penstock cluster restart`: one broker after the other, the next only when the cluster is whole again.

That a broker has really been away shows in the leader epochs of what it led: every hand-over raises them. One that led
nothing has to be seen away, or out of sync; so pictures are taken while the command runs, too. A command that returns
before it has stopped anything therefore does not pass for a restart. One that holds nothing leaves no trace when it
comes back between two pictures: it need not be waited for, and the answer says that nobody can tell.
"""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from penstock.cli.cluster_changes import elect
from penstock.cli.cluster_execution import BrokerIds
from penstock.cli.cluster_health import blockers, outages, problems
from penstock.cli.cluster_patience import POLL_S, try_again
from penstock.cli.cluster_view import DRAINED, Broker, Picture, View
from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, show

_GATE_S: Final = 300.0
_LOOK_EVERY_S: Final = 0.5
"""While the command runs."""


@click.command(
    "restart",
    short_help="Restart one broker after the other.",
    help="""Restart brokers one after the other, for new settings or a new version. Before each: the cluster is healthy
    ('check'), and every partition goes on without it. Then the command runs. After each: the broker was away and is
    back, everything is in sync, and it leads again what it should. The first failure ends it, and it says what is left
    to do.

    In COMMAND, {id}, {host}, {port} and {rack} stand for the broker's own. It runs here, without a shell; what it
    prints goes to standard error. It may take as long as --gate says.""",
    epilog="""\b
Examples:
  penstock cluster restart --command 'ssh {host} systemctl restart penstock@{id}'
  penstock cluster restart --command 'ssh {host} systemctl restart penstock@{id}' --brokers 1,2,3 --yes
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
    help="How long the cluster may take to be whole, before and after each, and COMMAND to end.",
)
@click.option(
    "--yes-stop-writes",
    is_flag=True,
    help="Do not ask whether partitions may refuse writes, or have no leader, while a broker is away.",
)
@click.option("--dry-run", is_flag=True, help="Show what would run, and run nothing.")
@yes_option
@output_option
@server_options
def restart(
    words: str,
    broker_ids: tuple[int, ...] | None,
    gate_s: float,
    yes_stop_writes: bool,
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
        stops = [finding.text for each in brokers for finding in outages(picture, each.id)]
        for text in stops:
            note(text)
        done: dict[int, bool] = {}

        def fields() -> dict[str, Any]:
            unproven = [each for each, proven in done.items() if not proven]
            return {"dry_run": dry_run, "restarted": list(done), "unproven": unproven, "plan": plan}

        if not dry_run:
            if stops and not yes_stop_writes and not _agree_to_stop(yes):
                return FAILED
            if not yes and not confirm(_question(brokers), "nothing was done"):
                return FAILED
            try:
                _restart_all(view, brokers, words, gate_s, done, may_stop=bool(stops))
            except (CommandError, KeyboardInterrupt):
                show(fields(), output, lambda: None)
                raise
    says = "would be restarted" if dry_run else "restarted"
    show(fields(), output, lambda: click.echo(f"{count_of(len(brokers), 'broker')} {says}"))
    return None


def _question(brokers: Sequence[Broker]) -> str:
    one_by_one = ", one after the other" if len(brokers) > 1 else ""
    return f"Restart {count_of(len(brokers), 'broker')}{one_by_one}?"


def _agree_to_stop(yes: bool) -> bool:
    if yes:
        told = (
            "partitions would refuse writes meanwhile, which --yes does not cover: give them more replicas, or a lower"
        )
        raise CommandError(f"{told} min.insync.replicas, or say --yes-stop-writes", code=USAGE)
    return confirm("They will refuse writes, or reads as well, meanwhile. Go on?", "nothing was done")


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


def _restart_all(
    view: View, brokers: Sequence[Broker], words: str, gate_s: float, done: dict[int, bool], *, may_stop: bool
) -> None:
    """`done` gets each that is back, with whether it was seen to have been away."""
    for at, broker in enumerate(brokers):
        left = ",".join(str(each.id) for each in brokers[at:])
        try:
            done[broker.id] = _restart_one(view, broker, words, gate_s, may_stop=may_stop)
        except CommandError as error:
            raise CommandError(f"{error}; when that is mended, go on with --brokers {left}", code=error.code) from None
        except KeyboardInterrupt:
            note(f"\nbroker {broker.id} may be restarting; to go on: --brokers {left}")
            raise


def _restart_one(view: View, broker: Broker, words: str, gate_s: float, *, may_stop: bool) -> bool:
    """Returns when it is back; whether it is certain that it was away."""

    def why_wait(picture: Picture) -> str:
        found = [*problems(picture), *([] if may_stop else blockers(picture, broker.id))]
        return "; ".join(dict.fromkeys(each.text for each in found))

    before = _wait(view, gate_s, f"before broker {broker.id} is restarted", why_wait)
    absence = Absence(before, broker.id)
    note(f"broker {broker.id}: restarting")
    began = time.monotonic()

    def see() -> None:
        with suppress(CommandError):  # whatever a broker says that is about to end, the command goes on
            absence.see(view.fetch(sizes=False))

    _run(_command(words, broker), gate_s, see)

    def why_not(picture: Picture) -> str:
        absence.see(picture)
        if absence.leaves_traces and not absence.is_proven:
            return f"broker {broker.id} was not away since the command ran"
        found = picture.brokers.get(broker.id)
        if found is None or not found.is_up:
            return f"broker {broker.id} is not back"
        return _why_unhealthy(picture)

    _wait(view, gate_s, f"after broker {broker.id} was restarted", why_not)
    _wait(
        view, gate_s, f"after broker {broker.id} was restarted", lambda picture: _lead_again(view, picture, broker.id)
    )
    if absence.is_proven:
        note(f"broker {broker.id}: back and in sync after {time.monotonic() - began:.1f} s")
    else:
        note(
            f"broker {broker.id}: it runs, and holds nothing, so nobody can tell whether it was away; "
            "its log says when it started"
        )
    return absence.is_proven


def _run(command: Sequence[str], limit_s: float, look: Callable[[], None]) -> None:
    """Run the operator's command, and look at the cluster every so often. Raises `CommandError`."""
    deadline = time.monotonic() + limit_s
    try:
        process = subprocess.Popen(command, stdout=sys.stderr)  # noqa: S603 - the operator's own
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be run: {error.strerror}", code=USAGE) from None
    with process:
        try:
            while (code := _code_within(process, min(_LOOK_EVERY_S, limit_s))) is None:
                if time.monotonic() >= deadline:
                    raise CommandError(f"{shlex.join(command)} did not end within {limit_s:g} s")
                look()
        except BaseException:
            process.kill()
            raise
    if code:
        raise CommandError(f"{shlex.join(command)} ended with {code}")


def _code_within(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


class Absence:
    """Whether a broker was away, by pictures since the one before it was restarted.

    Attributes:
        leaves_traces: whether it shows afterwards, even if no picture was taken meanwhile.
    """

    def __init__(self, before: Picture, broker_id: int) -> None:
        self._broker_id = broker_id
        self._led = {each.place: each.epoch for each in before.led_by(broker_id)}
        self.leaves_traces = bool(before.held_by(broker_id))
        self.is_proven = False

    def see(self, picture: Picture) -> None:
        found = picture.brokers.get(self._broker_id)
        if found is None or not found.is_up:
            self.is_proven = True
        elif self._led:
            self.is_proven |= any(each.epoch > self._led.get(each.place, each.epoch) for each in picture.partitions)
        else:
            held = [each for each in picture.held_by(self._broker_id) if not each.is_moving]
            self.is_proven |= any(self._broker_id not in each.isr for each in held)


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
    if not strayed:
        return ""
    told = f"others lead {count_of(len(strayed), 'partition')} that broker {broker_id} should lead"
    try:
        _, refused = elect(view, [each.place for each in strayed])
    except CommandError as error:  # brokers come and go meanwhile; the next picture tries again
        return f"{told}: {error}"
    return f"{told}: {next(iter(refused.values()))}" if refused else told


def _wait(view: View, gate_s: float, when: str, why_not: Callable[[Picture], str]) -> Picture:
    """The first picture with nothing against it. Raises `CommandError` with the last reason."""
    deadline = time.monotonic() + gate_s
    reason = "no broker answers"
    while True:
        picture = try_again(lambda: view.fetch(store=True))
        if picture is not None:
            reason = why_not(picture)
            if not reason:
                return picture
        if time.monotonic() >= deadline:
            raise CommandError(f"the cluster is not whole {when}, {gate_s:g} s long: {reason}")
        time.sleep(POLL_S)


COMMANDS: Final = (restart,)
