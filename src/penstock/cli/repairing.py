"""`penstock log repair` and `accept`: the lock, what is to be done in words, and its steps one after the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from penstock.cli.failure import CommandError
from penstock.cli.output import print_fields

if TYPE_CHECKING:
    from penstock.ports.disk import Disk
    from penstock.storage.offline.acceptance import OlderLog
    from penstock.storage.offline.catalogue import Catalogue
    from penstock.storage.offline.inspection import DirectoryReport
    from penstock.storage.offline.repair import Plan


@contextmanager
def locked(data_dir: str) -> "Iterator[Disk]":
    """The directory's disk, while no broker can take it."""
    from penstock.storage.local_disk import LocalDisk
    from penstock.storage.offline.repair import take_lock

    disk = LocalDisk()
    lock = take_lock(disk, data_dir)
    try:
        yield disk
    finally:
        lock.release()
        disk.close()


def plan(report: "DirectoryReport", catalogue: "Catalogue", recreate_missing: bool, *, whole: bool) -> "Plan":
    from penstock.storage.offline.repair import make_plan

    now_ms = int(time.time() * 1000)
    return make_plan(report, catalogue, now_ms, str(uuid4()), recreate_missing=recreate_missing, whole=whole)


def apply(disk: "Disk", data_dir: str, plan: "Plan") -> list[str]:
    """Do all steps; the files that keep what was taken out."""
    from penstock.cluster.metadata.offline import replace_store
    from penstock.errors import PenstockError

    kept: list[str] = []
    for step in plan.steps:
        try:
            kept += step.apply(disk)
        except (OSError, PenstockError) as error:
            raise CommandError(
                f"could not {step.what}: {error}; what was done before it is whole, and the repair can be made again"
            ) from error
    if plan.catalogue is not None:
        kept += replace_store(data_dir, plan.catalogue)
    return kept


def describe(plan: "Plan") -> dict[str, Any]:
    from penstock.storage.offline.log_repair import lost_ranges

    return {
        "steps": [
            {
                "path": step.path,
                "partition": step.partition or None,
                "what": step.what,
                "lost": [{"first_offset": first, "last_offset": last} for first, last in step.lost],
            }
            for step in plan.steps
        ],
        "metadata_rebuilt": plan.catalogue is not None,
        "lost": {
            name: [{"first_offset": first, "last_offset": last} for first, last in ranges]
            for name, ranges in lost_ranges(plan.steps).items()
        },
        "notes": plan.notes,
        "not_repaired": [{"path": each.path, "what": each.what, "way_out": each.way_out} for each in plan.left],
    }


def print_plan(report: "DirectoryReport", plan: "Plan") -> None:
    for step in plan.steps:
        lost = ", ".join(f"{first} to {last}" for first, last in step.lost)
        print_fields({"do": step.what, "offsets lost": lost or "none"}, title=step.partition or step.path)
        click.echo()
    for text in plan.notes:
        click.echo(f"- {text}")
    for finding in plan.left:
        print_fields({"what": finding.what, "way out": finding.way_out}, title=f"NOT REPAIRED  {finding.path}")
        click.echo()
    by_start = [finding for finding in report.findings if finding not in plan.left and not finding.is_damage]
    if by_start:
        click.echo(
            f"{len(by_start)} harmless findings are left to the next start, or alone; 'penstock log verify' lists them"
        )
    if plan.is_empty:
        click.echo("nothing to repair" if not plan.left else "nothing that can be repaired here")


def describe_older(log: "OlderLog") -> dict[str, Any]:
    return {
        "partition": log.name,
        "path": log.path,
        "end_offset": log.end_offset,
        "durable_end": log.known_end,
        "damaged": log.is_damaged,
    }


def print_older(logs: "list[OlderLog]") -> None:
    for log in logs:
        do = f"go on at offset {log.end_offset}; {log.end_offset} to {log.known_end - 1} are given out again"
        if log.is_damaged:
            do = "nothing: its own files are damaged; 'penstock log repair' first"
        print_fields({"ends at": log.end_offset, "was durable up to": log.known_end, "do": do}, title=log.name)
        click.echo()
    if not logs:
        click.echo("every partition reaches as far as was durable; nothing to accept")
