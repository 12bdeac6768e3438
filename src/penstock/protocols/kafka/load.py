"""How much work this broker has, for who would share it out: a read-only setting, told only when asked for by name.

Kafka's protocol has no place for it. The value is JSON: `cpu_s`, CPU-seconds of this process so far, and `steps`, of
each partition the appends and reads so far, as rows of topic, partition and number.
"""

import time
from collections.abc import Iterable
from typing import Final

import orjson

from penstock.engine.topics import Topic
from penstock.protocols.kafka.configs import BROKER_SOURCE, Entry

NAME: Final = "penstock.load"
SINCE_VERSION: Final = 4  # of DescribeConfigs: older ones cannot carry a text this long
_DOCUMENTATION: Final = "CPU-seconds of this broker, and how often it has appended to and read from each partition."


def load_entry(topics: Iterable[Topic]) -> Entry:
    steps = [
        (topic.name, partition.index, partition.steps)
        for topic in topics
        for partition in topic.partitions
        if partition.steps
    ]
    value = orjson.dumps({"cpu_s": round(time.process_time(), 3), "steps": steps}).decode()
    return Entry(NAME, value, BROKER_SOURCE, "string", _DOCUMENTATION, [], read_only=True)
