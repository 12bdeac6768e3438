"""kill -9 while a queue is worked on: each message ends acknowledged, or as one dead letter, and never as both."""

import os
import time
from collections import Counter

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import wait_until
from tests.chaos.queue_history import Place, QueueHistory, Rules, Verdict
from tests.chaos.queue_load import QueueLoad, make_queue, read_letters
from tests.chaos.sorted_history import SortedHistory
from tests.chaos.sorted_messages import Sayings

MESSAGES = int(os.environ.get("QUEUE_MESSAGES", "4000"))
KILLS = int(os.environ.get("QUEUE_KILLS", "4"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
WORKERS = 3
RULES = Rules(limit=3, visibility_s=1.0, backoff_s=1.0, forgotten=1)
_ACKED = 0.7
"""The share that consumers acknowledge at the least, so that every kill finds work under way."""
_MESSAGES_OF_KEY = 40
"""About; one after the other, and some of them wait for a second or two before they are tried again."""
_DEADLINE_S = 120.0
_SECONDS_FOR_A_MESSAGE = 0.02


@pytest.mark.slow
@pytest.mark.timeout(int(400 + MESSAGES * _SECONDS_FOR_A_MESSAGE))
@pytest.mark.parametrize("is_sorted", [False, True], ids=["alike", "sorted"])
def test_each_message_ends_in_one_place(broker: BrokerProcess, *, is_sorted: bool) -> None:
    began = time.monotonic()
    broker.start()
    settings = {"visibility": "1s", "backoff": "fixed:1s", "max-attempts": str(RULES.limit)}
    sayings = Sayings(SEED, MESSAGES // _MESSAGES_OF_KEY) if is_sorted else None
    history = QueueHistory(RULES)
    if sayings is not None:
        settings["kind"] = "fifo"
        history = SortedHistory(RULES, said=sayings.said)
    make_queue(broker.bootstrap, "jobs", settings, partitions=1)
    sent = _send(broker.bootstrap, sayings)
    with QueueLoad(broker.bootstrap, "jobs", 1, history, seed=SEED, each=WORKERS, most=50) as load:
        for _ in range(KILLS):
            target = history.acked + int(_ACKED * MESSAGES / (KILLS + 1))
            wait_until(lambda: history.acked >= target, _DEADLINE_S, "messages are acknowledged")  # noqa: B023
            broker.kill()
            broker.start()
        load.drain(_DEADLINE_S + MESSAGES * _SECONDS_FOR_A_MESSAGE, as_before=True)
        assert load.broken == []
    letters = read_letters(broker.bootstrap, "jobs")
    said = Counter(each.verdict for each in history.deliveries)
    print(
        f"\n{MESSAGES:,} messages, {KILLS} kills: {history.acked:,} acknowledged, {len(letters):,} dead letters, "
        f"{len(history.deliveries):,} deliveries, {said[Verdict.NACK]:,} nacks, {said[None]:,} leases left to end, "
        f"{history.unknown} verdicts of unknown outcome, {time.monotonic() - began:.0f} s"
    )
    assert history.check(sent, {value: place[0] for place, value in sent.items()}, letters) == []
    assert len(letters) > MESSAGES // 50
    assert {letter.reason for letter in letters} == {"rejected", "attempts"}


def _send(bootstrap: str, sayings: Sayings | None) -> dict[Place, str]:
    sent: dict[Place, str] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        place, offset, value = message.partition(), message.offset(), message.value()
        assert place is not None and offset is not None and value is not None
        sent[place, offset] = value.decode()

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "queue.buffering.max.messages": 2 * MESSAGES})
    for number in range(MESSAGES):
        said = {} if sayings is None else sayings.say(str(number))
        producer.produce("jobs", b"%d" % number, on_delivery=delivered, **said)
    assert producer.flush(60) == 0
    assert len(sent) == MESSAGES
    return sent
