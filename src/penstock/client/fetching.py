"""One partition's record batches, as fast as they come: Fetch version 13 by hand, received straight into one buffer.

Nothing is copied behind the kernel's copy into the buffer: `Fetched.records` is a view of it.
"""

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from penstock.client.cluster import Cluster, Topic
from penstock.client.connection import LARGEST_ANSWER, AnswerBuffer, Connection
from penstock.client.errors import ClientError, Unsupported
from penstock.client.settings import Settings
from penstock.net.session import PeerError
from penstock.protocols.kafka_wire.codec import read_uvarint

_FETCH: Final = 1
_VERSION: Final = 13  # the first with topic ids (KIP-516): a topic made anew under the same name is another one
_LEAST_BYTES: Final = 1
_SLACK_BYTES: Final = 1 << 20  # of an answer, for what is not records

# Replica id, wait, least and most bytes, isolation level, session id and epoch; one topic: id; one partition: number,
# leader epoch, offset, epoch fetched last, log start, most bytes, tags; tags; no forgotten topics, no rack, tags.
_REQUEST = Struct(">iiiibiiB16sBiiqiqi5s")
_ENDING: Final = b"\0\0\1\1\0"
_ANSWER = Struct(">ihiB")  # throttle time, error, session id, count of topics
_PARTITION = Struct(">16sBihqqq")  # topic id, count of partitions, number, error, high watermark, stable, log start
_ABORTED = Struct(">qqB")  # producer id, first offset, tags
_PREFERRED = Struct(">i")
_ONE, _ALONE, _NO_SESSION = 2, -1, -1  # arrays carry their length and one; no replica, epoch, offset; KIP-227


class Fetched(NamedTuple):
    """
    Attributes:
        error_code: Kafka's; 0 where all is well. With an error the other fields mean nothing.
        aborted: producer id and first offset of each aborted transaction that reaches into the records.
        records: whole record batches, the last one perhaps cut; valid until the next answer is received.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview


class PartitionFetcher:
    """One partition on a connection of its own, one request under way.

    Where an error or `ClientError` says that the leader has moved or died, `cluster.refresh()` and the next `send`
    finds the new one.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        topic: Topic,
        partition: int,
        *,
        read_committed: bool,
        max_bytes: int,
        max_wait_ms: int = 500,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._isolation = int(read_committed)
        self._max_bytes = max_bytes
        self._max_wait_ms = min(max_wait_ms, int(settings.timeout_s * 500))  # the answer must come in time
        self._buffer = AnswerBuffer()
        self._connection: Connection | None = None
        self._asked: int | None = None

    def send(self, offset: int) -> None:
        """Ask for records from an offset on; returns at once. Raises `ClientError`."""
        assert self._asked is None, "one request at a time: receive the answer first"
        body = _REQUEST.pack(
            *(_ALONE, self._max_wait_ms, _LEAST_BYTES, self._max_bytes, self._isolation, 0, _NO_SESSION),
            *(_ONE, self._topic.id.bytes, _ONE, self._partition),
            *(_ALONE, offset, _ALONE, _ALONE, self._max_bytes, _ENDING),
        )
        connection = self._connect()
        self._asked = connection.send(_FETCH, _VERSION, (body,), flexible=True)

    def receive(self) -> Fetched:
        """The answer to the last `send`; ends the life of the records before. Raises `ClientError`."""
        assert self._connection is not None and self._asked is not None, "nothing has been sent"
        asked, self._asked = self._asked, None
        limit = max(LARGEST_ANSWER, self._max_bytes + _SLACK_BYTES)
        body = self._connection.receive(asked, flexible=True, buffer=self._buffer, limit=limit)
        try:
            return decode(body, self._topic.id.bytes, self._partition)
        except (PeerError, StructError) as error:
            self.close()
            told = f"the server at {self._connection.name} gave no proper answer to Fetch"
            raise ClientError(f"{told} of partition {self._partition} of {self._topic.name!r}: {error}") from None

    def close(self) -> None:
        """Give the connection back; a `send` opens another."""
        self._asked = None
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> Connection:
        if self._connection is None or not self._connection.usable:
            self.close()
            address = self._cluster.leader_address(self._topic.name, self._partition)
            self._connection = Connection(self._settings, address)
            try:
                self._connection.version("fetch")
            except Unsupported as error:
                self.close()
                raise Unsupported(f"{error}; reading needs Kafka 3.1 or newer") from None
        return self._connection


def decode(body: memoryview, topic_id: bytes, partition: int) -> Fetched:
    """The one partition of an answer. Raises `PeerError` or `struct.error` for anything else."""
    _, error, _, topics = _ANSWER.unpack_from(body)
    if error:
        return Fetched(error, -1, -1, -1, [], body[:0])
    if topics != _ONE:
        raise PeerError(f"{topics - 1} topics in place of one")
    found_id, partitions, number, error, high_watermark, stable, log_start = _PARTITION.unpack_from(body, _ANSWER.size)
    if (found_id, partitions, number) != (topic_id, _ONE, partition):
        raise PeerError("it is about another partition")
    count, at = read_uvarint(body, _ANSWER.size + _PARTITION.size)
    aborted = []
    for _ in range(count - 1):
        producer_id, first_offset, tags = _ABORTED.unpack_from(body, at)
        if tags:
            raise PeerError("an aborted transaction with tags")
        aborted.append((producer_id, first_offset))
        at += _ABORTED.size
    size, at = read_uvarint(body, at + _PREFERRED.size)
    end = at + max(size - 1, 0)
    if end > len(body):
        raise PeerError(f"{size - 1} bytes claimed, {len(body) - at} left")
    return Fetched(error, high_watermark, stable, log_start, aborted, body[at:end])
