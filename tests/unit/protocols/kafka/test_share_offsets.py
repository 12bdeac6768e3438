"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets; and share groups that are deleted."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from tests.doors.kafka import Client, Door, batch_of
from tests.rules import Nothing
from tests.unit.protocols.kafka.share_member import ACCEPT, BAD_STATE, Member, acquired, rows, run, set_for_group
from tests.unit.protocols.kafka.test_share_starts import RESET, heartbeat, joined

from penstock.engine.access import Operation, Resource, Subject
from penstock.engine.groups.groups import Groups
from penstock.engine.queues.share_ledgers import Deed, Order, Place, ShareLedgers
from penstock.errors import Code, PenstockError

OK, UNKNOWN_TOPIC, NO_LEADER, BAD_GROUP, NOT_TOPIC, BAD_REQUEST, POLICY = 0, 3, 5, 24, 29, 42, 44
LOADING, NO_COORDINATOR, FENCED, NON_EMPTY, NOT_FOUND = 14, 15, 52, 68, 69
Rows = dict[tuple[str, int], Any]


async def described(client: Client, group: str = "g", topics: Any = None, version: int = 1) -> Rows:
    asked = None if topics is None else [{"topic_name": name, "partitions": rows} for name, rows in topics.items()]
    answer = await client.ask("describe_share_group_offsets", version, groups=[{"group_id": group, "topics": asked}])
    (told,) = answer["groups"]
    assert told["group_id"] == group and told["error_code"] == OK, told
    found = {}
    for topic in told["topics"]:
        for row in topic["partitions"]:
            assert row["error_code"] == OK, row
            found[topic["topic_name"], row["partition_index"]] = (row["start_offset"], row.get("lag"))
    return found


async def alter(client: Client, offsets: dict[tuple[str, int], int], group: str = "g") -> int | Rows:
    """The error of all of it, or what became of each partition."""
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index, "start_offset": offset}]}
        for (name, index), offset in offsets.items()
    ]
    answer = await client.ask("alter_share_group_offsets", 0, group_id=group, topics=topics)
    return answer["error_code"] or {
        (topic["topic_name"], row["partition_index"]): row["error_code"]
        for topic in answer["responses"]
        for row in topic["partitions"]
    }


async def forget(client: Client, *names: str, group: str = "g") -> int | dict[str, int]:
    topics = [{"topic_name": name} for name in names]
    answer = await client.ask("delete_share_group_offsets", 0, group_id=group, topics=topics)
    return answer["error_code"] or {topic["topic_name"]: topic["error_code"] for topic in answer["responses"]}


async def delete(client: Client, group: str = "g") -> int:
    (result,) = (await client.ask("delete_groups", 2, groups_names=(group,)))["results"]
    code: int = result["error_code"]
    return code


async def leave(member: Member) -> None:
    await member.fetch(epoch=-1)
    assert (await heartbeat(member, -1))["error_code"] == OK


async def begun(door: Door, count: int = 10, partitions: int = 1) -> Member:
    """A member of a group that begins at the first record."""
    await door.topic(partitions=partitions)
    await set_for_group(door, RESET, "earliest")
    writer = await door.client()
    for index in range(partitions):
        await writer.produce(batch_of(*[b"x"] * count), partition=index)
    return await joined(door)


def test_where_a_group_stands() -> None:
    async def body(door: Door) -> None:
        member = await begun(door, 10, 2)
        client = await door.client()
        assert await described(client) == {("t", 0): (-1, -1), ("t", 1): (-1, -1)}, "nobody has read it yet"
        assert acquired(await member.fetch(0)) == [(0, 9, 1)]
        await member.acknowledge({0: [(0, 2, [ACCEPT]), (5, 6, [ACCEPT])]})
        assert await described(client) == {("t", 0): (3, 5), ("t", 1): (-1, -1)}, "what is leased is to be done still"
        assert await described(client, version=0) == {("t", 0): (3, None), ("t", 1): (-1, None)}
        await member.acknowledge({0: [(3, 4, [ACCEPT])]})
        asked = await described(client, topics={"t": (0, 7), "nope": (0,)})
        assert asked == {("t", 0): (7, 3), ("t", 7): (-1, -1), ("nope", 0): (-1, -1)}
        assert await described(client, "nobody's") == {} and await described(client, topics={}) == {}
        assert await described(client, "nobody's", {"t": (0,)}) == {("t", 0): (-1, -1)}
        answer = await client.ask("describe_share_group_offsets", 1, groups=[{"group_id": "", "topics": None}])
        assert answer["groups"][0]["error_code"] == BAD_GROUP

    run(body)


def test_to_look_attaches_no_ledger() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        assert await described(client, topics={"t": (0,)}) == {("t", 0): (-1, -1)}
        assert not topic.attached

    run(body)


def test_a_group_begins_anew_where_it_is_told() -> None:
    async def body(door: Door) -> None:
        member = await begun(door, 10, 2)
        client = await door.client()
        assert acquired(await member.fetch(0)) == [(0, 9, 1)]
        await member.acknowledge({0: [(0, 9, [ACCEPT])]})
        assert await alter(client, {("t", 0): 5}) == NON_EMPTY
        assert await forget(client, "t") == NON_EMPTY
        assert await described(client, topics={"t": (0,)}) == {("t", 0): (10, 0)}
        await leave(member)
        done = await alter(client, {("t", 0): 4, ("t", 1): 99, ("t", 7): 1, ("nope", 0): 1})
        assert done == {("t", 0): OK, ("t", 1): OK, ("t", 7): UNKNOWN_TOPIC, ("nope", 0): UNKNOWN_TOPIC}
        assert await described(client) == {("t", 0): (4, 6), ("t", 1): (10, 0)}, "no further than the end"
        again = await joined(door)
        assert acquired(await again.fetch(0, 1)) == [(4, 9, 1)]

    run(body)


def test_a_group_is_made_where_there_is_none() -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=2)
        writer, client = await door.client(), await door.client()
        await writer.produce(batch_of(*[b"x"] * 10))
        await client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("g",))
        await asyncio.sleep(1)
        for nothing in ({}, {("nope", 0): 1}):
            await alter(client, nothing)
            (told,) = (await client.ask("share_group_describe", 1, group_ids=("g",)))["groups"]
            assert told["error_code"] == NOT_FOUND
        assert await alter(client, {("t", 0): 3}) == {("t", 0): OK}
        (told,) = (await client.ask("share_group_describe", 1, group_ids=("g",)))["groups"]
        assert (told["group_state"], told["group_epoch"], told["assignment_epoch"]) == ("Empty", 1, 1)
        assert await described(client) == {("t", 0): (3, 7)}
        assert await alter(client, {("t", 0): -2}) == {("t", 0): BAD_REQUEST}
        assert await alter(client, {("t", 0): 1}, "") == BAD_GROUP and await forget(client, "t", group="") == BAD_GROUP
        member = await joined(door)
        assert acquired(await member.fetch(0, 1)) == [(3, 9, 1)]

    run(body)


def test_minus_one_is_where_the_settings_say() -> None:
    async def body(door: Door) -> None:
        member = await begun(door)
        client = await door.client()
        await member.fetch(0)
        await member.acknowledge({0: [(0, 9, [ACCEPT])]})
        await leave(member)
        assert await alter(client, {("t", 0): -1}) == {("t", 0): OK}
        assert await described(client) == {("t", 0): (-1, -1)}
        assert acquired(await (await joined(door)).fetch(0)) == [(0, 9, 1)]

    run(body)


def test_a_topic_that_is_forgotten_is_new_to_the_group() -> None:
    async def body(door: Door) -> None:
        await door.topic("u")
        member = await begun(door)
        client = await door.client()
        assert await forget(client, "t", group="nobody's") == NOT_FOUND
        await member.fetch(0)
        await member.acknowledge({0: [(0, 9, [ACCEPT])]})
        await leave(member)
        assert await forget(client, "t", "u", "nope") == {"t": OK, "u": UNKNOWN_TOPIC, "nope": UNKNOWN_TOPIC}
        assert await described(client) == {}
        assert await described(client, topics={"t": (0,)}) == {("t", 0): (-1, -1)}
        assert await forget(client, "t") == {"t": UNKNOWN_TOPIC}
        assert acquired(await (await joined(door)).fetch(0)) == [(0, 9, 1)]

    run(body)


def test_other_groups_are_not_found() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        await client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("cl",))
        await asyncio.sleep(1)
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        await client.ask(
            "offset_commit", 8, group_id="cl", generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": "t", "partitions": [row]}],
        )  # fmt: skip
        assert await alter(client, {("t", 0): 1}, "cl") == NOT_FOUND
        assert await alter(client, {("nope", 0): 1}, "cl") == NOT_FOUND
        assert await forget(client, "t", group="cl") == NOT_FOUND
        assert await described(client, "cl") == {}
        assert await delete(client, "cl") == OK

    run(body)


async def done(door: Door) -> Client:
    """A group that has read everything and has no members any more."""
    member = await begun(door, 10, 2)
    await member.fetch(0, 1)
    await member.acknowledge({index: [(0, 9, [ACCEPT])] for index in (0, 1)})
    await leave(member)
    return await door.client()


def test_a_group_that_is_deleted_begins_as_if_it_had_never_been() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        assert await delete(client) == OK
        for index in (0, 1):
            assert await door.engine.queues.groups(door.engine.topics.partition("t", index)) == []
        assert await delete(client) == NOT_FOUND
        answer = await (await joined(door)).fetch(0, 1)
        assert [acquired(answer, index) for index in (0, 1)] == [[(0, 9, 1)]] * 2

    run(body)


class Lost:
    """Leaders of which one does not answer."""

    def __init__(self, deed: Deed, index: int) -> None:
        self._deed, self._index = deed, index
        self._carry_out = ShareLedgers._carry_out_at

    async def __call__(self, ledgers: ShareLedgers, order: Order, place: Place) -> Any:
        told = await self._carry_out(ledgers, order, place)
        if order.deed is self._deed and place.partition == self._index:
            return told._replace(error=PenstockError(Code.NOT_AVAILABLE, "broker 3 does not answer"))
        return told

    def here(self) -> Any:
        return patch.object(ShareLedgers, "_carry_out_at", lambda *of: self(*of))


@pytest.mark.parametrize("deed", [Deed.LOOK, Deed.FORGET])
def test_a_group_is_there_until_all_have_forgotten_it(deed: Deed) -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        with Lost(deed, 1).here():
            assert await delete(client) == NO_COORDINATOR
        (told,) = (await client.ask("share_group_describe", 1, group_ids=("g",)))["groups"]
        assert told["group_state"] == "Empty", "nobody waits for it to be deleted any more"
        if deed is Deed.LOOK:
            assert await described(client) == {("t", 0): (10, 0), ("t", 1): (10, 0)}, "all of it or nothing"
        assert await delete(client) == OK
        assert acquired(await (await joined(door)).fetch(0, 1), 0) == [(0, 9, 1)]

    run(body)


def test_nobody_joins_a_group_that_is_being_deleted() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        found: list[int] = []
        carry_out = ShareLedgers._carry_out_at

        async def meanwhile(ledgers: ShareLedgers, order: Order, place: Place) -> Any:
            if order.deed is Deed.FORGET and not found:
                other = await Member.of(door, "other")
                found.append((await heartbeat(other, 0))["error_code"])
                found.append(await delete(await door.client()))
            return await carry_out(ledgers, order, place)

        with patch.object(ShareLedgers, "_carry_out_at", meanwhile):
            assert await delete(client) == OK
        assert set(found) == {LOADING}

    run(body)


def test_who_was_not_answered_deletes_again() -> None:
    """The group was kept from everybody, and whoever asked for that was told that it could not be."""

    async def body(door: Door) -> None:
        client = await done(door)
        begin = Groups.begin_forgetting

        async def unanswered(groups: Groups, *of: Any) -> Any:
            await begin(groups, *of)
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, "not replicated in time")

        with patch.object(Groups, "begin_forgetting", unanswered):
            assert await delete(client) == NO_COORDINATOR
        assert await delete(client) == OK

    run(body)


def test_what_was_made_as_a_queue_is_not_deleted_with_its_group() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        topic = door.engine.topics.get("t")
        assert topic is not None
        await door.engine.alter_queues(topic, lambda queues: {**queues, "g": {}})
        assert await delete(client) == POLICY
        assert await described(client) == {("t", 0): (10, 0), ("t", 1): (10, 0)}
        await door.engine.alter_queues(topic, lambda queues: {})
        assert await delete(client) == OK

    run(body)


def test_a_request_that_failed_half_way_is_made_again() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        real = ShareLedgers._carry_out_at

        async def away(ledgers: ShareLedgers, order: Order, place: Place) -> Any:
            if place.partition == 1 and order.deed is not Deed.LOOK:
                raise PenstockError(Code.NOT_AVAILABLE, "broker 3 does not answer")
            return await real(ledgers, order, place)

        async def told(ledgers: ShareLedgers, order: Order, place: Place) -> Any:
            try:
                return await away(ledgers, order, place)
            except PenstockError as error:
                return (await real(ledgers, order._replace(deed=Deed.LOOK), place))._replace(error=error)

        with patch.object(ShareLedgers, "_carry_out_at", told):
            assert await alter(client, {("t", 0): 3, ("t", 1): 4}) == {("t", 0): OK, ("t", 1): NO_LEADER}
        assert await described(client) == {("t", 0): (3, 7), ("t", 1): (10, 0)}
        assert await alter(client, {("t", 0): 3, ("t", 1): 4}) == {("t", 0): OK, ("t", 1): OK}
        assert await described(client) == {("t", 0): (3, 7), ("t", 1): (4, 6)}
        with patch.object(ShareLedgers, "_carry_out_at", told):
            assert await forget(client, "t") == {"t": NO_LEADER}
        assert await forget(client, "t") == {"t": OK}, "one of them knew of it still"
        assert await described(client, topics={"t": (0, 1)}) == {("t", 0): (-1, -1), ("t", 1): (-1, -1)}

    run(body)


def test_what_cannot_be_reached_stays_as_it_is() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        with Lost(Deed.LOOK, 1).here():
            assert await alter(client, {("t", 0): 3, ("t", 1): 4}) == {("t", 0): OK, ("t", 1): NO_LEADER}
            assert await forget(client, "t", "nope") == {"t": NO_LEADER, "nope": UNKNOWN_TOPIC}
        assert await described(client) == {("t", 0): (3, 7), ("t", 1): (10, 0)}
        topic = door.engine.topics.get("t")
        assert topic is not None
        start = await door.engine.groups.share_start("g", topic.topic_id, 1)
        assert start is not None and start.offset is None, "nor is it written down that it begins elsewhere"

    run(body)


def test_an_order_that_comes_late_changes_nothing() -> None:
    async def body(door: Door) -> None:
        client = await done(door)
        topic = door.engine.topics.get("t")
        assert topic is not None
        place, ledgers = Place(topic.topic_id, 0, 2), door.engine.share_ledgers
        assert await alter(client, {("t", 0): 5}) == {("t", 0): OK}
        epoch = await door.engine.groups.restart_share("nobody's", {})
        (told,) = (await client.ask("share_group_describe", 1, group_ids=("g",)))["groups"]
        epoch = told["group_epoch"]
        for deed in (Deed.ALTER, Deed.FORGET):
            (late,) = await ledgers.carry_out(Order(deed, "g", epoch - 1, "", [place]))
            assert late.error is not None and late.error.code is Code.COORDINATOR_FENCED
        (twice,) = await ledgers.carry_out(Order(Deed.ALTER, "g", epoch, "", [place]))
        assert twice.error is None
        assert (await described(client))["t", 0] == (5, 5), "what was done since stays done"

    run(body)


def test_who_began_to_open_before_it_was_forgotten_asks_again() -> None:
    """The coordinator's word was true when it was said."""

    async def body(door: Door) -> None:
        client = await done(door)
        engine, partition = door.engine, door.engine.topics.partition("t", 0)
        start_of = type(engine.sharing)._start_of

        async def slow(sharing: Any, *of: Any) -> Any:
            told = await start_of(sharing, *of)
            assert await forget(client, "t") == {"t": OK}
            return told

        await engine.queues.forget_shared(partition, "g", 99)
        with patch.object(type(engine.sharing), "_start_of", slow), pytest.raises(PenstockError) as refused:
            await engine.sharing.open(partition, "g")
        assert refused.value.code is Code.COORDINATOR_LOADING
        assert await engine.queues.groups(partition) == []

    run(body)


class WithoutTopic(Nothing):
    """Everybody may do everything, but for one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return resource.name != self._topic


def test_topics_that_may_not_be_read_are_refused_and_others_are_not() -> None:
    async def body(door: Door) -> None:
        hidden = await door.topic("u")
        client = await done(door)
        assert await alter(client, {("t", 0): 5, ("u", 0): 0}) == {("t", 0): OK, ("u", 0): OK}
        door.engine.access.policy = WithoutTopic("u")
        assert await alter(client, {("t", 0): 4, ("u", 0): 0}) == {("t", 0): OK, ("u", 0): NOT_TOPIC}
        assert set(await described(client)) == {("t", 0), ("t", 1)}, "what must not be seen is left out"
        asked = [{"topic_name": "u", "partitions": (0,)}]
        answer = await client.ask("describe_share_group_offsets", 1, groups=[{"group_id": "g", "topics": asked}])
        (topic,) = answer["groups"][0]["topics"]
        assert topic["partitions"][0]["error_code"] == NOT_TOPIC and topic["topic_id"] != hidden.topic_id
        assert await forget(client, "t", "u") == {"t": OK, "u": NOT_TOPIC}
        assert await door.engine.queues.groups(hidden.partitions[0]) == ["g"]

    run(body)


def test_what_a_lost_member_had_is_for_others_at_once() -> None:
    async def body(door: Door) -> None:
        await set_for_group(door, "share.record.lock.duration.ms", "60000")
        member = await begun(door)
        await asyncio.sleep(40)
        assert acquired(await member.fetch(0)) == [(0, 9, 1)]
        await asyncio.sleep(6)  # it is connected, but does not report
        partition = door.engine.topics.partition("t", 0)
        assert (await door.engine.queues.figures(partition, "g")).leased == 0
        other = await joined(door, "other")
        assert acquired(await other.fetch(0)) == [(0, 4, 2)], "one of them may be what it was lost by"
        answer = await member.acknowledge({0: [(0, 4, [ACCEPT])]})
        assert rows(answer)[0]["error_code"] == BAD_STATE

    run(body)


def test_how_much_can_be_named_at_once() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        many = [{"topic_name": "t", "partitions": tuple(range(10_001))}]
        answer = await client.ask("describe_share_group_offsets", 1, groups=[{"group_id": "g", "topics": many}])
        assert [group["error_code"] for group in answer["groups"]] == [BAD_REQUEST]
        assert await alter(client, {("t", index): 0 for index in range(5_001)}) == BAD_REQUEST
        assert await forget(client, *map(str, range(10_001))) == BAD_REQUEST

    run(body)
