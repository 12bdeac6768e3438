"""What disks do to brokers: calls that fail or take long, no room, lost power, and syncs that were lies."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.chaos.load import wait_until
from tests.chaos.power_disk import CutKind

from .faults import Fault, Scene, Target, pass_time
from .machines import Machine

_SYNCS = "fsync,fdatasync,syncfs"
_ENDS_WITHIN_S = 30.0
_ALONE_S = 5.0


def injected(target: Target, injection: str, what: str, *, calls: str = _SYNCS, ends: bool = False) -> Fault:
    """System calls of a running broker fail or take long: strace attaches to it, and lets go in the end.

    Args:
        ends: the broker stops itself for it, with an exit code that says so.
    """

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        output = scene.arena.directory / f"strace-{victim.id}"
        tracer = _attach(victim, calls, injection, output)
        scene.note(f"broker {victim.id} ({target}): {what}")
        try:
            yield
            seen = output.read_text(errors="replace")
            assert "INJECTED" in seen or "DELAYED" in seen, f"no call was injected: {calls} of {victim.id}"
            if ends:
                scene.ended.add(victim.id)
                wait_until(lambda: victim.has_crashed, _ENDS_WITHIN_S, f"broker {victim.id} stopped itself")
        finally:
            tracer.terminate()
            tracer.wait()

    return fault


def _attach(victim: Machine, calls: str, injection: str, output: Path) -> "subprocess.Popen[bytes]":
    pid = victim.process.pid
    command = ["strace", "-f", "-qq", "-p", str(pid), "-e", f"trace={calls}", "-e", f"inject={calls}:{injection}"]
    tracer = subprocess.Popen([*command, "-o", str(output)], stdin=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")

    def is_attached() -> bool:
        """Or has been: what it injects may end the broker at once."""
        return "TracerPid:\t0\n" not in status.read_text() or (output.exists() and output.stat().st_size > 0)

    wait_until(is_attached, 10, f"strace has attached to {pid}")
    return tracer


def full_disk(targets: Sequence[Target]) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victims = [scene.choose(target) for target in targets]
        for victim in victims:
            assert victim.disk is not None
            victim.disk.fill()
        scene.note(f"the disks of brokers {[victim.id for victim in victims]} are full")
        yield
        for victim in victims:
            assert victim.disk is not None
            victim.disk.free()

    return fault


def power_cut(who: Literal["leader", "follower", "all"], kind: CutKind) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victims = list(scene.arena.machines.values()) if who == "all" else [scene.choose(who)]
        for victim in victims:
            scene.victims.add(victim.id)
            victim.kill()
        lost = 0
        for victim in victims:
            assert victim.disk is not None
            victim.disk.power.cut(kind, scene.coin.getrandbits(32))
            lost += _lost_bytes(victim)
        scene.note(f"power cut ({kind}) of brokers {[victim.id for victim in victims]}, {lost:,} unsynced bytes lost")
        if who == "all":
            scene.arena.cluster.start()
        yield

    return fault


def lost_syncs(who: Literal["follower", "all"]) -> Fault:
    """A disk that says yes to every sync and does nothing, and then loses its power."""

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victims = list(scene.arena.machines.values()) if who == "all" else [scene.choose(who)]
        before = sum(_lost_bytes(victim) for victim in victims)
        outputs = [scene.arena.directory / f"strace-{victim.id}" for victim in victims]
        tracers = [_attach(victim, _SYNCS, "retval=0", out) for victim, out in zip(victims, outputs, strict=True)]
        pass_time(scene.seconds / 2)
        for victim, tracer in zip(victims, tracers, strict=True):
            victim.kill()
            tracer.wait()
        for victim in victims:
            assert victim.disk is not None
            victim.disk.power.cut("drop")
        lost = sum(_lost_bytes(victim) for victim in victims) - before
        assert lost > 0, "nothing was lost: the syncs were carried out"
        ids = [victim.id for victim in victims]
        scene.note(f"the disks of brokers {ids} ({who}) lied about syncs and lost {lost:,} bytes with the power")
        scene.arena.cluster.start()
        yield

    return fault


def _lost_bytes(victim: Machine) -> int:
    assert victim.disk is not None
    return int(victim.disk.power.state()["lost_bytes"])


@contextmanager
def last_replica_standing(scene: Scene) -> Iterator[None]:
    """KIP-966's: the followers leave, the last one loses what it did not sync and comes back alone: it leads nothing.

    Then the followers come back.
    """
    leader = scene.choose("leader")
    followers = [scene.arena.machines[each] for each in scene.arena.others(leader.id)]
    codes = [follower.stop() for follower in followers]
    assert codes == [0, 0], f"brokers {[each.id for each in followers]} ended with {codes}"
    pass_time(1.0)
    leader.kill()
    assert leader.disk is not None
    leader.disk.power.cut("drop")
    leader.start()
    pass_time(_ALONE_S)
    assert leader.view(scene.topic)[0].leader == -1, f"broker {leader.id} leads, and may have lost what it had"
    for follower in followers:
        follower.launch()
    for follower in followers:
        follower.wait_ready()
    ids = [each.id for each in followers]
    scene.note(f"brokers {ids} stopped, {leader.id} lost its power and came back alone, then the others")
    yield
