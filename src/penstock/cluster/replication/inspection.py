"""A follower looks at what it took from its leader, as the leader does at what is produced, once for each batch.

It keeps what it finds malformed: the leader has acknowledged the records, and without this copy they would be one
replica short. It counts them and says so, because a leader of an older version takes such batches, and because readers
may not get past them. Batches of compacted topics lack records; their offsets must still grow.
"""

from penstock.engine.intake import MOST_BYTES_AT_ONCE, MOST_OPENED_AT_ONCE, MOST_RECORDS_AT_ONCE
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.records.batch import CODEC_MASK, decode_header
from penstock.records.rewrite import check_copied

log_ = get_logger("replication")


class Inspection:
    """Looks at a bounded number of records of each answer; the rest is counted as not looked at."""

    def __init__(self, broker_id: int, stats: Stats) -> None:
        self._broker_id = broker_id
        self._stats = stats

    def look(self, partition: Partition, data: memoryview, first: int, end: int) -> None:
        """Look at the batches in `data` that were appended: those with offsets from `first` to before `end`."""
        checked = partition.config.checked
        records, compressed_bytes = MOST_RECORDS_AT_ONCE, MOST_BYTES_AT_ONCE
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            batch = data[position : position + header.size]
            position += header.size
            if header.last_offset >= end:
                return
            codec = header.attributes & CODEC_MASK
            if header.base_offset < first or codec not in checked:
                continue
            records -= header.record_count
            compressed_bytes -= len(batch) if codec else 0
            if records < 0 or compressed_bytes < 0:
                self._stats.unchecked_copies += 1
                continue
            try:
                check_copied(batch, header, limit=MOST_OPENED_AT_ONCE)
            except PenstockError as error:
                if error.code is Code.BATCH_TOO_LARGE:
                    self._stats.unchecked_copies += 1
                    continue
                self._stats.malformed_copies += 1
                log_.limited("malformed").error(
                    "leader sent a malformed batch",
                    partition=partition.name,
                    offset=header.base_offset,
                    broker=self._broker_id,
                    error=f"{error}; it is kept as it is, and readers may not get past it",
                )
