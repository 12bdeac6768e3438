"""kill -9 while a publisher sends messages with ids, who sends all of them again: each is there once."""

from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import QUICK, wait_until
from tests.chaos.queue_load import make_queue

MESSAGES = 2000
KILLS = 2
DEADLINE_S = 60.0
QUEUE = "jobs"


def test_what_is_sent_again_after_a_kill_is_there_once(broker: BrokerProcess) -> None:
    broker.start()
    make_queue(broker.bootstrap, QUEUE, {"dedup-window": "1h"}, partitions=1)
    confirmed: set[int] = set()

    def told(error: KafkaError | None, sent: Message) -> None:
        if error is None:
            confirmed.add(int(sent.value() or b""))

    for life in range(KILLS + 1):
        # Each is another process, as far as the broker knows: numbers of producers tell it nothing.
        settings = {"enable.idempotence": life % 2 == 1, "message.timeout.ms": 1000 if life < KILLS else 60_000}
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", **settings, **QUICK})
        before = len(confirmed)
        for number in range(MESSAGES):
            producer.produce(QUEUE, b"%d" % number, headers=[("penstock-id", b"%d" % number)], on_delivery=told)
            producer.poll(0)
            if life < KILLS and number == MESSAGES * (life + 1) // (KILLS + 1):
                wait_until(lambda: producer.poll(0.01) >= 0 and len(confirmed) > before, DEADLINE_S, "some are there")  # noqa: B023
                broker.kill()
        producer.flush(DEADLINE_S)
        if life < KILLS:
            broker.start()
    assert confirmed == set(range(MESSAGES))
    assert Counter(_there(broker.bootstrap)) == Counter(range(MESSAGES))


def _there(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(QUEUE, 0, 0)])
    found: list[int] = []
    try:
        while (message := consumer.poll(DEADLINE_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            assert error is None, error
            found.append(int(message.value() or b""))
    finally:
        consumer.close()
    raise AssertionError("the end never came")
