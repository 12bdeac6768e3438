"""What happens to which broker of a cluster while it is written to, as a seed says, and what must hold meanwhile."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from .cluster_process import ClusterProcess, Node

Kind = Literal["kill", "stop", "pause", "kill twice", "kill a follower"]
OTHERS: tuple[Kind, ...] = ("stop", "pause", "kill twice", "kill a follower")
CLEAN_EXITS = (0, 143)  # a JVM that was asked to end says 143


class Fault(NamedTuple):
    """To a broker that leads a partition, or follows there."""

    kind: Kind
    topic: str
    partition: int
    share: float
    """Of what the load does between two faults, when this one comes."""
    delay_s: float
    """On its way up, when it is killed for the second time."""


def plan(kills: int, seed: int, topics: Sequence[str], partitions: int) -> Iterator[Fault]:
    """So many leaders are killed, and something else happens after each kill."""
    coin = random.Random(seed)
    for number in range(kills):
        for kind in ("kill", OTHERS[number % len(OTHERS)]):
            share, delay_s = coin.random(), coin.uniform(0.05, 1.0)
            yield Fault(kind, coin.choice(topics), coin.randrange(partitions), share, delay_s)


def strike(cluster: ClusterProcess, fault: Fault) -> Node:
    """Do it to the broker concerned, and return it; a leader leads nothing more when this returns."""
    leader = cluster.leader(fault.topic, fault.partition)
    if fault.kind == "kill a follower":
        view = cluster.view(fault.topic)
        assert view is not None
        victim = cluster.nodes[next(each for each in view[fault.partition].replicas if each != leader)]
    else:
        victim = cluster.nodes[leader]
    if fault.kind == "stop":
        code = victim.stop()
        assert code in CLEAN_EXITS, f"broker {victim.id} ended with {code} when it was asked to stop"
    elif fault.kind == "pause":
        victim.pause()
    else:
        victim.kill()
    if fault.kind == "kill twice":
        victim.launch()
        _pass_time(fault.delay_s)
        victim.kill()
    cluster.wait_moved(victim.id, fault.topic)
    return victim


def bring_back(victim: Node) -> None:
    if victim.paused:
        victim.resume()
    else:
        victim.start()


def _pass_time(seconds: float) -> None:
    """Not waiting for anything: the moment of the kill is what the seed chooses."""
    time.sleep(seconds)
