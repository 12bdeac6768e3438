"""The interface every judge's adapter offers, so that one case runs with every client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tests.conformance.records import CODECS, Received, Record

# Generous: a healthy broker answers in milliseconds; this only bounds how long a broken one blocks the run.
DEADLINE_S = 20.0
NO_MATCH = -1


class ClientError(Exception):
    """What the client reported. `code` is Kafka's error code, negative for one the client made up itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Client(ABC):
    """A client library with one broker's address."""

    name: str
    codecs: Sequence[str] = CODECS
    # Whether a record may be any bytes or null, with its own key, headers and timestamp.
    whole_records = True
    # Whether it lets a user send a header without a value.
    null_headers = True
    # Whether errors carry Kafka's codes.
    error_codes = True
    has_admin = True
    has_max_timestamp = True
    timestamp_types = True

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_bytes: int = 8 << 20,
    ) -> list[int]:
        """Send the records in order and wait for all; returns their offsets as the client reports them."""

    @abstractmethod
    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        """Read `count` records by assign and seek.

        Args:
            reset: `none` makes an offset out of range an error, `earliest` and `latest` go there instead.

        Raises:
            ClientError: the client reported an error.
            TimeoutError: fewer records came before the deadline.
        """

    @abstractmethod
    def earliest(self, topic: str, partition: int) -> int: ...

    @abstractmethod
    def latest(self, topic: str, partition: int) -> int: ...

    @abstractmethod
    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset whose timestamp is at or after the given one, `NO_MATCH` if there is none."""

    def max_timestamp(self, topic: str, partition: int) -> tuple[int, int]:
        """Offset and timestamp of the record with the greatest timestamp."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    @abstractmethod
    def topics(self) -> dict[str, int]:
        """Partition counts by topic, without creating any."""

    def close(self) -> None:
        """End whatever the adapter keeps open; most keep nothing."""
        return None
