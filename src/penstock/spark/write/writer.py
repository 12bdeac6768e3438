"""Batch writes: each task sends its own rows, or all share one transaction (`delivery=exactly-once`): all rows appear,
or none."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.producer import Parcel, Producer
from penstock.client.transaction import add_partitions, identify
from penstock.spark.arrow.encode import Section, seal
from penstock.spark.errors import OptionError, SourceError
from penstock.spark.options.options import WriteOptions
from penstock.spark.write.exactly_once import Loan, Task, TurnTaker, abort, commit, explained, lend, settle
from penstock.spark.write.marks import Mark
from penstock.spark.write.outgoing import TOTAL_MASK, Outgoing, TopicPartition, check_columns, sum_content

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_HELD_BYTES: Final = 64 << 20
"""How much a task holds back before it asks for a turn: turns are waited for, so few and long ones are better."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    total: int
    loan: Loan | None = None
    claims: tuple[str, ...] = ()
    query: str = ""
    skipped: bool = False


class Door(Protocol):
    """Where a task's sections go."""

    cluster: Cluster

    def put(self, place: TopicPartition, section: Section) -> None: ...

    def finish(self) -> tuple[str, ...]:
        """Everything is in the topics; returns the claims it took."""
        ...

    def close(self) -> None: ...


def open_writer(options: WriteOptions, schema: "StructType", *, overwrite: bool) -> DataSourceArrowWriter:
    check(options, schema, overwrite=overwrite, patient=False)
    if options.delivery == "exactly-once":
        return AtomicWriter(options, options.transactional_id or f"penstock-spark-{uuid.uuid4()}")
    return PlainWriter(options)


def check(options: WriteOptions, schema: "StructType", *, overwrite: bool, patient: bool) -> None:
    """What can be told before a row moves.

    Args:
        patient: whether to wait for brokers that do not answer; the first to ask would rather hear of a wrong address.
    """
    if overwrite:
        raise OptionError(
            "a topic's records are never overwritten; write with mode('append') (stream: outputMode('append'))"
        )
    check_columns(schema, options.topic)
    if options.topic is not None:
        with Cluster(options.settings if patient else replace(options.settings, patience_s=0.0)) as cluster:
            count_partitions(cluster, options, options.topic)


def count_partitions(cluster: Cluster, options: WriteOptions, topic: str) -> int:
    found = cluster.topics([topic]).get(topic)
    if found is None:
        raise SourceError(f"no topic {topic!r} at {options.settings.bootstrap} to write to; create it first")
    return len(found.leaders)


class PlainWriter(DataSourceArrowWriter):
    """Every task for itself, with an idempotent producer; a task that Spark repeats writes its rows again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator, PlainDoor(self._options))


class Lender:
    """A writer that begins a transaction for its tasks.

    Spark makes a writer on the driver and pickles it for the tasks; the transaction begins when it is pickled first.
    """

    def __init__(self, options: WriteOptions, transactional_id: str) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._loan: Loan | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._loan is None:
            self._loan = lend(
                self._options.settings, self._transactional_id, timeout_ms=self._options.transaction_timeout_ms
            )
        return self.__dict__

    def write_batch(self, query: str, batch: int, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """In a task: its rows of a micro-batch, unless the batch was written before."""
        assert self._loan is not None
        mark = self._loan.marks.get(query)
        if mark is not None and mark.covers(query, batch):
            rows = total = 0
            for each in iterator:
                rows += each.num_rows
                total += sum_content(each)
            return Written(rows, total, self._loan, query=query, skipped=True)
        written = write_rows(self._options, iterator, SharedDoor(self._options, self._loan, this_task()))
        written.loan, written.query = self._loan, query
        return written

    def commit_batch(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """On the driver: what the tasks wrote, and the micro-batch's mark."""
        written = [each for each in messages if isinstance(each, Written)]
        claims = {claim for each in written for claim in each.claims}
        rows, total = sum(each.rows for each in written), sum(each.total for each in written) & TOTAL_MASK
        if any(each.skipped for each in written):
            if self._options.check_repeats:
                check_repeat(written[0], rows, total, batch)
            return
        if not claims:
            return  # nothing to write
        loan = written[0].loan
        transactions = {each.loan.transaction for each in written if each.loan is not None}
        if loan is None or len(transactions) != 1 or len(written) != len(messages):
            raise SourceError(
                f"batch {batch}: its tasks wrote in {len(transactions)} transactions; it is written anew at the next "
                "start"
            )
        mark = Mark(written[0].query, batch, rows, total)
        commit(self._options.settings, loan, claims, mark, patience_s=self._options.delivery_timeout_s)


def check_repeat(written: Written, rows: int, total: int, batch: int) -> None:
    """Raise `SourceError` if a batch that was not written again is not the one that was written."""
    assert written.loan is not None
    mark = written.loan.marks[written.query]
    if (rows, total) != (mark.rows, mark.total):
        raise SourceError(
            f"batch {batch} was written before, with {mark.rows} rows, and comes again with {rows} rows that are not "
            "the same: the checkpoint is not the one of the last run, or the query gives other rows each time (uuid, "
            "rand). For such a query set checkRepeats=false; otherwise begin with a new checkpoint. Nothing was written"
        )


class AtomicWriter(Lender, DataSourceArrowWriter):
    """All tasks in one transaction; with a mark, where the write says which micro-batch it is."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        assert self._loan is not None
        if self._options.batch is not None:
            return self.write_batch(*self._options.batch, iterator)
        return write_rows(self._options, iterator, SharedDoor(self._options, self._loan, this_task()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        assert self._loan is not None
        if self._options.batch is not None:
            self.commit_batch(messages, self._options.batch[1])
        else:
            claims = {claim for message in messages if isinstance(message, Written) for claim in message.claims}
            if not claims:
                return  # no rows
            commit(self._options.settings, self._loan, claims, None, patience_s=self._options.delivery_timeout_s)
        settle(self._options.settings, self._loan)  # whoever wrote reads it next

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._loan is not None:
            abort(self._options.settings, self._loan)


def write_rows(options: WriteOptions, rows: "Iterator[pa.RecordBatch]", door: Door) -> Written:
    """In a task: all its rows through a door."""
    known: dict[str, int] = {}

    def partitions_of(topic: str) -> int:
        if topic not in known:
            known[topic] = count_partitions(door.cluster, options, topic)
        return known[topic]

    context = TaskContext.get()
    outgoing = Outgoing(
        options.topic,
        partitions_of,
        first=context.partitionId() if context else 0,
        headers=options.include_headers,
        codec=options.codec,
        batch_bytes=options.batch_bytes,
    )
    written = total = 0
    try:
        with explained():
            for batch in rows:
                if batch.num_rows:
                    for place, section in outgoing.encode(batch):
                        door.put(place, section)
                    total += sum_content(batch) if options.delivery == "exactly-once" else 0
                written += batch.num_rows
            return Written(written, total, claims=door.finish())
    except ClientError as error:
        raise SourceError(f"rows were not written: {error}") from error
    finally:
        door.close()


class PlainDoor:
    """Sends at once, under a producer id of the task's own where all replicas are waited for."""

    def __init__(self, options: WriteOptions) -> None:
        self.cluster = Cluster(options.settings)
        self._options = options
        self._producer = Producer(self.cluster, acks=options.acks, timeout_s=options.delivery_timeout_s)
        self._identity: tuple[int, int] | None = None if options.acks == -1 else (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}

    def put(self, place: TopicPartition, section: Section) -> None:
        if self._identity is None:
            self._identity = identify(self.cluster, patience_s=self._options.delivery_timeout_s)
        producer_id, epoch = self._identity
        sequence = self._sequences.get(place, 0) if producer_id >= 0 else -1
        batch = seal(
            section, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=False
        )
        self._sequences[place] = sequence + section.count & 0x7FFFFFFF
        self._producer.send(Parcel(*place, batch))

    def finish(self) -> tuple[str, ...]:
        self._producer.flush()
        return ()

    def close(self) -> None:
        self.cluster.close()


class SharedDoor:
    """Holds sections back until there are many, takes a turn, sends them in the shared transaction."""

    def __init__(self, options: WriteOptions, loan: Loan, task: Task) -> None:
        self.cluster = Cluster(options.settings)
        self._options = options
        self._loan = loan
        self._turns = TurnTaker(self.cluster, loan, task, patience_s=options.delivery_timeout_s)
        self._held: dict[TopicPartition, list[Section]] = {}
        self._held_bytes = 0

    def put(self, place: TopicPartition, section: Section) -> None:
        self._held.setdefault(place, []).append(section)
        self._held_bytes += len(section.body)
        if self._held_bytes >= _HELD_BYTES:
            self._send()

    def finish(self) -> tuple[str, ...]:
        if self._held:
            self._send()
        return tuple(self._turns.claims)

    def _send(self) -> None:
        transaction = self._loan.transaction
        sequences = self._turns.take({place: sum(s.count for s in each) for place, each in self._held.items()})
        add_partitions(self.cluster, transaction, self._held)
        producer = Producer(
            self.cluster, transactional_id=transaction.transactional_id, timeout_s=self._options.delivery_timeout_s
        )
        for place, sections in self._held.items():
            for section in sections:
                batch = seal(
                    section,
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.epoch,
                    base_sequence=sequences[place],
                    transactional=True,
                )
                sequences[place] += section.count
                producer.send(Parcel(*place, batch))
        producer.flush()
        self._turns.finish()
        self._held, self._held_bytes = {}, 0

    def close(self) -> None:
        self._turns.close()
        self.cluster.close()


def this_task() -> Task:
    context = TaskContext.get()
    assert context is not None
    return Task(context.partitionId(), context.attemptNumber())
