"""What every library's adapter offers for share groups: a consumer that does what it is told, one call at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
IMPLICIT, EXPLICIT = "implicit", "explicit"
EARLIEST: Final[Mapping[str, str]] = {"share.auto.offset.reset": "earliest"}


class Taken(NamedTuple):
    """A record that the consumer has; of the one topic it subscribes to."""

    partition: int
    offset: int
    value: bytes
    deliveries: int


class ShareMember(ABC):
    """A share consumer of one topic."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Taken]:
        """Some records, if there are any within that time."""

    @abstractmethod
    def acknowledge(self, taken: Taken, kind: int) -> None:
        """Note what became of a record; told by the next `poll` or `commit`."""

    @abstractmethod
    def commit(self) -> dict[int, int]:
        """Tell what became of records; returns Kafka's code of each partition."""

    @abstractmethod
    def leave(self) -> None: ...

    @abstractmethod
    def crash(self) -> None:
        """Be gone without a word. For one that was made to be `doomed`."""
