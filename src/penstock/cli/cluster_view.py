"""A cluster as its brokers tell of it: who is there, who holds what, how many bytes that is, what is on its way.

One picture costs a request or two for each broker, whatever the number of topics. Any broker knows the metadata; bytes
and disks are known by each broker for itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.cli import wire
from penstock.cli.connection import Refused, Server
from penstock.cli.failure import UNREACHABLE, CommandError

Place = tuple[str, int]
NOBODY: Final = -1
CORDON: Final = "penstock.cordon"
CORDONED, DRAINED = "cordoned", "drained"
REFUSALS: Final = "penstock.refusals"
THROTTLE: Final = "follower.replication.throttled.rate"
TOPIC, BROKER = 2, 4  # Kafka's kinds of settings
STORE_WITHIN_S: Final = 5.0
"""A broker gives the metadata store 3 seconds."""
SET_FOR_BROKER, SET_FOR_ALL = 2, 3  # where a value comes from: set at run time
_MIN_ISR: Final = "min.insync.replicas"
_AT_ONCE: Final = 1000
_SERVER_SHARE: Final = 0.8
"""Of the time for an answer, what a broker may take: it shall give up before we do and ask another one as well."""
_STORE_AWAY: Final = "LEADER_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class Broker:
    """
    Attributes:
        is_up: whether the cluster counts it as there.
        answers: whether it answered us; what it alone knows is missing if not.
        throttle: bytes a second, set for this broker.
        sizes: bytes of each partition it holds.
        refusals: by its word, brokers that are not taken for ones of the cluster.
    """

    id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_up: bool = False
    answers: bool = False
    cordon: str = ""
    throttle: int | None = None
    disk_bytes: int = 0
    free_bytes: int = 0
    sizes: Mapping[Place, int] = field(default_factory=dict)
    refusals: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.host else ""

    @property
    def takes(self) -> bool:
        """Whether it may get replicas."""
        return self.is_up and not self.cordon


@dataclass(frozen=True, slots=True)
class Partition:
    """`adding` and `removing` are the brokers that a move brings it to and takes it from."""

    topic: str
    index: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_isr: int = 1
    is_internal: bool = False

    @property
    def place(self) -> Place:
        return self.topic, self.index

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def expected(self) -> tuple[int, ...]:
        """Who should be in sync now: not those that a move is only bringing it to, or has been taken back from."""
        leaving = self.adding or self.removing
        return tuple(replica for replica in self.replicas if replica not in leaving)

    @property
    def is_behind(self) -> bool:
        """Under-replicated."""
        return any(replica not in self.isr for replica in self.expected)

    @property
    def is_below_min(self) -> bool:
        return len(self.isr) < min(self.min_isr, len(self.expected))


@dataclass(frozen=True, slots=True)
class Picture:
    """
    Attributes:
        controller: NOBODY while there is none.
        store_answers: whether the metadata store does; True where nobody asked.
    """

    cluster_id: str
    controller: int
    brokers: Mapping[int, Broker]
    partitions: tuple[Partition, ...]
    store_answers: bool = True

    @property
    def moving(self) -> list[Partition]:
        return [each for each in self.partitions if each.is_moving]

    def led_by(self, broker_id: int) -> list[Partition]:
        return [each for each in self.partitions if each.leader == broker_id]

    def held_by(self, broker_id: int) -> list[Partition]:
        return [each for each in self.partitions if broker_id in each.replicas]

    def size_of(self, partition: Partition) -> int:
        """What the leader has of it; without one, what anybody has."""
        sizes = {each: broker.sizes.get(partition.place, 0) for each, broker in self.brokers.items()}
        return sizes.get(partition.leader) or max(sizes.values(), default=0)

    def broker(self, broker_id: int) -> Broker:
        """Raises `CommandError` for one that the cluster does not know."""
        found = self.brokers.get(broker_id)
        if found is None:
            known = ", ".join(map(str, sorted(self.brokers)))
            raise CommandError(f"broker {broker_id} is unknown; there are {known}")
        return found

    def of_topics(self, names: Iterable[str]) -> list[Partition]:
        """Partitions of some topics, or of all. Raises `CommandError` for a topic that does not exist."""
        wanted = set(names)
        if missing := sorted(wanted - {each.topic for each in self.partitions}):
            raise CommandError(f"topic {missing[0]!r} is unknown; 'penstock cluster topics' lists them")
        return [each for each in self.partitions if not wanted or each.topic in wanted]


class View:
    """Asks for pictures, again and again over the same connections. Use as a context manager."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cluster = wire.Cluster(server, any_security=True)

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *args: object) -> None:
        self.cluster.__exit__(*args)

    @property
    def server_timeout_ms(self) -> int:
        """What a request says that its broker may take."""
        return int(self.server.timeout_s * _SERVER_SHARE * 1000)

    def fetch(self, *, sizes: bool = True, store: bool = False) -> Picture:
        """
        Args:
            sizes: ask every broker for its bytes and its disk as well.
            store: see whether the metadata store answers; all else is told from what brokers have in memory.
        """
        told = self._ask_cluster()
        partitions = self._ask_partitions()
        brokers = {
            each.broker_id: Broker(
                each.broker_id, each.host, each.port, each.rack, is_up=not each.get("is_fenced", False)
            )
            for each in told.brokers
        }
        for replica in sorted({replica for each in partitions for replica in each.replicas} - set(brokers)):
            brokers[replica] = Broker(replica)
        self.cluster.learn((each.host, each.port) for each in brokers.values() if each.is_up)
        settings = self._ask_settings(brokers)
        full = {each: self._complete(broker, settings.get(each, {}), sizes) for each, broker in sorted(brokers.items())}
        answers = not store or self.does_store_answer()
        return Picture(told.cluster_id, told.controller_id, full, tuple(partitions), answers)

    def does_store_answer(self) -> bool:
        """Whether brokers reach the metadata store; True as well where there is none, or we may not know."""
        try:
            return not self.is_store_away()
        except CommandError as error:
            return error.code != UNREACHABLE

    def is_store_away(self) -> bool:
        """Whether a broker says that the metadata store does not answer it. Raises `CommandError` if none says a word.

        A change of nothing that is only checked has a broker read the store.
        """
        resource = {"resource_type": BROKER, "resource_name": "", "configs": []}
        told = self.cluster.ask_briefly(
            STORE_WITHIN_S, "incremental_alter_configs", resources=[resource], validate_only=True
        )
        return any(wire.error_name(each.error_code) == _STORE_AWAY for each in told.responses)

    def _ask_cluster(self) -> Any:
        told = self.cluster.ask(None, "describe_cluster", include_fenced_brokers=True, endpoint_type=1)
        wire.check(told.error_code, "the cluster", told.error_message)
        return told

    def _ask_partitions(self) -> list[Partition]:
        moving = self._ask_moves()
        topics: list[Any] = []
        cursor = None
        while True:
            page = self.cluster.ask(
                None, "describe_topic_partitions", topics=[], response_partition_limit=2000, cursor=cursor
            )
            topics += page.topics
            if page.next_cursor is None:
                break
            cursor = {
                "topic_name": page.next_cursor.topic_name,
                "partition_index": page.next_cursor.partition_index,
            }
        moving |= self._ask_moves()  # another broker may have been asked, which knew more
        least = self._ask_least({topic.name for topic in topics})
        return [
            Partition(
                topic.name,
                each.partition_index,
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
                tuple(each.eligible_leader_replicas or ()),
                *moving.get((topic.name, each.partition_index), ((), ())),
                min_isr=least.get(topic.name, 1),
                is_internal=topic.is_internal,
            )
            for topic in topics
            for each in sorted(topic.partitions, key=lambda each: each.partition_index)
        ]

    def _ask_moves(self) -> dict[Place, tuple[tuple[int, ...], tuple[int, ...]]]:
        told = self.cluster.ask(None, "list_partition_reassignments", timeout=self.server_timeout_ms, topics=None)
        wire.check(told.error_code, "partitions on their way", told.error_message)
        return {
            (topic.name, each.partition_index): (tuple(each.adding_replicas), tuple(each.removing_replicas))
            for topic in told.topics
            for each in topic.partitions
        }

    def _ask_least(self, names: Iterable[str]) -> dict[str, int]:
        """`min.insync.replicas` of topics; those deleted meanwhile are left out."""
        wanted = sorted(names)
        found: dict[str, int] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            asked = [
                {"resource_type": TOPIC, "resource_name": name, "configuration_keys": [_MIN_ISR]}
                for name in wanted[start : start + _AT_ONCE]
            ]
            for result in self.cluster.ask(None, "describe_configs", resources=asked).results:
                if result.configs:
                    found[result.resource_name] = int(result.configs[0].value)
        return found

    def _ask_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
        """What is set for each broker at run time; a server that is no cluster has nothing to say of others."""
        asked = [
            {"resource_type": BROKER, "resource_name": str(each), "configuration_keys": [CORDON, THROTTLE]}
            for each in brokers
        ]
        told = self.cluster.ask(None, "describe_configs", resources=asked)
        return {int(each.resource_name): _set_here(each, SET_FOR_BROKER) for each in told.results}

    def ask_config(self, broker_id: int | None) -> dict[str, str]:
        """Settings of a broker, or of all (None), that were made at run time."""
        name = "" if broker_id is None else str(broker_id)
        asked = [{"resource_type": BROKER, "resource_name": name, "configuration_keys": None}]
        (result,) = self.cluster.ask(None, "describe_configs", resources=asked).results
        wire.check(result.error_code, f"settings of broker {name or 'all'}", result.error_message)
        return _set_here(result, SET_FOR_ALL if broker_id is None else SET_FOR_BROKER)

    def _complete(self, broker: Broker, settings: Mapping[str, str], with_sizes: bool) -> Broker:
        answers, disk_bytes, free_bytes, refusals = broker.is_up, 0, 0, ""
        sizes: dict[Place, int] = {}
        if with_sizes and broker.is_up:
            try:
                disk_bytes, free_bytes, sizes = self._ask_disk(broker)
                refusals = self._ask_refusals(broker)
            except CommandError as error:
                if error.code != UNREACHABLE and not isinstance(error, Refused):
                    raise
                answers = False
        rate = settings.get(THROTTLE)
        return Broker(
            broker.id,
            broker.host,
            broker.port,
            broker.rack,
            broker.is_up,
            answers,
            settings.get(CORDON, ""),
            int(rate) if rate else None,
            disk_bytes,
            free_bytes,
            sizes,
            refusals,
        )

    def _ask_refusals(self, broker: Broker) -> str:
        asked = [{"resource_type": BROKER, "resource_name": str(broker.id), "configuration_keys": [REFUSALS]}]
        told = self.cluster.ask((broker.host, broker.port), "describe_configs", resources=asked)
        found = (each.value for result in told.results for each in result.configs if each.name == REFUSALS)
        return next(found, "") or ""

    def _ask_disk(self, broker: Broker) -> tuple[int, int, dict[Place, int]]:
        told = self.cluster.ask((broker.host, broker.port), "describe_log_dirs", topics=None)
        wire.check(told.get("error_code", 0), f"the disk of broker {broker.id}")
        sizes: Counter[Place] = Counter()
        for each in told.results:
            for topic in each.topics:
                sizes.update({(topic.name, one.partition_index): one.partition_size for one in topic.partitions})
        total = sum(max(each.get("total_bytes", 0), 0) for each in told.results)
        free = sum(max(each.get("usable_bytes", 0), 0) for each in told.results)
        return total, free, dict(sizes)


def _set_here(result: Any, source: int) -> dict[str, str]:
    return {each.name: each.value for each in result.configs if each.config_source == source}
