"""What a server says about its topics: names, partitions, offsets, settings.

The number of requests does not grow with the number of topics: one for each question here (librdkafka asks each leader
once). Nothing here creates a topic by asking for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from penstock.cli.connection import Refused, Server
from penstock.cli.failure import CommandError

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConfigEntry,
        ListOffsetsResultInfo,
        OffsetSpec,
        TopicDescription,
        TopicMetadata,
    )

MAKE_A_TOPIC: Final = "'penstock topic create NAME' makes one"
Partition = tuple[str, int]
"""A topic's name and a partition's number."""

_SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "static", 5: "default"}
"""Kafka's numbers for where a value comes from; `static` is the server's own file, flags or environment."""


class Span(NamedTuple):
    """The offsets of a partition, from its first record to one behind its last."""

    start: int
    end: int
    leader_epoch: int | None

    @property
    def records(self) -> int:
        """By offsets: compaction and transactions leave gaps, so there may be fewer."""
        return self.end - self.start


def fetch_topics(server: Server, admin: "AdminClient") -> "dict[str, TopicMetadata]":
    """Every topic by name."""
    return dict(server.run(lambda: admin.list_topics(timeout=server.timeout_s)).topics)


def describe_topics(
    server: Server, admin: "AdminClient", names: Iterable[str], *, missing_ok: bool = False
) -> "dict[str, TopicDescription]":
    """The named topics that exist. Raises `CommandError` for one that does not, unless `missing_ok`."""
    from confluent_kafka import TopicCollection

    asked = TopicCollection(list(dict.fromkeys(names)))
    found, missing = {}, []
    for name, future in admin.describe_topics(asked, request_timeout=server.timeout_s).items():
        try:
            found[name] = server.wait(future)
        except Refused as error:
            if error.name != "UNKNOWN_TOPIC_OR_PART":
                raise CommandError(f"topic {name!r}: {error}") from None
            missing.append(name)
    if missing and not missing_ok:
        raise unknown_topics(missing, fetch_topics(server, admin))
    return found


def partitions_of(described: "Mapping[str, TopicDescription]") -> list[Partition]:
    return [(name, each.id) for name, topic in described.items() for each in topic.partitions]


def unknown_topics(missing: Sequence[str], known: Iterable[str]) -> CommandError:
    """The error for topics that do not exist, with the names that may have been meant."""
    import difflib

    known = list(known)
    told = []
    for name in missing:
        close = difflib.get_close_matches(name, known, n=1)
        told.append(f"no topic {name!r}" + (f", did you mean {close[0]}?" if close else ""))
    return CommandError("; ".join(told) + " ('penstock topic list' shows them all)")


def fetch_settings(
    server: Server, admin: "AdminClient", names: Sequence[str], *, strict: bool = False
) -> "dict[str, dict[str, ConfigEntry]]":
    """Settings by topic and key; none for a topic whose settings the server keeps to itself, unless `strict`."""
    from confluent_kafka.admin import ConfigResource

    if not names:
        return {}
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    settings = {}
    for resource, future in admin.describe_configs(asked, request_timeout=server.timeout_s).items():
        try:
            settings[resource.name] = server.wait(future)
        except Refused as error:
            if strict:
                raise CommandError(f"topic {resource.name!r}: its settings cannot be read: {error}") from None
            settings[resource.name] = {}
    return settings


def fetch_spans(
    server: Server, admin: "AdminClient", partitions: Iterable[Partition], *, strict: bool = False
) -> dict[Partition, Span]:
    """The partitions' offsets; without those whose leader has no answer, unless `strict`."""
    from confluent_kafka.admin import OffsetSpec

    asked = list(partitions)
    starts = fetch_offsets(server, admin, asked, OffsetSpec.earliest(), strict=strict)  # type: ignore[no-untyped-call]
    ends = fetch_offsets(server, admin, asked, OffsetSpec.latest(), strict=strict)  # type: ignore[no-untyped-call]
    return {
        at: Span(starts[at].offset, ends[at].offset, ends[at].leader_epoch)
        for at in asked
        if at in starts and at in ends
    }


def fetch_offsets(
    server: Server, admin: "AdminClient", partitions: Sequence[Partition], spec: "OffsetSpec", *, strict: bool = False
) -> "dict[Partition, ListOffsetsResultInfo]":
    """One offset of each partition. Raises `CommandError`, if `strict`, for a partition whose leader has no answer."""
    from confluent_kafka import TopicPartition

    if not partitions:
        return {}
    futures = admin.list_offsets({TopicPartition(*at): spec for at in partitions}, request_timeout=server.timeout_s)
    offsets = {}
    for at, future in futures.items():
        try:
            offsets[at.topic, at.partition] = server.wait(future)
        except Refused as error:
            if strict:
                raise CommandError(f"partition {at.partition} of topic {at.topic!r}: {error}") from None
    return offsets


def count_records(partitions: Iterable[Partition], spans: Mapping[Partition, Span]) -> int | None:
    """The records of some partitions, by offsets. None if one of them is unknown."""
    counts = [spans[at].records if at in spans else None for at in partitions]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def delete_before(server: Server, admin: "AdminClient", keeps: Mapping[Partition, int]) -> dict[Partition, int]:
    """Delete the records before each offset; returns the partitions' new starts."""
    from confluent_kafka import TopicPartition

    if not keeps:
        return {}
    asked = [TopicPartition(*at, keep) for at, keep in keeps.items()]
    starts, refused = {}, []
    for at, future in admin.delete_records(asked, request_timeout=server.timeout_s).items():
        try:
            starts[at.topic, at.partition] = server.wait(future).low_watermark
        except Refused as error:
            refused.append(f"partition {at.partition} of topic {at.topic!r} cannot be trimmed: {error}")
    if refused:
        raise CommandError("; ".join(refused))
    return starts


def source_of(entry: "ConfigEntry") -> str:
    return _SOURCES.get(cast(int, entry.source), "unknown")  # librdkafka's number, whatever the annotation says


def is_own(entry: "ConfigEntry") -> bool:
    """Whether the value was set for the topic itself."""
    return source_of(entry) == "topic"


def default_of(entry: "ConfigEntry") -> str | None:
    """The value without any setting, where the server tells it."""
    if source_of(entry) == "default":
        return entry.value
    return next((each.value for each in entry.synonyms.values() if source_of(each) == "default"), None)


def fetch_eligible(server: Server, names: Sequence[str]) -> dict[Partition, list[int]]:
    """Brokers that are not in sync and may lead all the same, because they hold everything (KIP-966).

    Empty as well if the server, or how it wants to be asked, is one that cannot be asked for it.
    """
    from penstock.cli import wire

    asked = [{"name": name} for name in names]
    try:
        with wire.Cluster(server, any_security=True) as cluster:
            told = cluster.ask(
                None, "describe_topic_partitions", topics=asked, response_partition_limit=2000, cursor=None
            )
    except CommandError:
        return {}
    return {
        (topic.name, each.partition_index): list(each.eligible_leader_replicas or ())
        for topic in told.topics
        for each in topic.partitions
    }
