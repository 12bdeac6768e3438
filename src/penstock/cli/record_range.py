"""Which offsets of which partitions a reader wants, from the words it gave and what the server has."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli import topics
from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.position import Kind, Position
from penstock.cli.topics import Partition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NO_END = sys.maxsize
_LIST_AT_MOST = 8


class Range(NamedTuple):
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int


def find_partitions(
    server: Server, admin: "AdminClient", names: Sequence[str], wanted: Sequence[int]
) -> list[Partition]:
    """The partitions of the topics, or those of them that are wanted. Raises `CommandError` for what does not exist."""
    known = topics.fetch_topics(server, admin)
    if missing := [name for name in dict.fromkeys(names) if name not in known]:
        raise topics.unknown_topics(missing, known)
    found = []
    for name in dict.fromkeys(names):
        numbers = sorted(known[name].partitions)
        for number in dict.fromkeys(wanted):
            if number not in numbers:
                raise CommandError(f"topic {name!r} has no partition {number}; it has {len(numbers)}, from 0 on")
        found += [(name, number) for number in (sorted(set(wanted)) or numbers)]
    return found


def find_ranges(
    server: Server,
    admin: "AdminClient",
    partitions: Sequence[Partition],
    first: Position,
    until: Position | None,
    *,
    follow: bool,
) -> dict[Partition, Range]:
    """Where to begin and end in each partition; who does not follow ends where it ends now. Raises `CommandError`."""
    spans = topics.fetch_spans(server, admin, partitions, strict=True)
    held = {at: Range(span.start, span.end) for at, span in spans.items()}
    starts = _find_starts(server, admin, held, first)
    ends = dict.fromkeys(held, NO_END) if until is None else _find_ends(server, admin, held, until)
    return {at: Range(start, ends[at] if follow else min(ends[at], held[at].end)) for at, start in starts.items()}


def _find_starts(
    server: Server, admin: "AdminClient", held: Mapping[Partition, Range], first: Position
) -> dict[Partition, int]:
    match first.kind:
        case Kind.START:
            return {at: has.start for at, has in held.items()}
        case Kind.END:
            return {at: has.end for at, has in held.items()}
        case Kind.LAST:
            return {at: max(has.start, has.end - first.value) for at, has in held.items()}
        case Kind.TIME:
            found = _find_time(server, admin, held, first.value)
            return {at: held[at].end if offset is None else offset for at, offset in found.items()}
        case Kind.OFFSET:
            if not any(has.start <= first.value <= has.end for has in held.values()):
                raise CommandError(f"no offset {first.value}; there are {_format_held(held)}")
            return {at: min(max(first.value, has.start), has.end) for at, has in held.items()}


def _find_ends(
    server: Server, admin: "AdminClient", held: Mapping[Partition, Range], until: Position
) -> dict[Partition, int]:
    match until.kind:
        case Kind.START:
            return {at: has.start for at, has in held.items()}
        case Kind.END:
            return {at: has.end for at, has in held.items()}
        case Kind.LAST:
            return {at: max(has.start, has.end - until.value) for at, has in held.items()}
        case Kind.TIME:
            found = _find_time(server, admin, held, until.value)
            return {at: NO_END if offset is None else offset for at, offset in found.items()}
        case Kind.OFFSET:
            return dict.fromkeys(held, until.value)


def _find_time(
    server: Server, admin: "AdminClient", partitions: Iterable[Partition], moment_ms: int
) -> dict[Partition, int | None]:
    """The first offset from that time on; None where everything is older."""
    from confluent_kafka.admin import OffsetSpec

    spec = OffsetSpec.for_timestamp(moment_ms)
    found = topics.fetch_offsets(server, admin, list(partitions), spec, strict=True)
    return {at: told.offset if told.offset >= 0 else None for at, told in found.items()}


def _format_held(held: Mapping[Partition, Range]) -> str:
    shown = [
        f"{has.start} to {has.end - 1} in {_name(at)}" if has.end > has.start else f"none in {_name(at)}"
        for at, has in list(held.items())[:_LIST_AT_MOST]
    ]
    if len(held) > _LIST_AT_MOST:
        shown.append(f"{len(held) - _LIST_AT_MOST} more partitions")
    return ", ".join(shown)


def _name(at: Partition) -> str:
    return f"{at[0]}/{at[1]}"
