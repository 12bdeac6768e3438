"""The clients of the exactly-once run, each a process of its own that may be killed at any moment.

producer   sends values outside transactions, or in transactions of which some are aborted on purpose
copier     a member of a group that copies what it reads; records and offsets are one transaction
watcher    a member of a group that reads, and commits offsets without transactions

Every one writes what it is about to do, and what it was told, to a file of JSON lines (see `transactional_history`).
SIGTERM ends it after the transaction it is in. It exits with FATAL when its client cannot go on.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.chaos.load import DOWN, QUICK
from tests.chaos.transactional_history import PLAIN, Place, Value

# By default librdkafka forgets the broker it cannot reach and makes a new one of the same name; a TxnOffsetCommit that
# looks for the group's coordinator in its cache then waits for the forgotten one without end (2.16.0).
LASTING: dict[str, Any] = {**QUICK, "metadata.recovery.strategy": "none"}
FATAL = 3
SESSION_MS, HEARTBEAT_MS = 3000, 300
KEYS = 24
"""A key has one partition of its topic, so its values have an order there."""
PHASES = ("sent", "offsets", "committing")
"""Where a copier can be told to halt: records sent, offsets sent, or somewhere in the commit."""
_CALL_S = 20.0
_COLLECT_S = 0.1
_ABORTED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Spec:
    """What a client is to do."""

    role: str
    name: str
    incarnation: int
    bootstrap: str
    history: str
    seed: str
    topics: tuple[str, ...] = ()
    """To read from."""
    target: str = ""
    target_partitions: int = 1
    group: str = ""
    consumer: dict[str, Any] | None = None
    """More settings of the consumer, such as its protocol."""
    records: int = 0
    """For a producer: how many to send."""
    transactional: bool = False
    halts: tuple[tuple[int, str, str], ...] = ()
    """In which transaction and phase a copier sends itself which signal."""

    @property
    def is_prey(self) -> bool:
        """May be killed by others. Not a producer without transactions, because nobody can tell where to go on; not one
        that falls silent by itself, because what it does afterwards is to be seen."""
        if self.role == "producer":
            return self.transactional
        return all(signal_name != "SIGSTOP" for _, _, signal_name in self.halts)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.transactional_load", json.dumps(asdict(self))]

    @classmethod
    def parse(cls, text: str) -> "Spec":
        fields = json.loads(text)
        return cls(**fields | {"halts": tuple(tuple(halt) for halt in fields["halts"])})


class Recorder:
    """Appends lines; each is in the kernel's hands when the call returns, so a kill cannot undo it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def note(self, op: str, **fields: Any) -> None:
        self._file.write(json.dumps({"op": op, "at": time.monotonic(), **fields}).encode() + b"\n")


class Transactional:
    """A transactional producer that notes its transactions; broker restarts are waited out."""

    def __init__(self, spec: Spec, recorder: Recorder, coin: random.Random) -> None:
        self._spec, self._recorder, self._coin = spec, recorder, coin
        self._count = 0
        self._name = ""
        self.producer = Producer(
            {
                "bootstrap.servers": spec.bootstrap,
                "transactional.id": spec.name,
                "transaction.timeout.ms": 60_000,
                "linger.ms": 2,
                **LASTING,
            }
        )
        _retry(lambda: self.producer.init_transactions(_CALL_S))

    def write(self, values: Sequence[Value], offsets: Callable[[str], None] | None = None) -> bool:
        """One transaction. Returns whether it committed; the caller's `offsets` may add to it what was consumed."""
        self._count += 1
        self._name = f"{self._spec.name}.{self._spec.incarnation}.{self._count}"
        target, partitions = self._spec.target, self._spec.target_partitions
        rows = [(target, value.key % partitions, str(value._replace(attempt=self._name))) for value in values]
        self._recorder.note("sends", attempt=self._name, rows=rows)
        try:
            self.producer.begin_transaction()
            for topic, partition, text in rows:
                self.producer.produce(topic, text.encode(), partition=partition)
            self._reach("sent")
            if offsets is not None:
                offsets(self._name)
                self._reach("offsets")
            if self._coin.random() < _ABORTED_SHARE:
                # Something is to be in the log that must not be read. And the client cannot end a transaction of which
                # the broker does not know, because it died when the first partition was on its way.
                self.producer.flush(_CALL_S)
                self._abort()
                return False
            self._reach("committing")
            self._recorder.note("committing", attempt=self._name)
            _retry(lambda: self.producer.commit_transaction(_CALL_S))
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            self._recorder.note("refused", attempt=self._name, error=str(failure))
            self._abort()
            return False
        self._recorder.note("ended", attempt=self._name, outcome="ok", records=len(rows))
        return True

    def _abort(self) -> None:
        _retry(lambda: self.producer.abort_transaction(_CALL_S))
        self._recorder.note("ended", attempt=self._name, outcome="fail")

    def _reach(self, phase: str) -> None:
        halt = next((halt for halt in self._spec.halts if halt[:2] == (self._count, phase)), None)
        if halt is None:
            return
        signal_number = signal.Signals[halt[2]]
        if phase == "committing":
            # The call lets other threads run, so the signal comes somewhere on its way.
            delay = self._coin.uniform(0, 0.02)
            threading.Timer(delay, os.kill, (os.getpid(), signal_number)).start()
            return
        self.producer.flush(_CALL_S)
        os.kill(os.getpid(), signal_number)


def _retry(call: Callable[[], object]) -> None:
    """Again as long as the client says that this is of use; what cannot be done ends in its error."""
    deadline = time.monotonic() + 2 * _CALL_S
    while True:
        try:
            call()
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class Member:
    """A consumer in a group. What it was given of a partition that is taken away before it is used is forgotten."""

    def __init__(self, spec: Spec, recorder: Recorder) -> None:
        self._spec, self._recorder = spec, recorder
        self._given: list[Message] = []
        self.membership: Any = None
        settings = {
            "bootstrap.servers": spec.bootstrap,
            "group.id": spec.group,
            "client.id": f"{spec.name}.{spec.incarnation}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 20,
            **LASTING,
        }
        if (spec.consumer or {}).get("group.protocol") != "consumer":
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        settings |= spec.consumer or {}
        if debug := os.environ.get("CHAOS_DEBUG"):
            settings |= {"debug": debug, "log_level": 7}  # of librdkafka, such as cgrp,broker; beside the history
        self.consumer = Consumer(settings)
        self.consumer.subscribe(
            list(spec.topics),
            on_assign=lambda _, places: self._rebalanced("assigned", places),
            on_revoke=lambda _, places: self._rebalanced("revoked", places),
            on_lost=lambda _, places: self._rebalanced("lost", places),
        )

    def _step(self, kind: str, rows: Sequence[Sequence[Any]]) -> None:
        name = f"{self._spec.name}.{self._spec.incarnation}"
        self._recorder.note("step", reader=name, group=self._spec.group, kind=kind, rows=rows)

    def _rebalanced(self, kind: str, partitions: Sequence[TopicPartition]) -> None:
        places = [(each.topic, each.partition) for each in partitions]
        self._given = [message for message in self._given if _place(message) not in places]
        self._step(kind, places)
        self._note_membership()

    def _note_membership(self) -> None:
        """In whose name offsets are sent later: that of the member the messages were given to.

        A client that has lost its membership while it was stopped names no member at all, and brokers take that for an
        old client's way, which they cannot fence.
        """
        membership = self.consumer.consumer_group_metadata()
        if self.consumer.memberid():
            self.membership = membership

    def collect(self, most: int) -> list[Message]:
        """What can be had soon, at most so many; all of it is of partitions the member has now."""
        self._given = []
        self._note_membership()
        deadline = time.monotonic() + _COLLECT_S
        while len(self._given) < most and (left := deadline - time.monotonic()) > 0:
            message = self.consumer.poll(left)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._given.append(message)
            elif error.code() not in DOWN and not error.retriable():
                raise KafkaException(error)
        given, self._given = self._given, []
        if given:
            self._step("polled", [(*_place(each), each.offset(), _text(each)) for each in given])
        return given

    def seek(self, positions: dict[Place, int]) -> None:
        self._step("sought", [(*place, offset) for place, offset in positions.items()])
        for (topic, partition), offset in positions.items():
            self.consumer.seek(TopicPartition(topic, partition, offset))


def _place(message: Message) -> Place:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def _text(message: Message) -> str:
    return (message.value() or b"").decode()


def _consumed(messages: Sequence[Message]) -> dict[Place, tuple[int, int]]:
    """Of each partition, the first offset and the one after the last."""
    ranges: dict[Place, tuple[int, int]] = {}
    for message in messages:
        offset = message.offset()
        assert offset is not None
        first, _ = ranges.get(_place(message), (offset, 0))
        ranges[_place(message)] = (first, offset + 1)
    return ranges


class Client:
    """One process's work; `running` yields until it is told to end."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.recorder = Recorder(Path(spec.history))
        self.coin = random.Random(f"{spec.seed} {spec.name} {spec.incarnation}")
        self._told_to_end = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._told_to_end = True

    def running(self) -> Iterator[None]:
        while not self._told_to_end:
            yield

    def run(self) -> None:
        role = {"producer": self._produce, "copier": self._copy, "watcher": self._watch}[self.spec.role]
        try:
            role()
        except KafkaException as failure:
            self.recorder.note("fatal", client=f"{self.spec.name}.{self.spec.incarnation}", error=str(failure))
            sys.stderr.write(f"{failure}\n")
            sys.stderr.flush()
            os._exit(FATAL)

    def _values(self, sequence: int, number: int) -> list[Value]:
        # An incarnation's sequences are above those of all before it.
        first = self.spec.incarnation * 100_000_000 + sequence
        return [Value(self.spec.name, self.coin.randrange(KEYS), first + each, PLAIN) for each in range(number)]

    def _produce(self) -> None:
        sequence = done = 0
        if not self.spec.transactional:
            self._produce_plainly()
            return
        transactional = Transactional(self.spec, self.recorder, self.coin)
        for _ in self.running():
            if done >= self.spec.records:
                return
            number = min(self.coin.randrange(1, 100), self.spec.records - done)
            if transactional.write(self._values(sequence, number)):
                done += number
            sequence += number

    def _produce_plainly(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.spec.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                **LASTING,
            }
        )
        acked: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                raise KafkaException(error)
            acked.append(_text(message))

        sequence = 0
        for _ in self.running():
            if sequence >= self.spec.records:
                return
            values = self._values(sequence, min(self.coin.randrange(1, 50), self.spec.records - sequence))
            rows = [(self.spec.target, value.key % self.spec.target_partitions, str(value)) for value in values]
            self.recorder.note("sends", attempt=PLAIN, rows=rows)
            for topic, partition, text in rows:
                producer.produce(topic, text.encode(), partition=partition, on_delivery=delivered)
            producer.flush()
            self.recorder.note("acked", values=acked)
            acked.clear()
            sequence += len(values)

    def _copy(self) -> None:
        transactional = Transactional(self.spec, self.recorder, self.coin)
        member = Member(self.spec, self.recorder)
        for _ in self.running():
            messages = member.collect(self.coin.randrange(1, 300))
            if not messages:
                continue
            ranges = _consumed(messages)

            def offsets(attempt: str, ranges: dict[Place, tuple[int, int]] = ranges) -> None:
                rows = [(*place, *taken) for place, taken in ranges.items()]
                self.recorder.note("consumed", attempt=attempt, group=self.spec.group, rows=rows)
                following = [TopicPartition(*place, end) for place, (_, end) in ranges.items()]
                send = transactional.producer.send_offsets_to_transaction
                _retry(lambda: send(following, member.membership, _CALL_S))

            values = [Value.parse(_text(message)) for message in messages]
            if not transactional.write(values, offsets):
                member.seek({place: first for place, (first, _) in ranges.items()})
        member.consumer.close()

    def _watch(self) -> None:
        member = Member(self.spec, self.recorder)
        for _ in self.running():
            messages = member.collect(self.coin.randrange(1, 1000))
            if not messages:
                continue
            ranges = _consumed(messages)
            following = [TopicPartition(*place, end) for place, (_, end) in ranges.items()]
            try:
                done = member.consumer.commit(offsets=following, asynchronous=False)
            except KafkaException as failure:
                self.recorder.note("refused", attempt=f"{self.spec.name}'s commit", error=str(failure))
                member.seek({place: first for place, (first, _) in ranges.items()})
                continue
            rows = [(each.topic, each.partition, each.offset) for each in done or () if each.error is None]
            self.recorder.note("committed", group=self.spec.group, rows=rows)
        member.consumer.close()


if __name__ == "__main__":
    Client(Spec.parse(sys.argv[1])).run()
