"""Partitions that move to other brokers while brokers die, asked for as Kafka's own tools do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tests.chaos.load import wait_until
from tests.conformance.wire import Wire

from . import network
from .arena import Arena
from .faults import Scene, check_dropped, pass_time
from .replicas import decisions

_REASSIGN_WITHIN_S = 60.0
_ANSWER_MS = 5000
_PREFERRED = 0
_RECENT = 4
"""Decisions of the store that are looked at: a leader that resigned did so in the last few."""


@contextmanager
def membership_under_kills(scene: Scene) -> Iterator[None]:
    """Replicas are taken away and given back while a broker dies."""
    brokers = sorted(scene.arena.machines)
    plans = [brokers[:2], brokers[1:], brokers]
    for number, target in enumerate(plans):
        reassign(scene.arena, scene.topic, sorted(scene.view), target)
        victim = scene.arena.machines[scene.coin.choice(brokers)]
        if number < len(plans) - 1:
            pass_time(scene.coin.uniform(0, 0.3))
            victim.kill()
            victim.start()
        wait_until(lambda: not moving(scene.arena, scene.topic), _REASSIGN_WITHIN_S, f"{scene.topic} is at {target}")
    scene.note(f"moved to {plans}, a broker killed within each move but the last")
    yield


@contextmanager
def membership_under_partitions(scene: Scene) -> Iterator[None]:
    """Replicas are taken away and given back while a machine is cut off from the others."""
    brokers = sorted(scene.arena.machines)
    plans = [brokers[:2], brokers[1:], brokers]
    for target in plans:
        reassign(scene.arena, scene.topic, sorted(scene.view), target)
        pass_time(scene.coin.uniform(0, 0.3))
        victim = scene.coin.choice(brokers)
        scene.arena.drop(network.cut_off(victim, scene.arena.others(victim)))
        pass_time(scene.coin.uniform(1.0, 6.0))
        check_dropped(scene)
        scene.arena.network.heal()
        wait_until(lambda: not moving(scene.arena, scene.topic), _REASSIGN_WITHIN_S, f"{scene.topic} is at {target}")
    scene.note(f"moved to {plans}, a machine cut off within each move")
    yield


def reassign(arena: Arena, topic: str, partitions: Sequence[int], target: Sequence[int]) -> None:
    """Ask for these replicas in this order, of whoever answers."""
    rows = [{"partition_index": index, "replicas": list(target)} for index in partitions]

    def is_taken(answer: Any) -> bool:
        codes = [int(each.error_code) for one in answer.responses for each in one.partitions]
        return not int(answer.error_code) and not any(codes)

    def is_asked() -> bool:
        """Of each in turn: one that is cut off cannot decide anything."""
        asked = {"topics": [{"name": topic, "partitions": rows}]}
        return any(is_taken(answer) for answer in _answers(arena, "alter_partition_reassignments", 0, **asked))

    wait_until(is_asked, _REASSIGN_WITHIN_S, f"the move of {topic} to {list(target)} was accepted")


def moving(arena: Arena, topic: str) -> bool:
    answer = _ask(arena, "list_partition_reassignments", 0, topics=None)
    return answer is None or any(each.name == topic for each in answer.topics)


def lead(arena: Arena, topic: str, partitions: Sequence[int], broker: int) -> None:
    """Have a broker lead these partitions, until it is found unfit for it."""
    reassign(arena, topic, partitions, [broker, *arena.others(broker)])
    wait_until(lambda: not moving(arena, topic), _REASSIGN_WITHIN_S, f"{broker} is the first replica of {topic}")
    rows = [{"topic": topic, "partitions": list(partitions)}]

    def has_led() -> bool:
        """By its word, or by that of the store: it may have resigned again already."""
        _ask(arena, "elect_leaders", 2, election_type=_PREFERRED, topic_partitions=rows)
        return all(
            any(state.leader == broker for state in states[-_RECENT:])
            for index, states in decisions(arena.etcd, topic).items()
            if index in partitions
        )

    wait_until(has_led, _REASSIGN_WITHIN_S, f"broker {broker} led {topic}")


def _ask(arena: Arena, api: str, version: int, **values: Any) -> Any:
    """The answer of the first broker that gives one, or None."""
    return next(_answers(arena, api, version, **values), None)


def _answers(arena: Arena, api: str, version: int, **values: Any) -> Iterator[Any]:
    for machine in arena.cluster.live:
        with suppress(OSError), Wire(machine.bootstrap) as wire:
            yield wire.call(api, version, timeout=_ANSWER_MS, **values)
