"""Which partitions a subscription means now, and where a read of them begins and ends."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import re2

from penstock.client.cluster import LATEST, Topic
from penstock.spark.errors import OptionError
from penstock.spark.options.options import Subscription
from penstock.spark.options.positions import Positions, TopicPartition

OWN_PREFIX = "__penstock"
"""Topics Penstock itself keeps; a pattern never means them."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The partitions a subscription means, and the ids of their topics."""

    ids: Mapping[str, uuid.UUID]
    partitions: tuple[TopicPartition, ...]


class Catalogue(Protocol):
    """Who knows topics and offsets: brokers, or a data directory without one."""

    def topics(self, names: Iterable[str] | None) -> dict[str, Topic]: ...

    def list_offsets(
        self, asked: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> dict[TopicPartition, int]: ...


def find_subscribed(catalogue: Catalogue, subscription: Subscription) -> Subscribed:
    """Ask for the topics of a subscription; topics that do not exist are left out."""
    if subscription.kind == "subscribePattern":
        pattern = re2.compile(subscription.pattern)
        named = catalogue.topics(None)
        found = {
            name: topic for name, topic in named.items() if pattern.search(name) and not name.startswith(OWN_PREFIX)
        }
    else:
        found = catalogue.topics(subscription.topics or tuple(subscription.assigned))
    partitions = [(name, number) for name, topic in sorted(found.items()) for number in _numbers(topic, subscription)]
    return Subscribed({name: topic.id for name, topic in found.items()}, tuple(partitions))


def _numbers(topic: Topic, subscription: Subscription) -> Iterable[int]:
    if subscription.kind != "assign":
        return range(len(topic.leaders))
    for number in subscription.assigned[topic.name]:
        if number >= len(topic.leaders):
            raise OptionError(
                f"assign names partition {number} of topic {topic.name!r}, which has 0 to {len(topic.leaders) - 1}"
            )
    return sorted(subscription.assigned[topic.name])


def check_all_found(subscribed: Subscribed, subscription: Subscription, bootstrap: str) -> None:
    """Raise `OptionError` for topics named but not there; a pattern may match nothing."""
    missing = sorted({*subscription.topics, *subscription.assigned} - set(subscribed.ids))
    if missing:
        names = ", ".join(map(repr, missing))
        raise OptionError(f"no topic {names} at {bootstrap}; create it first, or correct {subscription.kind}")


def resolve(
    catalogue: Catalogue, positions: Positions, partitions: Iterable[TopicPartition], *, read_committed: bool
) -> dict[TopicPartition, int]:
    """The offsets that positions mean now, for all their partitions or some."""
    fixed, asked = positions.questions(partitions, partial=True)
    answers = catalogue.list_offsets(asked, read_committed=read_committed) if asked else {}
    unmatched = {key: LATEST for key, answer in answers.items() if answer < 0}
    latest = catalogue.list_offsets(unmatched, read_committed=read_committed) if unmatched else {}
    settled = {
        key: answer if answer >= 0 else positions.settle(key, asked[key], answer, latest[key])
        for key, answer in answers.items()
    }
    return {**fixed, **settled}
