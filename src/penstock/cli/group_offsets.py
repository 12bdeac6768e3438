"""How far a consumer group has come, and where `reset-offsets` and `delete-offsets` put it."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli import topics
from penstock.cli.connection import Server
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.topics import Partition, Span

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, TopicDescription

_END: Final = -1
"""What librdkafka says where no record is young enough."""


class Progress(NamedTuple):
    """One partition of a group. `offset` is None before the first commit, `end` where the partition is gone."""

    topic: str
    partition: int
    offset: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end; below 0 when a topic was made anew and is shorter now."""
        return None if self.offset is None or self.end is None else self.end - self.offset


def fetch_progress(
    server: Server, admin: "AdminClient", offsets: Mapping[str, Mapping[Partition, int | None]]
) -> dict[str, list[Progress]]:
    """Each group's partitions with their ends, which are read after the offsets were: no lag is below 0 by chance."""
    from confluent_kafka.admin import OffsetSpec

    asked = list(dict.fromkeys(at for each in offsets.values() for at in each))
    ends = topics.fetch_offsets(server, admin, asked, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    return {
        group: [Progress(*at, offset, ends[at].offset if at in ends else None) for at, offset in each.items()]
        for group, each in offsets.items()
    }


def sum_lag(progress: Iterable[Progress]) -> int:
    """What is known to be left to read."""
    return sum(max(each.lag or 0, 0) for each in progress)


class Aim(Enum):
    EARLIEST = auto()
    LATEST = auto()
    TIME = auto()
    SHIFT = auto()
    OFFSET = auto()


class Target(NamedTuple):
    """Where to: `value` is milliseconds since 1970, a number of records, or an offset."""

    aim: Aim
    value: int = 0


class Change(NamedTuple):
    """One offset that moves. `clamped` is where it was meant to go, if the partition does not reach that far."""

    topic: str
    partition: int
    old: int | None
    new: int
    clamped: int | None = None

    @property
    def distance(self) -> int | None:
        return None if self.old is None else self.new - self.old


class TopicChoice(NamedTuple):
    """A topic, and some of its partitions; none stands for all."""

    name: str
    partitions: tuple[int, ...] = ()


class TopicWord(click.ParamType[TopicChoice]):
    """An option's value that is a topic, or a topic with partitions: `orders:0,2`."""

    name = "topic"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> TopicChoice:
        if isinstance(value, TopicChoice):
            return value
        name, colon, numbers = str(value).partition(":")
        words = numbers.split(",")
        if not name or (colon and not all(word.strip().isdecimal() for word in words)):
            self.fail(f"{value!r} is neither TOPIC nor TOPIC:PARTITION,PARTITION.", param, ctx)
        return TopicChoice(name, tuple(sorted({int(word) for word in words})) if colon else ())

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from penstock.cli.connection import TopicName

        return TopicName().shell_complete(ctx, param, incomplete)


def read_target(
    to_earliest: bool, to_latest: bool, to_time: int | None, shift: int | None, to_offset: int | None
) -> Target:
    """The one target that was said. Raises `CommandError` for none or several."""
    said = [Target(Aim.EARLIEST)] if to_earliest else []
    said += [Target(Aim.LATEST)] if to_latest else []
    for aim, value in ((Aim.TIME, to_time), (Aim.SHIFT, shift), (Aim.OFFSET, to_offset)):
        said += [] if value is None else [Target(aim, value)]
    if len(said) != 1:
        raise CommandError(
            "say where to with one of --to-earliest, --to-latest, --to-time, --shift and --to-offset", code=USAGE
        )
    return said[0]


def choose_partitions(
    choices: Sequence[TopicChoice], known: "Mapping[str, TopicDescription]", committed: Iterable[Partition]
) -> list[Partition]:
    """The partitions that were named; without choices, those committed whose topic still exists.

    Raises `CommandError` for a partition that does not exist.
    """
    existing = {name: {each.id for each in topic.partitions} for name, topic in known.items()}
    if not choices:
        return [at for at in committed if at[1] in existing.get(at[0], ())]
    chosen: dict[Partition, None] = {}
    for choice in choices:
        numbers = existing[choice.name]
        for number in choice.partitions or sorted(numbers):
            if number not in numbers:
                raise CommandError(f"topic {choice.name!r} has no partition {number}; it has 0 to {max(numbers)}")
            chosen[choice.name, number] = None
    return sorted(chosen)


def plan_changes(
    target: Target,
    spans: Mapping[Partition, Span],
    committed: Mapping[Partition, int],
    young: Mapping[Partition, int] | None = None,
) -> list[Change]:
    """Where each partition's offset goes.

    Args:
        young: the first offset not older than the target's time, -1 where there is none; for that target only.

    Raises:
        CommandError: a shift where nothing was committed that it could start from.
    """
    if target.aim is Aim.SHIFT and (bare := [at for at in spans if at not in committed]):
        named = ", ".join(f"{topic}:{number}" for topic, number in bare)
        raise CommandError(
            f"--shift {target.value}: nothing was committed for {named}; "
            "choose other partitions with --topic TOPIC:PARTITION, or say --to-earliest, --to-latest or --to-offset"
        )
    changes = []
    for at, span in spans.items():
        if target.aim is Aim.EARLIEST:
            meant = span.start
        elif target.aim is Aim.LATEST:
            meant = span.end
        elif target.aim is Aim.TIME:
            found = (young or {})[at]
            meant = span.end if found == _END else found
        else:
            meant = target.value + (committed[at] if target.aim is Aim.SHIFT else 0)
        new = min(max(meant, span.start), span.end)
        changes.append(Change(*at, committed.get(at), new, None if new == meant else meant))
    return changes


def fetch_young(
    server: Server, admin: "AdminClient", partitions: Sequence[Partition], time_ms: int
) -> dict[Partition, int]:
    """The first offset not older than a time, -1 where there is none."""
    from confluent_kafka.admin import OffsetSpec

    found = topics.fetch_offsets(server, admin, partitions, OffsetSpec.for_timestamp(time_ms), strict=True)
    return {at: each.offset for at, each in found.items()}


def commit_changes(server: Server, admin: "AdminClient", group: str, changes: Sequence[Change]) -> None:
    """Raises `CommandError` that names the partitions which stayed where they were."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(change.topic, change.partition, change.new) for change in changes]
    asked = [ConsumerGroupTopicPartitions(group, wanted)]
    (future,) = admin.alter_consumer_group_offsets(asked, request_timeout=server.timeout_s).values()
    refused = [at for at in server.wait(future).topic_partitions or () if at.error is not None]
    if any(at.error.name() in ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP") for at in refused):
        raise CommandError(f"group {group!r} has got members meanwhile; stop them and try again")
    if refused:
        told = ", ".join(f"{at.topic}:{at.partition} ({at.error.str()})" for at in refused)
        raise CommandError(f"group {group!r}: these offsets were not set: {told}")


def delete_offsets(server: Server, group: str, partitions: Sequence[Partition]) -> None:
    """Raises `CommandError` that names the partitions whose offsets stay."""
    from penstock.cli import wire

    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    asked = [
        {"name": topic, "partitions": [{"partition_index": number} for number in numbers]}
        for topic, numbers in by_topic.items()
    ]
    with wire.Cluster(server) as cluster:
        address = cluster.find_coordinator(wire.GROUP, group)
        answer = cluster.retry(lambda: cluster.ask(address, "offset_delete", group_id=group, topics=asked))
    wire.check(answer.error_code, f"group {group!r}")
    refused = [
        f"{topic.name}:{each.partition_index} ({wire.error_name(each.error_code).lower().replace('_', ' ')})"
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code
    ]
    if refused:
        raise CommandError(f"group {group!r}: these offsets were not deleted: {', '.join(refused)}")
