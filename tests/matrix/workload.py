"""The clients of a cell: an idempotent producer for each partition, a reader, and knocks at every broker's door.

A client that follows the metadata never asks a deposed leader. Whoever knocks does: one request at a time, to this very
broker, leader or not, never sent again. What it acks is part of the history, and shows which broker acked it.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from tests.chaos.history import History, Outcome, Send
from tests.chaos.load import ProducerLoad, ReaderLoad, wait_until
from tests.chaos.sorted_messages import Say
from tests.chaos.wire import Wire
from tests.cluster.verifiable import VerifiableProducer

from .arena import Arena
from .judge import Finding, Knock, longest_gap

# librdkafka may write twice when a leader changes while it has several requests under way (confluentinc/librdkafka
# issue 4953); the Java producer has five of them.
CAREFUL: dict[str, Any] = {"max.in.flight.requests.per.connection": 1, "message.timeout.ms": 600_000}
PATIENCE_S = 5.0
"""How long a producer waits for an answer. One that is cut off without a word is told of nothing earlier than that."""
VALUE_BYTES = 200
RATE = 300
"""Sends a second of a producer that takes its time; the machine has other things to do."""
WINDOW = 20
JAVA_RATE = 200
_KNOCK_S = 0.25
_KNOCK_TIMEOUT_S = 10.0
_FRESH_ACKS = 10
_FRESH_S = 30.0
_REFUSED = (3, 19)
"""Unknown topic, not enough replicas: nothing was appended. One that leads no more may say so after it has appended."""


class TimedHistory(History):
    """Knows when each ack came."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.acks: dict[int, list[float]] = defaultdict(list)

    def settled(self, value: str, outcome: Outcome, offset: int | None = None) -> None:
        super().settled(value, outcome, offset)
        if outcome is Outcome.OK and not value.startswith(Knocks.PREFIX):
            self.acks[self._sends[value].partition].append(time.monotonic())


class PacedLoad(ProducerLoad):
    """Writes to one partition, as fast as its rate says, or as it can when that is 0."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        history: History,
        *,
        name: str,
        rate: float,
        patience_s: float,
        say: Say | None = None,
    ) -> None:
        most_ms = int(patience_s * 1000)
        config = {**CAREFUL, "socket.timeout.ms": most_ms, "request.timeout.ms": most_ms}
        super().__init__(bootstrap, topic, 1, history, name=name, value_bytes=VALUE_BYTES, window=WINDOW, config=config)
        self._random = _Always(partition)
        self._rate, self._due = rate, time.monotonic()
        self._say_of = say

    def _send(self) -> None:
        if self._rate:
            self._due = max(self._due + 1 / self._rate, time.monotonic() - 0.1)
            while (left := self._due - time.monotonic()) > 0:
                self._producer.poll(min(left, 0.01))
        super()._send()

    def _say(self, value: str) -> Mapping[str, Any]:
        return {} if self._say_of is None else self._say_of(value)

    def give_up(self) -> None:
        self._stopped.set()


class _Always(random.Random):
    """Whoever asks for a partition is given the same one."""

    def __new__(cls, _: int) -> "_Always":
        return super().__new__(cls)

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def randrange(self, *_: Any) -> int:
        return self._number


class Knocks:
    """A thread for each broker that writes to it directly, to every partition in turn."""

    PREFIX = "knock"

    def __init__(self, brokers: Mapping[int, str], topic: str, partitions: int, history: History) -> None:
        self._topic, self._partitions, self._history = topic, partitions, history
        self.acks: list[Knock] = []
        self.broken: list[Finding] = []
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=each, name=f"knock-{each[0]}", daemon=True)
            for each in brokers.items()
        ]

    def __enter__(self) -> "Knocks":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, broker: int, bootstrap: str) -> None:
        count = 0
        while not self._stopped.is_set():
            try:
                with Wire(bootstrap, _KNOCK_TIMEOUT_S) as wire:
                    while not self._stopped.wait(_KNOCK_S):
                        count += 1
                        self._knock(wire, broker, count)
            except OSError:
                self._stopped.wait(_KNOCK_S)
            except Exception as problem:  # noqa: BLE001 - nobody would notice that a broker is not asked any more
                self.broken.append(Finding("knock", f"broker {broker}: {problem!r}"))
                return

    def _knock(self, wire: Wire, broker: int, count: int) -> None:
        value, partition = f"{self.PREFIX}{broker}-{count}", count % self._partitions
        # A sender of its own each time: one that was not answered may land behind the next one.
        self._history.sent(Send(value, 0, partition, value))
        answer = wire.produce_one(self._topic, f"{value}:".encode(), partition)
        if answer.error_code in _REFUSED:
            self._history.settled(value, Outcome.FAIL)
        if answer.error_code == 0:
            self.acks.append(Knock(broker, partition, answer.base_offset, value))
            self._history.settled(value, Outcome.OK, answer.base_offset)


class Workload:
    """Everything that writes and reads in a cell. Use as a context manager.

    Args:
        rate: of the producer; 0 is as fast as it can.
        patience_s: how long the producer waits for an answer.
        java: Kafka's own VerifiableProducer takes part, in a topic of its own.
        say: what the messages say, which are not alike then.
    """

    def __init__(
        self,
        arena: Arena,
        topic: str,
        partitions: int,
        *,
        rate: int = RATE,
        patience_s: float = PATIENCE_S,
        java: bool = False,
        say: Say | None = None,
    ) -> None:
        self.topic, self.partitions = topic, partitions
        self.history = TimedHistory()
        bootstrap = arena.cluster.bootstrap
        # One for each partition: a window that is full of what one leader does not answer must not hold up the others.
        self._load: dict[str, Any] = {
            "bootstrap": bootstrap,
            "topic": topic,
            "history": self.history,
            "rate": rate / partitions,
            "patience_s": patience_s,
            "say": say,
        }
        self.loads = [PacedLoad(**self._load, partition=index, name=f"p{index}") for index in range(partitions)]
        self.reader = ReaderLoad(bootstrap, topic, partitions, self.history)
        brokers = {number: machine.bootstrap for number, machine in arena.machines.items()}
        self.knocks = Knocks(brokers, topic, partitions, self.history)
        self.java: VerifiableProducer | None = None
        self.java_topic = f"{topic}-java"
        if java:
            directory: Path = arena.directory / "java"
            self.java = VerifiableProducer(bootstrap, self.java_topic, directory, rate=JAVA_RATE)
        self._closing = ExitStack()

    def __enter__(self) -> "Workload":
        parts: tuple[Any, ...] = (*self.loads, self.reader, self.knocks, self.java)
        for each in parts:
            if each is not None:
                self._closing.enter_context(each)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def warm_up(self, acks: int, timeout_s: float = 60.0) -> None:
        """So many acks of every partition, and of the other producer."""
        self.wait_for_acks(acks, range(self.partitions), timeout_s)
        if self.java is not None:
            self.java.wait_for_acks(acks, timeout_s)

    def wait_for_acks(self, number: int, partitions: "range | list[int]", timeout_s: float, after: float = 0.0) -> None:
        """Until each of these partitions has so many acks after a moment."""
        what = f"{number} acks of each of the partitions {list(partitions)}"
        try:
            wait_until(
                lambda: all(self.acks_after(partition, after) >= number for partition in partitions), timeout_s, what
            )
        except TimeoutError as late:
            there = ", ".join(str(self.acks_after(partition, after)) for partition in partitions)
            raise TimeoutError(f"{late}; there are {there}") from None

    def acks_after(self, partition: int, moment: float) -> int:
        times = self.history.acks[partition]
        return sum(1 for at in reversed(times) if at > moment) if moment else len(times)

    @property
    def failed(self) -> list[KafkaError]:
        return [error for load in self.loads for error in load.failed]

    def longest_gap(self, partitions: Iterable[int], began: float, ended: float) -> float:
        return max(longest_gap(self.history.acks[each], began, ended) for each in partitions)

    def replace_hung(self, after: float) -> list[int]:
        """Have others write to the partitions whose producer is not answered; what it sent stays unknown.

        Raises:
            TimeoutError: those are not answered either.
        """
        hung = [index for index in range(self.partitions) if not self.acks_after(index, after)]
        for index in hung:
            self.loads[index].give_up()
            fresh = PacedLoad(**self._load, partition=index, name=f"p{index}-again")
            self.loads.append(self._closing.enter_context(fresh))
        self.wait_for_acks(_FRESH_ACKS, hung, _FRESH_S, after)
        return hung

    def finish(self, timeout_s: float) -> list[Finding]:
        """No new sends, and each one sent has its outcome; the reader has come as far as the acks."""
        found = []
        for load in self.loads:
            try:
                load.settle(timeout_s)
            except TimeoutError as late:
                found.append(Finding("unsettled", str(late)))
        self.knocks.stop()
        found += self.knocks.broken
        if self.java is not None:
            self.java.finish()
        seen = self.history.seen[self.reader.name]
        try:
            wait_until(lambda: len(seen) >= self.history.acked, timeout_s / 2, "the reader saw every acked record")
        except TimeoutError as late:
            found.append(Finding("unread", str(late)))
        return found
