"""Clients that write and read without a pause, and note every error and every record: for what must not be noticed."""

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.chaos.load import QUICK, wait_until

GONE = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""What librdkafka tells of a broker that is restarted, while it goes on with the others."""
# librdkafka may write twice when a leader changes while it has several requests under way (confluentinc/librdkafka
# issue 4953).
_CAREFUL = {"max.in.flight.requests.per.connection": 1}
_RATE = 200.0
_FLUSH_S = 30.0


class SteadyLoad:
    """A producer and a consumer, each in a thread; end it with `finish`.

    Args:
        settings: of librdkafka, for both.
        name: begins every value.
        passing: codes of errors that say nothing but that a connection ended.

    Attributes:
        acked: values, of which the producer was told that they are there.
        errors: all else that either of them was told.
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, partitions: int, *, name: str, passing: Collection[int] = ()
    ) -> None:
        self._topic, self._partitions, self._name = topic, partitions, name
        self._passing = passing
        common = {**QUICK, **settings, "error_cb": self._note}
        writing = {**_CAREFUL, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 60_000}
        self._producer = Producer({**common, **writing})
        reading = {"group.id": f"{name}-readers", "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._consumer = Consumer({**common, **reading})
        self.acked: list[str] = []
        self.seen: Counter[str] = Counter()
        self.errors: list[str] = []
        self._is_stopped = threading.Event()
        self._is_read = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in range(self._partitions)])
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called again."""
        if self._is_read.is_set():
            return
        self._is_stopped.set()
        self._is_read.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()
        del self._producer  # which would go on asking who leads

    def _note(self, error: KafkaError) -> None:
        if error.code() not in self._passing:
            self.errors.append(f"{error.name()}: {error.str()}")

    def _write(self) -> None:
        number = 0
        while not self._is_stopped.wait(1 / _RATE):
            value = f"{self._name}-{number}"

            def told(error: KafkaError | None, _: object, value: str = value) -> None:
                if error is None:
                    self.acked.append(value)
                else:
                    self.errors.append(f"{value}: {error.str()}")

            self._producer.produce(self._topic, value.encode(), partition=number % self._partitions, on_delivery=told)
            self._producer.poll(0)
            number += 1
        if self._producer.flush(_FLUSH_S):
            self.errors.append("not all that was sent was answered")

    def _read(self) -> None:
        while not self._is_read.is_set():
            for message in self._consumer.consume(500, 0.05):
                error = message.error()
                if error is not None:
                    self._note(error)
                elif (value := message.value()) is not None:
                    self.seen[value.decode()] += 1

    def wait_for_acks(self, number: int, timeout_s: float = 30.0) -> None:
        """Of those that come from now on."""
        wanted = len(self.acked) + number
        wait_until(
            lambda: len(self.acked) >= wanted, timeout_s, f"{number} more acks of {self._name}; {self.errors[:3]}"
        )

    def finish(self) -> int:
        """Stop, read to the end, and check: nothing lost, nothing twice, no error. How many records there were."""
        self._is_stopped.set()
        self._threads[0].join()
        deadline = time.monotonic() + _FLUSH_S
        while any(not self.seen[value] for value in self.acked) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not self.errors, f"{len(self.errors)} errors: {self.errors[:5]}"
        lost = [value for value in self.acked if not self.seen[value]]
        assert not lost, f"{len(lost)} of {len(self.acked)} are lost: {lost[:5]}"
        twice = [value for value, times in self.seen.items() if times > 1 and value.startswith(f"{self._name}-")]
        assert not twice, twice[:5]
        return len(self.acked)
