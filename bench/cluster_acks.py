"""`python -m bench.cluster_acks BOOTSTRAP TOPIC PARTITION`: one record after the other, and a line for each ack.

A line is the steady clock's time in nanoseconds, the same clock for all processes of the machine. The next record goes
when the last one was acknowledged, at most one each four milliseconds. All settings that matter are librdkafka's own.
"""

import sys
import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer

EVERY_S = 0.004
_VALUE = bytes(100)
_POLL_S = 1.0


def main() -> None:
    bootstrap, topic, partition = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    pending = False

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal pending
        if error is not None:
            raise KafkaException(error)
        sys.stdout.write(f"{time.monotonic_ns()}\n")
        sys.stdout.flush()
        pending = False

    while True:
        due = time.monotonic() + EVERY_S
        pending = True
        producer.produce(topic, _VALUE, partition=int(partition), on_delivery=on_delivery)
        while pending:
            producer.poll(_POLL_S)
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
