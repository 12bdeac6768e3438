"""What ends or goes away that brokers and clients are trusted by: a certificate, the store that rules are kept in."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.chaos.load import wait_until
from tests.conformance.wire import Wire

from .arena import Arena
from .faults import Fault, Scene, Target, pass_time
from .machines import Machine
from .moves import lead
from .trust import CALL_S, FORBIDDEN, Trust, rule

_SHORT_S = (12.0, 24.0, 48.0)
"""Long enough for a start, also on a busy machine."""
_TOLD_S = 30.0
_AGREED_S = 30.0
_BATCH = 12
_ASK_S = 5.0
_REFUSED = 29


def expired_certificate(target: Target) -> Fault:
    """The certificate that a broker shows other brokers ends while it runs, and a good one comes late.

    It has shown that one on all its connections, and leads again what it led.
    """

    @contextmanager
    def fault(scene: Scene) -> Iterator[None]:
        trust, victim = scene.arena.trust, scene.choose(target)
        assert trust is not None
        file = str(trust.certificate(victim.id))
        led = [index for index, state in scene.view.items() if state.leader == victim.id]
        ends = _restart_with_short_one(scene, victim, led)
        size = victim.log.stat().st_size
        pass_time(ends - time.time())
        scene.note(f"the certificate of broker {victim.id} ({target}) has ended")
        wait_until(
            lambda: any(file in line and "has ended" in line for line in victim.log.read_text()[size:].splitlines()),
            _TOLD_S,
            f"broker {victim.id} says that {file} has ended",
        )
        wait_until(lambda: _is_left_out(scene, victim.id, led), _TOLD_S, f"the others go on without broker {victim.id}")
        yield
        assert victim.is_running, f"broker {victim.id} ended with its certificate"
        trust.issue(victim.id)  # it looks by itself

    return fault


def _restart_with_short_one(scene: Scene, victim: Machine, led: list[int]) -> float:
    """When its certificate ends."""
    assert scene.arena.trust is not None
    for good_for_s in _SHORT_S:
        victim.stop()
        ends = scene.arena.trust.issue(victim.id, good_for_s)
        victim.start()
        scene.arena.cluster.wait_whole(scene.topic)
        if led:
            lead(scene.arena, scene.topic, led, victim.id)
        if time.time() < ends:
            return ends
    raise AssertionError("each certificate has ended before the broker was back")


def _is_left_out(scene: Scene, victim: int, led: list[int]) -> bool:
    """Whether what others lead is committed without it."""
    view = scene.arena.cluster.view(scene.topic) or {}
    return bool(view) and all(victim not in state.isr for index, state in view.items() if index not in led)


# --- rules


class Outcome(Enum):
    WHOLE = 1
    REFUSED = 2
    """It may have been made all the same, whole."""
    HALF = 3


@dataclass(slots=True)
class Change:
    """A batch of rules about one principal, made by one request and perhaps removed by another."""

    principal: str
    made: Outcome | None = None
    removed: Outcome | None = None
    told: set[str] = field(default_factory=set)

    @property
    def allowed(self) -> set[int]:
        """How many of its rules there may be."""
        if self.removed is Outcome.WHOLE:
            return {0}
        if self.made is Outcome.WHOLE and self.removed is None:
            return {_BATCH}
        return {0, _BATCH}


class Changing:
    """Changes rules all the time, from a thread. Use as a context manager."""

    def __init__(self, trust: Trust, brokers: list[int]) -> None:
        self._trust, self._brokers = trust, brokers
        self.changes: list[Change] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changing", daemon=True)

    def __enter__(self) -> "Changing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def count(self, outcome: Outcome) -> int:
        return sum(change.made is outcome for change in self.changes)

    def _run(self) -> None:
        admins = [self._trust.admin(broker) for broker in self._brokers]
        number = 0
        while not self._is_over.wait(0.02):
            admin = admins[number % len(admins)]
            change = Change(f"User:batch-{number}")
            names = [f"batch-{number}-{index}" for index in range(_BATCH)]
            rules = [rule(change.principal, ResourceType.TOPIC, name, AclOperation.READ) for name in names]
            change.made = _outcome(change, list(admin.create_acls(rules, request_timeout=_ASK_S).values()))
            self.changes.append(change)
            if number % 2 and change.made is Outcome.WHOLE:
                removal = admin.delete_acls([_about(change.principal)], request_timeout=_ASK_S)
                change.removed = _outcome(change, list(removal.values()))
            number += 1


def _outcome(change: Change, answers: "list[object]") -> Outcome:
    refused = 0
    for answer in answers:
        try:
            answer.result(CALL_S)  # type: ignore[attr-defined]
        except KafkaException as error:
            change.told.add(str(error.args[0]))
            refused += 1
    return Outcome.WHOLE if not refused else Outcome.REFUSED if refused == len(answers) else Outcome.HALF


def _about(principal: str) -> AclBindingFilter:
    anything = (ResourceType.ANY, None, ResourcePatternType.ANY, principal, None)
    return AclBindingFilter(*anything, AclOperation.ANY, AclPermissionType.ANY)


@contextmanager
def etcd_away_while_rules_change(scene: Scene) -> Iterator[None]:
    """Rules are changed before, meanwhile and after; those of before stay in force on every broker."""
    arena = scene.arena
    assert arena.trust is not None
    with Changing(arena.trust, sorted(arena.machines)) as changing:
        wait_until(lambda: changing.count(Outcome.WHOLE) >= 10, _AGREED_S, "rules are changed")
        for member in arena.etcd.members:
            arena.etcd.kill(member)
        before = len(changing.changes)
        _check_rules(arena)
        yield
        _check_rules(arena)
        # The first of them may have begun before the store was away; each may take as long as its client waits.
        wait_until(lambda: len(changing.changes) > before + 2, _AGREED_S, "changes are refused")
        taken = [each.principal for each in changing.changes[before + 1 :] if not each.told]
        assert not taken, f"changes were taken while the store was away: {taken}"
        arena.etcd.start_all()
        after = changing.count(Outcome.WHOLE)
        wait_until(lambda: changing.count(Outcome.WHOLE) > after + 3, _AGREED_S, "rules can be changed again")
    counts = {outcome: changing.count(outcome) for outcome in Outcome}
    scene.note(
        f"etcd away while rules change, {_BATCH} at a time: {counts[Outcome.WHOLE]} changes taken, "
        f"{counts[Outcome.REFUSED]} refused"
    )
    _check_changes(arena, changing.changes)
    _check_rules(arena)


def _check_rules(arena: Arena) -> None:
    """On every broker: who logs in is let in, and what nobody may know of is not told to anybody."""
    assert arena.trust is not None
    for number, machine in arena.machines.items():
        arena.trust.admin(number).list_topics(timeout=CALL_S)
        with Wire(machine.bootstrap) as wire:
            answer = wire.call(
                "metadata",
                9,
                topics=[{"name": FORBIDDEN}],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
        assert answer.topics[0].error_code.value == _REFUSED, f"broker {number} told of a topic that is forbidden"


def _check_changes(arena: Arena, changes: list[Change]) -> None:
    """Every broker has all of a change, or nothing of it; and what it said was done."""
    assert arena.trust is not None
    half = [change for change in changes if Outcome.HALF in (change.made, change.removed)]
    assert not half, f"taken by half: {half[:3]}"
    for number in arena.machines:
        admin = arena.trust.admin(number)
        wrong: list[str] = []

        def is_right(admin: AdminClient = admin, wrong: list[str] = wrong) -> bool:
            wrong[:] = _wrong(admin, changes)
            return not wrong

        try:
            wait_until(is_right, _AGREED_S, f"broker {number} has the rules as they were changed")
        except TimeoutError as late:
            raise AssertionError(f"{late}: {wrong[:3]}") from None


def _wrong(admin: AdminClient, changes: list[Change]) -> list[str]:
    found = [str(each.principal) for each in admin.describe_acls(_everything()).result(CALL_S)]
    wrong = [(change, found.count(change.principal)) for change in changes]
    return [f"{count} rules of {change}" for change, count in wrong if count not in change.allowed]


def _everything() -> AclBindingFilter:
    anything = (ResourceType.ANY, None, ResourcePatternType.ANY, None, None)
    return AclBindingFilter(*anything, AclOperation.ANY, AclPermissionType.ANY)
