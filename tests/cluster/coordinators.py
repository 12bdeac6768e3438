"""The exactly-once run of `chaos` on a cluster: whoever coordinates or leads for it is killed, and killed again.

Groups of both protocols copy within transactions, other groups watch, and clients die, too; see
`tests.chaos.transactional_run`. There a broker that is killed comes back by itself. Here others go on meanwhile.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Self

from tests.chaos.load import wait_until
from tests.chaos.transactional_history import Violation
from tests.chaos.transactional_load import Spec
from tests.chaos.transactional_run import PARTITIONS, Fault, Run

from .cluster_process import ClusterProcess, Node
from .renewing_load import RenewingSpec

# The time-out of a client's calls is 20 s; one that is in a call for longer will never come back.
_HUNG_S = 25.0
_LAST_LINE_BYTES = 1 << 16
_LONGEST_OPEN_S = 70.0
"""No transaction stays open for longer than its time-out, a minute with these clients, and ten seconds."""


class Prey:
    """One broker of a cluster, chosen anew for each fault; the run takes it for its only one.

    Attributes:
        choices: each says which broker is the next to be killed; they take turns.
    """

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self._victim: Node | None = None
        self.choices: Iterator[Callable[[], int]] = iter(())
        self.topics: tuple[str, ...] = ()
        self.killed: list[int] = []

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self) -> None:
        """The chosen one, or the same again while it is on its way up."""
        if self._victim is None:
            self._victim = self._cluster.nodes[next(self.choices)()]
        self.killed.append(self._victim.id)
        self._victim.kill()

    def launch(self) -> None:
        assert self._victim is not None
        self._victim.launch()

    def start(self) -> None:
        """Only when others have taken over: they are what the run is about."""
        assert self._victim is not None
        self._cluster.wait_moved(self._victim.id, *self.topics)
        self._victim.start()
        self._cluster.wait_whole(*self.topics)
        self._victim = None


class ClusterRun(Run):
    def __init__(self, cluster: ClusterProcess, directory: Path, *, seed: int, records: int, faults: int) -> None:
        self._cluster, self.prey = cluster, Prey(cluster)
        self.hung = 0
        """Clients that were killed because a call of theirs had no end."""
        super().__init__(self.prey, directory, seed=seed, records=records, faults=faults)  # type: ignore[arg-type]
        self.prey.topics = tuple(self.topics.values())
        self.prey.choices = cycle(self._choices())

    def _choices(self) -> list[Callable[[], int]]:
        cluster = self._cluster
        copiers = [name for name, spec in self._specs.items() if spec.role == "copier"]
        return [
            lambda: cluster.group_coordinator(self.copies[0].group),
            lambda: cluster.transaction_coordinator(copiers[0]),
            lambda: cluster.leader(self.topics["in"], 0),
            lambda: cluster.group_coordinator(self.copies[1].group),
            lambda: cluster.transaction_coordinator(copiers[-1]),
            lambda: cluster.leader(self.copies[0].target, 0),
        ]

    def __enter__(self) -> Self:
        for role, partitions in PARTITIONS.items():
            self._cluster.create_topic(self.topics[role], partitions, self._cluster.smallest_segments)
        for name in self._specs:
            self._start(name)
        return self

    def _make_specs(self) -> Iterator[Spec]:
        """Everybody writes within transactions: librdkafka may write twice without, when a leader changes while it has
        several requests under way (confluentinc/librdkafka issue 4953). And see `renewing_load`."""
        for spec in super()._make_specs():
            yield RenewingSpec(**asdict(spec) | {"transactional": spec.transactional or spec.role == "producer"})

    def _tend(self) -> None:
        """A copier whose group's coordinator has gone may wait for it without end, in spite of its time-out
        (confluentinc/librdkafka issues 5456 and 5511). It is killed like others, and has a successor."""
        super()._tend()
        silent = [silence.process for silence in self._silent]
        for name, process in self._processes.items():
            if self._specs[name].role == "copier" and process not in silent and self._is_hung(name):
                process.kill()
                process.wait()
                self.hung += 1

    def verdict(self) -> list[Violation]:
        """Also if a client could not go on: its transaction must end all the same."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self._undecided(), _LONGEST_OPEN_S, "no transaction is open")
        return super().verdict()

    def _is_hung(self, name: str) -> bool:
        path = self._directory / f"{name}.{self.incarnations[name] - 1:03}.jsonl"
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_LINE_BYTES))
            last = file.read().splitlines(keepends=True)[-1:]
        if not last or not last[0].startswith(b'{"op": "consumed"') or not last[0].endswith(b"\n"):
            return False
        return bool(time.monotonic() - json.loads(last[0])["at"] > _HUNG_S)


class CalmRun(ClusterRun):
    """Only brokers die: short enough to run each time."""

    def _make_halts(self, number: int) -> Iterator[tuple[int, str, str]]:
        return iter(())

    def _make_faults(self, number: int) -> Iterator[Fault]:
        for index in range(number):
            yield Fault("kill", "broker", (index + 1) / (number + 1), self._coin.uniform(0, 0.05))
