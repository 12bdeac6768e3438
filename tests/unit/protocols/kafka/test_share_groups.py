"""Share groups on the wire: members come and go, other requests find no group of their kind, and a restart."""

from typing import Any

from tests.doors.kafka import Client, Door
from tests.unit.protocols.kafka.group_client import (
    BAD_REQUEST,
    FENCED_EPOCH,
    INCONSISTENT,
    NON_EMPTY,
    NOT_FOUND,
    OK,
    UNKNOWN_MEMBER,
    Member,
    beat,
    commit,
    fetch_all,
    join,
    run,
    share_beat,
)

Parts = dict[str, tuple[int, ...]]


def assigned(door: Door, answer: Any) -> Parts:
    """What an answer tells a member to take from, by the names of topics."""
    found: Parts = {}
    for part in answer["assignment"]["topic_partitions"]:
        topic = door.engine.topics.get_by_id(part["topic_id"])
        assert topic is not None
        found[topic.name] = tuple(part["partitions"])
    return found


async def describe(client: Client, group_id: str = "s") -> Any:
    (group,) = (await client.ask("share_group_describe", 1, group_ids=(group_id,)))["groups"]
    return group


def test_members_share_a_topic() -> None:
    async def body(door: Door, client: Client) -> None:
        first = await share_beat(client, member_id="a")
        assert (first["error_code"], first["member_epoch"], assigned(door, first)) == (OK, 1, {"t": (0, 1)})
        second = await share_beat(client, member_id="b")
        assert (second["member_epoch"], assigned(door, second)) == (2, {"t": (1,)})
        again = await share_beat(client, member_id="a", epoch=1)
        assert (again["member_epoch"], assigned(door, again)) == (2, {"t": (0,)})
        third = await share_beat(client, member_id="c")
        assert len(assigned(door, third)["t"]) == 1, "more members than partitions"
        group = await describe(client)
        assert (group["group_state"], group["group_epoch"], group["assignor_name"]) == ("Stable", 3, "simple")
        assert [member["member_id"] for member in group["members"]] == ["a", "b", "c"]
        assert (await share_beat(client, member_id="a", epoch=9))["error_code"] == FENCED_EPOCH
        assert (await share_beat(client, member_id="x", epoch=1))["error_code"] == UNKNOWN_MEMBER
        for member_id in "abc":
            assert (await share_beat(client, member_id=member_id, epoch=-1))["error_code"] == OK
        assert (await describe(client))["group_state"] == "Empty"

    run(body)


def test_to_other_requests_a_share_group_is_none() -> None:
    async def body(door: Door, client: Client) -> None:
        assert (await share_beat(client))["error_code"] == OK
        for is_empty in (False, True):
            assert (await beat(client, "s"))["error_code"] == NOT_FOUND
            assert (await join(client, "s"))["error_code"] == INCONSISTENT
            stranger = Member(client, "s")
            stranger.member_id, stranger.generation = "m", 1
            assert await stranger.heartbeat() == UNKNOWN_MEMBER
            assert await stranger.sync() == UNKNOWN_MEMBER
            assert await stranger.leave() == UNKNOWN_MEMBER
            assert await commit(client, "s") == NOT_FOUND
            assert await commit(client, "s", "m", 1) == NOT_FOUND
            assert (await fetch_all(client, "s"))["topics"] in ((), [])
            answer = await client.ask("offset_delete", 0, group_id="s", topics=[])
            assert answer["error_code"] == NOT_FOUND
            (group,) = (await client.ask("consumer_group_describe", 1, group_ids=("s",)))["groups"]
            assert group["error_code"] == NOT_FOUND
            for version, code in ((5, OK), (6, NOT_FOUND)):
                (group,) = (await client.ask("describe_groups", version, groups=("s",)))["groups"]
                assert (group["error_code"], group["group_state"]) == (code, "Dead")
            if not is_empty:
                deleted = await client.ask("delete_groups", 2, groups_names=("s",))
                assert deleted["results"][0]["error_code"] == NON_EMPTY
                assert (await share_beat(client, epoch=-1))["error_code"] == OK
        deleted = await client.ask("delete_groups", 2, groups_names=("s",))
        assert deleted["results"][0]["error_code"] == OK
        assert (await describe(client))["error_code"] == NOT_FOUND

    run(body)


def test_other_groups_are_no_share_groups() -> None:
    async def body(door: Door, client: Client) -> None:
        member = await Member.of(client, "classic")
        assert (await beat(client, "consumer"))["error_code"] == OK
        assert await commit(client, "simple") == OK
        for _ in range(2):
            for group_id in ("classic", "consumer", "simple"):
                refused = await share_beat(client, group_id)
                assert refused["error_code"] == NOT_FOUND and "not a share group" in refused["error_message"]
                assert (await share_beat(client, group_id, epoch=-1))["error_code"] == NOT_FOUND
                assert (await describe(client, group_id))["error_code"] == NOT_FOUND
            await member.leave()  # no more of one that is empty
            await beat(client, "consumer", epoch=-1)
        for epoch in (3, -1):
            assert (await share_beat(client, "unknown", epoch=epoch))["error_code"] == NOT_FOUND
        assert (await share_beat(client, "unknown", epoch=0, subscribed_topic_names=()))["error_code"] == BAD_REQUEST
        assert (await describe(client, "unknown"))["error_code"] == NOT_FOUND

    run(body)


def test_groups_are_listed_with_their_type() -> None:
    async def body(door: Door, client: Client) -> None:
        await share_beat(client)
        await share_beat(client, "s2", member_id="a")
        await share_beat(client, "s2", member_id="a", epoch=-1)
        for types, states, expected in (
            (("share",), (), {"s": "Stable", "s2": "Empty"}),
            (("Share",), ("empty",), {"s2": "Empty"}),
            (("classic", "consumer"), ("Stable",), {}),
        ):
            listed = (await client.ask("list_groups", 5, states_filter=states, types_filter=types))["groups"]
            shares = [group for group in listed if group["group_id"] in ("s", "s2")]
            assert {group["group_id"]: group["group_state"] for group in shares} == expected
            assert {(group["protocol_type"], group["group_type"]) for group in shares} <= {("share", "share")}

    run(body)


def test_a_deleted_topic_is_forgotten() -> None:
    async def body(door: Door, client: Client) -> None:
        topic = await door.topic("again", 1)
        assert (await share_beat(client, subscribed_topic_names=("again",)))["error_code"] == OK
        groups = door.engine.groups
        start = await groups.share_start("s", topic.topic_id, 0)
        assert start is not None and start.offset is None and start.state_epoch == 1
        await door.engine.delete_topic(topic)
        assert await groups.share_start("s", topic.topic_id, 0) is None
        assert await groups.share_topics("s") == ()
        new = await door.topic("again", 2)
        told = await share_beat(client, epoch=1)
        assert assigned(door, told) == {"again": (0, 1)}
        (begun,) = await groups.share_topics("s")
        assert (begun.topic_id, begun.topic_name, begun.partitions) == (new.topic_id, "again", (0, 1))

    run(body)
