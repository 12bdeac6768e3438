"""What `penstock group` answers: plain values for scripts, and the tables made of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from penstock.cli.group_offsets import Change, Progress, sum_lag
from penstock.cli.groups import Group
from penstock.cli.output import note, note_none, print_fields, print_table
from penstock.cli.topics import Partition

LEVELS: Final = ("group", "topic", "partition")


def format_group(group: Group, progress: Sequence[Progress] | None) -> dict[str, Any]:
    """A group in full; without its offsets if `progress` is None."""
    formatted: dict[str, Any] = {
        "group": group.name,
        "state": group.state,
        "type": group.type,
        "coordinator": group.coordinator._asdict() if group.coordinator else None,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "members": [
            {
                "id": each.id,
                "client_id": each.client_id,
                "host": each.host,
                "instance_id": each.instance_id,
                "epoch": each.epoch,
                "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions],
            }
            for each in group.members
        ],
    }
    if progress is not None:
        owners = group.owners
        formatted["lag"] = sum_lag(progress)
        formatted["offsets"] = [
            {**_format_progress(each), "client_id": owner.client_id if owner else None}
            for each in progress
            for owner in [owners.get((each.topic, each.partition))]
        ]
    return formatted


def print_groups(described: Sequence[Mapping[str, Any]], *, only_members: bool) -> None:
    for group in described:
        _print_group(group, only_members)


def _print_group(group: Mapping[str, Any], only_members: bool) -> None:
    coordinator, members = group["coordinator"], group["members"]
    facts = {
        "state": group["state"],
        "type": group["type"],
        "coordinator": f"{coordinator['id']} at {coordinator['address']}" if coordinator else None,
        "assignor": group["assignor"],
        "epoch": group["epoch"],
        "members": len(members),
        "lag": group.get("lag"),
    }
    hidden = {"epoch"} if group["type"] == "classic" else set()
    hidden |= {"lag"} if "lag" not in group else set()
    print_fields({name: fact for name, fact in facts.items() if name not in hidden}, title=group["group"])
    click.echo()
    if members:
        columns = ["client id", "host", "instance id", "partitions"]
        rows = [
            [*(each[key] for key in ("client_id", "host", "instance_id")), _list_partitions(each)] for each in members
        ]
        if only_members:
            columns = ["member", *columns, "epoch"]
            rows = [[each["id"], *row, each["epoch"]] for each, row in zip(members, rows, strict=True)]
        print_table(rows, columns)
        click.echo()
    if only_members:
        return
    if not group["offsets"]:
        click.echo("nothing committed")
    else:
        keys = ["topic", "partition", "offset", "end", "lag", "client_id"]
        print_table([[each[key] for key in keys] for each in group["offsets"]], [*keys[:-1], "client id"])
    click.echo()


def _list_partitions(member: Mapping[str, Any]) -> str | None:
    by_topic: dict[str, list[str]] = {}
    for each in member["partitions"]:
        by_topic.setdefault(each["topic"], []).append(str(each["partition"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or None


def format_lag(progress: Mapping[str, Sequence[Progress]]) -> dict[str, Any]:
    """Lag of groups, their topics and their partitions, what is furthest behind first."""
    groups = [
        {"group": name, "lag": sum_lag(each), "unknown": _count_unknown(each), "topics": _format_topics(each)}
        for name, each in progress.items()
    ]
    return {
        "lag": sum(each["lag"] for each in groups),
        "unknown": sum(each["unknown"] for each in groups),
        "groups": sorted(groups, key=lambda each: (-each["lag"], each["group"])),
    }


def _format_topics(progress: Iterable[Progress]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[Progress]] = {}
    for each in progress:
        by_topic.setdefault(each.topic, []).append(each)
    formatted = [
        {
            "topic": topic,
            "lag": sum_lag(some),
            "unknown": _count_unknown(some),
            "partitions": sorted(
                ({key: value for key, value in _format_progress(each).items() if key != "topic"} for each in some),
                key=lambda each: (-(each["lag"] or 0), each["partition"]),
            ),
        }
        for topic, some in by_topic.items()
    ]
    return sorted(formatted, key=lambda each: (-each["lag"], each["topic"]))


def print_lag(lag: Mapping[str, Any], level: str) -> None:
    """One row for each group, topic or partition, and the total."""
    if not lag["groups"]:
        note_none("groups")
        return
    rows = list(_lag_rows(lag["groups"], level))
    columns = {
        "group": ["group", "topics", "partitions", "lag"],
        "topic": ["group", "topic", "partitions", "lag"],
        "partition": ["group", "topic", "partition", "offset", "end", "lag"],
    }[level]
    rows.sort(key=lambda row: (row[-1] is None, -(row[-1] or 0)))
    print_table(rows, columns)
    count = len(lag["groups"])
    told = f"total lag {lag['lag']:,} of {'1 group' if count == 1 else f'{count:,} groups'}"
    if lag["unknown"]:
        told += f", not counting {lag['unknown']:,} partitions that do not answer or are gone"
    click.echo(told)


def _lag_rows(groups: Sequence[Mapping[str, Any]], level: str) -> Iterable[list[Any]]:
    for group in groups:
        name, topics = group["group"], group["topics"]
        if level == "group":
            yield [name, len(topics), sum(len(topic["partitions"]) for topic in topics), group["lag"]]
        for topic in topics:
            if level == "topic":
                yield [name, topic["topic"], len(topic["partitions"]), topic["lag"]]
            if level == "partition":
                for each in topic["partitions"]:
                    yield [name, topic["topic"], *each.values()]


def _format_progress(progress: Progress) -> dict[str, Any]:
    return {**progress._asdict(), "lag": progress.lag}


def _count_unknown(progress: Iterable[Progress]) -> int:
    return sum(each.lag is None for each in progress)


def format_changes(changes: Iterable[Change]) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.topic,
            "partition": each.partition,
            "from": each.old,
            "to": each.new,
            "change": each.distance,
            "clamped": each.clamped is not None,
        }
        for each in changes
    ]


def print_changes(changes: Sequence[Change]) -> None:
    columns = ["topic", "partition", "from", "to", "change"]
    print_table([[each[column] for column in columns] for each in format_changes(changes)], columns)
    for each in changes:
        if each.clamped is not None:
            edge = "before its start" if each.clamped < each.new else "past its end"
            note(
                f"partition {each.partition} of topic {each.topic}: {each.clamped} is {edge}, so it goes to {each.new}"
            )


def format_partitions(partitions: Iterable[Partition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]
