"""The load of a bench run: write as fast as it goes, read and check, or both on a schedule. Each runs in a process."""

import itertools
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import error as StructError  # noqa: N812 - an exception, whatever its module calls it
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.cli.bench.figures import HEAD, Audit, Check, Work, stream_of
from penstock.cli.bench.processes import Parent
from penstock.cli.bench.topic import Stretch, Target
from penstock.cli.connection import Server
from penstock.cli.failure import CommandError

# Records handed to librdkafka in one call, and read in one; the first of each has its latency taken.
CHUNK_RECORDS = 500
CHUNK_BYTES = 1 << 20
# A run of few records still goes round all partitions, and, up to here, all keys.
MOST_TURNS = 1000
READ_RECORDS = 5000
READ_WAIT_S = 0.02
# What may wait in the client, as the Java client's buffer.memory: more would only add to the latency.
WAITING_BYTES = 32 << 20
WAITING_RECORDS = 100_000
_POOL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    target: Target
    properties: Mapping[str, Any]
    producer: int
    records: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ConsumeLoad:
    target: Target
    properties: Mapping[str, Any]
    stretches: Mapping[int, Stretch]
    records: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyLoad:
    target: Target
    producer_properties: Mapping[str, Any]
    consumer_properties: Mapping[str, Any]
    producer: int
    rate: float
    records: int
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Produced:
    work: Work
    stream: bytes
    sent: dict[int, int]
    latencies_s: list[float]
    errors: list[str]


@dataclass(frozen=True, slots=True)
class Consumed:
    work: Work
    check: Check
    complete: bool


@dataclass(frozen=True, slots=True)
class Measured:
    work: Work
    ack_s: list[float]
    end_to_end_s: list[float]
    late_s: float
    errors: list[str]
    check: Check


class Values:
    """The records of one producer, in chunks for one partition each, so that their places in it are known."""

    def __init__(self, target: Target, producer: int) -> None:
        self.stream = stream_of(target.run, producer)
        self.sent = dict.fromkeys(target.partitions, 0)
        self._pad = target.size_bytes - HEAD.size
        # Hexadecimal digits compress to half, and the pool is longer than what a compressor looks back on.
        self._pool = os.urandom((_POOL_BYTES + target.size_bytes) // 2 + 1).hex().encode()
        self._at = 0
        words = [b"key-%d" % number for number in range(target.keys)]
        homes = [target.partitions[zlib.crc32(word) % len(target.partitions)] for word in words]
        # A partition's turn comes as often as it has keys, so that every key gets the same share.
        self._turns = itertools.cycle(homes or target.partitions)
        own: dict[int, list[bytes]] = {home: [] for home in homes}
        for word, home in zip(words, homes, strict=True):
            own[home].append(word)
        self._keys = {home: itertools.cycle(keys) for home, keys in own.items()}

    def chunk(self, count: int) -> tuple[int, list[dict[str, Any]]]:
        """The next records and the partition they are for."""
        partition = next(self._turns)
        first, pad, pool, stream, pack = self.sent[partition], self._pad, self._pool, self.stream, HEAD.pack
        if self._at + count * pad > len(pool):
            self._at = 0
        at = self._at
        records: list[dict[str, Any]] = [
            {"value": pack(stream, first + number) + pool[at + number * pad : at + (number + 1) * pad]}
            for number in range(count)
        ]
        self._at += count * pad
        self.sent[partition] += count
        if self._keys:
            for record, key in zip(records, self._keys[partition], strict=False):
                record["key"] = key
        return partition, records


def produce(load: ProduceLoad, parent: Parent) -> Produced:
    """As fast as the client and the broker can, until the records or the seconds are up."""
    target = load.target
    producer = target.server.producer(load.properties)
    producer.list_topics(target.topic, timeout=target.server.timeout_s)
    values = Values(target, load.producer)
    chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // target.size_bytes))
    if load.records is not None:
        chunk = max(1, min(chunk, load.records // max(len(target.partitions), min(target.keys, MOST_TURNS))))
    most = max(chunk, min(WAITING_RECORDS, WAITING_BYTES // target.size_bytes))
    latencies: list[float] = []
    errors: list[str] = []

    def acknowledged(error: KafkaError | None, message: Message) -> None:
        if error is None:
            latencies.append(message.latency() or 0.0)
        else:
            errors.append(error.str())

    for _ in range(warm_up_records(target)):
        _hand_over(producer, target, *values.chunk(1), acknowledged)
    _drain(producer, 0, target.server)
    if errors:
        raise CommandError(f"a record of {target.size_bytes:,} bytes is refused: {errors[0]}")
    latencies.clear()
    parent.wait_go()
    began_s, cpu_s = time.monotonic(), time.process_time()
    until_s = began_s + (load.seconds if load.seconds is not None else float("inf"))
    left = load.records if load.records is not None else sys.maxsize
    done = 0
    while left and (now_s := time.monotonic()) < until_s:
        count = min(chunk, left)
        _hand_over(producer, target, *values.chunk(count), acknowledged)
        left -= count
        done += count
        parent.tell(done, now_s)
        producer.poll(0)
        _drain(producer, most, target.server)
    _drain(producer, 0, target.server)
    ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
    work = Work(done, done * target.size_bytes, began_s, ended_s, cpu_s)
    return Produced(work, values.stream, values.sent, latencies, errors)


def warm_up_records(target: Target) -> int:
    """What goes ahead of the clock: connections are made, and a producer id takes librdkafka half a second."""
    return len(target.partitions)


def _hand_over(
    producer: Producer, target: Target, partition: int, batch: list[dict[str, Any]], answer: Callable[..., None]
) -> None:
    batch[0]["callback"] = answer
    # One partition a call: confluent-kafka 2.16 does not heed a partition that a record itself names.
    if producer.produce_batch(target.topic, batch, partition=partition) < len(batch):
        # A full queue too: sending the rest again would change the order, and only -X makes the queue that short.
        error = next(record["_error"] for record in batch if "_error" in record)
        raise CommandError(f"a record of {target.size_bytes:,} bytes is refused: {error.str()}")


def _drain(producer: Producer, most: int, server: Server) -> None:
    """Wait until no more than `most` records are unanswered. Raises `CommandError` when no answer comes any more."""
    waiting, moved_s = len(producer), time.monotonic()
    while (now := len(producer)) > most:
        if now != waiting:
            waiting, moved_s = now, time.monotonic()
        elif time.monotonic() - moved_s > server.timeout_s:
            raise server.unreachable()
        producer.poll(0.01)


def consume(load: ConsumeLoad, parent: Parent) -> Consumed:
    """Every partition from its start to its end, each record checked; less when records or seconds are limited."""
    target = load.target
    consumer = target.server.consumer(load.properties)
    stretches = load.stretches
    audits = {partition: Audit(each.mine, each.whole) for partition, each in stretches.items()}
    consumer.list_topics(target.topic, timeout=target.server.timeout_s)
    most = load.records if load.records is not None else sys.maxsize
    records = size_bytes = 0
    parent.wait_go()
    consumer.assign([TopicPartition(target.topic, partition, each.start) for partition, each in stretches.items()])
    began_s, cpu_s = time.monotonic(), time.process_time()
    until_s = began_s + (load.seconds if load.seconds is not None else float("inf"))
    left = {partition for partition, each in stretches.items() if each.start < each.end}
    heard_s = now_s = began_s
    while left and records < most and now_s < until_s:
        messages = consumer.consume(min(READ_RECORDS, most - records), READ_WAIT_S)
        count, total, ended = _check(messages, audits)
        records += count
        size_bytes += total
        left -= ended
        left -= _passed(consumer, target.topic, left, stretches)
        now_s = time.monotonic()
        heard_s = now_s if messages else heard_s
        if now_s - heard_s > target.server.timeout_s:
            raise target.server.unreachable()
        parent.tell(records, now_s)
    ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
    consumer.close()
    check = Check()
    for partition, audit in audits.items():
        check.add(audit.finish(stretches[partition].sent if not left else None))
    return Consumed(Work(records, size_bytes, began_s, ended_s, cpu_s), check, complete=not left)


def _check(messages: Sequence[Message], audits: Mapping[int, Audit]) -> tuple[int, int, set[int]]:
    """Records, their bytes, and the partitions at their end. The inner loop of a consumer: no calls of our own."""
    unpack, total, count, ended = HEAD.unpack_from, 0, 0, set()
    for message in messages:
        error, partition, value = message.error(), message.partition(), message.value()
        assert partition is not None
        if error is not None:
            if error.name() != "_PARTITION_EOF":
                raise KafkaException(error)
            ended.add(partition)
            continue
        count += 1
        try:
            stream, place = unpack(value)  # type: ignore[arg-type]  # None and short ones: the handler below
        except (TypeError, StructError):
            audits[partition].check.foreign += 1
            total += len(value or b"")
            continue
        total += len(value)  # type: ignore[arg-type]
        following = audits[partition].following
        if following.get(stream) == place:
            following[stream] = place + 1
        else:
            audits[partition].stray(stream, place)
    return count, total, ended


def _passed(consumer: Consumer, topic: str, left: set[int], stretches: Mapping[int, Stretch]) -> set[int]:
    """Partitions read up to their end, though others may still write behind it."""
    places = consumer.position([TopicPartition(topic, partition) for partition in left])
    return {place.partition for place in places if place.offset >= stretches[place.partition].end}


class _Latency:
    """A schedule and what came of it; the sender, the acknowledgements and the reader are a thread each."""

    def __init__(self, load: LatencyLoad) -> None:
        self.load = load
        target = load.target
        self.producer = target.server.producer(load.producer_properties)
        self.consumer = target.server.consumer(load.consumer_properties)
        self.values = Values(target, load.producer)
        self.intended_s: dict[int, list[float]] = {partition: [] for partition in target.partitions}
        mine = self.values.stream
        self.audits = {partition: Audit(mine) for partition in target.partitions}
        self.ack_s: list[float] = []
        self.end_to_end_s: list[float] = []
        self.errors: list[str] = []
        self.sent = self.answered = self.received = 0
        self.waiting_s = 0.0
        self.over = threading.Event()

    def send(self, intended_s: float) -> None:
        partition, (record,) = self.values.chunk(1)
        self.intended_s[partition].append(intended_s)
        if self.answered == self.sent:
            self.waiting_s = time.monotonic()
        self.sent += 1

        def acknowledged(error: KafkaError | None, _message: Message) -> None:
            self.answered += 1
            self.waiting_s = time.monotonic()
            if error is None:
                self.ack_s.append(time.monotonic() - intended_s)
            else:
                self.errors.append(error.str())

        while True:
            try:
                self.producer.produce(self.load.target.topic, partition=partition, on_delivery=acknowledged, **record)
            except BufferError:
                self.check_answers()
                time.sleep(0.001)
            else:
                return

    def check_answers(self) -> None:
        """Raises `CommandError` when the server owes answers and gives none."""
        server = self.load.target.server
        if self.answered < self.sent and time.monotonic() - self.waiting_s > server.timeout_s:
            raise server.unreachable()

    def read(self) -> None:
        while not self.over.is_set():
            message = self.consumer.poll(0.1)
            if message is None:
                continue
            now_s = time.monotonic()
            error, partition, value = message.error(), message.partition(), message.value()
            if error is not None or partition is None:
                self.errors.append(error.str() if error is not None else "a message without a partition")
                continue
            audit = self.audits[partition]
            if not isinstance(value, bytes) or len(value) < HEAD.size:
                audit.check.foreign += 1
                continue
            stream, place = HEAD.unpack_from(value)
            fresh = stream == self.values.stream and place == audit.following.get(stream, 0)
            audit.stray(stream, place)
            if fresh:
                self.end_to_end_s.append(now_s - self.intended_s[partition][place])
                self.received += 1

    def acknowledge(self) -> None:
        while not self.over.is_set():
            self.producer.poll(0.1)

    def settle(self) -> None:
        """Wait until all that was sent is acknowledged and has come back, or nothing comes any more."""
        seen, moved_s = -1, time.monotonic()
        while self.answered < self.sent or self.received < self.sent - len(self.errors):
            self.check_answers()
            if seen != self.received:
                seen, moved_s = self.received, time.monotonic()
            elif self.answered == self.sent and time.monotonic() - moved_s > self.load.target.server.timeout_s:
                return  # lost: the check will say so
            time.sleep(0.005)


def measure_latency(load: LatencyLoad, parent: Parent) -> Measured:
    """Send on a schedule that waits for nobody; a record's latency counts from when it was due, not from when it went.

    Were it counted from the send, a broker that stalls would delay the records behind and hide the wait they had.
    """
    sys.setswitchinterval(0.0005)  # Python's 5 ms between threads would be most of the latency
    target = load.target
    run = _Latency(load)
    run.consumer.assign([TopicPartition(target.topic, at, load.starts[at]) for at in target.partitions])
    threads = [threading.Thread(target=each, daemon=True) for each in (run.read, run.acknowledge)]
    for thread in threads:
        thread.start()
    for _ in range(warm_up_records(target)):
        run.send(time.monotonic())
    run.settle()
    if run.errors:
        raise CommandError(f"a record of {target.size_bytes:,} bytes is refused: {run.errors[0]}")
    run.ack_s.clear()
    run.end_to_end_s.clear()
    parent.wait_go()
    cpu_s = time.process_time()
    began_s = time.monotonic()
    late_s = 0.0
    for number in range(load.records):
        due_s = began_s + number / load.rate
        while (now_s := time.monotonic()) < due_s:
            time.sleep(due_s - now_s)
        run.send(due_s)
        run.check_answers()
        late_s = now_s - due_s
        parent.tell(number, now_s)
    sent_s = time.monotonic()
    run.settle()
    cpu_s = time.process_time() - cpu_s
    run.over.set()
    for thread in threads:
        thread.join()
    run.consumer.close()
    check = Check()
    for partition, audit in run.audits.items():
        check.add(audit.finish({run.values.stream: len(run.intended_s[partition])}))
    work = Work(load.records, load.records * target.size_bytes, began_s, sent_s, cpu_s)
    return Measured(work, run.ack_s, run.end_to_end_s, late_s, run.errors, check)
