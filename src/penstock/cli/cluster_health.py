"""What is wrong with a cluster, by its picture, and the command that helps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.cli.cluster_view import NOBODY, THROTTLE, Partition, Picture
from penstock.cli.output import count_of, format_bytes

_NAMED: Final = 3
_TIGHT: Final = 0.15
"""The share of a disk that is free below which it is told."""
BROKER_AWAY: Final = "broker-away"
_KNOWN_BY_STORE: Final = frozenset(
    ("no-leader", "below-min-isr", "broker-down", "under-replicated", BROKER_AWAY, "cordon", "empty", "strayed")
)
_STORE_FIRST: Final = "the metadata store first; this was so when it last answered, and may pass when it does again"


class Finding(NamedTuple):
    """Something to know about the cluster.

    Attributes:
        kind: stable, for scripts.
        is_problem: whether the cluster is not healthy because of it; else it is only worth knowing.
        next_step: what to do about it.
    """

    kind: str
    is_problem: bool
    text: str
    next_step: str


def examine(picture: Picture) -> list[Finding]:
    """Worst first."""
    found = [*_problems(picture), *_notes(picture)]
    return found if picture.store_answers else [_put_off(each) for each in found]


def _put_off(finding: Finding) -> Finding:
    """Without the store nobody knows who is away, and nothing can be changed: advice that costs data has to wait."""
    return finding._replace(next_step=_STORE_FIRST) if finding.kind in _KNOWN_BY_STORE else finding


def problems(picture: Picture) -> list[Finding]:
    return [each for each in examine(picture) if each.is_problem]


def blockers(picture: Picture, broker_id: int) -> list[Finding]:
    """Why a broker should not be stopped now: which partitions would not go on without it, or that it stays away."""
    return [*_nobody_in_charge(picture), *_stranded(picture, broker_id)]


def outages(picture: Picture, broker_id: int) -> list[Finding]:
    """What would not go on without a broker even when all others are in sync: nothing to wait for."""
    whole = tuple(replace(each, isr=each.expected) for each in picture.partitions)
    return _stranded(replace(picture, partitions=whole), broker_id)


def _stranded(picture: Picture, broker_id: int) -> list[Finding]:
    alone = [each for each in picture.held_by(broker_id) if set(each.isr) <= {broker_id}]
    short = [
        each
        for each in picture.held_by(broker_id)
        if each not in alone and len(set(each.isr) - {broker_id}) < min(each.min_isr, len(each.expected))
    ]
    found = []
    if alone:
        text = f"{_count(alone)} would have no leader without broker {broker_id}: {_names(alone)}"
        found.append(_finding("no-leader", text, "wait for others to be in sync, or give them more replicas"))
    if short:
        text = f"{_count(short)} would be below min.insync.replicas without broker {broker_id}: {_names(short)}"
        found.append(
            _finding("below-min-isr", text, "wait for others to be in sync: 'penstock cluster check --wait 300'")
        )
    return found


def _nobody_in_charge(picture: Picture) -> list[Finding]:
    found = []
    if not picture.store_answers:
        text = "the metadata store (etcd) does not answer: nothing can be changed, and a broker that stops cannot start"
        step = "start it, or see in the brokers' logs why they do not reach it; stop no broker until then"
        found.append(_finding("store-away", text, step))
    if picture.controller == NOBODY:
        text = "there is no controller, so nobody elects leaders"
        step = "it passes by itself within seconds where the metadata store answers; else see the brokers' logs"
        found.append(_finding("no-controller", text, step))
    return found


def _problems(picture: Picture) -> list[Finding]:
    found = _nobody_in_charge(picture)
    leaderless = [each for each in picture.partitions if each.leader == NOBODY]
    if leaderless:
        away = sorted({replica for each in leaderless for replica in each.replicas if not _is_up(picture, replica)})
        step = f"start broker {_listed(away)}" if away else "wait for an election"
        lost = "if it is lost for good: 'penstock cluster elect --unclean', which may lose records"
        found.append(
            _finding("no-leader", f"{_count(leaderless)} without a leader: {_names(leaderless)}", f"{step}; {lost}")
        )
    short = [each for each in picture.partitions if each.is_below_min and each.leader != NOBODY]
    if short:
        text = f"{_count(short)} below min.insync.replicas, so acks=all waits: {_names(short)}"
        found.append(_finding("below-min-isr", text, "start the brokers that are away, or 'penstock cluster replace'"))
    for broker in picture.brokers.values():
        held = len(picture.held_by(broker.id))
        if not broker.is_up and held:
            is_away = "is not running" if picture.store_answers else "is not registered, and may run all the same"
            text = f"broker {broker.id} {is_away}; it holds {count_of(held, 'replica')}"
            step = f"start it; if it is lost for good: 'penstock cluster replace {broker.id} NEW'"
            found.append(_finding("broker-down", text, step))
        elif broker.is_up and not broker.answers:
            text = f"broker {broker.id} does not answer at {broker.address}"
            found.append(_finding("broker-silent", text, "see its log, and whether this machine may reach it"))
    for text in dict.fromkeys(each.refusals for each in picture.brokers.values() if each.refusals):
        step = (
            "give all brokers the same secret or certificates of one authority; one of an earlier release: upgrade it"
        )
        found.append(_finding("refused", text, step))
    behind = [each for each in picture.partitions if each.is_behind and each.leader != NOBODY]
    if behind:
        lagging = sorted({replica for each in behind for replica in each.expected if replica not in each.isr})
        text = f"{_count(behind)} under-replicated (broker {_listed(lagging)} not in sync): {_names(behind)}"
        coming = any(_is_up(picture, replica) for replica in lagging)
        step = "it passes by itself when they have caught up" if coming else "it passes when they are back or replaced"
        found.append(_finding("under-replicated", text, step))
    return found


def _notes(picture: Picture) -> list[Finding]:
    found = []
    if moving := picture.moving:
        found.append(
            _note("moving", f"{_count(moving)} moving to other brokers", "'penstock cluster reassign --status'")
        )
    for broker in picture.brokers.values():
        is_empty = not picture.held_by(broker.id)
        if is_empty and not broker.is_up:
            what = f"broker {broker.id} is not running, and holds nothing"
            step = f"start it, or have it forgotten: 'penstock cluster decommission {broker.id}'"
            found.append(_note(BROKER_AWAY, what, step))
        elif broker.cordon and not is_empty:
            undo = f"drain {broker.id} --undo" if broker.cordon == "drained" else f"uncordon {broker.id}"
            found.append(_note("cordon", f"broker {broker.id} is {broker.cordon}", f"'penstock cluster {undo}'"))
        elif broker.cordon:
            what = f"broker {broker.id} is {broker.cordon} and holds nothing"
            found.append(_note("empty", what, f"stop it, then 'penstock cluster decommission {broker.id}'"))
    slowed = [each.id for each in picture.brokers.values() if each.throttle]
    if slowed and not picture.moving:
        listed = ",".join(map(str, slowed))
        step = f"'penstock cluster config --broker {listed} --unset {THROTTLE}'"
        found.append(_note("throttle", f"moves to broker {_listed(slowed)} are throttled, and nothing moves", step))
    tight = [
        each for each in picture.brokers.values() if each.disk_bytes and each.free_bytes / each.disk_bytes < _TIGHT
    ]
    if tight:
        least = format_bytes(min(each.free_bytes for each in tight))
        what = f"less than {_TIGHT:.0%} of the disk is left on broker {_listed([each.id for each in tight])} ({least})"
        found.append(
            _note("disk-tight", what, "a larger disk, shorter retention, or 'penstock cluster balance --by disk'")
        )
    strayed = [
        each
        for each in picture.partitions
        if each.leader not in (NOBODY, each.replicas[0]) and each.replicas[0] in each.isr and not each.is_moving
    ]
    willing = [each for each in strayed if picture.brokers[each.replicas[0]].cordon != "drained"]
    if willing:
        found.append(_note("strayed", f"{_count(willing)} not led by the preferred broker", "'penstock cluster elect'"))
    return found


def _finding(kind: str, text: str, step: str) -> Finding:
    return Finding(kind, True, text, step)


def _note(kind: str, text: str, step: str) -> Finding:
    return Finding(kind, False, text, step)


def _is_up(picture: Picture, broker_id: int) -> bool:
    return picture.brokers[broker_id].is_up


def _count(partitions: Sequence[Partition]) -> str:
    return count_of(len(partitions), "partition")


def _names(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(each.name for each in partitions[:_NAMED])
    return shown + (", …" if len(partitions) > _NAMED else "")


def _listed(broker_ids: Sequence[int]) -> str:
    return ", ".join(map(str, broker_ids))
