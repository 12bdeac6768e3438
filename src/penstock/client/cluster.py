"""The brokers behind an address: topics, leaders and coordinators, each broker connected when it is first asked."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Failure, Refused, Unreachable, check
from penstock.client.settings import Address, Settings, format_address

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

EARLIEST: Final = -2
LATEST: Final = -1
GROUP, TRANSACTION = 0, 1  # kinds of coordinators

_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_TOPIC_ALREADY_EXISTS: Final = 36
_NO_CONTROLLER: Final = 41
_COORDINATOR_MOVES: Final = frozenset({14, 15, 16})  # loading, not available, another one by now
_RETRY_S: Final = 0.1
_PARTITIONS_AT_ONCE: Final = 2000
_ASK, _LEAD, _COORDINATE = "ask", "lead", "coordinate"  # purposes of connections
_NO_ID: Final = uuid.UUID(int=0)

Place = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True, slots=True)
class Topic:
    """
    Attributes:
        id: all zeros where the broker is too old for ids.
        leaders: node id by partition number; -1 where there is none now.
    """

    name: str
    id: uuid.UUID
    leaders: tuple[int, ...]


class Cluster:
    """For one thread. `settings` may be sent to another process, a cluster not.

    A broker is connected once for each purpose: those who write may have answers under way on the connection to a
    leader while the cluster or its coordinator is asked something else.
    """

    def __init__(self, settings: Settings) -> None:
        """Connects to nobody yet. Raises `ClientError` for addresses that are none."""
        self.settings = settings
        self._bootstrap = settings.addresses()
        self._open: dict[tuple[str, Address], Connection] = {}
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close every connection and forget what brokers said; the next question connects again."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()
        self._coordinators.clear()
        self.refresh()

    def _connect(self, purpose: str, address: Address) -> Connection:
        """The connection for a purpose, a new one where the last has ended. Raises `ClientError`."""
        found = self._open.get((purpose, address))
        if found is None or not found.usable:
            if found is not None:
                found.close()
            found = self._open[purpose, address] = Connection(self.settings, address)
        return found

    def ask(self, api: str, **values: Any) -> "Message":
        """Ask any broker: those asked before, those named at the start, those they named. Raises `ClientError`."""
        deadline = time.monotonic() + self.settings.patience_s
        while True:
            try:
                return self._ask_once(api, **values)
            except Unreachable:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)

    def _ask_once(self, api: str, **values: Any) -> "Message":
        asked_before = [address for purpose, address in self._open if purpose == _ASK]
        failures: list[Failure] = []
        cause: BaseException | None = None
        for address in dict.fromkeys([*asked_before, *self._bootstrap, *self._brokers.values()]):
            try:
                return self._connect(_ASK, address).call(api, **values)
            except Unreachable as error:
                cause = error.__cause__
                failures += error.failures
        raise Unreachable(*failures) from cause

    def refresh(self) -> None:
        """Forget who leads what; the next question asks again."""
        self._brokers.clear()
        self._topics.clear()

    def topics(self, names: Iterable[str] | None) -> dict[str, Topic]:
        """Topics as they are now; those that do not exist are not in the answer, and are not made.

        Args:
            names: None for all but the internal ones. Leaders about to be elected are waited for, up to the time of
                an answer, only where names are given.

        Raises `Refused` for a topic that may not be looked at, `ClientError`.
        """
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted == []:
            return {}
        for _ in self._tries():
            answer = self._ask_metadata(wanted)
            found = {each.name: _read_topic(each) for each in answer.topics if not each.error_code}
            codes = {each.name: each.error_code for each in answer.topics if each.error_code}
            waiting = _LEADER_NOT_AVAILABLE in codes.values() or any(-1 in each.leaders for each in found.values())
            if wanted is None or not waiting:
                break
        if wanted is None:
            internal = {each.name for each in answer.topics if each.is_internal}
            self._topics = found
            return {name: topic for name, topic in found.items() if name not in internal}
        self._topics = {name: topic for name, topic in self._topics.items() if name not in wanted} | found
        for name, code in codes.items():
            if code != _UNKNOWN_TOPIC:
                raise Refused(code, f"topic {name!r}")
        return found

    def _ask_metadata(self, names: list[str] | None) -> "Message":
        asked = None if names is None else [{"name": name} for name in names]
        answer = self.ask("metadata", topics=asked, allow_auto_topic_creation=False)
        self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        return answer

    def leader(self, topic: str, partition: int) -> Connection:
        """The connection to a partition's leader. Raises as `leader_address` does, and `ClientError`."""
        return self._connect(_LEAD, self.leader_address(topic, partition))

    def leader_address(self, topic: str, partition: int) -> Address:
        """As last heard; `refresh` has it asked for again.

        Raises `Refused` where the topic or the partition does not exist, or has no leader; `ClientError`.
        """
        self._learn([(topic, partition)])
        return self._require_leader(topic, partition)

    def _learn(self, places: Iterable[Place]) -> None:
        """Ask once for all topics of which something is not known."""
        self.topics({topic for topic, partition in places if self._known_leader(topic, partition) is None})

    def _require_leader(self, topic: str, partition: int) -> Address:
        found = self._known_leader(topic, partition)
        if found is not None:
            return found
        known = self._topics.get(topic)
        if known is None:
            raise Refused(_UNKNOWN_TOPIC, f"topic {topic!r}")
        if not 0 <= partition < len(known.leaders):
            raise Refused(_UNKNOWN_TOPIC, f"partition {partition} of topic {topic!r}, which has {len(known.leaders)}")
        raise Refused(_LEADER_NOT_AVAILABLE, _format_place(topic, partition))

    def _known_leader(self, topic: str, partition: int) -> Address | None:
        known = self._topics.get(topic)
        if known is None or not 0 <= partition < len(known.leaders):
            return None
        return self._brokers.get(known.leaders[partition])

    def coordinator(self, kind: int, name: str) -> Connection:
        """The connection to the coordinator of a GROUP or TRANSACTION, as last heard. Raises `ClientError`."""
        if (kind, name) not in self._coordinators:
            self._coordinators[kind, name] = self._find_coordinator(kind, name)
        return self._connect(_COORDINATE, self._coordinators[kind, name])

    def forget_coordinator(self, kind: int, name: str) -> None:
        self._coordinators.pop((kind, name), None)

    def _find_coordinator(self, kind: int, name: str) -> Address:
        for _ in self._tries():
            answer = self.ask("find_coordinator", key=name, coordinator_keys=[name], key_type=kind)
            found = answer.get("coordinators", [answer])[0]  # several names a question from version 4 on
            if found.error_code not in _COORDINATOR_MOVES:
                break
        check(found.error_code, f"{'group' if kind == GROUP else 'transactional id'} {name!r}", found.error_message)
        return found.host, found.port

    def list_offsets(self, asked: Mapping[Place, int], *, read_committed: bool) -> dict[Place, int]:
        """Where partitions begin and end, or which record is the first at or after a time.

        Args:
            asked: EARLIEST, LATEST or milliseconds, by topic and partition.
            read_committed: the end is the first record whose transaction is open.

        Returns:
            Offsets; -1 where no record is that late.

        Raises `Refused` naming a partition that does not exist, or whose leader does not answer in time.
        """
        isolation = int(read_committed)
        found: dict[Place, int] = {}
        trouble: ClientError | None = None
        for _ in self._tries():
            trouble = self._gather_offsets({each: asked[each] for each in asked if each not in found}, found, isolation)
            if trouble is None:
                return found
            self.refresh()
        assert trouble is not None
        raise trouble

    def _gather_offsets(
        self, asked: Mapping[Place, int], found: dict[Place, int], isolation: int
    ) -> ClientError | None:
        """Ask each leader once; returns what went wrong where that may pass."""
        trouble: ClientError | None = None
        by_leader: dict[Address, list[Place]] = {}
        self._learn(asked)
        for place in asked:
            try:
                by_leader.setdefault(self._require_leader(*place), []).append(place)
            except Refused as error:
                if error.code != _LEADER_NOT_AVAILABLE:
                    raise
                trouble = error
        for address, places in by_leader.items():
            for start in range(0, len(places), _PARTITIONS_AT_ONCE):
                some = {place: asked[place] for place in places[start : start + _PARTITIONS_AT_ONCE]}
                try:
                    self._ask_offsets(address, some, found, isolation)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    trouble = error
        return trouble

    def _ask_offsets(
        self, address: Address, asked: Mapping[Place, int], found: dict[Place, int], isolation: int
    ) -> None:
        by_topic: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), timestamp in asked.items():
            by_topic.setdefault(topic, []).append({"partition_index": partition, "timestamp": timestamp})
        topics = [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
        answer = self._connect(_ASK, address).call(
            "list_offsets", replica_id=-1, isolation_level=isolation, topics=topics
        )
        told = {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}
        if missing := [place for place in asked if place not in told]:
            raise ClientError(f"the server at {format_address(address)} left out {_format_place(*missing[0])}")
        found |= {place: told[place].offset for place in asked if not told[place].error_code}
        for place in asked:
            check(told[place].error_code, _format_place(*place))

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str], *, replicas: int = 1) -> None:
        """Make a topic and wait until its leaders are known; one that is there already is left as it is.

        Args:
            replicas: of each partition; fewer where there are fewer brokers.

        Raises `Refused` with the broker's reason, `ClientError`.
        """
        controller = self.controller()
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": min(replicas, len(self._brokers)),
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        timeout_ms = int(self.settings.timeout_s * 1000)
        (made,) = controller.call("create_topics", topics=[wanted], timeout=timeout_ms).topics
        if made.error_code != _TOPIC_ALREADY_EXISTS:
            check(made.error_code, f"topic {name!r} cannot be made", made.error_message)
        for _ in self._tries():
            if name in self.topics([name]):
                return
        raise Refused(_LEADER_NOT_AVAILABLE, f"topic {name!r}, just made")

    def controller(self) -> Connection:
        """The broker that makes topics. Raises `ClientError`."""
        number = self._ask_metadata([]).controller_id
        if number not in self._brokers:
            raise Refused(_NO_CONTROLLER, "the cluster")
        return self._connect(_ASK, self._brokers[number])

    def _tries(self) -> Iterator[None]:
        """Once, then again until the time of an answer has passed."""
        deadline = time.monotonic() + self.settings.timeout_s
        yield
        while time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            yield


def _read_topic(topic: "Message") -> Topic:
    leaders = [-1] * len(topic.partitions)
    for each in topic.partitions:
        if not 0 <= each.partition_index < len(leaders):
            raise ClientError(f"topic {topic.name!r}: partition {each.partition_index} of {len(leaders)} is none")
        leaders[each.partition_index] = each.leader_id
    return Topic(topic.name, topic.get("topic_id", _NO_ID), tuple(leaders))


def _format_place(topic: str, partition: int) -> str:
    return f"partition {partition} of topic {topic!r}"
