"""Plans for people and files: what moves where, and what each broker has before and after.

The file is the one that Kafka's tools write and read (`kafka-reassign-partitions`), so a plan of either may be used by
the other; ours has a few more keys, which theirs ignore.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from penstock.cli.cluster_progress import left_to_copy
from penstock.cli.cluster_view import Picture, Place
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import count_of, format_bytes, note, print_table
from penstock.cluster.plans import Broker, Held, Layout, Move

_SHOWN: Final = 20
_KEPT_FREE: Final = 0.05
"""Of a disk, whatever moves to it: what is written meanwhile needs room as well."""


class Written(NamedTuple):
    """What a file says: who shall hold partitions and, where it says so, who held them when it was written."""

    targets: dict[Place, list[int]]
    old: dict[Place, list[int]]


def make_layout(picture: Picture) -> Layout:
    """The picture as plans want it. What is on its way already is left out."""
    brokers = {
        each.id: Broker(each.rack, each.takes, each.disk_bytes, each.disk_bytes - each.free_bytes)
        for each in picture.brokers.values()
    }
    held = {each.place: Held(each.replicas, picture.size_of(each)) for each in picture.partitions if not each.is_moving}
    return Layout(brokers, held)


def read_plan(path: str) -> Written:
    """Kafka's file: `{"version": 1, "partitions": [{"topic", "partition", "replicas"}]}`; ours has `old_replicas` too.

    Raises `CommandError`.
    """
    import orjson

    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        read = orjson.loads(text)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", code=USAGE) from None
    except orjson.JSONDecodeError as error:
        raise CommandError(f"{path} is no JSON: {error}", code=USAGE) from None
    listed = read.get("partitions") if isinstance(read, dict) else None
    if not isinstance(listed, list):
        raise CommandError(f"{path}: expected {{'version': 1, 'partitions': [...]}}", code=USAGE)
    if read.get("version", 1) != 1:
        raise CommandError(f"{path}: version {read['version']} of a plan is unknown; 1 is known", code=USAGE)
    written = Written({}, {})
    for number, each in enumerate(listed):
        place, replicas = _read_entry(path, number, each)
        if place in written.targets:
            raise CommandError(f"{path}: {place[0]}-{place[1]} is there twice", code=USAGE)
        written.targets[place] = replicas
        if each.get("old_replicas") is not None:
            written.old[place] = _check_ids(path, place, each["old_replicas"])
    return written


def _read_entry(path: str, number: int, each: Any) -> tuple[Place, list[int]]:
    topic, index, replicas = (
        (each.get("topic"), each.get("partition"), each.get("replicas")) if isinstance(each, dict) else (None,) * 3
    )
    if not isinstance(topic, str) or not isinstance(index, int) or not isinstance(replicas, list):
        raise CommandError(f"{path}: entry {number} needs topic, partition and replicas", code=USAGE)
    return (topic, index), _check_ids(path, (topic, index), replicas)


def _check_ids(path: str, place: Place, replicas: Any) -> list[int]:
    if not isinstance(replicas, list) or not all(type(replica) is int for replica in replicas):
        raise CommandError(f"{path}: replicas of {place[0]}-{place[1]} are no broker ids: {replicas}", code=USAGE)
    return replicas


def format_plan(layout: Layout, moves: Sequence[Move]) -> dict[str, Any]:
    """For scripts, and for `reassign --plan`."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "replicas": list(move.new),
                "old_replicas": list(move.old),
                "copied_bytes": move.copied_bytes,
            }
            for move in moves
        ],
        "copied_bytes": sum(move.copied_bytes for move in moves),
        "brokers": _format_loads(layout, moves),
    }


def _format_loads(layout: Layout, moves: Sequence[Move]) -> list[dict[str, Any]]:
    before, after = layout.loads(), layout.after(moves).loads()
    return [
        {
            "broker": broker_id,
            "before": {**was._asdict(), "disk": _disk_use(layout, broker_id, 0)},
            "after": {
                **after[broker_id]._asdict(),
                "disk": _disk_use(layout, broker_id, after[broker_id].size_bytes - was.size_bytes),
            },
        }
        for broker_id, was in before.items()
    ]


def _disk_use(layout: Layout, broker_id: int, more_bytes: int) -> float | None:
    broker = layout.brokers.get(broker_id)
    if broker is None or not broker.disk_bytes:
        return None
    return round((broker.used_bytes + more_bytes) / broker.disk_bytes, 4)


def print_plan(layout: Layout, moves: Sequence[Move]) -> None:
    """What moves, the largest first, then each broker before and after."""
    shown = sorted(moves, key=lambda move: (-move.copied_bytes, move.place))[:_SHOWN]
    rows = [
        [
            f"{move.topic}-{move.partition}",
            _listed(move.old),
            _listed(move.new),
            _listed(move.adding) or "-",
            format_bytes(move.copied_bytes),
        ]
        for move in shown
    ]
    print_table(rows, ["partition", "now on", "then on", "copied to", "bytes"])
    if len(moves) > len(shown):
        click.echo(f"… and {len(moves) - len(shown):,} more; -o json shows all")
    click.echo()
    print_loads(layout, moves)


def print_loads(layout: Layout, moves: Sequence[Move]) -> None:
    """What each broker has before and after; CPU if it was measured."""
    is_measured = any(broker.cpu for broker in layout.brokers.values())
    rows = [
        [
            each["broker"],
            *_change(each, "replicas", str),
            *_change(each, "leaders", str),
            *_change(each, "size_bytes", format_bytes),
            *_change(each, "disk", _percent),
            *(_change(each, "cpu", _percent) if is_measured else []),
        ]
        for each in _format_loads(layout, moves)
    ]
    print_table(rows, ["broker", "replicas", "leaders", "bytes", "disk", *(["cpu"] if is_measured else [])])


def _change(fields: Mapping[str, Any], key: str, form: Any) -> list[str]:
    before, after = form(fields["before"][key]), form(fields["after"][key])
    return [before if before == after else f"{before} → {after}"]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def summarize(moves: Sequence[Move]) -> str:
    count = count_of(len(moves), "partition")
    copied = sum(move.copied_bytes for move in moves)
    return f"{count}, {format_bytes(copied)} to copy" if any(move.adding for move in moves) else f"{count}, no copying"


def check_room(picture: Picture, layout: Layout, moves: Sequence[Move]) -> None:
    """Raise `CommandError` where a disk has no room for what would be copied to it.

    What leaves a broker counts for nothing: it goes when the copies are there.
    """
    added: Counter[int] = Counter()
    for move in moves:
        added.update(dict.fromkeys(move.adding, move.size_bytes))
    coming = left_to_copy(picture)
    for broker_id, more in added.items():
        broker = layout.brokers.get(broker_id)
        if broker is None or not broker.disk_bytes or not more:
            continue
        free, kept = broker.disk_bytes - broker.used_bytes, int(broker.disk_bytes * _KEPT_FREE)
        if more + coming[broker_id] > free - kept:
            under_way = f", beside {format_bytes(coming[broker_id])} of moves under way" if coming[broker_id] else ""
            raise CommandError(
                f"the disk of broker {broker_id} has {format_bytes(free)} left, {format_bytes(kept)} of it to stay "
                f"free, and {format_bytes(more)} would be copied to it{under_way}; start another broker, shorten "
                "retention, or move less ('penstock cluster reassign')"
            )


def check_replication(moves: Sequence[Move], *, may_fall: bool, dry_run: bool) -> None:
    """Say which partitions would have fewer replicas. Raises `CommandError` unless that is meant."""
    fewer = [move for move in moves if len(move.new) < len(move.old)]
    if not fewer:
        return
    first = fewer[0]
    left = count_of(len(first.new), "replica")
    told = f"{first.topic}-{first.partition} would have {left} instead of {len(first.old)}"
    told += f", and fewer for {count_of(len(fewer) - 1, 'partition')} more" if len(fewer) > 1 else ""
    if not may_fall and not dry_run:
        raise CommandError(f"{told}; if that is meant, say --fewer-replicas, which --yes does not cover", code=USAGE)
    note(told)


def warn(picture: Picture, moves: Sequence[Move]) -> None:
    """Say beforehand what will have a move wait."""
    known = {each.place: each for each in picture.partitions}
    stuck = [known[move.place].name for move in moves if known[move.place].leader < 0 and move.adding]
    if stuck:
        shown = ", ".join(stuck[:3]) + (", …" if len(stuck) > 3 else "")
        note(
            f"nobody leads {shown}: there is nothing to copy from until a broker that holds it is back, "
            "or 'penstock cluster elect --unclean' gives up what only that one has"
        )


def _listed(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))
