"""Exactly-once copying beside the other clients of a cell.

A transactional producer, a copier for each group protocol, and a group that watches and commits its offsets.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.transactional_history import Violation
from tests.chaos.transactional_load import Spec
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.coordinators import CalmRun

_NO_END = 3 * 10**9
_CAST = ("p1", "classic0", "consumer0", "watch0")


class Copying(CalmRun):
    """Goes on until it is told to finish. Use as a context manager."""

    def __init__(self, cluster: ClusterProcess, directory: Path, seed: int) -> None:
        super().__init__(cluster, directory, seed=seed, records=_NO_END, faults=0)

    def _make_specs(self) -> Iterator[Spec]:
        return (spec for spec in super()._make_specs() if spec.name.rpartition("-")[0] in _CAST)

    @property
    def copied(self) -> int:
        self._read_tails()
        return sum(self.done.values())

    def warm_up(self) -> None:
        self._wait(lambda: self._has_copied(20), "20 records copied")

    def finish(self) -> list[Violation]:
        """Have the producer end after its transaction, wait until all is copied and watched, and judge."""
        for name, process in self._processes.items():
            if self._specs[name].role == "producer" and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        self.play()
        return self.verdict()
