"""The admin verbs every library's adapter offers beyond making and deleting topics, so that one case runs with each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = "SET", "DELETE", "APPEND", "SUBTRACT"
OPERATIONS = (SET, DELETE, APPEND, SUBTRACT)
# Kafka's numbers of where a value comes from.
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
TOPIC_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = SOURCES[1], SOURCES[5], SOURCES[8]

Synonym = tuple[str, str | None, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an incremental change."""

    operation: str
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as a client shows it; None where the client does not tell."""

    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    is_default: bool | None = None
    kind: str | None = None
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    cluster_id: str
    controller: int
    nodes: tuple[tuple[int, str, int], ...]


class Admin(ABC):
    """A client library's admin side with one broker's address."""

    name: str
    # Whether it can ask for single keys of a resource.
    filters_keys = True
    # Whether it reports the error of a resource it cannot describe.
    describe_errors = True
    # Whether two synonyms of one name are both shown.
    all_synonyms = True
    can_increment = True
    # Whether it still has the older call that replaces all of a topic's settings.
    can_replace = True
    # Whether it knows that groups have settings.
    knows_groups = False

    @abstractmethod
    def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None: ...

    @abstractmethod
    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete up to an offset, -1 for all, per partition; returns the first offset left in each."""

    @abstractmethod
    def settings(self, name: str, *, kind: int = TOPIC, keys: Sequence[str] | None = None) -> dict[str, Entry]:
        """The settings of a topic, a broker or a group, with synonyms, and all else the library can ask for."""

    def alter(self, name: str, *changes: Change, kind: int = TOPIC, validate_only: bool = False) -> None:
        """IncrementalAlterConfigs."""
        raise NotImplementedError

    def replace(self, topic: str, config: Mapping[str, str]) -> None:
        """AlterConfigs: what is not named goes back to its default."""
        raise NotImplementedError

    @abstractmethod
    def cluster(self) -> Cluster: ...

    def close(self) -> None:
        """End whatever the adapter keeps open; most keep nothing."""
        return None
