"""Kafka's share consumers over a queue that was made as one: they go by its rules, and its dead letters are theirs."""

import random
import threading
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException

from tests.chaos.history import Outcome
from tests.chaos.queue_history import Delivery, QueueHistory, Verdict
from tests.chaos.queue_load import QueueLoad
from tests.conformance.clients.confluent_shares import ConfluentShareMember
from tests.conformance.clients.shares import ACCEPT, EXPLICIT, REJECT, RELEASE, Taken

_KINDS = {Verdict.ACK: ACCEPT, Verdict.RELEASE: RELEASE, Verdict.REJECT: REJECT}
_SHARES = ((Verdict.RELEASE, 0.1), (Verdict.REJECT, 0.05))
"""How likely each is; otherwise a message is acknowledged."""
_POLL_S = 0.3


class ShareConsumer(threading.Thread):
    """A member of a share group, over all partitions.

    Args:
        patience_s: how long it waits for a silent broker before it asks the next leader.
    """

    def __init__(
        self, bootstrap: str, queue: str, history: QueueHistory, *, name: str, seed: int, patience_s: float, most: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        most_ms = int(patience_s * 1000)
        self._member = ConfluentShareMember(bootstrap, queue, queue, EXPLICIT, most, socket_timeout_ms=most_ms)
        self._history = history
        self._coin = random.Random(f"{seed}-{name}")
        self.is_over = threading.Event()
        self.takes_all = threading.Event()
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                try:
                    self._work()
                except (KafkaException, AssertionError) as error:  # an error that was given in place of a record
                    self._history.failed(str(error)[:200])
            self._member.leave()
        except BaseException as problem:
            self.broken = problem
            raise

    def _work(self) -> None:
        asked_at = time.monotonic()
        taken = self._member.poll(_POLL_S)
        had_at = time.monotonic()
        deliveries = [self._delivery(each, asked_at, had_at) for each in taken]
        self._history.had(deliveries)
        for each, delivery in zip(taken, deliveries, strict=True):
            delivery.verdict, delivery.said_at = self._verdict(), had_at
            self._member.acknowledge(each, _KINDS[delivery.verdict])
        if not taken:
            return
        failed = self._member.commit()
        now = time.monotonic()
        for delivery in deliveries:
            code = failed.get(delivery.place[0], 0)
            if code:
                self._history.failed(f"error {code}")
            else:
                self._history.settled(delivery, Outcome.OK, now)

    def _delivery(self, taken: Taken, asked_at: float, had_at: float) -> Delivery:
        value = taken.value.partition(b":")[0].decode()
        return Delivery((taken.partition, taken.offset), value, self.name, asked_at, had_at, taken.deliveries, 0)

    def _verdict(self) -> Verdict:
        chance = 1.0 if self.takes_all.is_set() else self._coin.random()
        for verdict, share in _SHARES:
            if chance < share:
                return verdict
            chance -= share
        return Verdict.ACK


class ShareLoad(QueueLoad):
    """Some members of the share group that is named like the queue."""

    def _make_consumers(self, each: int, seed: int, patience_s: float, most: int) -> Sequence[ShareConsumer]:
        return [
            ShareConsumer(
                self._bootstrap,
                self.queue,
                self.history,
                name=f"s{number}",
                seed=seed,
                patience_s=patience_s,
                most=most,
            )
            for number in range(each)
        ]
