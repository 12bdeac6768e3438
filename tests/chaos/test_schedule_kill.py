"""kill -9 at the moment at which schedules fire: each planned minute is published once, by a real clock.

A minute for each kill, so nothing is played unless SCHEDULE_MINUTES says how many.
"""

import os
import random
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.cli.connection import Server
from penstock.cli.record_text import headers_of
from penstock.cli.verbs import Verbs
from penstock.engine.queues.schedules.schedule import NAME, PLANNED_TIME
from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import wait_until
from tests.chaos.queue_load import make_queue

MINUTES = int(os.environ.get("SCHEDULE_MINUTES", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
SCHEDULES = 200
_MINUTE_S = 60
_DEADLINE_S = 60.0


@pytest.mark.slow
@pytest.mark.skipif(not MINUTES, reason="waits for minutes to pass; SCHEDULE_MINUTES says for how many")
@pytest.mark.timeout(300 + _MINUTE_S * MINUTES)
def test_each_minute_is_there_once(broker: BrokerProcess) -> None:
    chance = random.Random(SEED)
    broker.start()
    make_queue(broker.bootstrap, "plans", {}, partitions=2)
    _until_seconds(5, 40)  # all of them in one minute
    with Verbs(Server(broker.bootstrap, "a test", {}, 20.0)) as verbs:
        for number in range(SCHEDULES):
            said: dict[str, Any] = {"schedule": f"s{number}", "cron": "* * * * *", "value": "x", "key": f"{number % 7}"}
            verbs.ask("no schedule", "queue.schedule.add", queue="plans", **said)
    first = int(time.time() // _MINUTE_S + 1) * _MINUTE_S
    for minute in range(MINUTES):
        fires_at = first + minute * _MINUTE_S
        time.sleep(max(fires_at + chance.uniform(-0.02, 0.25) - time.time(), 0))
        broker.kill()
        broker.start()
    expected = SCHEDULES * MINUTES
    wait_until(lambda: len(_fires(broker.bootstrap)) >= expected, _DEADLINE_S, "all of them have fired")
    fires = Counter(_fires(broker.bootstrap))
    wanted = {
        (f"s{number}", (first + minute * _MINUTE_S) * 1000) for number in range(SCHEDULES) for minute in range(MINUTES)
    }
    assert {fire: count for fire, count in fires.items() if count > 1} == {}
    assert wanted <= set(fires), sorted(wanted - set(fires))[:10]


def _until_seconds(first: int, last: int) -> None:
    """Of a minute."""
    now = time.time() % _MINUTE_S
    if not first <= now <= last:
        time.sleep((first - now) % _MINUTE_S)


def _fires(bootstrap: str) -> list[tuple[str, int]]:
    """Name and planned time of everything in the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        found = []
        for index in range(2):
            place = TopicPartition("plans", index, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            read = 0
            while read < end:
                message = consumer.poll(10)
                assert message is not None and message.error() is None, message
                said = dict(headers_of(message))
                found.append(((said[NAME] or b"").decode(), int(said[PLANNED_TIME] or b"")))
                read = (message.offset() or 0) + 1
        return found
    finally:
        consumer.close()
