"""What every library's adapter offers for transactions: producers with a transactional id, and where partitions end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from .client import DEADLINE_S, ClientError
from .groups import Member, Place

TIMEOUT_MS = int(DEADLINE_S * 1000)


class Fenced(ClientError):
    """Another producer with the same transactional id has taken over; this one is of no more use."""


class Aborted(ClientError):
    """The transaction can only be aborted; the producer may begin another one."""


class TransactionalProducer(ABC):
    """One producer; all verbs raise `ClientError`, or `Fenced` or `Aborted` where the client says so."""

    @abstractmethod
    def init(self) -> None:
        """Get the producer's id, ending what a producer before it left open."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, partition: int, *values: bytes) -> None:
        """Send the values and wait until the broker has them."""

    @abstractmethod
    def send_offsets(self, offsets: Mapping[Place, int], member: Member) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Transactions(ABC):
    """A client library's side of transactions."""

    name: ClassVar[str]
    # The kind of member that reads what its producers wrote.
    reader: ClassVar[str]

    @abstractmethod
    def open(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer: ...

    @abstractmethod
    def end(self, topic: str, partition: int, isolation: str) -> int:
        """Where the partition ends for a reader of that isolation."""
