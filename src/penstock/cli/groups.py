"""What a server says about its consumer groups: names, states, members, committed offsets.

librdkafka asks. What it has no words for is asked once more by hand where the connection is plaintext: the epochs of
groups of the new protocol (KIP-848) and their states `assigning` and `reconciling`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import click

from penstock.cli.connection import Refused, Server, server_of_words
from penstock.cli.failure import CommandError
from penstock.cli.output import note, progress
from penstock.cli.topics import Partition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

    from penstock.protocols.kafka_wire.messages import Message

T = TypeVar("T")

STATES: Final = (
    *("empty", "stable", "preparing-rebalance", "completing-rebalance", "assigning", "reconciling", "dead"),
    "unknown",
)
TYPES: Final = ("classic", "consumer")
_LIBRARY_STATES: Final = {
    "PREPARING_REBALANCING": "preparing-rebalance",
    "COMPLETING_REBALANCING": "completing-rebalance",
}
_AT_ONCE: Final = 200
"""Groups asked for together: librdkafka sends a request for each."""

_WORD_START: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Listing(NamedTuple):
    name: str
    state: str
    type: str


class Coordinator(NamedTuple):
    id: int
    address: str


@dataclass(frozen=True, slots=True)
class Member:
    """`epoch` is None in a classic group, and where nobody could be asked."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[Partition, ...]
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """`epoch` is None for a classic group: Kafka tells the generation to members only."""

    name: str
    state: str
    type: str
    coordinator: Coordinator | None
    assignor: str | None
    epoch: int | None
    members: tuple[Member, ...]

    @property
    def owners(self) -> dict[Partition, Member]:
        return {at: member for member in self.members for at in member.partitions}


class GroupName(click.ParamType[str]):
    """A group's name, completed by asking the server."""

    name = "group"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            admin = server_of_words(
                ctx.params
            ).admin()  # kept: a client that nobody holds ends, and its question with it
            found = admin.list_consumer_groups(request_timeout=2.0).result(3.0).valid
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in sorted(each.group_id for each in found) if name.startswith(incomplete)]


def fetch_groups(server: Server, admin: "AdminClient") -> dict[str, Listing]:
    """Every group by name, in the order of names."""
    answer = server.wait(admin.list_consumer_groups(request_timeout=server.timeout_s))
    errors = [server.explain(cast("KafkaError", error)) for error in answer.errors]  # whatever the annotation says
    if errors and not answer.valid:
        raise errors[0]
    for error in errors:
        note(f"some groups may be missing: {error}")
    found = {
        each.group_id: Listing(each.group_id, _state_word(each.state.name), each.type.name.lower())
        for each in sorted(answer.valid, key=lambda listing: str(listing.group_id))
    }
    unclear = [each.name for each in found.values() if each.state == "unknown" and each.type == "consumer"]
    for name, detail in _fetch_details(server, unclear).items():
        found[name] = found[name]._replace(state=_format_state(detail.group_state))
    return found


def describe_groups(
    server: Server, admin: "AdminClient", names: Iterable[str], *, missing_ok: bool = False
) -> dict[str, Group]:
    """The named groups that exist. Raises `CommandError` for one that does not, unless `missing_ok`."""

    def ask(some: Sequence[str]) -> "dict[str, Future[ConsumerGroupDescription]]":
        return admin.describe_consumer_groups(list(some), request_timeout=server.timeout_s)

    answers = _ask_all(server, "describing groups", list(dict.fromkeys(names)), ask)
    known = {name: each for name, each in answers.items() if each.state.name != "DEAD"}
    missing = [name for name in answers if name not in known]
    if missing and not missing_ok:
        raise unknown_groups(missing, fetch_groups(server, admin))
    details = _fetch_details(server, [name for name, each in known.items() if each.type.name == "CONSUMER"])
    return {name: _read_group(each, details.get(name)) for name, each in known.items()}


def fetch_committed(server: Server, admin: "AdminClient", names: Iterable[str]) -> dict[str, dict[Partition, int]]:
    """The committed offsets of each group, in the order of topics and partitions."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    def ask(some: Sequence[str]) -> "dict[str, Future[ConsumerGroupTopicPartitions]]":
        # One group a call is all that librdkafka takes; the calls run side by side.
        calls = [
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=server.timeout_s)
            for name in some
        ]
        return {name: call[name] for name, call in zip(some, calls, strict=True)}

    answers = _ask_all(server, "reading offsets", list(dict.fromkeys(names)), ask)
    return {
        name: {
            (at.topic, at.partition): at.offset
            for at in sorted(answer.topic_partitions or (), key=lambda at: (at.topic, at.partition))
            if at.error is None and at.offset >= 0
        }
        for name, answer in answers.items()
    }


def unknown_groups(missing: Sequence[str], known: Iterable[str]) -> CommandError:
    """The error for groups that do not exist, with the names that may have been meant."""
    import difflib

    known = list(known)
    told = []
    for name in missing:
        close = difflib.get_close_matches(name, known, n=1)
        told.append(f"no group {name!r}" + (f", did you mean {close[0]}?" if close else ""))
    return CommandError("; ".join(told) + " ('penstock group list' shows them all)")


def busy_group(group: Group) -> CommandError:
    """The error for what only a group without members allows."""
    shown = [f"{each.client_id} at {each.host}" for each in group.members[:5]]
    if len(group.members) > len(shown):
        shown.append(f"{len(group.members) - len(shown)} more")
    count = "1 member" if len(group.members) == 1 else f"{len(group.members)} members"
    return CommandError(
        f"group {group.name!r} has {count} ({', '.join(shown)}); stop them, wait until "
        f"'penstock group describe {group.name}' says empty, and try again"
    )


def _ask_all(
    server: Server, label: str, names: Sequence[str], ask: "Callable[[Sequence[str]], Mapping[str, Future[T]]]"
) -> dict[str, T]:
    answers = {}
    with progress(label, len(names), unit="groups") as bar:
        for start in range(0, len(names), _AT_ONCE):
            for name, future in ask(names[start : start + _AT_ONCE]).items():
                try:
                    answers[name] = server.wait(future)
                except Refused as error:
                    raise CommandError(f"group {name!r}: {error}") from None
                bar.advance(1)
    return answers


def _fetch_details(server: Server, names: Sequence[str]) -> "dict[str, Message]":
    """What ConsumerGroupDescribe says; nothing about groups nobody can be asked about by hand."""
    from penstock.cli import wire

    found: dict[str, Message] = {}
    if not names or not wire.is_plaintext(server):
        return found
    try:
        with wire.Cluster(server) as cluster:
            by_broker: dict[wire.Address, list[str]] = {}
            for name in names:
                by_broker.setdefault(cluster.find_coordinator(wire.GROUP, name), []).append(name)
            for address, some in by_broker.items():
                answer = cluster.ask(address, "consumer_group_describe", group_ids=some)
                found |= {each.group_id: each for each in answer.groups if each.error_code == 0}
    except CommandError:
        return found  # librdkafka's answer stands, without the epochs
    return found


def _read_group(answer: "ConsumerGroupDescription", detail: "Message | None") -> Group:
    epochs = {each.member_id: each.member_epoch for each in detail.members} if detail else {}
    node = answer.coordinator
    return Group(
        name=answer.group_id,
        state=_format_state(detail.group_state) if detail else _state_word(answer.state.name),
        type=answer.type.name.lower(),
        coordinator=Coordinator(node.id, f"{node.host}:{node.port}") if node else None,
        assignor=answer.partition_assignor or None,
        epoch=detail.group_epoch if detail else None,
        members=tuple(
            Member(
                id=each.member_id,
                client_id=each.client_id,
                host=each.host.removeprefix("/"),
                instance_id=each.group_instance_id,
                partitions=tuple(sorted((at.topic, at.partition) for at in each.assignment.topic_partitions)),
                epoch=epochs.get(each.member_id),
            )
            for each in sorted(answer.members, key=lambda member: (member.client_id, member.member_id))
        ),
    )


def _state_word(name: str) -> str:
    """librdkafka's name of a state in the words of the command line."""
    return _LIBRARY_STATES.get(name, "unknown" if name == "UNKOWN" else name.lower())


def _format_state(kafka: str) -> str:
    """`PreparingRebalance` as `preparing-rebalance`."""
    return _WORD_START.sub("-", kafka).lower()
