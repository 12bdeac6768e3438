"""The cluster as this broker knows it: a copy of the metadata store, kept by watching and looking again.

What it says may be old, never wrong: each entry carries the revision it was written at, and an older one never
replaces a newer one. So a watch may lag, repeat itself or be begun again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import orjson

from penstock.cluster import keys
from penstock.engine.groups.group_configs import read_group_key
from penstock.engine.partition_state import PartitionState
from penstock.engine.topics import TopicRecord
from penstock.errors import Code, PenstockError
from penstock.ports.metadata import Change, Snapshot

_DAMAGED_EPOCH = -2  # an empty log has -1
FEATURE_LEVEL = 3
"""What brokers of this release can. 1: their records prove that they know the cluster's secret, if it has one.
2: they keep what is attached to partitions, and count it for who is in sync; they know queues, and what is set for
groups. 3: their ledgers know what is acknowledged in transactions, and they end these there, too.
"""
ATTACHES_FROM = 2
ACKS_IN_TRANSACTIONS_FROM = 3
CORDON = "penstock.cordon"
CORDONED, DRAINED = "cordoned", "drained"


class Served(NamedTuple):
    """Where clients find a broker: `endpoints` for each of its listeners, and one place for who knows none of them."""

    host: str
    port: int
    endpoints: Mapping[str, tuple[str, int]] = {}


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """What is under `brokers/{id}`."""

    broker_id: int
    host: str
    port: int
    """Where clients find it."""
    internal_host: str
    internal_port: int
    """Where brokers find it."""
    rack: str | None
    incarnation: int
    """Which start of this broker it is: rises by one each time, and is its epoch."""
    clean: bool
    """Whether the stop before this start was a clean one."""
    leaving: bool = False
    """It is about to stop, and should lead nothing."""
    revision: int = 0
    level: int = 0
    """The highest feature level it can go by."""
    proof: str = ""
    """That whoever wrote this knows the cluster's secret (`ClusterSecret.prove`)."""
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict, hash=False)
    """Where each of its listeners is found, by name. Earlier releases neither write nor read it."""
    endpoints_proof: str = ""
    """The same of `endpoints`: apart, because earlier releases know the other one only."""

    @property
    def why_strange(self) -> str:
        """Why it is given nothing, if it is not."""
        if self.proof:
            return "its record was not written by a broker with the cluster's secret"
        return "its record does not prove that it has the cluster's secret; upgrade it, all other brokers do"

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "id": self.broker_id,
                "host": self.host,
                "port": self.port,
                "internal_host": self.internal_host,
                "internal_port": self.internal_port,
                "rack": self.rack,
                "incarnation": self.incarnation,
                "clean": self.clean,
                "leaving": self.leaving,
                "level": self.level,
                "proof": self.proof,
                "endpoints": {name: list(place) for name, place in self.endpoints.items()},
                "endpoints_proof": self.endpoints_proof,
            }
        )

    @classmethod
    def decode(cls, value: bytes, revision: int) -> "BrokerRecord":
        fields = orjson.loads(value)
        return cls(
            fields["id"],
            fields["host"],
            fields["port"],
            fields["internal_host"],
            fields["internal_port"],
            fields["rack"],
            fields["incarnation"],
            fields["clean"],
            fields["leaving"],
            revision,
            fields.get("level", 0),
            str(fields.get("proof", "")),
            {name: (str(host), int(port)) for name, (host, port) in fields.get("endpoints", {}).items()},
            str(fields.get("endpoints_proof", "")),
        )


@dataclass(frozen=True, slots=True)
class TopicEntry:
    name: str
    record: TopicRecord
    revision: int


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """What is under `controller`."""

    broker_id: int
    incarnation: int
    revision: int = 0

    def encode(self) -> bytes:
        return orjson.dumps({"id": self.broker_id, "incarnation": self.incarnation})

    @classmethod
    def decode(cls, value: bytes, revision: int) -> "ControllerRecord":
        fields = orjson.loads(value)
        return cls(fields["id"], fields["incarnation"], revision)


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What is under `deleted/{topic id}`."""

    topic: str
    waiting: tuple[int, ...]
    revision: int = 0

    def encode(self) -> bytes:
        return orjson.dumps({"topic": self.topic, "waiting": self.waiting})

    @classmethod
    def decode(cls, value: bytes, revision: int) -> "DeletedTopic":
        fields = orjson.loads(value)
        return cls(fields["topic"], tuple(fields["waiting"]), revision)


class End(NamedTuple):
    """What is under `ends/{topic id}/{n}/{broker}`: how far the log of a broker in `PartitionState.last` goes."""

    incarnation: int
    last_epoch: int
    end_offset: int
    """Compare (last_epoch, end_offset): the longest history."""
    attached_epochs: int = 0
    attached_ends: int = 0
    """The same of all that is attached to it, summed up. Earlier releases, which attach nothing, know neither."""

    @classmethod
    def damaged(cls, incarnation: int) -> "End":
        """Of a log that cannot be used."""
        return cls(incarnation, _DAMAGED_EPOCH, 0)

    @property
    def is_usable(self) -> bool:
        return self.last_epoch > _DAMAGED_EPOCH

    @property
    def history(self) -> tuple[int, int, int]:
        """How long it is: who lacks an old part of what is attached has less in all than who lacks what came last."""
        return self.last_epoch, self.attached_epochs, self.end_offset + self.attached_ends

    def encode(self) -> bytes:
        told = self._asdict()
        if not (self.attached_epochs or self.attached_ends):
            del told["attached_epochs"], told["attached_ends"]
        return orjson.dumps(told)

    @classmethod
    def decode(cls, value: bytes) -> "End":
        return cls(**orjson.loads(value))


class Image:
    """Pure: told of changes, asked about the cluster. `revision` is the newest change it knows of."""

    def __init__(self) -> None:
        self.revision = 0
        self.brokers: dict[int, BrokerRecord] = {}
        """Those that are there, and are of this cluster."""
        self.strangers: dict[int, BrokerRecord] = {}
        """Those that are registered and do not prove that they are: they are given nothing."""
        self.level = 0
        """The feature level all brokers go by, which never falls."""
        self._proves: Callable[[BrokerRecord], bool] | None = None
        self.departed: dict[int, BrokerRecord] = {}
        """Those that were there not long ago; whoever keeps the image decides for how long."""
        self.members: dict[int, int] = {}
        """Every broker that ever was, and its last incarnation."""
        self.admitted: dict[int, int] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.states: dict[UUID, dict[int, PartitionState]] = {}
        self.deleted: dict[UUID, DeletedTopic] = {}
        self.controller: ControllerRecord | None = None
        self.ends: dict[tuple[UUID, int], dict[int, End]] = {}
        self.verifier: bytes | None = None
        """What is under `secret`."""
        self.configs: dict[int | None, Mapping[str, str]] = {}
        """Settings changed at run time, by broker; under None those of all brokers."""
        self.groups: dict[str, Mapping[str, str]] = {}
        """What is set for groups."""
        self._at: dict[str, int] = {}
        """The revision each key was last changed at, deletions since the last snapshot too."""
        self._present: dict[str, None] = {}
        self._floor = 0
        """Of the last snapshot: changes up to it are old news."""

    # --- taking in

    def apply(self, changes: Iterable[Change]) -> list[str]:
        """Take in changes in their order; the keys that are not as they were."""
        return [change.key for change in changes if self._apply(change)]

    def replace(self, snapshot: Snapshot) -> list[str]:
        """Take in how things are; the keys that are not as they were.

        What was changed after the snapshot was taken stays as it is.
        """
        present = {entry.key for entry in snapshot.entries}
        gone = [key for key in self._present if key not in present]
        changed = self.apply(Change(key, None, snapshot.revision) for key in gone)
        changed += self.apply(Change(entry.key, entry.value, entry.revision) for entry in snapshot.entries)
        self.revision = max(self.revision, snapshot.revision)
        self._floor = max(self._floor, snapshot.revision)
        self._at = {key: at for key, at in self._at.items() if key in self._present or at > self._floor}
        return changed

    def _apply(self, change: Change) -> bool:
        key, value, revision = change
        if self._at.get(key, self._floor) >= revision:
            return False
        self._at[key] = revision
        if value is None:
            self._present.pop(key, None)
        else:
            self._present[key] = None
        self.revision = max(self.revision, revision)
        if key.startswith(keys.PARTITIONS):
            self._apply_partition(key, value, revision)
        elif key.startswith(keys.TOPICS):
            name = key.removeprefix(keys.TOPICS)
            if value is None:
                self.topics.pop(name, None)
            else:
                self.topics[name] = TopicEntry(name, TopicRecord.decode(value), revision)
        elif key.startswith(keys.DELETED):
            topic_id = UUID(key.removeprefix(keys.DELETED))
            if value is None:
                self.deleted.pop(topic_id, None)
            else:
                self.deleted[topic_id] = DeletedTopic.decode(value, revision)
        elif key.startswith(keys.ENDS):
            self._apply_end(key, value)
        elif key == keys.CONTROLLER:
            self.controller = None if value is None else ControllerRecord.decode(value, revision)
        elif key == keys.SECRET:
            self.verifier = value
        elif key == keys.FEATURES:
            self.level = 0 if value is None else orjson.loads(value)["level"]
            self._tell_apart()
        else:
            self._apply_named(key, value, revision)
        return True

    def _apply_partition(self, key: str, value: bytes | None, revision: int) -> None:
        topic_id, index = keys.read_partition_key(key)
        states = self.states.setdefault(topic_id, {})
        if value is None:
            states.pop(index, None)
            if not states:
                del self.states[topic_id]
        else:
            states[index] = PartitionState.decode(value, revision)

    def _apply_end(self, key: str, value: bytes | None) -> None:
        topic_id, index, broker_id = keys.read_end_key(key)
        ends = self.ends.setdefault((topic_id, index), {})
        if value is not None:
            ends[broker_id] = End.decode(value)
        else:
            ends.pop(broker_id, None)
            if not ends:
                del self.ends[topic_id, index]

    def _apply_named(self, key: str, value: bytes | None, revision: int) -> None:
        prefix, _, rest = key.partition("/")
        if prefix == "brokers":
            broker_id = int(rest)
            self.strangers.pop(broker_id, None)
            if value is not None:
                self._take(BrokerRecord.decode(value, revision))
            elif broker_id in self.brokers:
                self.departed[broker_id] = self.brokers.pop(broker_id)
        elif prefix in ("members", "admitted"):
            numbers = self.members if prefix == "members" else self.admitted
            if value is None:
                numbers.pop(int(rest), None)
                self.departed.pop(int(rest), None)
            else:
                numbers[int(rest)] = orjson.loads(value)["incarnation"]
        elif prefix == "configs":
            whose = None if rest == keys.ALL_BROKERS else int(rest)
            if value is None:
                self.configs.pop(whose, None)
            else:
                self.configs[whose] = orjson.loads(value)
        elif prefix == "groups":
            group_id = read_group_key(key)
            if value is None:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = orjson.loads(value)

    def trust(self, proves: Callable[[BrokerRecord], bool]) -> None:
        """From now on only those brokers are there whose records prove it. Where nobody says how, all are."""
        self._proves = proves
        self._tell_apart()

    def _tell_apart(self) -> None:
        registered = [*self.brokers.values(), *self.strangers.values()]
        self.strangers.clear()
        for broker in registered:
            self._take(broker)

    def _take(self, broker: BrokerRecord) -> None:
        if self.is_trusted(broker, self.level):
            self.brokers[broker.broker_id] = broker
            self.departed.pop(broker.broker_id, None)
        else:
            self.brokers.pop(broker.broker_id, None)
            self.strangers[broker.broker_id] = broker

    # --- being asked

    def revision_of(self, key: str) -> int:
        """The revision a key was written at; 0: it is not there."""
        return self._at[key] if key in self._present else 0

    def is_trusted(self, broker: BrokerRecord, level: int) -> bool:
        """Whether a broker is of this cluster: below level 1 also one that proves nothing, as earlier releases do."""
        if self._proves is None:
            return True
        return self._proves(broker) if broker.proof else level < 1

    def check_attaches(self, cannot: str) -> None:
        """Raises PenstockError NOT_AVAILABLE while there may be brokers that know nothing of queues."""
        if self.level < ATTACHES_FROM:
            raise PenstockError(
                Code.NOT_AVAILABLE,
                f"{cannot}: the cluster is at feature level {self.level}, and level {ATTACHES_FROM} needs every broker "
                "to be of this release",
                help="Upgrade all brokers, and start those that are down.",
            )

    def check_acks_in_transactions(self) -> None:
        """Raises PenstockError INVALID_REQUEST while there may be brokers that would end a transaction without them."""
        if self.level < ACKS_IN_TRANSACTIONS_FROM:
            raise PenstockError(
                Code.INVALID_REQUEST,
                "messages of queues cannot be acknowledged in transactions: the cluster is at feature level "
                f"{self.level}, and level {ACKS_IN_TRANSACTIONS_FROM} needs every broker to be of this release",
                help="Upgrade all brokers, and start those that are down.",
            )

    def is_live(self, broker_id: int) -> bool:
        """Whether a broker is there and may lead and be in sync."""
        broker = self.brokers.get(broker_id)
        return broker is not None and self.admitted.get(broker_id) == broker.incarnation

    def reachable(self) -> Mapping[int, BrokerRecord]:
        """Brokers that clients and others may turn to: those that are there.

        Without a controller also those whose registrations have ended. A store that is being stopped may let all of
        them end before it is gone; they go on with what they do, and nobody can elect others.
        """
        return self.brokers if self.controller is not None else self.departed | self.brokers

    def config(self, broker_id: int, name: str) -> str | None:
        """A setting of a broker that was changed at run time, for itself or for all."""
        own = self.configs.get(broker_id, {}).get(name)
        return own if own is not None else self.configs.get(None, {}).get(name)

    def cordoned(self) -> frozenset[int]:
        """Brokers that get no new replicas."""
        return frozenset(broker_id for broker_id in self.members if self.config(broker_id, CORDON) is not None)

    def drained(self) -> frozenset[int]:
        """Those of them that shall not lead either."""
        return frozenset(broker_id for broker_id in self.members if self.config(broker_id, CORDON) == DRAINED)

    def live(self) -> Mapping[int, BrokerRecord]:
        return {broker_id: broker for broker_id, broker in sorted(self.brokers.items()) if self.is_live(broker_id)}

    def partitions(self) -> Iterator[tuple[TopicEntry, int, PartitionState]]:
        """Those of topics that exist, in order."""
        for name in sorted(self.topics):
            topic = self.topics[name]
            states = self.states.get(topic.record.topic_id, {})
            for index in range(topic.record.partitions):
                if index in states:
                    yield topic, index, states[index]
