"""The topic in which exactly-once writes keep their marks and settle their turns.

It has one partition and is compacted. A mark, one for each transactional id and query, says which micro-batch was
written last; it is written in the transaction of the batch itself, so it is there exactly if the batch is. Claims,
dones and seals (see `turns`) are plain records: they mean something only while their transaction lasts, which is
shorter than compaction waits.

The log is read uncommitted, and a mark's outcome taken from the marker behind it: another query that died within its
transaction must not hold up this one until its timeout.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from penstock.client.cluster import EARLIEST, LATEST, Cluster, Topic
from penstock.client.errors import ClientError, check
from penstock.client.fetching import PartitionFetcher
from penstock.client.producer import Parcel, Producer
from penstock.client.settings import Settings
from penstock.client.transaction import OpenTransaction, add_partitions
from penstock.records.batch import HEADER_BYTES, Header, crc_matches, decode_header
from penstock.records.build import build_batch
from penstock.records.control import Marker, decode_marker
from penstock.records.record import iterate_batch
from penstock.spark.errors import SourceError

TOPIC: Final = "__penstock_spark_marks"
_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    # Longer than any transaction may take: turns are settled by what the log holds.
    "min.compaction.lag.ms": str(3_600_000),
}
_REPLICAS: Final = 3
_VERSION: Final = 1
_RETRY_S: Final = 0.1
_FETCH_BYTES: Final = 1 << 20
_LARGEST_BATCH_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """The last micro-batch of a query that is in the topics, and its rows: how many, and their sum (`outgoing`)."""

    query: str
    batch: int
    rows: int
    total: int

    def covers(self, query: str, batch: int) -> bool:
        """Whether a micro-batch is a repeat of this one.

        Raises:
            SourceError: it is an older one. Spark repeats its last batch, never one before: the checkpoint is not the
                one of the last run, and what it calls a batch need not be what was written under that number.
        """
        assert query == self.query
        if batch > self.batch:
            return False
        if batch < self.batch:
            raise SourceError(
                f"batch {batch} of query {query} comes after batch {self.batch} was written: the checkpoint is older "
                "than the topics. Restore the last one, or begin with a new one, which writes again what it reads"
            )
        return True


class Entry(NamedTuple):
    """One record of the log, or the marker that ends a transaction in it (`marker` is set, the rest empty)."""

    offset: int
    header: Header
    kind: str = ""
    transactional_id: str = ""
    body: dict[str, Any] = {}  # noqa: RUF012 - a tuple's field, never changed
    marker: Marker | None = None


class MarksLog:
    """Appends to the topic and reads it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._since = 0.0

    def create(self) -> Topic:
        """The topic; made if nobody has yet."""
        found = self.cluster.topics([TOPIC])
        if TOPIC not in found:
            self.cluster.create_topic(TOPIC, 1, _CONFIG, replicas=_REPLICAS)
            self.cluster.refresh()
            found = self.cluster.topics([TOPIC])
        if TOPIC not in found:
            raise SourceError(
                f"topic {TOPIC!r}, which exactly-once writes need, was made but is not there yet; try again"
            )
        return found[TOPIC]

    def append(self, kind: str, transactional_id: str, body: dict[str, Any]) -> None:
        """A plain record. Those of one kind share a key: compaction takes what is old, whoever wrote it."""
        self._send(_encode([kind], {"id": transactional_id, **body}, transaction=None), None)

    def append_mark(self, transaction: OpenTransaction, mark: Mark) -> None:
        """The mark, in the transaction; nothing else of the transaction may be in this topic."""
        add_partitions(self.cluster, transaction, [(TOPIC, 0)])
        name = transaction.transactional_id
        body = {"id": name, "query": mark.query, "batch": mark.batch, "rows": mark.rows, "total": mark.total}
        self._send(_encode(["mark", name, mark.query], body, transaction=transaction), name)

    def _send(self, batch: bytes, transactional_id: str | None) -> None:
        producer = Producer(self.cluster, transactional_id=transactional_id)
        producer.send(Parcel(TOPIC, 0, batch))
        producer.flush()

    def bounds(self) -> tuple[int, int]:
        key = TOPIC, 0
        start = self.cluster.list_offsets({key: EARLIEST}, read_committed=False)[key]
        return start, self.cluster.list_offsets({key: LATEST}, read_committed=False)[key]

    def follow(self, position: int, *, patience_s: float, end: int | None = None) -> Iterator[Entry]:
        """Entries from `position` on, as they come; up to `end`, or for ever.

        Raises `SourceError` when nothing comes for longer than `patience_s`.
        """
        self._since = time.monotonic()
        while end is None or position < end:
            try:
                for entries, reached in self._follow_connected(position, patience_s, end):
                    position = reached
                    yield from entries
            except ClientError as error:
                if not error.retriable:
                    raise
                self._check_patience(position, patience_s, error)
                time.sleep(_RETRY_S)
                self.cluster.refresh()

    def _follow_connected(
        self, position: int, patience_s: float, end: int | None
    ) -> Iterator[tuple[Iterator[Entry], int]]:
        """The entries of one batch after the other, each with the offset behind it, over one connection."""
        fetcher = PartitionFetcher(
            self.cluster.settings, self.cluster, self.create(), 0, read_committed=False, max_bytes=_FETCH_BYTES
        )
        try:
            while end is None or position < end:
                fetcher.send(position)
                fetched = fetcher.receive()
                check(fetched.error_code, f"topic {TOPIC!r}")
                came = False
                for header, batch in _batches(fetched.records):
                    came = True
                    entries = list(_entries(header, batch, position))
                    position = max(position, header.last_offset + 1)
                    yield iter(entries), position
                if came:
                    self._since = time.monotonic()
                else:
                    self._check_patience(position, patience_s, None)
        finally:
            fetcher.close()

    def _check_patience(self, position: int, patience_s: float, error: Exception | None) -> None:
        if time.monotonic() - self._since > patience_s:
            told = f"topic {TOPIC!r}: waited {patience_s:g} s for an entry behind offset {position}"
            raise SourceError(f"{told}: {error}" if error else told) from error


def _encode(key: list[str], body: dict[str, Any], *, transaction: OpenTransaction | None) -> bytes:
    value = orjson.dumps({"version": _VERSION, **body})
    record = (orjson.dumps(key), value, (), int(time.time() * 1000))
    if transaction is None:
        return build_batch([record])
    return build_batch(
        [record],
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        base_sequence=0,
        transactional=True,
    )


def _batches(data: memoryview) -> Iterator[tuple[Header, memoryview]]:
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = decode_header(data, at)
        if header.size > len(data) - at:
            return
        batch = data[at : at + header.size]
        if not crc_matches(batch, header):
            raise SourceError(f"topic {TOPIC!r}: the batch at offset {header.base_offset} does not match its checksum")
        yield header, batch
        at += header.size


def _entries(header: Header, batch: memoryview, position: int) -> Iterator[Entry]:
    if header.is_control:
        yield Entry(header.base_offset, header, marker=decode_marker(batch))
        return
    for offset, _, record in iterate_batch(batch, _LARGEST_BATCH_BYTES):
        if offset < position or record.key is None or record.value is None:
            continue
        kind, *_ = orjson.loads(record.key)
        body = orjson.loads(record.value)
        if body["version"] > _VERSION:
            told = f"topic {TOPIC!r}: offset {offset} is of version {body['version']}, {_VERSION} is known here"
            raise SourceError(f"{told}: a newer Penstock writes there, upgrade this one")
        yield Entry(offset, header, kind, body["id"], body)


@dataclass(slots=True)
class MarkBook:
    """The last committed mark of each transactional id and query, as far as the log was read."""

    topic: Topic | None = None
    position: int = 0
    marks: dict[str, dict[str, Mark]] = field(default_factory=dict)
    _open: dict[int, tuple[str, Mark]] = field(default_factory=dict)

    def step(self, entry: Entry) -> None:
        producer = entry.header.producer_id
        if entry.marker is not None:
            ended = self._open.pop(producer, None)
            if ended is not None and entry.marker is Marker.COMMIT:
                self.marks.setdefault(ended[0], {})[ended[1].query] = ended[1]
        elif entry.kind == "mark":
            body = entry.body
            mark = Mark(body["query"], body["batch"], body["rows"], body["total"])
            self._open[producer] = entry.transactional_id, mark
        self.position = entry.offset + 1

    def catch_up(self, log: MarksLog) -> None:
        """Read to the log's end as it is now."""
        topic = log.create()
        if self.topic is not None and topic.id != self.topic.id:
            open_book.cache_clear()
            raise SourceError(
                f"topic {TOPIC!r} was deleted and made anew while a query ran: which of its batches were written is "
                "not known any more. Look what the topics hold, then begin with a new checkpoint"
            )
        self.topic = topic
        start, end = log.bounds()
        for entry in log.follow(max(start, self.position), patience_s=60.0, end=end):
            self.step(entry)
        self.position = end


@functools.lru_cache(maxsize=8)
def open_book(settings: Settings) -> MarkBook:
    """The process's one book of a cluster's marks: a query reads only what is new since its last micro-batch."""
    return MarkBook()
