"""Consumers of a queue that outlive their brokers' deaths: they lease, and say what became of it or forget it.

Each asks through `penstock.cli.verbs` whoever leads its partition. What fails is not asked again: its outcome is
unknown, and the next lease is asked of whoever leads then.
"""

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.verbs import Verbs
from tests.chaos.history import Outcome
from tests.chaos.load import DOWN, QUICK, wait_until
from tests.chaos.queue_history import Delivery, Letter, QueueHistory, Verdict

_STALE = "stale_receipt"
_SHARES = ((Verdict.ACK, 0.7), (Verdict.NACK, 0.13), (Verdict.RELEASE, 0.07), (Verdict.REJECT, 0.05))
"""How likely each is; otherwise a lease is left to end."""
_WORKS, _WORKS_S = 0.3, 0.4
"""How likely it is that a consumer works on what it has, and for how long at the most: leaders move meanwhile."""
_WAIT_MS = 200
_PAUSE_S = 0.05
_LOOK_S = 0.25
_LETTERS_S = 60.0
Settings = Mapping[str, str]


def make_queue(bootstrap: str, queue: str, settings: Settings, *, partitions: int | None = None) -> None:
    with Verbs(Server(bootstrap, "a test", {}, 20.0)) as verbs:
        verbs.ask("create", "queue.create", partitions=partitions, settings=dict(settings), queue=queue)


class Worker(Protocol):
    """Attributes:
    takes_all: from then on everything is acknowledged.
    broken: what it ended by, if that was an error of its own.
    """

    name: str
    is_over: threading.Event
    takes_all: threading.Event
    broken: BaseException | None

    def start(self) -> None: ...

    def join(self) -> None: ...


class QueueConsumer(threading.Thread):
    """Of one partition.

    Args:
        patience_s: how long it waits for an answer.
        most: messages leased at once.
    """

    def __init__(
        self,
        bootstrap: str,
        queue: str,
        partition: int,
        history: QueueHistory,
        *,
        name: str,
        seed: int,
        patience_s: float,
        most: int,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._addresses, self._queue, self._partition = bootstrap.split(","), queue, partition
        self._history, self._patience_s, self._most = history, patience_s, most
        self._coin = random.Random(f"{seed}-{name}")
        self.is_over = threading.Event()
        self.takes_all = threading.Event()
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self._coin.shuffle(self._addresses)  # one that is cut off may tell of a leader that is none any more
                server = Server(",".join(self._addresses), "a test", {}, self._patience_s)
                try:
                    with Verbs(server) as verbs:
                        self._work(verbs)
                except CommandError as error:
                    self._history.failed(str(error)[:200])
                    self.is_over.wait(_PAUSE_S)
        except BaseException as problem:
            self.broken = problem
            raise

    def _work(self, verbs: Verbs) -> None:
        leaders = verbs.leaders(self._queue).leaders
        if self._partition not in leaders:
            self.is_over.wait(_PAUSE_S)
            return
        while not self.is_over.is_set():
            asked_at = time.monotonic()
            told = verbs.ask(
                "lease",
                "queue.lease",
                at=leaders[self._partition],
                queue=self._queue,
                partition=self._partition,
                most=self._most,
                wait_ms=_WAIT_MS,
                consumer=self.name,
            )
            had_at = time.monotonic()
            wall_ms = int(time.time() * 1000)
            leased = {each["receipt"]: self._delivery(each, asked_at, had_at) for each in told["messages"]}
            for each in leased.values():
                each.wall_ms = wall_ms
            self._history.had(leased.values())
            if leased and self._coin.random() < _WORKS:
                self.is_over.wait(self._coin.uniform(0, _WORKS_S))
            self._settle(verbs, leaders[self._partition], leased)

    def _delivery(self, message: Mapping[str, Any], asked_at: float, had_at: float) -> Delivery:
        place = message["partition"], message["offset"]
        value = message["value"].partition(":")[0]
        return Delivery(place, value, self.name, asked_at, had_at, message["deliveries"], message["attempts"])

    def _settle(self, verbs: Verbs, at: Any, leased: Mapping[str, Delivery]) -> None:
        verdicts = {receipt: self._verdict() for receipt in leased}
        rows = [{"receipt": each, "verdict": verdict.value} for each, verdict in verdicts.items() if verdict]
        if not rows:
            return
        now = time.monotonic()
        for receipt, verdict in verdicts.items():
            leased[receipt].verdict, leased[receipt].said_at = verdict, now
        told = verbs.ask("settle", "queue.settle", at=at, queue=self._queue, receipts=rows)
        now = time.monotonic()
        for row in told["results"]:
            outcome = Outcome.OK if row["error"] is None else Outcome.FAIL if row["error"] == _STALE else None
            if outcome is None:
                self._history.failed(row["text"][:200])
            else:
                self._history.settled(leased[row["receipt"]], outcome, now)

    def _verdict(self) -> Verdict | None:
        if self.takes_all.is_set():
            return Verdict.ACK
        chance = self._coin.random()
        for verdict, share in _SHARES:
            if chance < share:
                return verdict
            chance -= share
        return None


class QueueLoad:
    """Some consumers for each partition. Use as a context manager."""

    def __init__(
        self,
        bootstrap: str,
        queue: str,
        partitions: int,
        history: QueueHistory,
        *,
        seed: int,
        each: int = 2,
        patience_s: float = 5.0,
        most: int = 20,
    ) -> None:
        self._bootstrap, self.queue, self.partitions, self.history = bootstrap, queue, partitions, history
        self._consumers = self._make_consumers(each, seed, patience_s, most)

    def _make_consumers(self, each: int, seed: int, patience_s: float, most: int) -> Sequence[Worker]:
        return [
            QueueConsumer(
                self._bootstrap,
                self.queue,
                index,
                self.history,
                name=f"c{index}-{at}",
                seed=seed,
                patience_s=patience_s,
                most=most,
            )
            for index in range(self.partitions)
            for at in range(each)
        ]

    def __enter__(self) -> Self:
        for consumer in self._consumers:
            consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.is_over.set()
        for consumer in self._consumers:
            consumer.join()

    @property
    def broken(self) -> list[str]:
        """Consumers that ended by an error of their own."""
        return [f"{each.name}: {each.broken!r}" for each in self._consumers if each.broken is not None]

    def wait_for_acks(self, number: int, partitions: Iterable[int], timeout_s: float, after: float = 0.0) -> None:
        """Until so many acknowledgements of each of these partitions were confirmed after a moment."""
        wanted = list(partitions)
        try:
            wait_until(
                lambda: all(self.acks_after(index, after) >= number for index in wanted), timeout_s, "messages acked"
            )
        except TimeoutError as late:
            there = {index: self.acks_after(index, after) for index in wanted}
            raise TimeoutError(f"{late}: {number} of each partition; there are {there}") from None

    def acks_after(self, partition: int, moment: float) -> int:
        return sum(at > moment for at in self.history.acks[partition])

    def drain(self, timeout_s: float, *, as_before: bool = False) -> None:
        """Nothing is sent any more: go on until nothing is left. What comes is acknowledged, if not `as_before`."""
        for consumer in self._consumers:
            if not as_before:
                consumer.takes_all.set()
        left: dict[int, int] = {}

        def is_empty() -> bool:
            nonlocal left
            left = self.left()
            if len(left) == self.partitions and not any(left.values()):
                return True
            time.sleep(_LOOK_S)
            return False

        try:
            wait_until(is_empty, timeout_s, "the queue is empty")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; left: {left}; told: {dict(self.history.refused)}") from None
        self.__exit__()

    def left(self) -> dict[int, int]:
        """How much is not settled, by partition; without those whose leader does not answer."""
        found: dict[int, int] = {}
        try:
            with Verbs(Server(self._bootstrap, "a test", {}, 5.0)) as verbs:
                leaders = verbs.leaders(self.queue).leaders
                for at in set(leaders.values()):
                    told = verbs.ask("describe", "queue.describe", at=at, queue=self.queue)
                    for row in told["partitions"]:
                        states = ("ready", "leased", "delayed", "dying")
                        found[row["partition"]] = sum(row.get(state, 1) for state in states)
        except CommandError as error:
            self.history.failed(str(error)[:200])
        return found


def read_letters(bootstrap: str, queue: str) -> list[Letter]:
    """All dead letters of a queue that has them in the topic of its name."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "letters",
            "enable.auto.commit": False,
            "check.crcs": True,
            **QUICK,
        }
    )
    topic = f"dlq.{queue}"
    try:
        found = consumer.list_topics(topic, _LETTERS_S).topics[topic]
        if found.error is not None:
            return []
        letters: list[Letter] = []
        for index in found.partitions:
            letters += _letters(consumer, TopicPartition(topic, index))
        return letters
    finally:
        consumer.close()


def _letters(consumer: Consumer, place: TopicPartition) -> list[Letter]:
    low, high = consumer.get_watermark_offsets(place, _LETTERS_S)
    consumer.assign([TopicPartition(place.topic, place.partition, low)])
    letters: list[Letter] = []
    behind = low
    deadline = time.monotonic() + _LETTERS_S
    while behind < high:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{place} could not be read to {high}; it was to {behind}")
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is not None:
                if error.code() not in DOWN:
                    raise KafkaException(error)
                continue
            letters.append(_letter(message.value() or b"", dict(message.headers() or [])))
            behind = (message.offset() or 0) + 1
    return letters


def _letter(value: bytes, headers: Mapping[str, Any]) -> Letter:
    def number(name: str) -> int:
        return int(headers[f"penstock-sys-{name}"])

    place = number("partition"), number("offset")
    reason = headers["penstock-sys-reason"].decode()
    return Letter(place, value.partition(b":")[0].decode(), reason, number("attempts"))
