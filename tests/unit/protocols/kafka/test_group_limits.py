"""Groups, members, offsets and answers without end: each meets its limit, and a neighbour does not notice."""

import asyncio
import time
from typing import Any
from unittest.mock import patch

import pytest
from tests.doors.kafka import Client, Door, make
from tests.doors.kio_values import request_frame
from tests.unit.protocols.kafka.group_client import (
    FULL,
    ID_REQUIRED,
    LONG,
    NOT_FOUND,
    OK,
    POLICY,
    SESSION_MS,
    TOO_LARGE,
    UNKNOWN_TOPIC,
    Member,
    beat,
    commit,
    join,
    join_fields,
    names_beside,
    run,
)

from penstock.engine.coordination.schemas import Entry, Kind, OffsetValue
from penstock.engine.groups.classic_requests import GroupLimits
from penstock.engine.groups.offsets import FetchRequest
from penstock.protocols.kafka import answer_room


@pytest.mark.parametrize("data", [b"\xff" * 32_000, b"x" * 32_000, b"\0" * 32_000, "\N{SNOWMAN}".encode() * 10_000])
def test_a_client_id_of_32_kilobytes(data: bytes) -> None:
    """It is in the group's record and in every description; bytes that are no text become longer as text."""

    async def body(door: Door, client: Client) -> None:
        async def ask(api: str, version: int, **fields: Any) -> dict[str, Any]:
            client.send_frame(request_frame(make(api, version, fields), 1, "MARK").replace(b"\0\4MARK", head))
            return (await client.receive(api, version))[1]

        head = len(data).to_bytes(2, "big") + data
        joined = await ask("join_group", 3, **join_fields())
        assert joined["error_code"] == OK
        member = Member(client, "g")
        member.member_id, member.generation = joined["member_id"], joined["generation_id"]
        assert await member.sync() == OK
        for version in (0, 4, 5):
            (group,) = (await client.ask("describe_groups", version, groups=("g",)))["groups"]
            assert (group["error_code"], group["group_state"]) == (OK, "Stable")
        fields = {"group_id": "c", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 1000}
        beaten = await ask("consumer_group_heartbeat", 1, **fields, subscribed_topic_names=("t",), topic_partitions=())
        assert beaten["error_code"] == OK
        described = await client.ask("consumer_group_describe", 0, group_ids=("c",))
        assert described["groups"][0]["error_code"] == OK

    run(body)


def test_a_group_is_full() -> None:
    async def body(door: Door, client: Client) -> None:
        for version in (9, 3):
            codes = []
            for _ in range(20):
                other = await door.client()
                other.send(make("join_group", version, join_fields(f"full-{version}")))
                if version == 9:
                    codes.append((await other.receive("join_group", version))[1]["error_code"])
            if version == 9:
                assert codes == [ID_REQUIRED] * 12 + [FULL] * 8
            assert (await join(client, f"full-{version}", version))["error_code"] == FULL

    run(body, GroupLimits(max_size=12))


def test_ids_that_nobody_joins_with_expire() -> None:
    async def body(door: Door, client: Client) -> None:
        for _ in range(12):
            assert (await join(client))["error_code"] == ID_REQUIRED
        assert (await join(client))["error_code"] == FULL
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert (await join(client))["error_code"] == ID_REQUIRED
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        machine = (await door.engine.groups.shards.of("g")).loaded
        assert "g" not in machine._groups

    run(body, GroupLimits(max_size=12))


def test_a_shard_keeps_so_many_groups() -> None:
    async def body(door: Door, client: Client) -> None:
        machine = await (await door.engine.groups.shards.of("g")).machine()
        machine._max_groups = 10
        names = names_beside("g", "many-")[:30]
        assert [await commit(client, name) for name in names[:15]] == [OK] * 10 + [POLICY] * 5
        assert (await join(client, names[16]))["error_code"] == POLICY
        assert (await beat(client, names[17]))["error_code"] == POLICY
        assert await commit(client, names[0]) == OK, "one that is there"

    run(body)


@pytest.mark.parametrize(("size", "code"), [((1 << 20) + 1, POLICY), (2_000_000, POLICY), (1_000_000, ID_REQUIRED)])
def test_metadata_of_megabytes(size: int, code: int) -> None:
    async def body(door: Door, client: Client) -> None:
        answer = await join(client, protocols=[{"name": "range", "metadata": bytes(size)}])
        assert answer["error_code"] == code

    run(body)


def test_a_request_of_more_than_two_megabytes_closes_the_connection() -> None:
    async def body(door: Door, client: Client) -> None:
        client.send(make("join_group", 9, join_fields(protocols=[{"name": "range", "metadata": bytes(2 << 20)}])))
        await client.stream.closed()

    run(body)


def test_metadata_of_all_members_is_bounded() -> None:
    async def body(door: Door, client: Client) -> None:
        protocols = [{"name": "range", "metadata": bytes(40_000)}]
        for _ in range(2):
            other = await door.client()
            other.send(make("join_group", 3, join_fields(protocols=protocols)))
        await asyncio.sleep(0.05)
        assert (await join(client, protocols=protocols))["error_code"] == FULL

    run(body, GroupLimits(max_group_bytes=100_000))


def test_assignments_for_strangers_are_not_kept() -> None:
    async def body(door: Door, client: Client) -> None:
        member = Member(client, "g")
        given = await join(client)
        joined = await join(client, member_id=given["member_id"])
        member.member_id, member.generation = joined["member_id"], joined["generation_id"]
        strangers = [(f"stranger-{number}", b"x" * 30) for number in range(15_000)]
        assert await member.sync((member.member_id, b"mine"), *strangers) == OK
        machine: Any = (await door.engine.groups.shards.of("g")).loaded
        (described,) = machine._groups["g"].describe().members
        assert described.assignment == b"mine"
        assert sum(len(kept.assignment) for kept in machine._groups["g"].dump().value.members) == 4

    run(body)


def test_commits_beyond_measure() -> None:
    async def body(door: Door, client: Client) -> None:
        assert await commit(client, committed_metadata="m" * 4096) == OK
        assert await commit(client, committed_metadata="m" * 4097) == TOO_LARGE
        assert await commit(client, committed_metadata=LONG) == TOO_LARGE
        for index in (2, -1, 1 << 30):
            assert await commit(client, partition_index=index) == UNKNOWN_TOPIC
        rows = [
            {"partition_index": index, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
            for index in range(19_999)
        ]
        begun = time.process_time()
        answer = await client.ask(
            "offset_commit", 9, group_id="g", member_id="", generation_id_or_member_epoch=-1,
            topics=[{"name": "t", "partitions": rows}],
        )  # fmt: skip
        assert time.process_time() - begun < 5
        codes = [row["error_code"] for row in answer["topics"][0]["partitions"]]
        assert codes == [OK, OK] + [UNKNOWN_TOPIC] * 19_997
        with pytest.raises((ConnectionResetError, EOFError)):
            await client.ask(
                "offset_commit", 9, group_id="g", member_id="", generation_id_or_member_epoch=-1,
                topics=[{"name": "t", "partitions": [*rows, *rows[:2]]}],
            )  # fmt: skip

    run(body)


def test_all_of_a_hundred_thousand_offsets() -> None:
    async def body(door: Door, client: Client) -> None:
        machine = await (await door.engine.groups.shards.of("g")).machine()
        for number in range(100_000):
            value = OffsetValue(number, -1, "", 0)
            machine.replay(Entry(Kind.OFFSET, ("g", f"topic-{number // 100}", number % 100), value), number, None, 0)
        begun = time.process_time()
        fetched = await door.engine.groups.fetch(FetchRequest("g", None))
        assert len(fetched) == 100_000
        assert time.process_time() - begun < 1
        begun = time.process_time()
        client.send(make("offset_fetch", 9, {"groups": [{"group_id": "g", "topics": None}]}))
        assert len(await client.receive_frame()) > 100_000 * 20
        assert time.process_time() - begun < 5
        assert await commit(client, "g") == POLICY, "no more than that"

    run(body)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("api", ["offset_fetch", "describe_groups", "consumer_group_describe"])
def test_a_short_question_has_no_endless_answer(api: str) -> None:
    """The same group again and again, each time with all it has: 500 names of one byte ask for a million rows."""

    async def body(door: Door, client: Client) -> None:
        machine = await (await door.engine.groups.shards.of("g")).machine()
        for number in range(2000):
            value = OffsetValue(number, -1, "m" * 100, 0)
            machine.replay(Entry(Kind.OFFSET, ("g", "t", number), value), number, None, 0)
        if api == "describe_groups":
            fields: dict[str, Any] = {"groups": ("d",) * 1500}
            protocols = [{"name": "range", "metadata": bytes(200_000)}]
            joined = await join(client, "d", 3, protocols=protocols)
            member = Member(client, "d")
            member.member_id, member.generation = joined["member_id"], joined["generation_id"]
            await member.sync()
        elif api == "offset_fetch":
            fields = {"groups": [{"group_id": "g", "topics": None}] * 500}
        else:
            fields = {"group_ids": ("g",) * 500}
        before, begun = resident_bytes(), time.process_time()
        client.send(make(api, 1 if api == "consumer_group_describe" else 8 if api == "offset_fetch" else 5, fields))
        await asyncio.sleep(1)
        assert resident_bytes() - before < 100 << 20
        assert time.process_time() - begun < 3
        client.stream.abort()

    run(body)


def test_ten_thousand_groups_are_described() -> None:
    async def body(door: Door, client: Client) -> None:
        names = tuple(f"group-{number}" for number in range(10_000))
        begun = time.process_time()
        answer = await client.ask("describe_groups", 6, groups=names)
        assert time.process_time() - begun < 5
        assert [group["error_code"] for group in answer["groups"]] == [NOT_FOUND] * 10_000

    run(body)


@pytest.mark.parametrize(
    ("api", "version", "field"),
    [("offset_fetch", 9, "groups"), ("describe_groups", 5, "groups"), ("consumer_group_describe", 1, "group_ids")],
)
def test_an_answer_is_bounded_though_each_group_is(api: str, version: int, field: str) -> None:
    """What does not fit has an error of its own; what comes behind it and fits is there."""

    async def body(door: Door, client: Client) -> None:
        names = ("one", "two", "small")
        for name, size in zip(names, (4000, 4000, 10), strict=True):
            if api == "offset_fetch":
                assert await commit(client, name, committed_metadata="m" * size) == OK
            elif api == "describe_groups":
                protocols = [{"name": "range", "metadata": bytes(size)}]
                joined = await join(client, name, 3, protocols=protocols)
                member = Member(client, name)
                member.member_id, member.generation = joined["member_id"], joined["generation_id"]
                assert await member.sync() == OK
            else:
                topics = tuple(f"{number:098}" for number in range(size // 100))
                assert (await beat(client, name, subscribed_topic_names=topics))["error_code"] == OK
        asked: Any = [{"group_id": name, "topics": None} for name in names] if api == "offset_fetch" else names
        with patch.object(answer_room, "LARGEST_ANSWER_BYTES", 7000):
            answer = await client.ask(api, version, **{field: asked})
        assert [group["error_code"] for group in answer["groups"]] == [OK, POLICY, OK]

    run(body)
