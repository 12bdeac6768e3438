"""What work brokers have and for which partitions: two looks at their own counters, some seconds apart."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.cli import wire
from penstock.cli.cluster_view import BROKER, Broker, Picture, Place, View
from penstock.cli.failure import CommandError
from penstock.cluster.plans import Layout

LOAD: Final = "penstock.load"


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one broker since its start."""

    at: float
    cpu_s: float
    steps: Mapping[Place, int]


@dataclass(frozen=True, slots=True)
class Work:
    """Of one broker between two looks: cores it kept busy, and how much of that each partition had."""

    cpu: float
    shares: Mapping[Place, float]


def measure(
    view: View, picture: Picture, seconds: float, wait: Callable[[float], None] = time.sleep
) -> dict[int, Work]:
    """Raises `CommandError` for a broker that does not tell, or was started anew meanwhile."""
    brokers = [each for each in picture.brokers.values() if each.is_up]
    before = {each.id: _look(view, each) for each in brokers}
    wait(seconds)
    return {each.id: _between(each.id, before[each.id], _look(view, each)) for each in brokers}


def _look(view: View, broker: Broker) -> Counters:
    import orjson

    asked = [{"resource_type": BROKER, "resource_name": str(broker.id), "configuration_keys": [LOAD]}]
    (told,) = view.cluster.ask((broker.host, broker.port), "describe_configs", resources=asked).results
    wire.check(told.error_code, f"the load of broker {broker.id}", told.error_message)
    if not told.configs:
        raise CommandError(f"broker {broker.id} does not tell how busy it is: its version is older than this one")
    read: dict[str, Any] = orjson.loads(told.configs[0].value)
    return Counters(time.monotonic(), read["cpu_s"], {(topic, index): steps for topic, index, steps in read["steps"]})


def _between(broker_id: int, before: Counters, after: Counters) -> Work:
    used = after.cpu_s - before.cpu_s
    steps = {place: count - before.steps.get(place, 0) for place, count in after.steps.items()}
    if used < 0 or any(count < 0 for count in steps.values()):
        raise CommandError(f"broker {broker_id} was started anew while it was measured; try again")
    cpu, total = used / max(after.at - before.at, 0.001), sum(steps.values())
    return Work(cpu, {place: cpu * count / total for place, count in steps.items() if count})


def with_load(layout: Layout, picture: Picture, work: Mapping[int, Work]) -> Layout:
    """The layout, with what brokers have to do. Partitions that others lead than should are left alone."""
    brokers = {
        broker_id: replace(broker, cpu=work[broker_id].cpu) if broker_id in work else broker
        for broker_id, broker in layout.brokers.items()
    }
    leaders = {each.place: each.leader for each in picture.partitions}
    partitions = {
        place: replace(held, lead_cpu=_cost_of_leading(place, held.replicas, work))
        if leaders[place] == held.replicas[0]
        else held
        for place, held in layout.partitions.items()
    }
    return Layout(brokers, partitions)


def _cost_of_leading(place: Place, replicas: tuple[int, ...], work: Mapping[int, Work]) -> float:
    """What the leader has to do beyond what followers have."""
    costs = [work[each].shares.get(place, 0.0) if each in work else 0.0 for each in replicas]
    following = sum(costs[1:]) / max(len(costs) - 1, 1)
    return max(costs[0] - following, 0.0)
