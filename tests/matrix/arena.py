"""Three machines, an etcd member and a broker on each, and the network between: started and taken down together."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from tests.cluster.cluster_process import ClusterProcess

from .disks import Disk, DiskKind
from .etcd_members import EtcdMembers
from .machines import Machine, make_cluster
from .namespaces import Namespaces
from .network import Drop, Network
from .replicas import Decision
from .trust import Trust

MACHINES = 3


class Arena:
    """Use as a context manager: within it, this thread and what it starts are in the clients' namespace.

    Args:
        disk: of every broker.
        clocks: the wall clock of each broker can be shifted.
        guarded: brokers show each other certificates, and rules decide what clients may do.

    Attributes:
        trust: what all that goes by.
        keep: leave the directory with logs and data behind.
        forgotten: what etcd had decided of each partition before an old copy of it was put back.
    """

    def __init__(self, disk: DiskKind = "plain", *, clocks: bool = False, guarded: bool = False) -> None:
        self.kind, self.clocks, self.guarded = disk, clocks, guarded
        self.keep = False
        self.forgotten: dict[int, list[Decision]] = {}
        self.directory = Path(tempfile.mkdtemp(prefix=f"penstock-matrix-{os.getpid()}-"))
        self.namespaces = Namespaces(MACHINES, self.directory.name.rpartition("-")[2])
        self.network = Network(self.namespaces)
        self._closing = ExitStack()
        self.trust: Trust | None = None
        self.etcd: EtcdMembers
        self.cluster: ClusterProcess

    def __enter__(self) -> "Arena":
        with ExitStack() as starting:
            starting.callback(self._remove)
            starting.enter_context(self.namespaces)
            starting.enter_context(self.namespaces.inside())
            disks = [
                starting.enter_context(Disk(self.kind, self.directory, number)) for number in range(1, MACHINES + 1)
            ]
            self.etcd = EtcdMembers(self.namespaces, self.directory)
            starting.callback(self.etcd.stop)
            self.etcd.start_all()
            self.trust = Trust(self.directory, MACHINES) if self.guarded else None
            self.cluster = make_cluster(
                self.namespaces, self.etcd, disks, self.directory, clocks=self.clocks, trust=self.trust
            )
            starting.enter_context(self.cluster)
            self.network.heal()
            self.cluster.start()
            if self.trust is not None:
                self.trust.begin(*self.machines)
            self._closing = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _remove(self) -> None:
        """With `keep`, all but etcd's data: it reserves a hundred megabytes a member, and its logs say enough."""
        for path in self.directory.glob("etcd-?") if self.keep else [self.directory]:
            shutil.rmtree(path, ignore_errors=True)

    @property
    def machines(self) -> dict[int, Machine]:
        return cast(dict[int, Machine], self.cluster.nodes)

    def crashes(self) -> dict[int, list[int]]:
        """Exit codes of brokers that ended without being told to."""
        return {
            number: [*machine.crashes, *([machine.process.returncode] if machine.has_crashed else [])]
            for number, machine in self.machines.items()
        }

    def others(self, *machines: int) -> list[int]:
        return [number for number in self.machines if number not in machines]

    def drop(self, drops: Iterable[Drop], *, hidden: Iterable[int] = ()) -> None:
        """Lose packets; the brokers `hidden` by it are not asked for their view meanwhile."""
        self.network.drop(drops)
        for number in hidden:
            self.machines[number].hidden = True

    def heal(self) -> None:
        """All packets go through, everybody runs, is awake and has the right time."""
        self.network.heal()
        for machine in self.machines.values():
            machine.hidden = False
            if machine.paused:
                machine.resume()
            if machine.clock is not None:
                machine.shift_clock(0)
        self.etcd.start_all()
        self.cluster.start()
