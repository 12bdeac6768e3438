"""Names of groups, instances and protocols, of any length and in any letters."""

from typing import Any

import pytest
from tests.doors.kafka import Client, Door, make
from tests.doors.kio_values import request_frame
from tests.unit.protocols.kafka.group_client import (
    BAD_GROUP,
    BAD_REQUEST,
    BAD_SESSION,
    INCONSISTENT,
    LONG,
    OK,
    Member,
    beat,
    commit,
    fetch_all,
    join,
    join_fields,
    run,
    share_beat,
)


@pytest.mark.parametrize(("group_id", "code"), [("", BAD_GROUP), (LONG, BAD_GROUP), ("x" * 1025, BAD_GROUP)])
def test_group_ids_without_or_beyond_measure(group_id: str, code: int) -> None:
    async def body(door: Door, client: Client) -> None:
        member = Member(client, group_id)
        assert (await join(client, group_id))["error_code"] == code
        assert await member.heartbeat() == code
        assert await member.sync() == code
        left = await client.ask("leave_group", 5, group_id=group_id, members=[{"member_id": "m"}])
        assert left["error_code"] == code
        assert (await beat(client, group_id))["error_code"] == (code if group_id else BAD_REQUEST)
        assert (await client.ask("offset_delete", 0, group_id=group_id, topics=[]))["error_code"] == code
        assert (await share_beat(client, group_id))["error_code"] == (code if group_id else BAD_REQUEST)
        for api in ("consumer_group_describe", "share_group_describe"):
            described = await client.ask(api, 1, group_ids=(group_id,))
            assert described["groups"][0]["error_code"] == code
        # Kafka has always kept offsets under the empty name, so those APIs take it.
        expected = code if group_id else OK
        assert await commit(client, group_id) == expected
        assert (await fetch_all(client, group_id))["error_code"] == expected
        described = await client.ask("describe_groups", 6, groups=(group_id,))
        assert described["groups"][0]["error_code"] == expected
        deleted = await client.ask("delete_groups", 2, groups_names=(group_id,))
        assert deleted["results"][0]["error_code"] == expected

    run(body)


@pytest.mark.parametrize("group_id", ["nul\0nul", "\N{SNOWMAN}\U0001f41f", " ", "../../g", "\U0001f41f" * 1024, "%s{}"])
def test_strange_group_ids_are_names(group_id: str) -> None:
    async def body(door: Door, client: Client) -> None:
        member = await Member.of(client, group_id)
        assert await commit(client, group_id, member.member_id, member.generation) == OK
        described = await client.ask("describe_groups", 4, groups=(group_id,))
        assert [group["group_state"] for group in described["groups"]] == ["Stable"]
        assert await member.leave() == OK
        assert (await beat(client, group_id))["error_code"] == OK, "an empty group becomes the other kind"
        assert (await beat(client, group_id, epoch=-1))["error_code"] == OK
        assert len((await fetch_all(client, group_id))["topics"]) == 1
        deleted = await client.ask("delete_groups", 2, groups_names=(group_id,))
        assert deleted["results"][0]["error_code"] == OK

    run(body)


@pytest.mark.parametrize("data", [b"\xed\xa0\x80\xed\xb0\x80\0\xff", b"\xff" * 8, b"\xc0\x80......"])
@pytest.mark.parametrize(
    "api", ["join_group", "offset_commit", "consumer_group_heartbeat", "share_group_heartbeat", "describe_groups"]
)
def test_names_that_are_not_text_cost_their_sender_the_connection(api: str, data: bytes) -> None:
    async def body(door: Door, client: Client) -> None:
        mark = "MARKMARK"
        fields = join_fields(mark) if api == "join_group" else {"group_id": mark, "groups": (mark,)}
        frame = request_frame(make(api, 1 if api.endswith("_group_heartbeat") else 4, fields), 1)
        client.send_frame(frame.replace(mark.encode(), data))
        await client.stream.closed()

    run(body)


def test_names_of_instances_and_protocols_beyond_measure() -> None:
    async def body(door: Door, client: Client) -> None:
        fields: dict[str, Any]
        for fields in (
            {"group_instance_id": LONG},
            {"protocol_type": LONG},
            {"protocols": [{"name": LONG, "metadata": b""}]},
        ):
            assert (await join(client, **fields))["error_code"] == BAD_REQUEST
        for fields in ({"protocol_type": ""}, {"protocols": []}):
            assert (await join(client, **fields))["error_code"] == INCONSISTENT
        for timeout_ms in (0, -1, 5999, 1_800_001, (1 << 31) - 1, -(1 << 31)):
            assert (await join(client, session_timeout=timeout_ms))["error_code"] == BAD_SESSION
        beats: list[dict[str, Any]] = [{name: LONG} for name in ("member_id", "instance_id", "rack_id")]
        for fields in (*beats, {"instance_id": ""}):
            assert (await beat(client, **fields))["error_code"] == BAD_REQUEST
        assert (await beat(client, member_id=""))["error_code"] == BAD_REQUEST
        assert (await beat(client, subscribed_topic_names=(LONG,)))["error_code"] == BAD_REQUEST
        assert (await beat(client, rebalance_timeout=-2))["error_code"] == BAD_REQUEST

    run(body)
