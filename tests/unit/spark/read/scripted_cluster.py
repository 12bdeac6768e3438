"""Logs in memory, and a cluster of them behind the client's calls, which fails where a test wants it to."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from crc32c import crc32c

from penstock.client.cluster import EARLIEST, LATEST, Topic
from penstock.client.errors import ClientError, Refused
from penstock.client.fetching import Fetched
from penstock.client.settings import Settings
from penstock.records.batch import BATCH_HEADER, CRC_START, Header, decode_header
from penstock.records.build import build_batch
from penstock.records.control import Marker, build_marker
from penstock.records.record import iterate_batch
from penstock.spark.read.ranges import TopicPartition

SETTINGS = Settings("scripted:9092")
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID = 1, 3, 100


def restamp(batch: bytes, **changes: int) -> bytes:
    """The batch with other fields in its header, and a checksum that fits."""
    header = decode_header(batch)._replace(**changes)
    packed = BATCH_HEADER.pack(*header) + batch[BATCH_HEADER.size :]
    return BATCH_HEADER.pack(*header._replace(crc=crc32c(packed[CRC_START:]))) + packed[BATCH_HEADER.size :]


def value_of(offset: int) -> bytes:
    return b"value %d" % offset


@dataclass
class ScriptedLog:
    """One partition: batches, and the transactions in them as a broker lists them."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset, offset of the marker."""
    open: dict[int, int] = field(default_factory=dict)
    """First offset of each transaction that has not ended, by producer id."""

    def append(self, count: int = 1, *, producer: int = -1) -> int:
        """Records with `value_of` their offset; with a producer's id they are part of its transaction."""
        first = self.end
        records = [(b"key", value_of(first + at), (), 1000 + first + at) for at in range(count)]
        batch = build_batch(records, base_offset=first, transactional=producer >= 0)
        if producer >= 0:
            batch = restamp(batch, producer_id=producer, producer_epoch=0, base_sequence=0)
        self.batches.append(batch)
        self.end += count
        if producer >= 0:
            self.open.setdefault(producer, first)
        return first

    def end_transaction(self, producer: int, marker: Marker) -> None:
        first = self.open.pop(producer)
        if marker is Marker.ABORT:
            self.aborted.append((producer, first, self.end))
        self.batches.append(restamp(build_marker(producer, 0, marker, 0, 1000), base_offset=self.end))
        self.end += 1

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def visible(self, *, read_committed: bool = True) -> list[int]:
        """The offsets a reader sees."""
        found = []
        for header, batch in self._headers():
            hidden = any(
                header.producer_id == producer and first <= header.base_offset < end
                for producer, first, end in self.aborted
            ) or (header.is_transactional and header.base_offset >= self.open.get(header.producer_id, self.end))
            if not header.is_control and not (read_committed and hidden and header.is_transactional):
                found += [offset for offset, _, _ in iterate_batch(batch, 1 << 20)]
        return [offset for offset in found if offset >= self.start and (not read_committed or offset < self.stable)]

    def fetch(self, offset: int, max_bytes: int, *, read_committed: bool) -> Fetched:
        """What a broker answers: whole batches, the last one cut, and at least one."""
        if not self.start <= offset <= self.end:
            return Fetched(OFFSET_OUT_OF_RANGE, -1, -1, -1, [], memoryview(b""))
        limit = self.stable if read_committed else self.end
        wanted = [(h, b) for h, b in self._headers() if h.last_offset >= offset and h.base_offset < limit]
        data = b"".join(batch for _, batch in wanted)
        data = data[: max(max_bytes, len(wanted[0][1]))] if wanted else data
        upto = max((h.last_offset for h, _ in wanted), default=offset)
        aborted = [(p, first) for p, first, end in self.aborted if end >= offset and first <= upto]
        return Fetched(0, self.end, self.stable, self.start, aborted if read_committed else [], memoryview(data))

    def _headers(self) -> Iterator[tuple[Header, bytes]]:
        return ((decode_header(batch), batch) for batch in self.batches)


@dataclass
class ScriptedCluster:
    """Stands for `penstock.client.cluster.Cluster`, and makes fetchers that read the same logs.

    `trip` is called before each answer with the name of the call; what it raises the caller gets.
    """

    logs: dict[str, list[ScriptedLog]] = field(default_factory=dict)
    ids: dict[str, uuid.UUID] = field(default_factory=dict)
    trip: Callable[[str], None] = lambda _: None
    settings: Settings = SETTINGS
    asked: list[tuple[str, Any]] = field(default_factory=list)

    def create(self, name: str, *ends: int) -> list[ScriptedLog]:
        """A topic, in place of the one that has the name, with single records up to the ends of its partitions."""
        self.logs[name] = [ScriptedLog() for _ in ends]
        for log, end in zip(self.logs[name], ends, strict=True):
            for _ in range(end):
                log.append()
        self.ids[name] = uuid.uuid4()
        return self.logs[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def topics(self, names: Iterable[str] | None) -> dict[str, Topic]:
        self.trip("topics")
        wanted = set(self.logs) if names is None else set(names) & set(self.logs)
        return {name: Topic(name, self.ids[name], (1,) * len(self.logs[name])) for name in wanted}

    def list_offsets(self, asked: Mapping[TopicPartition, int], *, read_committed: bool) -> dict[TopicPartition, int]:
        self.trip("list_offsets")
        self.asked.append(("list_offsets", dict(asked)))
        return {key: self._offset(*key, moment, read_committed=read_committed) for key, moment in asked.items()}

    def _offset(self, topic: str, partition: int, moment: int, *, read_committed: bool) -> int:
        if topic not in self.logs or partition >= len(self.logs[topic]):
            raise Refused(UNKNOWN_TOPIC, f"partition {partition} of topic {topic!r}")
        log = self.logs[topic][partition]
        if moment == EARLIEST:
            return log.start
        if moment == LATEST:
            return log.stable if read_committed else log.end
        return next((at for at in log.visible(read_committed=read_committed) if 1000 + at >= moment), -1)

    def fetcher(
        self, settings: Settings, cluster: "ScriptedCluster", topic: Topic, partition: int, **options: Any
    ) -> "ScriptedFetcher":
        assert cluster is self and settings is self.settings
        return ScriptedFetcher(self, topic, partition, options["max_bytes"], options["read_committed"])


@dataclass
class ScriptedFetcher:
    """Stands for `penstock.client.fetching.PartitionFetcher`; as there, an answer overwrites the one before."""

    cluster: ScriptedCluster
    topic: Topic
    partition: int
    max_bytes: int
    read_committed: bool
    offset: int | None = None
    buffer: bytearray = field(default_factory=lambda: bytearray(1 << 14))

    def send(self, offset: int) -> None:
        assert self.offset is None, "one request at a time"
        self.cluster.trip("send")
        self.cluster.asked.append(("fetch", offset))
        self.offset = offset

    def receive(self) -> Fetched:
        assert self.offset is not None, "nothing was asked"
        offset, self.offset = self.offset, None
        self.buffer[:] = bytes(len(self.buffer))
        self.cluster.trip("receive")
        if self.cluster.ids.get(self.topic.name) != self.topic.id:
            return Fetched(UNKNOWN_TOPIC_ID, -1, -1, -1, [], memoryview(b""))
        log = self.cluster.logs[self.topic.name][self.partition]
        found = log.fetch(offset, self.max_bytes, read_committed=self.read_committed)
        self.buffer[: len(found.records)] = found.records
        return found._replace(records=memoryview(self.buffer)[: len(found.records)])

    def close(self) -> None:
        self.offset = None


class Passing(ClientError):
    """A failure that is over when asked again."""

    retriable = True


class Lasting(ClientError):
    """A failure that stays."""
