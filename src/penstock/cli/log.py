"""`penstock log`: look into a data directory, verify it, repair it, accept it as it is.

Looking and verifying take no lock and write nothing, so they work beside a running broker. The others need it stopped.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import (
    format_bytes,
    note,
    note_none,
    output_option,
    print_fields,
    print_table,
    progress,
    show,
    show_list,
)

if TYPE_CHECKING:
    from penstock.ports.disk import Disk
    from penstock.storage.offline.catalogue import Catalogue
    from penstock.storage.offline.findings import Finding
    from penstock.storage.offline.inspection import DirectoryReport

F = TypeVar("F", bound=Callable[..., Any])


@click.group("log", help="Look into a data directory, verify it and repair it.")
def command() -> None:
    pass


def _data_dir_option(function: F) -> F:
    return click.option(
        "--data-dir",
        "data_dir",
        metavar="DIR",
        envvar="PENSTOCK_DATA_DIR",
        default="data",
        show_default="$PENSTOCK_DATA_DIR, or ./data",
        help="The data directory.",
    )(function)


@command.command(
    "list",
    help="List the partitions in a data directory: segments, bytes, offsets. Reads cards and headers, not the records.",
    epilog="""\b
Examples:
  penstock log list
  penstock log list orders --segments
  penstock log list --data-dir /var/lib/penstock -o json""",
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--segments", "by_segment", is_flag=True, help="One line for each segment.")
@_data_dir_option
@output_option
def list_partitions(topics: tuple[str, ...], by_segment: bool, data_dir: str, output: str) -> None:
    from penstock.storage.offline.description import describe_partition, format_time
    from penstock.storage.offline.inspection import find_owners

    disk = _open(data_dir)
    found: list[dict[str, Any]] = []
    for owner in find_owners(disk, data_dir, _known_topics(disk, data_dir, topics)):
        overview = describe_partition(disk, owner.path)
        states = [segment["state"] for segment in overview.segments]
        found.append(
            {
                "topic": owner.topic,
                "partition": owner.partition,
                "topic_id": str(owner.topic_id) if owner.topic_id else None,
                "log_start": overview.log_start,
                "end_offset": overview.end_offset,
                "bytes": overview.size_bytes,
                "sealed": states.count("sealed"),
                "cards": sum(segment["card"] is not None for segment in overview.segments),
                "problem": owner.problem,
                "segments": overview.segments,
            }
        )

    def table() -> None:
        if by_segment:
            keys = ("segment", "base_offset", "next_offset", "bytes", "state", "card", "card_bytes")
            rows = [
                [
                    each["topic"],
                    each["partition"],
                    *(segment[key] for key in keys),
                    format_time(segment["max_timestamp"]),
                ]
                for each in found
                for segment in each["segments"]
            ]
            names = ("segment", "base", "next", "bytes", "state", "card", "card covers", "newest")
            print_table(rows, ["topic", "partition", *names])
            return
        first = ("topic", "partition", "log_start", "end_offset")
        cells = [
            [
                *(each[key] for key in first),
                len(each["segments"]),
                each["sealed"],
                each["cards"],
                format_bytes(each["bytes"]),
                each["problem"],
            ]
            for each in found
        ]
        print_table(cells, ["topic", "partition", "log start", "end", "segments", "sealed", "cards", "size", "problem"])

    show_list(found, output, "partitions", table, narrowed=bool(topics))


@command.command(
    "dump",
    help="""Print batches, records or small files.

    TARGET is a topic, TOPIC-PARTITION, or a file: a segment (.log, .cleaned), a card (.index, .checkpoint), state,
    swap, snapshot, partition.meta, format, clean-shutdown, log-ends or metadata.db. Without one, what the metadata
    store says.

    Control batches are shown as the markers they are: commit or abort, whose producer and epoch.""",
    epilog="""\b
Examples:
  penstock log dump                              topics, settings, ids
  penstock log dump orders-0 --from 1000 --count 20
  penstock log dump orders --partition 0 --records -o json
  penstock log dump data/logs/orders/0/state
  penstock log dump logs/orders/0/00000000000000000000.index

\b
Keys and values are shown as text when they are UTF-8, else as base64.""",
)
@click.argument("target", required=False)
@click.option("--partition", type=click.IntRange(0), help="Only this partition of the topic.")
@click.option("--from", "start", type=click.IntRange(0), default=0, metavar="OFFSET", help="Begin at this offset.")
@click.option("--until", type=click.IntRange(0), metavar="OFFSET", help="Stop before this offset.")
@click.option("--records", is_flag=True, help="Open the batches and show the records in them.")
@click.option("--count", type=click.IntRange(1), help="At most so many batches, or records with --records.")
@_data_dir_option
@output_option
def dump(
    target: str | None,
    partition: int | None,
    start: int,
    until: int | None,
    records: bool,
    count: int | None,
    data_dir: str,
    output: str,
) -> None:
    from penstock.cli import dump as printing

    select = printing.Selection(start, until, count, records)
    disk = _open(data_dir, needed=target is None or not os.path.isfile(target))
    if target is None:
        _dump_metadata(data_dir, output)
        return
    path = next((each for each in (target, f"{data_dir}/{target}") if os.path.isfile(each)), None)
    if path is not None and os.path.basename(path) == "metadata.db":
        _dump_metadata(os.path.dirname(os.path.dirname(os.path.abspath(path))), output)
    elif path is not None:
        printing.dump_file(disk, path, output, select)
    else:
        printing.dump_partitions(disk, _find_partitions(disk, data_dir, target, partition), output, select)


def _find_partitions(disk: "Disk", data_dir: str, target: str, partition: int | None) -> list[tuple[str, str]]:
    from penstock.storage.offline.inspection import find_owners

    named = re.fullmatch(r"(.+)-(\d+)", target)
    topic = target
    if not disk.is_dir(f"{data_dir}/logs/{target}") and named is not None:
        topic, partition = named[1], int(named[2])
    owners = [
        owner for owner in find_owners(disk, data_dir, [topic]) if partition is None or owner.partition == partition
    ]
    if not owners:
        what = f"topic {topic!r}" if partition is None else f"partition {topic}-{partition}"
        raise CommandError(f"no {what} and no such file in {data_dir}; 'penstock log list' shows what there is")
    return [(owner.name, owner.path) for owner in owners]


def _dump_metadata(data_dir: str, output: str) -> None:
    catalogue = _catalogue(data_dir)
    facts = {
        "file": catalogue.path,
        "cluster_id": catalogue.cluster_id,
        "next_producer_id": catalogue.next_producer_id,
        "problem": catalogue.problem if catalogue.exists else "the file does not exist",
        "topics": [
            {
                "name": name,
                "id": str(entry.topic_id),
                "partitions": entry.partitions,
                "leader_epoch": entry.leader_epoch,
                "settings": dict(entry.settings),
            }
            for name, entry in sorted(catalogue.topics.items())
        ],
        "intents": [{"deed": each.deed, "topic": each.topic, "id": str(each.topic_id)} for each in catalogue.intents],
    }

    def table() -> None:
        print_fields({name: value for name, value in facts.items() if not isinstance(value, list)})
        click.echo()
        cells = [
            [name, entry.topic_id, entry.partitions, entry.leader_epoch, _pairs(entry.settings)]
            for name, entry in sorted(catalogue.topics.items())
        ]
        if cells:
            print_table(cells, ["topic", "id", "partitions", "leader epoch", "settings"])
        else:
            note_none("topics")
        if catalogue.intents:
            click.echo()
            rows = [[each.deed, each.topic, each.topic_id] for each in catalogue.intents]
            print_table(rows, ["under way", "topic", "id"])

    show(facts, output, table)


def _pairs(settings: Any) -> str | None:
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or None


@command.command(
    "verify",
    help="""Check everything in a data directory, or some topics in it, without changing anything.

    Every batch is read and compared with its CRC-32C, its card and its neighbours; the metadata store is compared with
    the directories. Each finding says what the next start does about it, and what you can do. What a crash or a running
    broker leaves is marked as harmless. The exit code is 0 when there is no damage, 1 when there is.""",
    epilog="""\b
Examples:
  penstock log verify
  penstock log verify orders --deep
  penstock log verify --data-dir /var/lib/penstock -o json""",
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--deep", is_flag=True, help="Also decompress every batch and decode every record.")
@_data_dir_option
@output_option
def verify(topics: tuple[str, ...], deep: bool, data_dir: str, output: str) -> int:
    disk = _open(data_dir)
    report = _verify(disk, data_dir, _known_topics(disk, data_dir, topics), deep)
    show(_summary(report), output, lambda: _print_report(report))
    return FAILED if report.damage else 0


def _verify(disk: "Disk", data_dir: str, topics: Sequence[str], deep: bool) -> "DirectoryReport":
    from penstock.storage.offline.inspection import find_owners, inspect_directory, log_bytes

    total = log_bytes(disk, find_owners(disk, data_dir, topics))
    with progress(f"verifying {data_dir}", total, unit="bytes") as bar:
        return inspect_directory(disk, data_dir, _catalogue(data_dir), topics=topics, deep=deep, advance=bar.advance)


def _summary(report: "DirectoryReport") -> dict[str, Any]:
    segments = [segment for partition in report.partitions for segment in partition.segments]
    return {
        "data_dir": report.path,
        "sound": not report.damage,
        "partitions": len(report.partitions),
        "segments": len(segments),
        "batches": sum(segment.batches for segment in segments),
        "records": sum(segment.records for segment in segments),
        "bytes": sum(segment.size for segment in segments),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print_report(report: "DirectoryReport") -> None:
    facts = _summary(report)
    for finding in report.damage:
        _print_finding(finding)
    for finding in report.findings:
        if not finding.is_damage:
            click.echo(f"HARMLESS  {finding.path}: {finding.what} (a start: {finding.start})")
    damage, harmless = len(report.damage), len(report.findings) - len(report.damage)
    click.echo(
        f"{report.path}: {facts['partitions']} partitions, {facts['segments']} segments, {facts['batches']} batches, "
        f"{facts['records']} records, {format_bytes(facts['bytes'])}"
    )
    verdict = "sound" if not damage else f"{damage} damaged"
    click.echo(f"{verdict}, {harmless} harmless" if harmless else verdict)


def _print_finding(finding: "Finding") -> None:
    where = finding.path if finding.position is None else f"{finding.path} at byte {finding.position}"
    fields: dict[str, object] = {"what": finding.what}
    if finding.first_offset is not None:
        last = finding.last_offset
        fields["offsets"] = f"{finding.first_offset} to {last}" if last is not None else f"{finding.first_offset} on"
    fields |= {"a start": finding.start, "way out": finding.way_out}
    print_fields(fields, title=f"{finding.severity.upper()}  {where}")
    click.echo()


@command.command(
    "repair",
    help="""Mend a data directory whose broker is stopped.

    It changes only damage; the next start mends what a crash leaves. Nothing is deleted: bytes
    that are taken out stay beside their file as *.damaged-N. Batches that still check stay at their offsets; offsets
    that are lost are named, hold no records from then on, and consumers go on behind them. Lost metadata
    is rebuilt from the partitions' own files. Without a terminal and without --yes, the plan is shown and nothing is
    done. The exit code is 0 when no damage is left.""",
    epilog="""\b
Examples:
  penstock log repair --dry-run
  penstock log repair orders
  penstock log repair --data-dir /var/lib/penstock --yes""",
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--recreate-missing", is_flag=True, help="Make an empty partition where a directory is gone.")
@_data_dir_option
@output_option
def repair(
    topics: tuple[str, ...], dry_run: bool, yes: bool, recreate_missing: bool, data_dir: str, output: str
) -> int:
    from penstock.cli import repairing

    _known_topics(_open(data_dir), data_dir, topics)
    os.umask(0o077)  # as the broker's own files
    with repairing.locked(data_dir) as disk:
        before = _verify(disk, data_dir, topics, False)
        plan = repairing.plan(before, _catalogue(data_dir), recreate_missing, whole=not topics)
        if output == "table":
            repairing.print_plan(before, plan)
        kept: list[str] = []
        done = not plan.is_empty and not dry_run and _agreed(yes)
        if done:
            kept = repairing.apply(disk, data_dir, plan)
        after = _verify(disk, data_dir, topics, False) if done else before
    facts = {**repairing.describe(plan), "done": done, "kept": kept, "after": _summary(after)}

    def table() -> None:
        if done:
            for path in kept:
                click.echo(f"kept {path}")
            click.echo()
            _print_report(after)
        elif not plan.is_empty:
            note("nothing was changed; 'penstock log repair --yes' does it")

    show(facts, output, table)
    return FAILED if after.damage else 0


@command.command(
    "accept",
    help="""Go on with partitions that end before what was durable once, with the broker stopped.

    A start keeps such a partition offline: it was restored from an old copy, or its newest part is lost. Accepting
    it means that offsets behind its end, which had records before, are given to other records; 'penstock log repair'
    leaves them empty instead, so that no consumer takes one for the other. Nothing is removed. Without a terminal and
    without --yes, it only shows what would be accepted. The exit code is 0 when no such partition is left.""",
    epilog="""\b
Examples:
  penstock log accept
  penstock log accept orders-0 --yes
  penstock log accept orders --data-dir /var/lib/penstock""",
)
@click.argument("partitions", metavar="[TOPIC|TOPIC-PARTITION]...", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_data_dir_option
@output_option
def accept(partitions: tuple[str, ...], yes: bool, data_dir: str, output: str) -> int:
    from penstock.cli import repairing
    from penstock.storage.offline import acceptance
    from penstock.storage.offline.inspection import find_owners

    named = {name for each in partitions for name, _ in _find_partitions(_open(data_dir), data_dir, each, None)}
    os.umask(0o077)  # as the broker's own files
    with repairing.locked(data_dir) as disk:
        owners = [owner for owner in find_owners(disk, data_dir) if not named or owner.name in named]
        report = _verify(disk, data_dir, sorted({owner.topic for owner in owners}), False)
        older = acceptance.find_older(disk, report, owners)
        sound = [log for log in older if not log.is_damaged]
        if output == "table":
            repairing.print_older(older)
        done = bool(sound) and _agreed(yes)
        if done:
            acceptance.accept(disk, report, sound)
    show({"partitions": [repairing.describe_older(log) for log in older], "done": done}, output, lambda: None)
    if sound and not done:
        note("nothing was changed; 'penstock log accept --yes' does it")
    return 0 if len(older) == len(sound) * done else FAILED


def _agreed(yes: bool) -> bool:
    if yes:
        return True
    return sys.stdin.isatty() and click.confirm("Do this?", err=True)


# --- places


def _open(data_dir: str, *, needed: bool = True) -> "Disk":
    from penstock.storage.offline.read_only_disk import ReadOnlyDisk

    if needed:
        try:
            os.scandir(f"{data_dir}/logs").close()
        except (FileNotFoundError, NotADirectoryError):
            raise CommandError(f"{data_dir} is no data directory; name one with --data-dir DIR", code=USAGE) from None
    return ReadOnlyDisk()


def _known_topics(disk: "Disk", data_dir: str, topics: Sequence[str]) -> Sequence[str]:
    for topic in topics:
        if not disk.is_dir(f"{data_dir}/logs/{topic}"):
            raise CommandError(f"no topic {topic!r} in {data_dir}/logs; 'penstock log list' shows what there is")
    return topics


def _catalogue(data_dir: str) -> "Catalogue":
    from penstock.cluster.metadata.offline import load_catalogue

    return load_catalogue(data_dir)
