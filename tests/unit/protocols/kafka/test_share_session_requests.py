"""Share sessions over the wire: epochs, what is fetched and answered, turns, and how sessions end."""

import asyncio
from typing import Any

import pytest
from tests.doors.kafka import Door, batch_of, make
from tests.rules import Nothing
from tests.unit.protocols.kafka.share_member import (
    ACCEPT,
    BAD_EPOCH,
    BAD_REQUEST,
    NO_ROOM,
    NO_SESSION,
    RELEASE,
    Member,
    acquired,
    filled,
    open_group,
    rows,
    run,
    settled,
)

from penstock.protocols.kafka.share_sessions import ShareSession, ShareSessions

UNKNOWN_TOPIC = 3
LAST = (1 << 31) - 1


def held(door: Door, index: int = 0, group: str = "g") -> int:
    """Offsets that are leased."""
    queues = door.engine.queues
    machine = queues.shards.of(door.engine.topics.partition("t", index)).loaded
    assert machine is not None
    return machine.figures(group, 1 << 40).leased


# --- epochs


@pytest.mark.parametrize("version", [1, 2])
def test_every_accepted_request_counts(version: int) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        for _ in range(3):
            assert (await member.fetch(0, version=version))["error_code"] == 0
            assert (await member.acknowledge(version=version))["error_code"] == 0
        assert member.epoch == 6
        assert (await member.fetch(version=version, epoch=5))["error_code"] == BAD_EPOCH
        assert (await member.acknowledge(version=version, epoch=7))["error_code"] == BAD_EPOCH
        assert (await member.fetch(version=version))["error_code"] == 0

    run(body)


def test_after_the_last_epoch_comes_the_first() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        (session,) = door.context.shares.sessions._sessions.values()
        session.epoch = LAST
        assert (await member.acknowledge(epoch=LAST))["error_code"] == 0
        assert (await member.fetch(epoch=1))["error_code"] == 0

    run(body)


def test_only_a_fetch_opens_a_session() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        assert (await member.acknowledge(epoch=0))["error_code"] == BAD_EPOCH
        assert (await member.acknowledge(epoch=1))["error_code"] == NO_SESSION
        assert (await member.fetch(0, epoch=1))["error_code"] == NO_SESSION
        assert (await member.fetch(0, epoch=-1))["error_code"] == NO_SESSION
        await member.fetch(0)
        assert (await member.acknowledge(epoch=0))["error_code"] == BAD_EPOCH
        other = await Member.of(door, "m", group="other group")
        assert (await other.fetch(0, epoch=1))["error_code"] == NO_SESSION

    run(body)


def test_who_opens_a_session_has_nothing_to_acknowledge() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        refused = await member.fetch(acks={0: [(0, 0, [ACCEPT])]})
        assert (refused["error_code"], refused["responses"]) == (BAD_REQUEST, ())
        assert len(door.context.shares.sessions) == 0

    run(body)


@pytest.mark.parametrize("name", [{"group_id": None}, {"member_id": ""}, {"member_id": "m" * 37}])
def test_who_does_not_say_who_it_is(name: dict[str, Any]) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        assert (await member.fetch(0, **name))["error_code"] == BAD_REQUEST
        assert (await member.acknowledge(epoch=1, **name))["error_code"] == BAD_REQUEST
        assert (await member.fetch(0, member_id="m" * 36))["error_code"] == 0

    run(body)


def test_opening_again_drops_what_was() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5, partitions=2)
        assert acquired(await member.fetch(0)) == [(0, 4, 1)]
        again = await member.fetch(1, epoch=0)
        assert list(rows(again)) == [1], "nothing of the earlier session is fetched"
        late = await member.acknowledge({0: [(0, 4, [ACCEPT])]}, epoch=1)
        assert rows(late)[0]["error_code"] == 121, "what it held was given back"
        assert held(door) == 0

    run(body)


# --- partitions


def test_a_partition_stays_until_it_is_forgotten() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1, partitions=3)
        assert list(rows(await member.fetch(0))) == [0]
        assert list(rows(await member.fetch(1))) == [1]
        for index in (0, 1, 2):
            await member.client.produce(batch_of(b"more"), partition=index)
        assert sorted(rows(await member.fetch())) == [0, 1]
        for index in (0, 1, 2):
            await member.client.produce(batch_of(b"more"), partition=index)
        assert list(rows(await member.fetch(forgotten=(0,)))) == [1]

    run(body)


def test_a_partition_listed_to_carry_an_acknowledgement_is_in_the_session() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 2)
        await member.fetch(0)
        await member.fetch(forgotten=(0,))
        await member.fetch(acks={0: [(0, 0, [ACCEPT])]})
        await member.client.produce(batch_of(b"more"))
        assert acquired(await member.fetch()) == [(2, 2, 1)]

    run(body)


def test_a_partition_in_both_lists_is_acknowledged_answered_and_out() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 2)
        await member.fetch(0)
        await member.client.produce(batch_of(b"more"))
        answer = rows(await member.fetch(acks={0: [(0, 1, [ACCEPT])]}, forgotten=(0,)))
        assert (answer[0]["acknowledge_error_code"], answer[0]["acquired_records"]) == (0, ())
        assert rows(await member.fetch()) == {}
        assert held(door) == 0

    run(body)


def test_partitions_share_the_records_in_turn() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, *[1] * 10, partitions=3)
        given = [{index: len(acquired(answer, index)) for index in (0, 1, 2)} for answer in [
            await member.fetch(0, 1, 2, max_records=3) for _ in range(4)
        ]]  # fmt: skip
        assert given == [{0: 1, 1: 0, 2: 0}, {0: 0, 1: 1, 2: 0}, {0: 0, 1: 0, 2: 1}, {0: 1, 1: 0, 2: 0}]
        more = await member.fetch(max_records=15)
        assert (
            acquired(more, 1) == [(3, 9, 1)] and acquired(more, 2) == [(3, 9, 1)] and acquired(more, 0) == [(6, 6, 1)]
        )

    run(body)


def test_partitions_share_the_bytes_evenly() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, *[1] * 10, partitions=4, size=1000)
        answer = rows(await member.fetch(0, 1, 2, max_bytes=9000))
        assert [len(answer[index]["records"]) // 1000 for index in (0, 1, 2)] == [2, 3, 3], (
            "what one leaves, the others have"
        )
        assert sum(len(row["records"]) for row in answer.values()) <= 9000

    run(body)


@pytest.mark.parametrize("nothing", [{"max_records": 0}, {"max_bytes": 0}])
def test_without_records_or_bytes_it_is_only_acknowledged_and_changed(nothing: dict[str, int]) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 3, partitions=2)
        await member.fetch(0)
        begun = door.clock.monotonic()
        answer = rows(await member.fetch(1, 9, acks={0: [(0, 2, [ACCEPT])]}, max_wait=60_000, **nothing))
        assert door.clock.monotonic() - begun < 1
        told = {index: (row["error_code"], row["acquired_records"]) for index, row in answer.items()}
        assert told == {0: (0, ()), 9: (UNKNOWN_TOPIC, ())}, "what is well is not told, as it was not fetched"
        assert held(door) == 0
        assert acquired(await member.fetch(), 1) == [(0, 2, 1)], "it was added"
        await member.fetch(max_wait=60_000, **nothing)
        assert door.clock.monotonic() - begun < 1, "nor does it wait for any"

    run(body)


# --- answers


def test_an_answer_lists_what_is_new() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, partitions=2)
        assert list(rows(await member.fetch(0, 1))) == [0, 1], "never answered before"
        assert rows(await member.fetch()) == {}
        await member.client.produce(batch_of(b"a"), partition=1)
        assert list(rows(await member.fetch())) == [1]
        assert rows(await member.fetch(0)) == {}, "it was in"
        assert rows(await member.fetch(forgotten=(0,))) == {}
        assert list(rows(await member.fetch(0))) == [0]

    run(body)


def test_an_error_is_told_until_a_clean_answer() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        for _ in range(3):
            answer = rows(await member.fetch(5))
            assert {index: row["error_code"] for index, row in answer.items()} == {5: UNKNOWN_TOPIC}
        await door.engine.create_partitions(door.engine.topics.get("t"), 6)
        partition = door.engine.topics.partition("t", 5)
        await door.engine.queues.open(partition, "g", 0)
        assert rows(await member.fetch())[5]["error_code"] == 0
        assert rows(await member.fetch()) == {}

    run(body)


def test_an_error_ends_a_wait_once() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        begun = door.clock.monotonic()
        assert rows(await member.fetch(0, 5, max_wait=5000))[5]["error_code"] == UNKNOWN_TOPIC
        assert door.clock.monotonic() - begun < 0.5
        assert rows(await member.fetch(max_wait=5000))[5]["error_code"] == UNKNOWN_TOPIC
        assert 5 <= door.clock.monotonic() - begun < 5.5

    run(body)


def test_every_partition_that_was_acknowledged_is_answered() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1, partitions=3)
        await member.fetch(0, 1)
        acks = {0: [(0, 0, [ACCEPT])], 1: [(0, 0, [ACCEPT])], 2: [(0, 0, [ACCEPT])], 9: [(0, 0, [ACCEPT])]}
        answer = rows(await member.fetch(acks=acks, forgotten=(2,)))
        told = {index: row["acknowledge_error_code"] for index, row in answer.items()}
        assert told == {0: 0, 1: 0, 2: BAD_REQUEST, 9: UNKNOWN_TOPIC}
        assert {index: row["error_code"] for index, row in answer.items()} == {0: 0, 1: 0, 2: 0, 9: UNKNOWN_TOPIC}

    run(body)


# --- ends


@pytest.mark.parametrize("by_fetch", [True, False])
def test_closing_acknowledges_and_then_gives_back(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 5, 5), await Member.of(door, "other")
        await member.fetch(0)
        waiting = asyncio.ensure_future(other.fetch(0, max_wait=60_000))
        await settled()
        acks = {0: [(0, 2, [ACCEPT])]}
        if by_fetch:
            answer = rows(await member.fetch(acks=acks, epoch=-1))
            assert (answer[0]["acknowledge_error_code"], answer[0]["acquired_records"]) == (0, ())
        else:
            assert rows(await member.acknowledge(acks, epoch=-1))[0]["error_code"] == 0
        assert acquired(await waiting) == [(3, 9, 2)]
        assert (await member.fetch(epoch=2))["error_code"] == NO_SESSION
        assert (await member.acknowledge(epoch=-1))["error_code"] == NO_SESSION
        assert (await member.fetch(0, epoch=0))["error_code"] == 0

    run(body)


def test_closing_gives_back_where_it_was_forgotten_too() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        await member.fetch(forgotten=(0,))
        assert held(door) == 5
        await member.fetch(epoch=-1)
        await settled()
        assert held(door) == 0

    run(body)


def test_a_connection_that_ends_gives_back_what_its_sessions_hold() -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 5), await Member.of(door, "other")
        second = Member(member.client, door.engine.topics.get("t"), "second")  # type: ignore[arg-type]
        await member.fetch(0, max_records=2, version=2, share_acquire_mode=1)
        await second.fetch(0, max_records=2, version=2, share_acquire_mode=1)
        assert held(door) == 4
        waiting = asyncio.ensure_future(other.fetch(0, max_wait=60_000, min_bytes=1, max_records=1, version=2))
        assert acquired(await waiting) == [(4, 4, 1)]
        waiting = asyncio.ensure_future(other.fetch(max_wait=60_000))
        await settled()
        member.client.stream.close()
        assert acquired(await waiting) == [(0, 3, 2)]
        assert len(door.context.shares.sessions) == 1

    run(body)


def test_who_has_lost_its_rights_does_not_keep_what_it_had() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        door.engine.access.policy = Nothing()
        member.client.stream.close()
        await asyncio.sleep(1)
        assert held(door) == 0

    run(body)


def test_it_is_given_back_when_the_answer_is_out() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        shares, may_give_back = door.context.shares, asyncio.Event()
        give_back = shares._give_back

        async def wait_and_give_back(session: ShareSession) -> None:
            await may_give_back.wait()
            await give_back(session)

        shares._give_back = wait_and_give_back  # type: ignore[method-assign]
        await member.fetch(0)
        assert rows(await member.acknowledge({0: [(0, 1, [ACCEPT])]}, epoch=-1))[0]["error_code"] == 0
        assert held(door) == 3
        again = asyncio.ensure_future(member.fetch(0, epoch=0))
        await asyncio.sleep(1)
        assert not again.done(), "nor does the next session begin before"
        may_give_back.set()
        assert acquired(await again) == [(2, 4, 2)]

    run(body)


def test_a_session_that_was_opened_again_elsewhere_stays() -> None:
    async def body(door: Door) -> None:
        early, late = await filled(door, 5), await Member.of(door)
        await early.fetch(0)
        assert acquired(await late.fetch(0)) == [(0, 4, 2)]
        early.client.stream.close()
        await settled()
        assert held(door) == 5
        assert rows(await late.acknowledge({0: [(0, 4, [ACCEPT])]}))[0]["error_code"] == 0

    run(body)


def test_a_request_that_waits_for_its_turn_opens_nothing_for_who_is_gone() -> None:
    async def body(door: Door) -> None:
        member, late = await filled(door, 5), await Member.of(door)
        await member.fetch(0)
        await asyncio.sleep(1)
        door.disk.max_delay_s = 5.0
        acknowledging = asyncio.ensure_future(member.acknowledge({0: [(0, 0, [ACCEPT])]}))
        await settled()
        assert not acknowledging.done()
        late.client.send(make("share_fetch", 1, late.fetch_values(0)))
        await settled()
        late.client.stream.close()
        assert rows(await acknowledging)[0]["error_code"] == 0
        await asyncio.sleep(10)
        assert rows(await member.acknowledge({0: [(1, 4, [ACCEPT])]}))[0]["error_code"] == 0, "its session stays"

    run(body)


def test_who_is_gone_waits_for_nothing() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        await member.fetch(0)
        for epoch in (1, 0, 0, 1):
            member.client.send(make("share_fetch", 1, member.fetch_values(0, epoch=epoch, max_wait=60_000)))
        await asyncio.sleep(1)
        assert len(door.context.shares._lines) == 1
        member.client.stream.close()
        await asyncio.sleep(1)
        assert len(door.context.shares.sessions) == len(door.context.shares._lines) == 0
        assert not door.context.shares._requests and not door.context.shares._tasks

    run(body)


def test_there_is_room_for_so_many_sessions() -> None:
    async def body(door: Door) -> None:
        door.context.shares.sessions = ShareSessions(capacity=2)
        member = await filled(door)
        others = [Member(member.client, door.engine.topics.get("t"), name) for name in "ab"]  # type: ignore[arg-type]
        await member.fetch(0)
        await others[0].fetch(0)
        begun = door.clock.monotonic()
        refused = await others[1].fetch(0, max_wait=3000)
        assert (refused["error_code"], refused["responses"]) == (NO_ROOM, ())
        assert 3 <= door.clock.monotonic() - begun < 3.5
        gone = await Member.of(door, "gone")
        gone.client.send(make("share_fetch", 1, gone.fetch_values(0, max_wait=60_000)))
        await asyncio.sleep(1)
        assert door.context.shares._requests
        gone.client.stream.close()
        await asyncio.sleep(1)
        assert not door.context.shares._requests
        await member.fetch(epoch=-1)
        assert (await others[1].fetch(0))["error_code"] == 0

    run(body)


def test_a_session_with_too_many_errors_ends_with_the_answer_that_tells_them() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        assert len(rows(await member.fetch(*range(100, 1101)))) == 1001
        assert (await member.fetch())["error_code"] == NO_SESSION
        member.epoch = 0
        assert len(rows(await member.fetch(*range(100, 1100)))) == 1000
        assert (await member.fetch())["error_code"] == 0

    run(body)


# --- turns


def test_one_request_of_a_session_at_a_time_in_the_order_they_came() -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 5), await Member.of(door, "other")
        await member.fetch(0)
        begun = door.clock.monotonic()
        member.client.send(make("share_fetch", 1, member.fetch_values(epoch=1, max_wait=60_000)))
        asked = {"group_id": "g", "member_id": "m", "share_session_epoch": 2}
        topics = member._topics({0: [(0, 4, [RELEASE])]})
        waiting = asyncio.ensure_future(other.fetch(0, max_wait=60_000))
        await settled()
        member.client.send(make("share_acknowledge", 1, {**asked, "topics": topics}))
        _, first = await member.client.receive("share_fetch", 1)
        _, second = await member.client.receive("share_acknowledge", 1)
        assert rows(first) == {} and rows(second)[0]["error_code"] == 0
        assert acquired(await waiting) == [(0, 4, 2)]
        assert door.clock.monotonic() - begun < 1, "who waits for records lets the next one pass"

    run(body)


def test_other_members_on_the_connection_do_not_wait() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await open_group(door, group="h")
        other = await Member.of(door, "m", group="h")
        await member.fetch(0)
        member.client.send(make("share_fetch", 1, member.fetch_values(epoch=1, max_wait=60_000)))
        assert acquired(await other.fetch(0)) == [(0, 4, 1)]

    run(body)
