"""A door with queues behind it, and a member of a share group that need not do as it should."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch
from uuid import UUID

from tests.doors.kafka import Client, Door, batch_of, with_door
from tests.doors.transport import RecordingLog

from penstock.engine.topics import Topic
from penstock.net import connection
from penstock.protocols.kafka import session, share_requests

BAD_REQUEST, BAD_STATE, NO_SESSION, BAD_EPOCH, NO_ROOM = 42, 121, 122, 123, 133
ACCEPT, RELEASE, REJECT, RENEW, GAP = 1, 2, 3, 4, 0
Wanted = Mapping[int, list[tuple[int, int, list[int]]]]
"""Partition → what is acknowledged there: first, last, types."""


def run(body: Callable[[Door], Awaitable[None]], **options: Any) -> None:
    """No request may fail by a mistake of ours."""
    log = RecordingLog()
    with ExitStack() as stack:
        for module in (connection, session, share_requests):
            stack.enter_context(patch.object(module, "log_", log))
        with_door(body, **options)
    assert not log.bugs, log.bugs[0]


async def open_group(door: Door, topic: str = "t", group: str = "g", start: int = 0) -> None:
    """As the group's coordinator does when it assigns the topic."""
    found = door.engine.topics.get(topic)
    assert found is not None
    for partition in found.partitions:
        await door.engine.queues.open(partition, group, start)


async def set_for_group(door: Door, name: str, value: str, group: str = "g") -> None:
    await door.engine.group_configs.alter(group, lambda given: {**given, name: value})


async def filled(door: Door, *batches: int, partitions: int = 1, size: int = 10) -> "Member":
    """A topic with batches of so many records in every partition, which a group reads from the beginning."""
    await door.topic(partitions=partitions)
    client = await door.client()
    for index in range(partitions):
        for count in batches:
            answer = await client.produce(batch_of(*[bytes(size)] * count), partition=index)
            assert answer["error_code"] == 0
    await open_group(door)
    return await Member.of(door)


class Member:
    """A member's share session: counts the epochs, and names partitions of one topic."""

    def __init__(self, client: Client, topic: Topic, member: str = "m", group: str = "g") -> None:
        self.client = client
        self.topic_id = topic.topic_id
        self.member = member
        self.group = group
        self.epoch = 0

    @classmethod
    async def of(cls, door: Door, member: str = "m", *, topic: str = "t", group: str = "g") -> "Member":
        found = door.engine.topics.get(topic)
        assert found is not None
        return cls(await door.client(), found, member, group)

    def _topics(self, wanted: Wanted, topic_id: UUID | None = None) -> list[dict[str, Any]]:
        if not wanted:
            return []
        partitions = [
            {
                "partition_index": index,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                    for first, last, types in batches
                ],
            }
            for index, batches in wanted.items()
        ]
        return [{"topic_id": topic_id or self.topic_id, "partitions": partitions}]

    def fetch_values(
        self,
        *wanted: int,
        acks: Wanted | None = None,
        forgotten: tuple[int, ...] = (),
        epoch: int | None = None,
        topic_id: UUID | None = None,
        **values: Any,
    ) -> dict[str, Any]:
        listed: dict[int, Any] = {**{index: [] for index in wanted}, **(acks or {})}
        return {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": self._topics(listed, topic_id),
            "forgotten_topics_data": [{"topic_id": self.topic_id, "partitions": forgotten}] if forgotten else [],
            **values,
        }

    async def fetch(self, *wanted: int, version: int = 1, **values: Any) -> dict[str, Any]:
        answer = await self.client.ask("share_fetch", version, **self.fetch_values(*wanted, **values))
        self._count(values.get("epoch"), answer)
        return answer

    async def acknowledge(
        self, acks: Wanted | None = None, *, version: int = 1, epoch: int | None = None, **values: Any
    ) -> dict[str, Any]:
        asked = {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "topics": self._topics(acks or {}),
        }
        answer = await self.client.ask("share_acknowledge", version, **(asked | values))
        self._count(epoch, answer)
        return answer

    def _count(self, epoch: int | None, answer: dict[str, Any]) -> None:
        if epoch is None and answer["error_code"] == 0:
            self.epoch += 1


def rows(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The answers of one topic's partitions."""
    assert answer["error_code"] == 0, answer["error_code"]
    return {row["partition_index"]: row for topic in answer["responses"] for row in topic["partitions"]}


def acquired(answer: dict[str, Any], index: int = 0) -> list[tuple[int, int, int]]:
    """First, last, delivery count."""
    row = rows(answer).get(index)
    return [] if row is None else [tuple(each.values()) for each in row["acquired_records"]]


async def settled() -> None:
    """What was begun in the background is over."""
    for _ in range(50):
        await asyncio.sleep(0)
