"""A data directory without its broker, asked like one: which topics it has, where partitions begin and end."""

import uuid
from collections.abc import Iterable, Mapping
from typing import Self

from penstock.client.cluster import EARLIEST, LATEST, Topic
from penstock.spark.errors import OptionError
from penstock.spark.read.ranges import TopicPartition
from penstock.spark.segments import segments
from penstock.spark.segments.directory import stopped_topics


class StoppedDirectory:
    def __init__(self, path: str) -> None:
        self._path = path
        self._ids: dict[str, uuid.UUID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held open."""

    def topics(self, names: Iterable[str] | None) -> dict[str, Topic]:
        wanted = None if names is None else set(names)
        found = {
            name: Topic(name, stored.id, (0,) * (max(stored.partitions) + 1))
            for name, stored in stopped_topics(self._path).items()
            if wanted is None or name in wanted
        }
        self._ids |= {name: topic.id for name, topic in found.items()}
        return found

    def list_offsets(self, asked: Mapping[TopicPartition, int], *, read_committed: bool) -> dict[TopicPartition, int]:
        return {key: self._find(key, question, read_committed) for key, question in asked.items()}

    def _find(self, key: TopicPartition, question: int, read_committed: bool) -> int:
        if question not in (EARLIEST, LATEST):
            raise OptionError(
                "a time is found by a broker only: set kafka.bootstrap.servers beside path, or give offsets"
            )
        topic, partition = key
        start, end = segments.stopped_range(
            self._path, topic, self._ids[topic], partition, read_committed=read_committed
        )
        return start if question == EARLIEST else end
