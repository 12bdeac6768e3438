"""Committed offsets and the groups that hold them, over the wire, in every version."""

from typing import Any
from uuid import UUID

import pytest
from tests.doors.kafka import Client, Door, with_door

from penstock.protocols.kafka.handlers import (
    delete_groups,
    describe_groups,
    list_groups,
    offset_commit,
    offset_fetch,
)

UNKNOWN_TOPIC, METADATA_TOO_LARGE, ILLEGAL_GENERATION, GROUP_NOT_FOUND, UNKNOWN_TOPIC_ID = 3, 12, 22, 69, 100
NOT_ASKED = -(1 << 31)


def versions(module: Any) -> range:
    return range(module.API.oldest, module.API.newest + 1)


async def commit(
    client: Client, version: int, *rows: tuple[Any, int, int, str | None], group: str = "g", generation: int = -1
) -> list[tuple[int, int]]:
    """Commit rows of topic (a name or an id), partition, offset and metadata. Partitions and their errors."""
    topics = [
        {
            "topic_id" if isinstance(topic, UUID) else "name": topic,
            "partitions": [
                {
                    "partition_index": partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": 0,
                    "committed_metadata": metadata,
                }
            ],
        }
        for topic, partition, offset, metadata in rows
    ]
    answer = await client.ask(
        "offset_commit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id="" if generation < 0 else "m",
        topics=topics,
    )
    return [(row["partition_index"], row["error_code"]) for topic in answer["topics"] for row in topic["partitions"]]


async def fetch(client: Client, version: int, *groups: str, topics: Any) -> list[tuple[str, Any]]:
    """What each group has committed: rows of topic, partition, offset, metadata, error."""
    if version >= 8:
        asked = [{"group_id": group, "topics": topics} for group in groups]
        answer = await client.ask("offset_fetch", version, groups=asked, require_stable=True)
        found = answer["groups"]
    else:
        found = [
            {"group_id": group, **await client.ask("offset_fetch", version, group_id=group, topics=topics)}
            for group in groups
        ]
    return [
        (
            group["group_id"],
            [
                (
                    topic["topic_id"] if version >= 10 else topic["name"],
                    row["partition_index"],
                    row["committed_offset"],
                    row["metadata"],
                    row["error_code"],
                )
                for topic in group["topics"]
                for row in topic["partitions"]
            ],
        )
        for group in found
    ]


@pytest.mark.parametrize("version", versions(offset_commit))
def test_each_partition_of_a_commit_has_its_answer(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 2)
        client = await door.client()
        known, unknown = (topic.topic_id, UUID(int=9)) if version >= 10 else ("t", "nowhere")
        rows = ((known, 0, 5, "note"), (known, 1, 5, "x" * 4097), (known, 2, 5, ""), (unknown, 0, 5, None))
        missing = UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC
        assert await commit(client, version, *rows) == [
            (0, 0),
            (1, METADATA_TOO_LARGE),
            (2, UNKNOWN_TOPIC),
            (0, missing),
        ]
        refusal = GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
        assert await commit(client, version, (known, 0, 5, ""), group="other", generation=3) == [(0, refusal)]
        assert await fetch(client, 1, "g", topics=[{"name": "t", "partition_indexes": [0, 1]}]) == [
            ("g", [("t", 0, 5, "note", 0), ("t", 1, -1, "", 0)])
        ]

    with_door(body)


@pytest.mark.parametrize("version", versions(offset_fetch))
def test_offsets_are_fetched_for_several_groups(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 2)
        client = await door.client()
        await commit(client, 9, ("t", 1, 7, None), group="g")
        name, unknown = (topic.topic_id, UUID(int=9)) if version >= 10 else ("t", "nowhere")
        field = "topic_id" if version >= 10 else "name"
        asked = [{field: name, "partition_indexes": [0, 1]}, {field: unknown, "partition_indexes": [0]}]
        missing = (unknown, 0, -1, "", UNKNOWN_TOPIC_ID if version >= 10 else 0)
        assert await fetch(client, version, "g", "h", topics=asked) == [
            ("g", [(name, 0, -1, "", 0), (name, 1, 7, "", 0), missing]),
            ("h", [(name, 0, -1, "", 0), (name, 1, -1, "", 0), missing]),
        ]
        if version >= 2:
            assert await fetch(client, version, "g", "h", topics=None) == [("g", [(name, 1, 7, "", 0)]), ("h", [])]

    with_door(body)


@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
def test_a_group_that_cannot_be_asked_says_so(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1)
        client = await door.client()
        name = {"topic_id": topic.topic_id} if version >= 10 else {"name": "t"}
        asked = {"group_id": "g" * 2000, "topics": [{**name, "partition_indexes": [0]}]}
        if version >= 8:
            (answer,) = (await client.ask("offset_fetch", version, groups=[asked]))["groups"]
        else:
            answer = await client.ask("offset_fetch", version, **asked)
        invalid_group_id = 24
        if version == 1:
            ((row,),) = [topic["partitions"] for topic in answer["topics"]]
            assert (row["error_code"], row["committed_offset"]) == (invalid_group_id, -1)
        else:
            assert (answer["error_code"], list(answer["topics"])) == (invalid_group_id, [])

    with_door(body)


def test_a_topic_takes_its_offsets_along() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1)
        await door.topic("u", 1)
        client = await door.client()
        await commit(client, 9, ("t", 0, 7, None), ("u", 0, 8, None))
        await door.engine.delete_topic(topic)
        assert await fetch(client, 9, "g", topics=None) == [("g", [("u", 0, 8, "", 0)])]

    with_door(body)


def test_offsets_are_deleted_one_by_one() -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 2)
        client = await door.client()
        await commit(client, 9, ("t", 0, 7, None), ("t", 1, 8, None))
        asked = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = await client.ask("offset_delete", 0, group_id="g", topics=asked)
        assert answer["error_code"] == 0
        assert [(topic["name"], [dict(row) for row in topic["partitions"]]) for topic in answer["topics"]] == [
            ("t", [{"partition_index": 0, "error_code": 0}])
        ]
        assert await fetch(client, 9, "g", topics=None) == [("g", [("t", 1, 8, "", 0)])]
        answer = await client.ask("offset_delete", 0, group_id="nobody", topics=asked)
        assert (answer["error_code"], list(answer["topics"])) == (GROUP_NOT_FOUND, [])

    with_door(body)


@pytest.mark.parametrize("version", versions(list_groups))
def test_groups_are_listed(version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 1)
        client = await door.client()
        for group in ("g", "h"):
            await commit(client, 9, ("t", 0, 7, None), group=group)
        answer = await client.ask("list_groups", version)
        assert answer["error_code"] == 0
        listed = sorted(answer["groups"], key=lambda group: group["group_id"])
        assert [(group["group_id"], group["protocol_type"]) for group in listed] == [("g", ""), ("h", "")]
        if version >= 4:
            assert {group["group_state"] for group in listed} == {"Empty"}
            assert not (await client.ask("list_groups", version, states_filter=["Stable"]))["groups"]
        if version >= 5:
            assert {group["group_type"] for group in listed} == {"classic"}
            assert not (await client.ask("list_groups", version, types_filter=["consumer"]))["groups"]

    with_door(body)


@pytest.mark.parametrize("version", versions(describe_groups))
def test_a_group_is_described_and_an_unknown_one_is_dead(version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 1)
        client = await door.client()
        await commit(client, 9, ("t", 0, 7, None))
        answer = await client.ask(
            "describe_groups", version, groups=["g", "nobody"], include_authorized_operations=True
        )
        known, unknown = answer["groups"]
        assert (known["error_code"], known["group_state"], list(known["members"])) == (0, "Empty", [])
        assert unknown["group_state"] == "Dead"
        if version >= 6:
            assert (unknown["error_code"], unknown["error_message"]) == (GROUP_NOT_FOUND, "group 'nobody' not found")
        else:
            assert unknown["error_code"] == 0
        if version >= 3:
            assert known["authorized_operations"] == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
            (quiet,) = (await client.ask("describe_groups", version, groups=["g"]))["groups"]
            assert quiet["authorized_operations"] == NOT_ASKED

    with_door(body)


@pytest.mark.parametrize("version", versions(delete_groups))
def test_groups_are_deleted_with_their_offsets(version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 1)
        client = await door.client()
        await commit(client, 9, ("t", 0, 7, None))
        answer = await client.ask("delete_groups", version, groups_names=["g", "nobody", "g"])
        assert [(row["group_id"], row["error_code"]) for row in answer["results"]] == [
            ("g", 0),
            ("nobody", GROUP_NOT_FOUND),
        ]
        assert await fetch(client, 9, "g", topics=None) == [("g", [])]

    with_door(body)
