"""What a planted bug is looked for in: runs of few faults, those that bring it to light, and of the clients it hurts.

A whole run has faults of all kinds, and most bugs come to light by few of them. Which seeds find a bug changes with
every change of the product; how many of them do, hardly: one of two for most bugs, one of fifty for a few.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.cluster import DISK_DELAYS_S
from tests.simulation.groups import GroupsWorkload
from tests.simulation.log import LogWorkload
from tests.simulation.queues import QueueWorkload
from tests.simulation.schedules import ScheduleWorkload
from tests.simulation.transactions import TransactionsWorkload
from tests.simulation.workload import WorkloadFactory


class Scenario(NamedTuple):
    """What runs are narrowed to. Nothing named: as each seed says.

    Attributes:
        kinds: of faults and of an operator's acts. One that is named more often comes more often.
        disk_delays_s: the longest wait for a disk, of which each disk has one.
    """

    kinds: Sequence[str] = ()
    workloads: Sequence[WorkloadFactory] = ()
    disk_delays_s: Sequence[float] = DISK_DELAYS_S


def _log(kinds: str, *disk_delays_s: float) -> Scenario:
    return Scenario(kinds.split(), (LogWorkload,), disk_delays_s or DISK_DELAYS_S)


def _groups(kinds: str) -> Scenario:
    return Scenario(kinds.split(), (GroupsWorkload,))


def _transactions(kinds: str, *disk_delays_s: float, **more: Any) -> Scenario:
    return Scenario(kinds.split(), (partial(TransactionsWorkload, **more),), disk_delays_s or DISK_DELAYS_S)


def _queues(kinds: str) -> Scenario:
    return Scenario(kinds.split(), (QueueWorkload,))


def _schedules(kinds: str) -> Scenario:
    return Scenario(kinds.split(), (ScheduleWorkload,))


_SLOW_S = 0.05
_SUSPICIONS = "false_suspicion false_suspicion false_suspicion false_suspicion"

WHOLE = Scenario()
SCENARIOS: Mapping[str, Scenario] = {
    # storage and the high watermark
    "no_fsync": _log("power_all", _SLOW_S),
    "unsynced_fetch_offset": _log("power_all kill_two lose_disk"),
    "silent_followers_do_not_count": _log("confusion"),
    "follower_trusts_its_end": _log("isolate_one false_suspicion", _SLOW_S),
    "acks_when_deposed": _log("confusion"),
    # following
    "truncate_to_high_watermark": _log("kill_all"),
    "no_truncation": _log("confusion kill_one"),
    # in-sync sets and elections
    "early_expand": _log("isolate_one false_suspicion", _SLOW_S),
    "below_min_isr": _log("stop_one stop_one stop_one stop_one power_one power_one"),
    "unclean_as_clean": _log("power_one lose_disk", _SLOW_S),
    "shrink_before_swap": _log("confusion isolate_one cut_from_etcd"),
    "first_report_leads": _log("old_files power_all kill_all"),
    "epochs_not_copied": _log("confusion"),
    "producers_not_copied": _log("confusion"),
    "retries_appended": _log("confusion"),
    "lagging_watermark_told": _log("confusion"),
    "dirty_reads": _log("confusion isolate_one"),
    "same_epoch": _log("confusion"),
    # an operator's acts, and damage
    "moved_with_one": _log("operator_move kill_one"),
    "moved_without_who_stays": _log("operator_move kill_one"),
    "moved_in_one_epoch": _log("operator_move"),
    "moved_and_kept": _log("operator_move"),
    "dropped_on_the_way": _log("operator_move", _SLOW_S),
    "drained_leads_on": _log("operator_drain"),
    "drained_never_leads": _log("operator_drain kill_two kill_two"),
    "damage_ignored": _log("bit_rot"),
    "set_aside_for_ever": _log("bit_rot"),
    "missing_log_is_clean": _log("lost_directory"),
    "memory_after_failed_sync": _log("failing_sync", _SLOW_S),
    # transactions
    "late_marker": _transactions(_SUSPICIONS, mischief=0.3, commits=0.5, versions=(1,)),
    "deposed_coordinator_marker": _transactions(_SUSPICIONS, mischief=0.3, commits=0.5, versions=(1,)),
    "init_keeps_the_epoch": _transactions("slow_disk slow_disk", mischief=4.0),
    "guard_ignored": _transactions("slow_disk", mischief=4.0),
    "late_end": _transactions("slow_disk"),
    "zombie_not_fenced": _transactions("slow_disk"),
    "unverified_batches": _transactions("slow_disk"),
    "stale_lso": _transactions("slow_disk"),
    "no_aborted_list": _transactions("slow_disk"),
    "aborted_offsets_count": _transactions("slow_disk"),
    "markers_not_retried": _transactions("confusion isolate_one"),
    "markers_forgotten": _transactions("confusion isolate_one"),
    "markers_not_durable": _transactions(_SUSPICIONS, 0.1),
    # groups
    "loads_too_early": _groups("false_suspicion"),
    "reply_before_durable": _groups("confusion isolate_one"),
    "old_machine": _groups("false_suspicion"),
    "any_generation": _groups("slow_disk"),
    "snapshot_outlives_log": _groups(""),
    # queues
    "burial_begun_anew": _queues("kill_one kill_two confusion"),
    # schedules
    "round_begun_anew": _schedules("false_suspicion false_suspicion"),
    "fires_before_the_note": _schedules("confusion confusion"),
}
