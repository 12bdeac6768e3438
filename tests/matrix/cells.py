"""The matrix: every cell is a fault, at a target, under a workload, and what is promised meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import disk_faults, faults, moves, network, rot, trust_faults
from .disks import DiskKind
from .workload import PATIENCE_S

Promise = Literal["all", "others", "none", "refused"]
"""Who goes on while the fault is there: every partition, those the victim did not lead, nobody by promise, or nobody at
all: too few are left for an ack."""
_BRIEF_S = 2.0
"""Patience that shows what a cluster takes to go on without a silent broker, rather than what a client does."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table.

    Attributes:
        promise: whose writes go on during the fault.
        bound_s: the longest pause of those that go on; generous, for machines that are busy with other things.
        hold: whether the fault is held for the run's seconds; else it takes the time it takes.
        seconds: how long it is held, if that matters.
        each_leads: whether every broker leads in turn in the end, and is read from: what it holds is seen then.
        least_rate: share of the rate before the fault that must be there during it.
        no_election: leaders stay who they are, in the same epoch.
        patience_s: how long the producer waits for an answer of a broker that has gone silent, before it asks others.
        guarded: brokers show each other certificates, and rules decide what clients may do.
        queue: settings of the queue, where there is one.
    """

    name: str
    fault: faults.Fault
    promise: Promise = "all"
    bound_s: float = 20.0
    partitions: int = 3
    disk: DiskKind = "plain"
    clocks: bool = False
    workload: Literal["plain", "java", "transactions", "defaults", "queue", "shares", "sorted"] = "plain"
    hold: bool = True
    seconds: float = 0.0
    least_rate: float = 0.0
    rate: int | None = None
    no_election: bool = False
    patience_s: float = PATIENCE_S
    warm_acks: int = 30
    each_leads: bool = False
    guarded: bool = False
    topic: Mapping[str, str] = field(default_factory=dict)
    queue: Mapping[str, str] = field(default_factory=dict)


def _machine_cut(victim: int, others: list[int]) -> list[network.Drop]:
    return network.cut_off(victim, others)


def _brokers_cut(victim: int, others: list[int]) -> list[network.Drop]:
    return [drop for other in others for drop in network.brokers_apart(victim, other)]


def _one_follower_cut(victim: int, others: list[int]) -> list[network.Drop]:
    return network.brokers_apart(victim, others[0])


def _to_others(victim: int, others: list[int]) -> list[network.Drop]:
    return [drop for other in others for drop in network.fetches_lost(victim, other)]


def _from_others(victim: int, others: list[int]) -> list[network.Drop]:
    return [drop for other in others for drop in network.fetches_lost(other, victim)]


def _machine_out(victim: int, others: list[int]) -> list[network.Drop]:
    return [drop for other in others for drop in network.one_way(victim, other)]


def _machine_in(victim: int, others: list[int]) -> list[network.Drop]:
    return [drop for other in others for drop in network.one_way(other, victim)]


_PROCESSES = [
    Cell("kill-leader", faults.kill("leader")),
    Cell("kill-leader-one-partition", faults.kill("leader"), partitions=1),
    Cell("kill-leader-java", faults.kill("leader"), workload="java"),
    Cell("kill-leader-transactions", faults.kill("leader"), workload="transactions"),
    Cell("kill-follower", faults.kill("follower"), partitions=1),
    Cell("kill-follower-java", faults.kill("follower"), partitions=1, workload="java"),
    Cell("kill-controller", faults.kill("controller")),
    Cell("kill-controller-transactions", faults.kill("controller"), workload="transactions"),
    Cell("kill-leader-twice", faults.kill("leader", times=2)),
    Cell("kill-follower-three-times", faults.kill("follower", times=3), partitions=1),
    Cell("kill-two", faults.kill_some(2), promise="refused"),
    Cell("kill-all", faults.kill_some(3), bound_s=45.0),
    Cell("kill-all-transactions", faults.kill_some(3), bound_s=45.0, workload="transactions"),
    Cell("stop-leader", faults.stop("leader")),
    Cell("stop-leader-java", faults.stop("leader"), workload="java"),
    Cell("stop-leader-transactions", faults.stop("leader"), workload="transactions"),
    Cell("stop-follower", faults.stop("follower"), partitions=1),
    Cell("stop-controller", faults.stop("controller")),
    Cell("rolling-restart", faults.rolling_restart(), hold=False),
    Cell("rolling-restart-java", faults.rolling_restart(), hold=False, workload="java"),
    Cell("rolling-restart-transactions", faults.rolling_restart(), hold=False, workload="transactions"),
    Cell("rolling-restart-five-times", faults.rolling_restart(5), hold=False),
    Cell("rolling-restart-five-times-java", faults.rolling_restart(5), hold=False, workload="java"),
    Cell("rolling-restart-five-times-defaults", faults.rolling_restart(5), hold=False, workload="defaults"),
    Cell("rolling-kills", faults.rolling_kills, hold=False),
    Cell("stop-cont-leader-2s", faults.pause("leader"), promise="none", seconds=2.0, no_election=True),
    Cell("stop-cont-leader", faults.pause("leader"), patience_s=_BRIEF_S),
    Cell("stop-cont-leader-20s", faults.pause("leader"), seconds=20.0, patience_s=_BRIEF_S),
    Cell("stop-cont-leader-patient", faults.pause("leader")),
    Cell("stop-cont-leader-java", faults.pause("leader"), workload="java"),
    Cell("stop-cont-leader-transactions", faults.pause("leader"), workload="transactions"),
    Cell("stop-cont-follower", faults.pause("follower"), partitions=1),
    Cell("stop-cont-controller", faults.pause("controller"), patience_s=_BRIEF_S),
    Cell(
        "stop-cont-leader-again-and-again",
        faults.pause_again_and_again("leader", 3.0, 1.0),
        promise="none",
        hold=False,
        seconds=16.0,
    ),
]
_NETWORK = [
    Cell("partition-leader-machine", faults.cut(_machine_cut, what="cut from all other machines")),
    Cell(
        "leader-machine-lost",
        faults.cut(
            lambda victim, others: [*network.cut_off(victim, others), *network.cut_from_clients(victim)],
            hides=True,
            what="cut from all other machines and clients",
        ),
        patience_s=_BRIEF_S,
    ),
    Cell(
        "partition-leader-machine-java", faults.cut(_machine_cut, what="cut from all other machines"), workload="java"
    ),
    Cell("partition-follower-machine", faults.cut(_machine_cut, "follower", what="cut from all others"), partitions=1),
    Cell("partition-controller-machine", faults.cut(_machine_cut, "controller", what="cut from all other machines")),
    Cell(
        "partition-leader-followers",
        faults.cut(_brokers_cut, what="cut from all other brokers, not from etcd"),
        partitions=1,
        promise="none",
    ),
    Cell(
        "partition-leader-one-follower",
        faults.cut(_one_follower_cut, what="cut from one other broker, not from etcd"),
        partitions=1,
    ),
    Cell(
        "bridge-one-broker-reaches-both",
        faults.cut(lambda victim, others: network.brokers_apart(*others), "follower", what="the other two are cut"),
        promise="none",
    ),
    Cell("one-way-leader-to-followers", faults.cut(_to_others, what="others do not hear it"), promise="none"),
    Cell("one-way-followers-to-leader", faults.cut(_from_others, what="it does not hear others"), promise="none"),
    Cell("one-way-leader-machine-out", faults.cut(_machine_out, what="no machine hears its machine"), promise="others"),
    Cell("one-way-leader-machine-in", faults.cut(_machine_in, what="its machine hears no other"), promise="others"),
    Cell(
        "leader-cut-from-etcd",
        faults.cut(lambda victim, _: network.cut_from_etcd(victim), what="requests to etcd lost"),
    ),
    Cell(
        "leader-deaf-to-etcd", faults.cut(lambda victim, _: network.deaf_to_etcd(victim), what="answers of etcd lost")
    ),
    Cell(
        "follower-cut-from-etcd",
        faults.cut(lambda victim, _: network.cut_from_etcd(victim), "follower", what="requests to etcd lost"),
        partitions=1,
    ),
    Cell(
        "controller-cut-from-etcd",
        faults.cut(lambda victim, _: network.cut_from_etcd(victim), "controller", what="requests to etcd lost"),
    ),
    Cell(
        "leader-cut-from-etcd-transactions",
        faults.cut(lambda victim, _: network.cut_from_etcd(victim), what="requests to etcd lost"),
        workload="transactions",
    ),
    Cell(
        "client-cut-from-leader",
        faults.cut(lambda victim, _: network.cut_from_clients(victim), hides=True, what="clients do not reach it"),
        promise="others",
        no_election=True,
    ),
    Cell(
        "client-deaf-to-leader",
        faults.cut(lambda victim, _: network.answers_lost(victim), hides=True, what="clients do not hear its answers"),
        promise="others",
        no_election=True,
    ),
    Cell(
        "client-deaf-to-leader-java",
        faults.cut(lambda victim, _: network.answers_lost(victim), hides=True, what="clients do not hear its answers"),
        promise="others",
        workload="java",
        no_election=True,
    ),
    Cell("loss-5-percent", faults.lossy(5)),
    Cell("loss-20-percent", faults.lossy(20), promise="none"),
    Cell("loss-5-percent-java", faults.lossy(5), workload="java"),
    Cell(
        "flapping-1s",
        faults.flapping("leader", 1.0, _machine_cut, "cut from all other machines"),
        promise="none",
        hold=False,
        seconds=12.0,
    ),
    Cell(
        "flapping-3s",
        faults.flapping("leader", 3.0, _machine_cut, "cut from all other machines"),
        promise="none",
        hold=False,
        seconds=18.0,
    ),
    Cell(
        "flapping-etcd-3s",
        faults.flapping("leader", 3.0, lambda victim, _: network.cut_from_etcd(victim), "cut from etcd"),
        promise="none",
        hold=False,
        seconds=18.0,
    ),
    Cell("random-grudges", faults.random_grudges, promise="none", hold=False, seconds=15.0),
]
_ETCD = [
    Cell("etcd-leader-kill", faults.etcd_kill("leader"), no_election=True),
    Cell("etcd-follower-kill", faults.etcd_kill("follower"), no_election=True),
    Cell("etcd-leader-pause", faults.etcd_kill("leader", pauses=True), no_election=True),
    Cell("etcd-leader-kill-java", faults.etcd_kill("leader"), workload="java", no_election=True),
    Cell("etcd-leader-kill-transactions", faults.etcd_kill("leader"), workload="transactions", no_election=True),
    Cell(
        "etcd-all-down-60s",
        faults.etcd_kill("all"),
        seconds=60.0,
        least_rate=0.95,
        rate=0,
        bound_s=5.0,
        no_election=True,
    ),
    Cell("etcd-all-down-paced", faults.etcd_kill("all"), seconds=15.0, least_rate=0.95, bound_s=5.0, no_election=True),
    Cell("etcd-all-stopped", faults.etcd_stopped, seconds=20.0, bound_s=5.0),
    Cell("etcd-down-follower-killed", faults.etcd_kill("all", also_killed="follower"), promise="refused", partitions=1),
    Cell("etcd-old-copy-put-back", faults.etcd_put_back, promise="none", hold=False),
    Cell(
        "etcd-all-pause-15s",
        faults.etcd_kill("all", pauses=True),
        seconds=15.0,
        least_rate=0.95,
        bound_s=5.0,
        no_election=True,
    ),
]


def _spoiled(name: str, fault: faults.Fault, **more: Any) -> Cell:
    """With one partition, and several segments of it before anything happens."""
    return Cell(name, fault, **{"partitions": 1, "rate": 600, "warm_acks": 1200, "each_leads": True, **more})


def _last_one(name: str, **more: Any) -> Cell:
    fault = disk_faults.last_replica_standing
    return Cell(name, fault, disk="power", rate=0, partitions=1, bound_s=60.0, hold=False, **more)


_DISKS = [
    Cell("disk-full-leader", disk_faults.full_disk(["leader"]), disk="small", bound_s=30.0),
    Cell("disk-full-follower", disk_faults.full_disk(["follower"]), disk="small", partitions=1, bound_s=30.0),
    Cell("disk-full-two", disk_faults.full_disk(["leader", "follower"]), disk="small", partitions=1, promise="none"),
    Cell(
        "no-space-on-write-leader",
        disk_faults.injected("leader", "error=ENOSPC", "no space for any write", calls="pwrite64"),
        bound_s=30.0,
    ),
    Cell(
        "eio-on-write-leader",
        disk_faults.injected("leader", "error=EIO", "each write fails", calls="pwrite64", ends=True),
        bound_s=30.0,
    ),
    Cell(
        "eio-on-read-leader",
        disk_faults.injected("leader", "error=EIO:when=2+3", "reads fail", calls="pread64"),
        bound_s=30.0,
    ),
    Cell(
        "eio-on-fsync-leader",
        disk_faults.injected("leader", "error=EIO:when=1", "the next sync fails", ends=True),
        bound_s=30.0,
    ),
    Cell(
        "eio-on-fsync-leader-later",
        disk_faults.injected("leader", "error=EIO:when=25", "the 25th sync fails", ends=True),
        bound_s=30.0,
    ),
    Cell(
        "eio-on-fsync-follower",
        disk_faults.injected("follower", "error=EIO:when=1", "the next sync fails", ends=True),
        partitions=1,
        bound_s=30.0,
    ),
    Cell(
        "eio-on-fsync-transactions",
        disk_faults.injected("leader", "error=EIO:when=3", "the third sync fails", ends=True),
        workload="transactions",
        bound_s=30.0,
    ),
    Cell("lost-fsync-one", each_leads=True, fault=disk_faults.lost_syncs("follower"), disk="power", partitions=1),
    Cell(
        "slow-fsync-follower",
        disk_faults.injected("follower", "delay_enter=200000", "each sync takes 200 ms"),
        partitions=1,
        no_election=True,
    ),
    Cell(
        "very-slow-fsync-follower",
        disk_faults.injected("follower", "delay_enter=5000000", "each sync takes 5 s"),
        partitions=1,
        seconds=25.0,
        bound_s=30.0,
    ),
    Cell(
        "slow-fsync-leader",
        disk_faults.injected("leader", "delay_enter=200000", "each sync takes 200 ms"),
        partitions=1,
    ),
    Cell(
        "eio-on-sendfile-leader",
        disk_faults.injected("leader", "error=EIO:when=2+3", "what it sends from files fails", calls="sendfile"),
        bound_s=30.0,
    ),
    Cell("power-cut-one", disk_faults.power_cut("leader", "drop"), disk="power", rate=0),
    Cell("power-cut-one-torn", disk_faults.power_cut("leader", "torn"), disk="power", rate=0),
    Cell(
        "power-cut-one-page-cache", disk_faults.power_cut("leader", "torn"), disk="power", rate=0, topic={"flush": "os"}
    ),
    Cell("power-cut-follower", disk_faults.power_cut("follower", "torn"), disk="power", rate=0, partitions=1),
    Cell(
        "power-cut-all", each_leads=True, fault=disk_faults.power_cut("all", "drop"), disk="power", rate=0, bound_s=60.0
    ),
    Cell(
        "power-cut-all-torn",
        each_leads=True,
        fault=disk_faults.power_cut("all", "torn"),
        disk="power",
        rate=0,
        bound_s=60.0,
    ),
    Cell(
        "power-cut-all-transactions",
        disk_faults.power_cut("all", "drop"),
        disk="power",
        rate=0,
        bound_s=60.0,
        workload="transactions",
    ),
    _last_one("last-replica-standing"),
    _last_one("last-replica-standing-page-cache", topic={"flush": "os"}),
]
_ROT = [
    _spoiled("bit-rot-follower", rot.spoiled("follower", rot.flip_sealed)),
    _spoiled("bit-rot-follower-active", rot.spoiled("follower", rot.flip_active)),
    _spoiled("bit-rot-follower-index", rot.spoiled("follower", rot.flip("*.index"))),
    _spoiled("bit-rot-follower-state", rot.spoiled("follower", rot.flip("state"))),
    _spoiled("bit-rot-follower-all-files", rot.spoiled("follower", rot.flip_many)),
    _spoiled("bit-rot-leader", rot.spoiled("leader", rot.flip_sealed)),
    _spoiled("bit-rot-leader-running", rot.spoiled_while_it_runs),
    _spoiled("bit-rot-leader-stopped", rot.spoiled("leader", rot.flip_sealed, "stop")),
    _spoiled("bit-rot-leader-all-killed", rot.spoiled("leader", rot.flip_sealed, all_down=True), bound_s=60.0),
    _spoiled("bit-rot-leader-all-killed-active", rot.spoiled("leader", rot.flip_active, all_down=True), bound_s=60.0),
    _spoiled("bit-rot-leader-all-stopped", rot.spoiled("leader", rot.flip_sealed, "stop", all_down=True), bound_s=60.0),
    _spoiled("file-truncated-follower", rot.spoiled("follower", rot.truncate_sealed)),
    _spoiled(
        "file-truncated-leader-all-stopped",
        rot.spoiled("leader", rot.truncate_active, "stop", all_down=True),
        bound_s=60.0,
    ),
    _spoiled("file-deleted-follower", rot.spoiled("follower", rot.delete_sealed)),
    _spoiled(
        "file-deleted-leader-all-stopped", rot.spoiled("leader", rot.delete_sealed, "stop", all_down=True), bound_s=60.0
    ),
    _spoiled("index-deleted-follower", rot.spoiled("follower", rot.delete("*.index"))),
    _spoiled("state-deleted-follower", rot.spoiled("follower", rot.delete("state"))),
    _spoiled(
        "watermarks-deleted-leader-all-killed",
        rot.spoiled("leader", rot.delete_watermarks, all_down=True),
        bound_s=60.0,
    ),
    _spoiled("partition-directory-deleted", rot.spoiled("follower", rot.delete_directory)),
    _spoiled(
        "partition-directory-deleted-all-stopped",
        rot.spoiled("leader", rot.delete_directory, "stop", all_down=True),
        bound_s=60.0,
    ),
    _spoiled("disk-replaced-follower", rot.spoiled("follower", rot.delete_everything)),
    _spoiled("disk-replaced-leader-stopped", rot.spoiled("leader", rot.delete_everything, "stop")),
    _spoiled("old-files-restored", rot.old_files("follower", "kill", "kill")),
    _spoiled("old-files-restored-clean", rot.old_files("follower", "stop", "stop")),
    _spoiled("old-files-restored-leader", rot.old_files("leader", "stop", "kill")),
]
_CLOCKS = [
    Cell("clock-shift-1h", faults.clock_shift("leader", 3600), clocks=True),
    Cell("clock-shift-back-30min", faults.clock_shift("leader", -1800), clocks=True),
    Cell("clock-shift-1h-controller", faults.clock_shift("controller", 3600), clocks=True),
    Cell("clock-shift-1h-transactions", faults.clock_shift("leader", 3600), clocks=True, workload="transactions"),
    Cell(
        "clock-shift-2h-retention",
        faults.clock_shift("leader", 7200),
        clocks=True,
        seconds=15.0,
        rate=600,
        warm_acks=350,
        topic={"retention.ms": "3600000"},
    ),
]
_MEMBERSHIP = [
    Cell(
        "membership-change-under-kills", each_leads=True, fault=moves.membership_under_kills, hold=False, bound_s=60.0
    ),
    Cell(
        "membership-change-under-partitions",
        each_leads=True,
        fault=moves.membership_under_partitions,
        hold=False,
        bound_s=60.0,
    ),
    Cell("membership-change-under-kills-java", moves.membership_under_kills, hold=False, bound_s=60.0, workload="java"),
]
_TRUST = [
    Cell(
        "expired-certificate-leader",
        trust_faults.expired_certificate("leader"),
        promise="others",
        guarded=True,
        seconds=45.0,
    ),
    Cell(
        "expired-certificate-follower",
        trust_faults.expired_certificate("follower"),
        guarded=True,
        partitions=1,
        seconds=45.0,
    ),
    Cell(
        "etcd-away-while-rules-change",
        trust_faults.etcd_away_while_rules_change,
        guarded=True,
        seconds=12.0,
        bound_s=5.0,
        no_election=True,
    ),
]


def _queue(name: str, fault: faults.Fault, **more: Any) -> Cell:
    """Two partitions: one for the leader that is struck, one that somebody else may lead."""
    return Cell(f"queue-{name}", fault, **{"workload": "queue", "partitions": 2, "patience_s": _BRIEF_S, **more})


_QUEUES = [
    _queue("kill-leader", faults.kill("leader")),
    _queue("kill-leader-shares", faults.kill("leader"), workload="shares", bound_s=30.0),
    _queue("kill-follower", faults.kill("follower"), partitions=1),
    _queue("kill-controller", faults.kill("controller")),
    _queue("kill-all", faults.kill_some(3), bound_s=45.0),
    _queue("kill-all-shares", faults.kill_some(3), workload="shares", bound_s=45.0),
    _queue("stop-leader", faults.stop("leader")),
    _queue("rolling-restart", faults.rolling_restart(), hold=False),
    _queue("rolling-kills", faults.rolling_kills, hold=False),
    _queue("stop-cont-leader", faults.pause("leader")),
    _queue("stop-cont-leader-shares", faults.pause("leader"), workload="shares", bound_s=30.0),
    _queue("stop-cont-leader-2s", faults.pause("leader"), promise="none", seconds=2.0),
    _queue(
        "partition-leader-followers",
        faults.cut(_brokers_cut, what="cut from all other brokers, not from etcd"),
        partitions=1,
        promise="none",
    ),
    _queue("partition-leader-machine", faults.cut(_machine_cut, what="cut from all other machines")),
    _queue(
        "leader-machine-lost",
        faults.cut(
            lambda victim, others: [*network.cut_off(victim, others), *network.cut_from_clients(victim)],
            hides=True,
            what="cut from all other machines and clients",
        ),
    ),
    _queue("one-way-leader-to-followers", faults.cut(_to_others, what="others do not hear it"), promise="none"),
    _queue(
        "client-deaf-to-leader",
        faults.cut(lambda victim, _: network.answers_lost(victim), hides=True, what="clients do not hear its answers"),
        promise="others",
        no_election=True,
    ),
    _queue(
        "leader-cut-from-etcd",
        faults.cut(lambda victim, _: network.cut_from_etcd(victim), what="requests to etcd lost"),
    ),
    _queue("etcd-all-down", faults.etcd_kill("all"), seconds=15.0, bound_s=5.0, no_election=True),
    _queue("disk-full-leader", disk_faults.full_disk(["leader"]), disk="small", bound_s=30.0),
    _queue(
        "slow-fsync-leader",
        disk_faults.injected("leader", "delay_enter=200000", "each sync takes 200 ms"),
        partitions=1,
    ),
    _queue(
        "eio-on-fsync-leader",
        disk_faults.injected("leader", "error=EIO:when=3", "the third sync fails", ends=True),
        bound_s=30.0,
    ),
    _queue("power-cut-one-torn", disk_faults.power_cut("leader", "torn"), disk="power"),
    _queue("power-cut-all", disk_faults.power_cut("all", "drop"), disk="power", bound_s=60.0),
    _queue("power-cut-all-torn", disk_faults.power_cut("all", "torn"), disk="power", bound_s=60.0),
    _queue("bit-rot-ledger", rot.ledger_spoiled(), partitions=1, bound_s=60.0),
    _queue("bit-rot-ledger-all-stopped", rot.ledger_spoiled(all_down=True), partitions=1, bound_s=60.0),
    # Brokers are slow under libfaketime, and each lease and each verdict waits for replicas.
    _queue("clock-shift-1h", faults.clock_shift("leader", 3600), clocks=True, patience_s=PATIENCE_S, bound_s=40.0),
    _queue(
        "clock-shift-back-1h", faults.clock_shift("leader", -3600), clocks=True, patience_s=PATIENCE_S, bound_s=40.0
    ),
]


def _sorted(name: str, fault: faults.Fault, **more: Any) -> Cell:
    """Messages with keys, priorities, tenants and times of their own; of a key one is out at a time."""
    return _queue(f"{name}-sorted", fault, **{"workload": "sorted", "rate": 150, **more})


_SORTED = [
    _sorted("kill-leader", faults.kill("leader")),
    _sorted("kill-all", faults.kill_some(3), bound_s=45.0, queue={"delay": "300ms"}),
    _sorted("rolling-kills", faults.rolling_kills, hold=False, queue={"lanes": "strict"}),
    _sorted("stop-cont-leader", faults.pause("leader")),
    _sorted("power-cut-all", disk_faults.power_cut("all", "drop"), disk="power", bound_s=60.0),
    _sorted("clock-shift-1h", faults.clock_shift("leader", 3600), clocks=True, patience_s=PATIENCE_S, bound_s=40.0),
    _sorted(
        "clock-shift-back-1h",
        faults.clock_shift("leader", -3600),
        clocks=True,
        patience_s=PATIENCE_S,
        bound_s=40.0,
        queue={"delay": "300ms"},
    ),
]
GROUPS: dict[str, list[Cell]] = {
    "Processes": _PROCESSES,
    "Network": _NETWORK,
    "etcd": _ETCD,
    "Disks and power": _DISKS,
    "Files": _ROT,
    "Clocks": _CLOCKS,
    "Membership": _MEMBERSHIP,
    "Certificates and rules": _TRUST,
    "Queues": [*_QUEUES, *_SORTED],
}
CELLS: dict[str, Cell] = {cell.name: cell for cells in GROUPS.values() for cell in cells}
SMOKE = (
    "kill-leader",
    "stop-cont-leader",
    "one-way-leader-to-followers",
    "leader-cut-from-etcd",
    "etcd-leader-kill",
    "etcd-away-while-rules-change",
    "eio-on-fsync-leader",
    "bit-rot-leader-all-stopped",
    "power-cut-all",
    "queue-kill-leader",
    "queue-power-cut-all-sorted",
)
"""One of each sort."""
