"""How long a partition takes no writes when its leader goes, asked to (SIGTERM) or killed, or a follower is killed.

A producer writes to the partition, one record after the other (bench/cluster_acks.py). The gap is the longest time
between two acks from the last one before the signal until writing is steady again. Then the broker is started, all
replicas get in sync, and the client rests before the next one goes: librdkafka waits longer with each connection that
fails, up to ten seconds (`reconnect.backoff.max.ms`), and begins anew only after as long without one. Kills in quick
succession would measure that.
"""

import math
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from tests.cluster.cluster_process import ClusterProcess, Node
from tests.cluster.faults import CLEAN_EXITS
from tests.peers.broker import BrokerError

from bench.progress import say

Kind = Literal["planned", "killed", "follower"]
TOPIC = "gaps"
PARTITIONS = 6
STEADY_S = 1.0
PAUSE_S = 0.5
"""A longer pause is not steady."""
DEADLINE_S = 120.0
CLIENT_REST_S = 11.0
_LOOK_S = 0.05


class Acks:
    """The producer as a process; it does not outlive the block."""

    def __init__(self, bootstrap: str, partition: int, directory: Path) -> None:
        self._output, self._errors = directory / "acks.txt", directory / "acks.err"
        self._command = [sys.executable, "-m", "bench.cluster_acks", bootstrap, TOPIC, str(partition)]
        self._read_bytes = 0
        self._times: list[float] = []

    def __enter__(self) -> "Acks":
        with self._output.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=errors, cwd=Path(__file__).resolve().parent.parent
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def times(self) -> Sequence[float]:
        """When acks came, in seconds of the steady clock."""
        if self._process.poll() is not None:
            raise BrokerError(f"the producer of {TOPIC} ended: {self._errors.read_text()[-2000:]}")
        with self._output.open("rb") as file:
            file.seek(self._read_bytes)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        self._times += [int(line) / 1e9 for line in whole.splitlines()]
        return self._times

    def wait_steady(self, since_s: float) -> None:
        """Until a second after a moment, and more if need be, acks have come without a pause for a second."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_steady(self.times(), max(since_s, time.monotonic() - STEADY_S), now := time.monotonic()):
            if now > deadline:
                raise BrokerError(f"no steady acks of {TOPIC} within {DEADLINE_S:.0f} s")
            time.sleep(_LOOK_S)


def is_steady(times: Sequence[float], begin_s: float, end_s: float) -> bool:
    """Whether a span of at least a second (less a look) has acks from its beginning to its end without a pause."""
    if end_s - begin_s < STEADY_S - _LOOK_S:
        return False
    inside = [begin_s, *times[bisect_right(times, begin_s) :], end_s]
    return all(later - earlier <= PAUSE_S for earlier, later in pairwise(inside))


def longest_gap_s(times: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest time between two acks, from the last one before the span to the last one in it."""
    first = max(0, bisect_right(times, begin_s) - 1)
    inside = times[first : bisect_right(times, end_s)]
    return max((later - earlier for earlier, later in pairwise(inside)), default=math.nan)


def measure(cluster: ClusterProcess, kind: Kind, number: int, directory: Path) -> list[float]:
    """So many gaps, in seconds."""
    found: list[float] = []
    with Acks(cluster.bootstrap, 0, directory) as acks:
        acks.wait_steady(time.monotonic())
        for count in range(1, number + 1):
            found.append(_measure_one(cluster, kind, acks))
            say(f"{cluster.name}: {kind} {count} of {number}: {found[-1]:.3f} s")
    return found


def _victim(cluster: ClusterProcess, kind: Kind) -> Node:
    leader = cluster.leader(TOPIC, 0)
    if kind != "follower":
        return cluster.nodes[leader]
    return next(node for node in cluster.nodes.values() if node.id != leader)


def _measure_one(cluster: ClusterProcess, kind: Kind, acks: Acks) -> float:
    victim = _victim(cluster, kind)
    begun = time.monotonic()
    if kind != "planned":
        victim.kill()
    elif (code := victim.stop()) not in CLEAN_EXITS:
        raise BrokerError(f"{cluster.name}: broker {victim.id} ended with {code} when it was asked to stop")
    acks.wait_steady(time.monotonic())
    gap_s = longest_gap_s(acks.times(), begun, time.monotonic())
    if cluster.leader(TOPIC, 0) == victim.id:
        raise BrokerError(f"{cluster.name}: broker {victim.id} is gone and leads {TOPIC} all the same")
    victim.start()
    cluster.wait_whole(TOPIC)
    acks.wait_steady(time.monotonic() + CLIENT_REST_S)
    return gap_s
