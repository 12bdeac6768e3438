"""What a server says about its transactions, and how they are ended from outside."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli import wire
from penstock.cli.connection import Refused, Server, server_of_words
from penstock.cli.failure import CommandError
from penstock.cli.topics import Partition, fetch_topics, unknown_topics
from penstock.quantities import UNITS_MS, parse_duration_ms

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

_OPEN: Final = ("ongoing", "prepare-commit", "prepare-abort")
STATES: Final = (*("empty", *_OPEN), "complete-commit", "complete-abort", "prepare-epoch-fence", "dead")
_AT_ONCE: Final = 500
_PARTITIONS_AT_ONCE: Final = 100
"""In one question: answers hold a few elements for each name, dozens for each partition, and what reads them stops at
20,000."""

_FENCE_TIMEOUT_MS: Final = 1  # of a transaction that is never begun, as Kafka's own fencing has it
_WORD_START: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id. What lies behind the state is known for those that were described."""

    id: str
    state: str
    producer_id: int
    coordinator: int | None
    producer_epoch: int | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    partitions: tuple[Partition, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN

    def age_ms(self, now_ms: int) -> int | None:
        """By this machine's clock."""
        return max(now_ms - self.start_ms, 0) if self.start_ms is not None and self.is_open else None


class Hanging(NamedTuple):
    """A transaction as the partition has it."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_ms: int

    def idle_ms(self, now_ms: int) -> int:
        """Since the last record, by its timestamp and this machine's clock."""
        return max(now_ms - self.last_ms, 0)


class Fenced(NamedTuple):
    producer_id: int
    producer_epoch: int


class Duration(click.ParamType[int]):
    """Milliseconds, from `90s`, `15m`, `2h`, `1d` or `250ms`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ms(str(value))
        except ValueError:
            self.fail(f"{value!r} is no duration; write 90s, 15m, 2h or 1d.", param, ctx)


class TransactionalId(click.ParamType[str]):
    """A transactional id, completed by asking the server."""

    name = "transactional id"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            found = fetch_transactions(server_of_words(ctx.params))
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(each.id) for each in found if each.id.startswith(incomplete)]


def format_age(age_ms: int | None) -> str | None:
    """The two largest units that are not zero: `2h 5m`."""
    if age_ms is None:
        return None
    if age_ms < 1000:
        return f"{age_ms}ms"
    words = []
    for unit in ("d", "h", "m", "s"):
        count, age_ms = divmod(age_ms, UNITS_MS[unit])
        words += [f"{count}{unit}"] if count else []
    return " ".join(words[:2])


def fetch_transactions(
    server: Server, states: Sequence[str] = (), producer_ids: Sequence[int] = ()
) -> list[Transaction]:
    """The transactional ids of every broker, by name; those with an open transaction with its age and partitions."""
    wanted = {"state_filters": [_kafka_state(state) for state in states], "producer_id_filters": list(producer_ids)}
    found: list[Transaction] = []
    with wire.Cluster(server) as cluster:
        for number, address in cluster.brokers().items():
            answer = cluster.retry(partial(cluster.ask, address, "list_transactions", **wanted))
            wire.check(answer.error_code, f"the transactions of broker {number}")
            listed = {
                each.transactional_id: Transaction(
                    each.transactional_id, _format_state(each.transaction_state), each.producer_id, number
                )
                for each in answer.transaction_states
            }
            opened = [name for name, each in listed.items() if each.is_open]
            listed |= {each.id: each for each in _describe(cluster, address, number, opened) if each.is_open}
            found += listed.values()
    return sorted(found, key=lambda each: each.id)


def describe_transactions(server: Server, ids: Iterable[str]) -> list[Transaction]:
    """Raises `CommandError` for an id that no coordinator knows."""
    described = []
    with wire.Cluster(server) as cluster:
        numbers = {address: number for number, address in cluster.brokers().items()}
        for name in dict.fromkeys(ids):
            address = cluster.find_coordinator(wire.TRANSACTION, name)
            found = _describe(cluster, address, numbers.get(address), [name])
            if not found:
                raise CommandError(f"no transactional id {name!r} ('penstock txn list' shows them all)")
            described += found
    return described


def fence(server: Server, transactional_id: str) -> Fenced:
    """Take the id over with a new epoch: the coordinator aborts what is open, and waits until that is done."""
    with wire.Cluster(server) as cluster:
        address = cluster.find_coordinator(wire.TRANSACTION, transactional_id)
        answer = cluster.retry(
            lambda: cluster.ask(
                address,
                "init_producer_id",
                transactional_id=transactional_id,
                transaction_timeout=_FENCE_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            )
        )
    wire.check(answer.error_code, f"transactional id {transactional_id!r} cannot be fenced")
    return Fenced(answer.producer_id, answer.producer_epoch)


def find_open(server: Server, topic: str, partition: int, start_offset: int) -> Hanging:
    """The transaction that begins there. Raises `CommandError` where there is none, or a coordinator has it.

    One that its coordinator is aborting may be waiting for this very partition: then an abort is what it wants, too.
    """
    with wire.Cluster(server) as cluster:
        address = cluster.find_leader(topic, partition)
        opened = _open_in(cluster, address, [(topic, partition)])
        found = [each for each in opened if each.start_offset == start_offset]
        owners = _find_owners(server, found)
        still = set(_open_in(cluster, address, [(topic, partition)]))
    for owner in (each.id for each in owners.values() if each.state != "prepare-abort"):
        raise CommandError(
            f"the transaction at offset {start_offset} of {topic}:{partition} does not hang: it belongs to {owner!r}; "
            f"'penstock txn abort {owner}' aborts it in all its partitions"
        )
    for each in found:
        if each in still:
            return each
    others = ", ".join(str(each.start_offset) for each in opened if each in still)
    raise CommandError(
        f"no transaction is open at offset {start_offset} of {topic}:{partition}; "
        + (f"those there begin at {others}" if others else "there is none in this partition")
    )


def find_hanging(server: Server, names: Sequence[str] = ()) -> list[Hanging]:
    """Transactions open in a partition that no coordinator knows as open there, in some topics or all."""
    known = fetch_topics(server, server.admin())
    if missing := [name for name in names if name not in known]:
        raise unknown_topics(missing, known)
    by_leader: dict[int, list[Partition]] = {}
    for name in names or known:
        for number, each in known[name].partitions.items():
            by_leader.setdefault(each.leader, []).append((name, number))
    with wire.Cluster(server) as cluster:
        brokers = cluster.brokers()

        def find_open(wanted: Mapping[int, Sequence[Partition]]) -> list[Hanging]:
            return [
                each
                for leader, some in wanted.items()
                if leader in brokers
                for each in _open_in(cluster, brokers[leader], some)
            ]

        opened = find_open(by_leader)
        owners = _find_owners(server, opened)
        suspect = {each for each in opened if each not in owners}
        places = {(each.topic, each.partition) for each in suspect}
        # One that ended between the two questions is unknown to its coordinator too, but not open any more.
        still = find_open({leader: [at for at in some if at in places] for leader, some in by_leader.items()})
    return sorted(suspect & set(still))


def write_abort_marker(server: Server, hanging: Hanging) -> None:
    marker = {
        "producer_id": hanging.producer_id,
        "producer_epoch": hanging.producer_epoch,
        "coordinator_epoch": max(hanging.coordinator_epoch, 0),  # below 0 before the first marker
        "transaction_result": False,
        "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
    }
    with wire.Cluster(server) as cluster:
        answer = cluster.ask(
            cluster.find_leader(hanging.topic, hanging.partition), "write_txn_markers", markers=[marker]
        )
    for each in (part for result in answer.markers for topic in result.topics for part in topic.partitions):
        wire.check(each.error_code, f"the transaction in {hanging.topic}:{hanging.partition} cannot be aborted")


def _find_owners(server: Server, opened: Sequence[Hanging]) -> dict[Hanging, Transaction]:
    """Which of them a coordinator knows, and as what."""
    if not opened:
        return {}
    known = fetch_transactions(server, producer_ids=sorted({each.producer_id for each in opened}))
    return {
        each: found
        for each in opened
        for found in known
        if found.producer_id == each.producer_id and (each.topic, each.partition) in found.partitions
    }


def _open_in(cluster: wire.Cluster, address: wire.Address, partitions: Sequence[Partition]) -> list[Hanging]:
    opened = []
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        by_topic: dict[str, list[int]] = {}
        for name, number in partitions[start : start + _PARTITIONS_AT_ONCE]:
            by_topic.setdefault(name, []).append(number)
        asked = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic.items()]
        for topic in cluster.ask(address, "describe_producers", topics=asked).topics:
            for each in topic.partitions:
                if wire.error_name(each.error_code) != "UNKNOWN_TOPIC_OR_PARTITION":  # deleted meanwhile
                    wire.check(each.error_code, f"the producers of {topic.name}:{each.partition_index}")
                opened += [_read_producer(topic.name, each.partition_index, one) for one in each.active_producers]
    return sorted(each for each in opened if each.start_offset >= 0)


def _read_producer(topic: str, partition: int, producer: "Message") -> Hanging:
    return Hanging(
        topic,
        partition,
        producer.current_txn_start_offset,
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.last_timestamp,
    )


def _describe(
    cluster: wire.Cluster, address: wire.Address, number: int | None, ids: Sequence[str]
) -> list[Transaction]:
    """Those that the broker knows."""
    found = []
    for start in range(0, len(ids), _AT_ONCE):
        answer = cluster.ask(address, "describe_transactions", transactional_ids=ids[start : start + _AT_ONCE])
        for each in answer.transaction_states:
            try:
                wire.check(each.error_code, f"transactional id {each.transactional_id!r}")
            except Refused as error:
                if error.name != "TRANSACTIONAL_ID_NOT_FOUND":
                    raise
                continue
            found.append(_read_transaction(each, number))
    return found


def _read_transaction(state: "Message", number: int | None) -> Transaction:
    return Transaction(
        id=state.transactional_id,
        state=_format_state(state.transaction_state),
        producer_id=state.producer_id,
        coordinator=number,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout,
        start_ms=state.transaction_start_time if state.transaction_start_time >= 0 else None,
        partitions=tuple(sorted((topic.topic, each) for topic in state.topics for each in topic.partitions)),
    )


def _format_state(kafka: str) -> str:
    """`CompleteCommit` as `complete-commit`."""
    return _WORD_START.sub("-", kafka).lower()


def _kafka_state(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("-"))
