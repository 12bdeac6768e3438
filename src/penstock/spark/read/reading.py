"""Reads one range of offsets, in a task: fetches from the partition's leader, leaves out what is not for readers, gives
Arrow.

The next request is on its way while an answer is decoded. A range ends where it was planned to end, or with an error:
too old an offset, another topic under the name, an end that never comes are all told, never passed over, unless the
reader was asked to go on without them (`failOnDataLoss=false`).
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.client.errors import ClientError, Refused
from penstock.client.fetching import Fetched, PartitionFetcher
from penstock.client.settings import Settings
from penstock.records.batch import HEADER_BYTES, MAGIC, Header, crc_matches, decode_header
from penstock.records.compression import CompressionError
from penstock.records.control import Marker, decode_marker
from penstock.records.record import RecordError
from penstock.spark.arrow.decode import Place, decode
from penstock.spark.errors import DataLossError, SourceError
from penstock.spark.read.ranges import Range

if TYPE_CHECKING:
    from penstock.spark.formats import ValueFormat

_OFFSET_OUT_OF_RANGE: Final = 1
_UNKNOWN_TOPIC: Final = 3
_RETRY_S: Final = 0.1
_CHUNK_BYTES: Final = 4 << 20
_CHUNK_ROWS: Final = 50_000
LARGEST_BATCH_BYTES: Final = 256 << 20
"""How much a compressed batch may hold."""


class Chunk(NamedTuple):
    """Bytes and the batches in them that readers see; records before the offset `first` do not count."""

    data: memoryview
    places: list[Place]
    first: int


class Reading(NamedTuple):
    """How ranges are read; goes from the driver to the tasks."""

    settings: Settings
    columns: tuple[str, ...]
    value_format: "ValueFormat | None"
    schema: pa.Schema
    read_committed: bool
    fail_on_data_loss: bool
    patience_s: float
    fetch_bytes: int

    def read(self, wanted: Range, chunks: Iterator[Chunk] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a range as Arrow batches of the reader's schema; of `chunks`, if they come from elsewhere than
        the broker."""
        raw = self.columns
        if self.value_format is not None and "value" not in raw:
            raw = (*raw, "value")
        for data, places, first in chunks or self.fetch(wanted):
            for group in _group(places):
                try:
                    rows = decode(
                        data,
                        group,
                        raw,
                        topic=wanted.topic,
                        partition=wanted.partition,
                        first=first,
                        end=wanted.end,
                        limit=LARGEST_BATCH_BYTES,
                    )
                except (RecordError, CompressionError) as error:
                    last = group[-1].header.last_offset
                    where = f"offsets {group[0].header.base_offset} to {last} of {wanted.topic!r}/{wanted.partition}"
                    raise SourceError(f"{where} hold no proper records: {error}") from error
                if rows.num_rows:
                    yield self._type(rows)

    def _type(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.value_format is None:
            return rows
        values = rows.column("value")
        fields, errors = self.value_format.decode(values)
        kept = {name: rows.column(name) for name in self.columns}
        if "value" in kept:
            good = errors.is_null()
            kept["value"] = pa.compute.if_else(good, pa.scalar(None, values.type), values)
        return pa.RecordBatch.from_arrays([*kept.values(), *fields, errors], schema=self.schema)

    def fetch(self, wanted: Range) -> Iterator[Chunk]:
        """Answers of the broker with the batches in them that readers see; valid until the next one is asked for."""
        return _Fetch(self, wanted).run()


class _Fetch:
    """The state of one range's fetch: where it is, and since when it has not come further."""

    def __init__(self, reading: Reading, wanted: Range) -> None:
        self._reading = reading
        self._wanted = wanted
        self._position = wanted.start
        self._since = time.monotonic()

    def run(self) -> Iterator[Chunk]:
        with Cluster(self._reading.settings) as cluster:
            while self._position < self._wanted.end:
                try:
                    yield from self._connected(cluster)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    self._wait(error)
                    if not self._still_there(cluster):
                        return

    def _connected(self, cluster: Cluster) -> Iterator[Chunk]:
        """Fetch over one connection until the range is through. Raises what a new connection may mend."""
        reading, wanted = self._reading, self._wanted
        topic = cluster.topics([wanted.topic]).get(wanted.topic)
        if topic is None or topic.id != wanted.topic_id:
            raise Refused(_UNKNOWN_TOPIC, f"topic {wanted.topic!r}")  # gone, or made anew
        fetcher = PartitionFetcher(
            reading.settings,
            cluster,
            topic,
            wanted.partition,
            read_committed=reading.read_committed,
            max_bytes=reading.fetch_bytes,
        )
        try:
            fetcher.send(self._position)
            while True:
                fetched = fetcher.receive()
                if fetched.error_code:
                    if fetched.error_code != _OFFSET_OUT_OF_RANGE:
                        raise Refused(fetched.error_code, str(wanted))
                    self._position = self._skip(cluster)
                    if self._position < wanted.end:
                        fetcher.send(self._position)
                        continue
                    return
                places, reached = walk(fetched, self._position, wanted, read_committed=reading.read_committed)
                if reached == self._position:
                    self._wait(None, fetched)
                if reached < wanted.end:
                    fetcher.send(reached)
                if places:
                    yield Chunk(fetched.records, places, self._position)
                if reached > self._position:  # not before the rows are handed over: a failure until here asks again
                    self._position, self._since = reached, time.monotonic()
                if reached >= wanted.end:
                    return
        finally:
            fetcher.close()

    def _skip(self, cluster: Cluster) -> int:
        """Where to go on when the offset is not in the log any more. Raises unless loss is allowed."""
        wanted = self._wanted
        key = wanted.topic, wanted.partition
        start = cluster.list_offsets({key: EARLIEST}, read_committed=False)[key]
        end = cluster.list_offsets({key: LATEST}, read_committed=False)[key]
        if start <= self._position <= end:  # it is there after all: the log moved between the two questions
            self._wait(Refused(_OFFSET_OUT_OF_RANGE, str(wanted)))
            return self._position
        if self._position < start:
            told = f"the log now begins at {start}: retention or a delete was faster than the reader"
        else:
            told = f"the log ends at {end}: it was cut, or made anew"
        if self._reading.fail_on_data_loss:
            raise lost(f"{wanted}: {self._position} is gone, {told}")
        return min(start, wanted.end) if self._position < start else wanted.end

    def _still_there(self, cluster: Cluster) -> bool:
        """Whether the partition can be expected back; False where it is gone and loss is allowed."""
        wanted = self._wanted
        try:
            cluster.refresh()
            topic = cluster.topics([wanted.topic]).get(wanted.topic)
        except ClientError:
            return True
        if topic is not None and topic.id == wanted.topic_id and wanted.partition < len(topic.leaders):
            return True
        told = "there is no such topic any more" if topic is None else "it was deleted and made anew"
        if self._reading.fail_on_data_loss:
            raise lost(f"{wanted}: {told}")
        return False

    def _wait(self, error: Exception | None, fetched: Fetched | None = None) -> None:
        """Let some time pass, unless the range has stood still for too long."""
        if time.monotonic() - self._since < self._reading.patience_s:
            if error is not None:
                time.sleep(_RETRY_S)
            return
        told = f"{self._wanted}: nothing new behind offset {self._position} for {self._reading.patience_s:g} s"
        if fetched is not None:
            stable = f", last stable offset {fetched.last_stable_offset}" if self._reading.read_committed else ""
            told += f"; the log ends at {fetched.high_watermark}{stable}"
        raise SourceError(f"{told}. kafkaConsumer.pollTimeoutMs sets how long to wait") from error


def lost(what: str) -> DataLossError:
    return DataLossError(
        f"{what}. Records may be lost; failOnDataLoss=false goes on without them, a new checkpoint starts over"
    )


def walk(fetched: Fetched, position: int, wanted: Range, *, read_committed: bool) -> tuple[list[Place], int]:
    """The batches of an answer that readers see, and the offset to go on at: `position` if no whole batch came.

    Raises `SourceError` for a batch that does not match its checksum or is older than format 2.
    """
    data = fetched.records
    places: list[Place] = []
    coming = sorted(fetched.aborted, key=lambda each: each[1], reverse=True)
    aborted: set[int] = set()
    at, size = 0, len(data)
    while size - at >= HEADER_BYTES and position < wanted.end:
        header = decode_header(data, at)
        if header.magic != MAGIC:
            raise SourceError(
                f"{_name(header, wanted)} is in format {header.magic}; only 2 (Kafka 0.11 and newer) is read"
            )
        if header.size > size - at:
            break
        batch = data[at : at + header.size]
        if not crc_matches(batch, header):
            raise SourceError(f"{_name(header, wanted)} does not match its checksum: damaged on its way or on disk")
        if header.base_offset >= wanted.end:
            return places, wanted.end
        if read_committed and header.is_transactional:
            # By the marker too: what it ends may lie before the first batch of this answer.
            while coming and coming[-1][1] <= header.last_offset:
                aborted.add(coming.pop()[0])
        if header.is_control:
            if read_committed and decode_marker(batch) is Marker.ABORT:
                aborted.discard(header.producer_id)
        elif header.last_offset >= position and header.record_count:
            hidden = header.is_transactional and header.producer_id in aborted
            places += () if hidden else (Place(at, header),)
        position = max(position, header.last_offset + 1)
        at += header.size
    return places, min(position, wanted.end)


def _name(header: Header, wanted: Range) -> str:
    return f"the batch at offset {header.base_offset} of {wanted.topic!r}/{wanted.partition}"


def _group(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Batches enough for one Arrow batch of a good size, again and again."""
    group: list[Place] = []
    size = rows = 0
    for place in places:
        header = place.header
        if group and (size + header.size > _CHUNK_BYTES or rows + header.record_count > _CHUNK_ROWS):
            yield group
            group, size, rows = [], 0, 0
        group.append(place)
        size += header.size
        rows += header.record_count
    if group:
        yield group
