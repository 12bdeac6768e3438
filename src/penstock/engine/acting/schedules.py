"""Schedules of queues, as one subject may use them.

Who changes them has to be allowed to change the queue, and to write to its topic: brokers publish for them.
"""

from typing import TYPE_CHECKING

from penstock.engine.access import Kind, Operation
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.schedules.machine import Standing
from penstock.engine.queues.schedules.schedules import AT, NewSchedule
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts
    from penstock.engine.engine import Engine


class ActingSchedules:
    """All verbs raise PenstockError, first of all `NotAuthorised`. Partition 0 of the topic has to be led here."""

    __slots__ = ("_engine", "_rights")

    def __init__(self, engine: "Engine", rights: "Verdicts") -> None:
        self._engine = engine
        self._rights = rights

    def _to_change(self, queue: QueueName) -> Topic:
        """The topic of a queue, for who may change its schedules."""
        self._rights.check(Operation.ALTER_CONFIGS, Kind.GROUP, queue.group)
        self._rights.check(Operation.ALTER_CONFIGS, Kind.TOPIC, queue.topic)
        self._rights.check(Operation.WRITE, Kind.TOPIC, queue.topic)
        return self._known(queue)

    def _known(self, queue: QueueName) -> Topic:
        topic = self._engine.topics.get(queue.topic)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"there is no topic {queue.topic!r}")
        topic.partitions[AT].leading()  # who leads it knows what queues there are
        self._engine.schedules.check_known(topic, queue.group)
        return topic

    async def add(self, queue: QueueName, wanted: NewSchedule) -> Standing:
        topic = self._to_change(queue)
        topic.partitions[AT].check_writers()
        return await self._engine.schedules.add(topic, queue.group, wanted)

    async def pause(self, queue: QueueName, name: str) -> Standing:
        return await self._engine.schedules.pause(self._to_change(queue), queue.group, name)

    async def resume(self, queue: QueueName, name: str) -> Standing:
        return await self._engine.schedules.resume(self._to_change(queue), queue.group, name)

    async def remove(self, queue: QueueName, name: str) -> bool:
        """Returns whether a message of it is under way, which comes all the same."""
        return await self._engine.schedules.remove(self._to_change(queue), queue.group, name)

    async def list(self, queue: QueueName, after: str, most: int) -> tuple[list[Standing], bool]:
        """Some of them, by their names from the one behind `after` on, and whether there are more."""
        self._rights.check(Operation.DESCRIBE, Kind.GROUP, queue.group)
        self._rights.check(Operation.DESCRIBE, Kind.TOPIC, queue.topic)
        return await self._engine.schedules.list(self._known(queue), queue.group, after, most)
