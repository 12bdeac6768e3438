"""The topic a bench run uses: an existing one, or one made for it and deleted whatever happens; and its offsets."""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cli.bench.figures import MARK
from penstock.cli.connection import Refused, Server
from penstock.cli.failure import CommandError
from penstock.cli.output import note
from penstock.cli.topics import fetch_spans, fetch_topics, unknown_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """What every load of a run has in common: where the records go, and what they are."""

    server: Server
    topic: str
    partitions: tuple[int, ...]
    size_bytes: int
    keys: int
    run: bytes = field(default_factory=lambda: secrets.token_bytes(4))


@dataclass(frozen=True, slots=True)
class Stretch:
    """What to read of a partition, and what is known about it."""

    start: int
    end: int
    mine: bytes
    """How the streams to check begin."""
    whole: bool
    """Their first records are in it."""
    sent: Mapping[bytes, int] = field(default_factory=dict)


@contextmanager
def found_topic(server: Server, name: str, size_bytes: int, keys: int) -> Iterator[Target]:
    """An existing topic, which stays. Raises `CommandError` if there is none."""
    topics = fetch_topics(server, server.admin())
    if name not in topics:
        raise unknown_topics([name], topics)
    yield Target(server, name, tuple(sorted(topics[name].partitions)), size_bytes, keys)


@contextmanager
def passing_topic(
    server: Server, partitions: int, config: dict[str, str], size_bytes: int, keys: int, *, keep: bool
) -> Iterator[Target]:
    """A topic for the length of the block, however the block ends."""
    admin = server.admin()
    name = f"penstock-bench-{secrets.token_hex(4)}"
    try:
        _create(server, admin, name, partitions, config)
        target = Target(server, name, tuple(range(partitions)), size_bytes, keys)
        find_ends(target)  # answered once every partition has its leader
        yield target
    except BaseException:
        if not keep:
            try:
                _delete(server, admin, name)
            except CommandError as error:
                note(f"penstock: {error}")
        raise
    if not keep:
        _delete(server, admin, name)


def _create(server: Server, admin: "AdminClient", name: str, partitions: int, config: dict[str, str]) -> None:
    from confluent_kafka.cimpl import NewTopic

    by_default = -1
    server.wait(admin.create_topics([NewTopic(name, partitions, by_default, config=config)])[name])


def _delete(server: Server, admin: "AdminClient", name: str) -> None:
    try:
        server.wait(admin.delete_topics([name])[name])
    except CommandError as error:
        if isinstance(error, Refused) and error.name == "UNKNOWN_TOPIC_OR_PART":
            return
        text = f"topic {name} could not be deleted ({error}); delete it with 'penstock topic delete {name}'"
        raise CommandError(text, code=error.code) from None


def find_stretches(target: Target) -> dict[int, Stretch]:
    """All that a topic holds. What retention has taken from its start is no loss. Raises `CommandError`."""
    server, admin = target.server, target.server.admin()
    places = [(target.topic, partition) for partition in target.partitions]
    deadline = time.monotonic() + server.timeout_s
    while len(spans := fetch_spans(server, admin, places)) < len(places):
        if time.monotonic() > deadline:
            silent = ", ".join(str(at) for _topic, at in places if (target.topic, at) not in spans)
            raise CommandError(f"topic {target.topic}: no leader of partitions {silent} within {server.timeout_s:g} s")
        time.sleep(0.05)
    return {at: Stretch(span.start, span.end, MARK, whole=span.start == 0) for (_topic, at), span in spans.items()}


def find_ends(target: Target) -> dict[int, int]:
    return {partition: stretch.end for partition, stretch in find_stretches(target).items()}


def settled_ends(target: Target, wanted: Mapping[int, int]) -> dict[int, int]:
    """The partitions' ends once they are where they should be: without acks=all the broker may still be at it."""
    deadline = time.monotonic() + min(_SETTLE_S, target.server.timeout_s)
    while True:
        found = find_ends(target)
        if all(found[at] >= wanted[at] for at in wanted) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
