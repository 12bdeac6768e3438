"""What can be done to a cluster, and how it is undone. A fault is a context: it is there inside, and gone behind.

What `Arena.heal` undoes anyway (packets dropped, processes dead or asleep, wrong clocks) is left to it.
"""

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from confluent_kafka import Producer

from tests.chaos.load import wait_until
from tests.cluster.cluster_process import View

from . import network
from .arena import Arena
from .machines import Machine
from .network import Drop
from .replicas import decisions

_REFUSED_WITHIN_S = 60.0
_LEASES_END_S = 8.0
_LATE_S = 30.0
_ACCEPT = "cluster.accept_older_store"
Target = Literal["leader", "follower", "controller", "any", "mortal"]


@dataclass(slots=True)
class Scene:
    """Where a fault happens, and what is to be told of it.

    Attributes:
        victims: the brokers it happens to.
        notes: what was done, for a person.
        view: who led what before.
        spared: a broker that shall not end.
        ended: brokers that end by themselves because of the fault.
    """

    arena: Arena
    topic: str
    coin: random.Random
    seconds: float
    view: View
    victims: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    spared: int = 0
    ended: set[int] = field(default_factory=set)

    def choose(self, target: Target) -> Machine:
        """A broker by its part in partition 0 or in the cluster; it counts as a victim."""
        state = self.view[0]
        number = {
            "leader": lambda: state.leader,
            "follower": lambda: self.coin.choice([each for each in state.replicas if each != state.leader]),
            "controller": self.controller,
            "any": lambda: self.coin.choice(sorted(self.arena.machines)),
            "mortal": lambda: self.coin.choice(self.arena.others(self.spared)),
        }[target]()
        self.victims.add(number)
        return self.arena.machines[number]

    def controller(self) -> int:
        ((_, value, _),) = self.arena.etcd.get("/penstock/controller")
        return int(json.loads(value)["id"])

    def note(self, text: str) -> None:
        self.notes.append(text)


Fault = Callable[[Scene], AbstractContextManager[None]]


def pass_time(seconds: float) -> None:
    """Not waiting for anything: how long a fault lasts is what is being tried."""
    time.sleep(seconds)


# --- processes


def kill(target: Target, times: int = 1) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        for round_ in range(times):
            if round_:
                victim.launch()
                pass_time(scene.coin.uniform(0.05, 1.0))
            victim.kill()
        scene.note(f"broker {victim.id} ({target}) killed {times}x")
        yield

    return fault


def kill_some(number: int) -> Fault:
    """So many at once, the leader of partition 0 first; with all of them, they are started again at once."""

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        leader = scene.view[0].leader
        order = [leader, *(each for each in scene.arena.machines if each != leader)]
        for each in order[:number]:
            scene.victims.add(each)
            scene.arena.machines[each].kill()
        scene.note(f"brokers {order[:number]} killed at once")
        if number == len(order):
            scene.arena.cluster.start()
        yield

    return fault


def stop(target: Target) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        code = victim.stop()
        assert code == 0, f"broker {victim.id} ended with {code} when it was asked to stop"
        scene.note(f"broker {victim.id} ({target}) stopped by SIGTERM")
        yield

    return fault


def pause(target: Target) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        victim.pause()
        scene.note(f"broker {victim.id} ({target}) stands still")
        yield
        victim.resume()

    return fault


def pause_again_and_again(target: Target, asleep_s: float, awake_s: float) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim, until = scene.choose(target), time.monotonic() + scene.seconds
        while time.monotonic() < until:
            victim.pause()
            pass_time(asleep_s)
            victim.resume()
            pass_time(awake_s)
        scene.note(f"broker {victim.id} ({target}) stands still for {asleep_s:g} s every {asleep_s + awake_s:g} s")
        yield

    return fault


def rolling_restart(times: int = 1) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        for _ in range(times):
            for machine in scene.arena.machines.values():
                code = machine.stop()
                assert code == 0, f"broker {machine.id} ended with {code} when it was asked to stop"
                machine.start()
                scene.arena.cluster.wait_whole(scene.topic)
        scene.note("every broker stopped by SIGTERM and started, one after the other" + f", {times}x" * (times > 1))
        yield

    return fault


@contextmanager
def rolling_kills(scene: Scene) -> Iterator[None]:
    for machine in scene.arena.machines.values():
        machine.kill()
        machine.start()
        scene.arena.cluster.wait_whole(scene.topic)
    scene.note("every broker killed and started, one after the other")
    yield


# --- network


def cut(
    drops: Callable[[int, list[int]], list[Drop]], target: Target = "leader", *, hides: bool = False, what: str
) -> Fault:
    """Args:
    drops: of the victim and the others, which packets.
    hides: whether clients cannot ask the victim any more.
    """

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        lost = drops(victim.id, scene.arena.others(victim.id))
        scene.arena.drop(lost, hidden=[victim.id] if hides else [])
        pass_time(0.1)
        scene.note(f"broker {victim.id} ({target}): {what}")
        yield
        check_dropped(scene)

    return fault


def check_dropped(scene: Scene) -> None:
    assert scene.arena.network.counted() > 0, "no packet was dropped: the fault was not there"


def flapping(target: Target, each_s: float, drops: Callable[[int, list[int]], list[Drop]], what: str) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim, until, rounds = scene.choose(target), time.monotonic() + scene.seconds, 0
        while time.monotonic() < until:
            scene.arena.drop(drops(victim.id, scene.arena.others(victim.id)))
            pass_time(each_s)
            check_dropped(scene)
            scene.arena.network.heal()
            pass_time(each_s)
            rounds += 1
        scene.note(f"broker {victim.id} ({target}): {what}, {rounds}x for {each_s:g} s every {2 * each_s:g} s")
        yield

    return fault


@contextmanager
def random_grudges(scene: Scene) -> Iterator[None]:
    """Every second another pair of machines does not hear each other, sometimes one way only."""
    until, rounds = time.monotonic() + scene.seconds, 0
    while time.monotonic() < until:
        first, second = scene.coin.sample(sorted(scene.arena.machines), 2)
        ways = network.both_ways if scene.coin.random() < 0.5 else network.one_way
        scene.arena.network.heal()
        scene.arena.network.drop(ways(first, second))
        pass_time(1.0)
        check_dropped(scene)
        rounds += 1
    scene.note(f"{rounds} random grudges of a second each")
    yield


def lossy(percent: int) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        for number in scene.arena.machines:
            scene.arena.network.drop(network.loss(number, percent))
        scene.note(f"{percent} % of all packets lost on every machine")
        yield
        check_dropped(scene)

    return fault


# --- etcd


def etcd_kill(
    which: Literal["leader", "follower", "all"], *, pauses: bool = False, also_killed: Target | None = None
) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        etcd = scene.arena.etcd
        leader = etcd.leader()
        members = {
            "leader": [leader],
            "follower": [next(each for each in etcd.members if each != leader)],
            "all": etcd.members,
        }[which]
        for member in members:
            if pauses:
                etcd.signal(member, signal.SIGSTOP)
            else:
                etcd.kill(member)
        scene.note(f"etcd members {members} ({which}) {'stand still' if pauses else 'killed'}")
        if also_killed is not None:
            victim = scene.choose(also_killed)
            victim.kill()
            scene.note(f"broker {victim.id} ({also_killed}) killed")
        yield
        if pauses:
            for member in members:
                etcd.signal(member, signal.SIGCONT)

    return fault


@contextmanager
def etcd_stopped(scene: Scene) -> Iterator[None]:
    """All members are asked to stop. A client that comes then finds its leaders, too."""
    arena, topic = scene.arena, f"{scene.topic}-late"
    arena.cluster.create_topic(topic, 3)
    arena.etcd.stop_gently()
    pass_time(_LEASES_END_S)
    late = Producer({"bootstrap.servers": arena.cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    told: list[object] = []
    for partition in range(3):
        late.produce(topic, b"late", partition=partition, on_delivery=lambda error, _: told.append(error))
    late.flush(_LATE_S)
    assert told == [None] * 3, f"a client that came while etcd was away was told {told}"
    scene.note("all etcd members stopped by SIGTERM; a new client wrote to three partitions")
    yield


@contextmanager
def etcd_put_back(scene: Scene) -> Iterator[None]:
    """An old copy of etcd under running brokers: each ends, none starts, until an operator says that it shall."""
    arena = scene.arena
    leader = scene.choose("leader")
    arena.etcd.keep_copy()
    leader.kill()
    leader.start()
    arena.cluster.wait_whole(scene.topic)
    arena.forgotten = decisions(arena.etcd, scene.topic)
    arena.etcd.put_copy_back()
    scene.ended.update(arena.machines)
    for machine in arena.machines.values():
        wait_until(lambda each=machine: not each.is_running, _REFUSED_WITHIN_S, f"broker {machine.id} ended")
        machine.launch()
        wait_until(lambda each=machine: not each.is_running, _REFUSED_WITHIN_S, f"broker {machine.id} did not start")
        told = machine.log.read_text().splitlines()[-1]
        assert _ACCEPT in told, f"broker {machine.id} does not say why it refuses: {told}"
    for machine in arena.machines.values():
        machine.environment = {**machine.environment, "PENSTOCK_CLUSTER__ACCEPT_OLDER_STORE": "true"}
    arena.cluster.start()
    scene.note(
        "etcd of before a change of leaders put back; every broker ended and refused, then was told to accept it"
    )
    yield


# --- clocks


def clock_shift(target: Target, seconds: int) -> Fault:
    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        victim = scene.choose(target)
        victim.shift_clock(seconds)
        scene.note(f"the wall clock of broker {victim.id} ({target}) is {seconds:+,} s wrong")
        yield

    return fault
