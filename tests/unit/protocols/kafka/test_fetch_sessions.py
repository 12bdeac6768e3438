"""Incremental fetch sessions (KIP-227), through the door."""

import asyncio
from random import Random

from tests.doors.kafka import Client, Door, base_offsets, batch_of, fetch_values, make, with_door

from penstock.engine.access import Subject
from penstock.protocols.kafka.fetch_sessions import MAX_ERRORS, FetchSessions, Wanted, next_epoch

NOT_FOUND, WRONG_EPOCH, WRONG_KIND = 70, 71, 106


async def two(door: Door) -> Client:
    """A client, and a topic with one record in partition 0 of two."""
    await door.topic(partitions=2)
    client = await door.client()
    await client.produce(batch_of(b"x"))
    return client


def listed(answer: dict) -> dict[int, list[int]]:
    return {
        each["partition_index"]: base_offsets(each["records"])
        for topic in answer["responses"]
        for each in topic["partitions"]
    }


def test_without_a_session_everything_is_answered_every_time() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        for _ in range(2):
            answer = await client.fetch(wanted={"t": {0: 0, 1: 0}})
            assert (answer["session_id"], listed(answer)) == (0, {0: [0], 1: []})
        assert len(door.context.fetch_sessions) == 0

    with_door(body)


def test_a_session_answers_what_changed() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        answer = await client.fetch(wanted={"t": {0: 0, 1: 0}}, session=(0, 0))
        session = answer["session_id"]
        assert session > 0
        assert listed(answer) == {0: [0], 1: []}
        assert listed(await client.fetch(wanted={"t": {0: 1}}, session=(session, 1))) == {}, "nothing is new"
        await client.produce(batch_of(b"y"), partition=1)
        assert listed(await client.fetch(wanted={}, session=(session, 2))) == {1: [0]}
        assert listed(await client.fetch(wanted={"t": {1: 1}}, session=(session, 3))) == {}
        await client.produce(batch_of(b"z"))
        answer = await client.fetch(wanted={}, session=(session, 4))
        assert (answer["session_id"], listed(answer)) == (session, {0: [1]})

    with_door(body)


def test_a_moved_high_watermark_is_told_without_records() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(wanted={"t": {0: 0, 1: 0}}, session=(0, 0)))["session_id"]
        await client.produce(batch_of(b"y"), partition=1)
        answer = await client.fetch(wanted={"t": {0: 1, 1: 1}}, session=(session, 1))
        (row,) = answer["responses"][0]["partitions"]
        assert (row["partition_index"], row["high_watermark"], row["records"]) == (1, 1, b"")

    with_door(body)


def test_forgotten_partitions_are_not_answered() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(wanted={"t": {0: 0, 1: 0}}, session=(0, 0)))["session_id"]
        answer = await client.fetch(wanted={}, forgotten={"t": [0], "x": [5]}, session=(session, 1))
        assert listed(answer) == {}
        await client.produce(batch_of(b"y"))
        await client.produce(batch_of(b"y"), partition=1)
        assert listed(await client.fetch(wanted={}, session=(session, 2))) == {1: [0]}

    with_door(body)


def test_an_added_partition_is_answered_once_without_change() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(wanted={"t": {0: 1}}, session=(0, 0)))["session_id"]
        assert listed(await client.fetch(wanted={"t": {1: 0}}, session=(session, 1))) == {1: []}
        assert listed(await client.fetch(wanted={}, session=(session, 2))) == {}

    with_door(body)


def test_an_error_is_told_every_time() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(wanted={"t": {0: 99, 1: 0}}, session=(0, 0)))["session_id"]
        for epoch in (1, 2):
            answer = await client.fetch(wanted={}, session=(session, epoch), max_wait=60_000)
            assert [row["error_code"] for row in answer["responses"][0]["partitions"]] == [1]
        assert door.clock.monotonic() < 30

    with_door(body)


def test_wrong_epochs_and_unknown_sessions() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(session=(0, 0)))["session_id"]
        for epoch in (2, 7, -5):
            answer = await client.fetch(session=(session, epoch))
            assert (answer["error_code"], answer["responses"]) == (WRONG_EPOCH, ())
        assert (await client.fetch(session=(session, 1)))["error_code"] == 0
        assert (await client.fetch(session=(session, 1)))["error_code"] == WRONG_EPOCH, "each epoch is used once"
        assert (await client.fetch(session=(session + 1, 1)))["error_code"] == NOT_FOUND

    with_door(body)


def test_a_session_is_ended_by_its_client_or_replaced() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        first = (await client.fetch(session=(0, 0)))["session_id"]
        answer = await client.fetch(wanted={}, session=(first, -1))
        assert (answer["error_code"], answer["session_id"]) == (0, 0)
        assert (await client.fetch(session=(first, 1)))["error_code"] == NOT_FOUND
        second = (await client.fetch(session=(0, 0)))["session_id"]
        third = (await client.fetch(session=(second, 0)))["session_id"]
        assert third not in (0, second)
        assert (await client.fetch(session=(second, 1)))["error_code"] == NOT_FOUND
        assert len(door.context.fetch_sessions) == 1

    with_door(body)


def test_names_and_ids_do_not_mix_in_a_session() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        session = (await client.fetch(session=(0, 0)))["session_id"]
        answer = await client.fetch(version=13, wanted={}, session=(session, 1))
        assert answer["error_code"] == WRONG_KIND

    with_door(body)


def test_the_session_longest_unused_goes_first() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        ids = [(await client.fetch(session=(0, 0)))["session_id"] for _ in range(3)]
        assert (await client.fetch(session=(ids[0], 1)))["error_code"] == 0
        ids.append((await client.fetch(session=(0, 0)))["session_id"])
        errors = [(await client.fetch(session=(ids[0], 2)))["error_code"]]
        errors += [(await client.fetch(session=(each, 1)))["error_code"] for each in ids[1:]]
        assert errors == [0, NOT_FOUND, 0, 0]

    with_door(body, sessions=3)


def test_a_served_partition_goes_to_the_end_of_the_line() -> None:
    """With room for one batch an answer, every partition gets its turn."""

    async def body(door: Door) -> None:
        await door.topic(partitions=3)
        client = await door.client()
        for index in range(3):
            for _ in range(3):
                await client.produce(batch_of(b"x" * 1000), partition=index)
        offsets = dict.fromkeys(range(3), 0)
        answer = await client.fetch(wanted={"t": offsets}, max_bytes=1, session=(0, 0))
        served = []
        for epoch in range(1, 10):
            (index,) = [index for index, found in listed(answer).items() if found]
            served.append(index)
            offsets[index] += 1
            if epoch < 9:
                answer = await client.fetch(
                    wanted={"t": {index: offsets[index]}}, max_bytes=1, session=(answer["session_id"], epoch)
                )
        assert sorted(served[:3]) == [0, 1, 2]
        assert offsets == dict.fromkeys(range(3), 3)

    with_door(body)


def test_a_session_waits_for_any_of_its_partitions() -> None:
    async def body(door: Door) -> None:
        client, other = await two(door), await door.client()
        session = (await client.fetch(wanted={"t": {0: 1, 1: 0}}, session=(0, 0)))["session_id"]
        client.send(make("fetch", 12, fetch_values({}, max_wait=60_000, session=(session, 1))))
        await other.produce(batch_of(b"y"), partition=1)
        assert listed((await client.receive("fetch", 12))[1]) == {1: [0]}
        assert door.clock.monotonic() < 30

    with_door(body)


# --- what a fetch costs


def reads(door: Door, topic: str = "t") -> list[int]:
    found = door.engine.topics.get(topic)
    assert found is not None
    return [partition.steps for partition in found.partitions]


async def settled(door: Door, partitions: int) -> tuple[Client, int]:
    """A client that has been told everything about a topic without records; its session, to go on in epoch 2."""
    await door.topic(partitions=partitions)
    client = await door.client()
    wanted = {"t": dict.fromkeys(range(partitions), 0)}
    session = (await client.fetch(wanted=wanted, session=(0, 0)))["session_id"]
    await client.fetch(wanted={}, session=(session, 1))
    return client, session


def test_an_idle_fetch_looks_at_nothing_and_a_wake_up_at_what_moved() -> None:
    async def body(door: Door) -> None:
        client, session = await settled(door, 30)
        before = reads(door)
        for epoch in (2, 3):
            assert listed(await client.fetch(wanted={}, session=(session, epoch), max_wait=50)) == {}
        assert reads(door) == before
        writer = await door.client()
        client.send(make("fetch", 12, fetch_values(wanted={}, session=(session, 4), max_wait=9000)))
        await writer.produce(batch_of(b"x"), partition=7)
        _, answer = await client.receive("fetch", 12)
        assert listed(answer) == {7: [0]}
        moved = [after - each for after, each in zip(reads(door), before, strict=True)]
        assert {index for index, count in enumerate(moved) if count} == {7}
        assert moved[7] == 2, "the record, and the look at it"

    with_door(body)


def test_a_fetch_that_waits_for_more_looks_at_each_partition_when_it_moves() -> None:
    async def body(door: Door) -> None:
        client, session = await settled(door, 20)
        before = reads(door)
        writer = await door.client()
        values = fetch_values(wanted={}, session=(session, 2), max_wait=9000, min_bytes=10_000)
        client.send(make("fetch", 12, values))
        for index in range(20):
            await writer.produce(batch_of(b"x" * 600), partition=index)
        _, answer = await client.receive("fetch", 12)
        assert set(listed(answer)) >= set(range(15))
        assert max(after - each for after, each in zip(reads(door), before, strict=True)) == 2

    with_door(body)


def test_what_is_no_record_is_told_as_well() -> None:
    async def body(door: Door) -> None:
        client, session = await settled(door, 3)
        await client.produce(batch_of(b"x"), partition=1)
        await client.fetch(wanted={}, session=(session, 2))
        assert listed(await client.fetch(wanted={"t": {1: 1}}, session=(session, 3))) == {}
        await door.engine.delete_records(door.engine.topics.partition("t", 1), 1)
        answer = await client.fetch(wanted={}, session=(session, 4))
        (row,) = answer["responses"][0]["partitions"]
        assert (row["partition_index"], row["log_start_offset"]) == (1, 1)
        topic = door.engine.topics.get("t")
        assert topic is not None
        await door.engine.delete_topic(topic)
        for epoch in (5, 6):
            answer = await client.fetch(wanted={}, session=(session, epoch), max_wait=9000)
            assert {row["error_code"] for row in answer["responses"][0]["partitions"]} == {3}
        await door.topic(partitions=3)
        answer = await client.fetch(wanted={"t": {1: 0}}, session=(session, 7))
        assert {row["error_code"] for row in answer["responses"][0]["partitions"]} == {0}
        await client.produce(batch_of(b"new"), partition=2)
        assert listed(await client.fetch(wanted={}, session=(session, 8), max_wait=9000)) == {2: [0]}

    with_door(body)


def test_a_session_of_partitions_that_cannot_be_read_is_closed_with_the_answer() -> None:
    async def body(door: Door) -> None:
        client, session = await settled(door, 2)
        many = {"u": dict.fromkeys(range(MAX_ERRORS), 0)}
        answer = await client.fetch(wanted=many, session=(session, 2))
        assert (answer["error_code"], answer["session_id"]) == (0, session)
        answer = await client.fetch(wanted={"v": {0: 0}}, session=(session, 3))
        assert (answer["error_code"], answer["session_id"]) == (0, 0)
        assert sum(len(topic["partitions"]) for topic in answer["responses"]) == MAX_ERRORS + 1
        assert (await client.fetch(wanted={}, session=(session, 4)))["error_code"] == NOT_FOUND
        answer = await client.fetch(wanted={**many, "v": {0: 0}, "t": {0: 0}}, session=(0, 0))
        assert (answer["error_code"], answer["session_id"]) == (0, 0), "served, and not kept"
        assert len(answer["responses"]) == 3
        assert len(door.context.fetch_sessions) == 0
        topic = door.engine.topics.get("t")
        assert topic is not None
        assert not any(partition.waiters._readers for partition in topic.partitions)

    with_door(body)


def test_a_partition_listed_often_is_read_and_answered_once() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        values = fetch_values(wanted={"t": {0: 0}})
        values["topics"] = [values["topics"][0]] * 500
        before = reads(door)
        client.send(make("fetch", 12, values))
        _, answer = await client.receive("fetch", 12)
        assert [len(topic["partitions"]) for topic in answer["responses"]] == [1]
        assert reads(door)[0] - before[0] == 1

    with_door(body)


def test_nothing_is_left_of_who_is_gone() -> None:
    async def body(door: Door) -> None:
        client, session = await settled(door, 4)
        topic = door.engine.topics.get("t")
        assert topic is not None
        assert all(partition.waiters._readers for partition in topic.partitions)
        client.send(make("fetch", 12, fetch_values(wanted={}, session=(session, 2), max_wait=50)))
        await asyncio.sleep(0.02)  # of virtual time: it waits
        door.context.fetch_sessions.end(session)
        _, answer = await client.receive("fetch", 12)
        assert answer["error_code"] == 0
        assert not any(partition.waiters._readers for partition in topic.partitions)
        for _ in range(2):
            await client.fetch(wanted={"t": dict.fromkeys(range(4), 0)}, max_wait=20)
        assert not any(partition.waiters._readers for partition in topic.partitions)

    with_door(body)


def test_a_session_tells_all_that_one_who_looks_at_everything_would() -> None:
    async def body(door: Door, random: Random) -> None:
        client, session = await settled(door, 6)
        positions, epoch, told = dict.fromkeys(range(6), 0), 2, dict.fromkeys(range(6), (0, 0))
        for _ in range(60):
            for _ in range(random.randrange(3)):
                await client.produce(batch_of(b"x"), partition=random.randrange(6))
            if random.random() < 0.3:
                partition = door.engine.topics.partition("t", random.randrange(6))
                await door.engine.delete_records(partition, random.randint(0, partition.high_watermark))
            changes, forgotten = {}, {}
            if random.random() < 0.5:
                index = random.randrange(6)
                if index in positions and random.random() < 0.3:
                    del positions[index]
                    forgotten = {"t": [index]}
                    told.pop(index)
                else:
                    positions[index] = changes[index] = door.engine.topics.partition("t", index).high_watermark
            answer = await client.fetch(
                wanted={"t": changes} if changes else {},
                forgotten=forgotten,
                session=(session, epoch),
                max_wait=random.choice((0, 5)),
            )
            epoch += 1
            now, due = {}, set()
            for index, position in positions.items():
                partition = door.engine.topics.partition("t", index)
                now[index] = (partition.high_watermark, partition.leading().log_start)
                if position < now[index][0] or told.get(index) != now[index]:
                    due.add(index)
            assert set(listed(answer)) == due
            for topic in answer["responses"]:
                for row in topic["partitions"]:
                    index = row["partition_index"]
                    told[index] = now[index] if row["error_code"] == 0 else (-1, -1)

    for seed in range(10):
        with_door(lambda door, seed=seed: body(door, Random(seed)))  # type: ignore[misc]


def test_epochs_go_round() -> None:
    assert next_epoch(1) == 2
    assert next_epoch((1 << 31) - 1) == 1


def test_ids_are_never_zero_nor_taken() -> None:
    class Stuck:
        def __init__(self) -> None:
            self.given = [0, 5, 5, 0, 6]

        def getrandbits(self, count: int) -> int:
            return self.given.pop(0)

    sessions = FetchSessions(Stuck())  # type: ignore[arg-type]
    assert [sessions.begin([], False).session_id for _ in range(2)] == [5, 6]


def test_an_update_keeps_what_was_told() -> None:
    sessions = FetchSessions(Random(0))
    session = sessions.begin([Wanted(b"t", 0, 0, 10)], False)
    session.wanted[b"t", 0].told = (1, 2, 3)
    session.update([Wanted(b"t", 0, 9, 10)], [])
    assert session.wanted[b"t", 0].fetch_offset == 9
    assert session.wanted[b"t", 0].told == (1, 2, 3)


def test_a_table_full_of_partitions_drops_the_session_longest_unused() -> None:
    sessions = FetchSessions(Random(1), max_partitions=10)
    first = sessions.begin([Wanted(b"t", index, 0, 1) for index in range(6)], uses_ids=False)
    second = sessions.begin([Wanted(b"u", index, 0, 1) for index in range(4)], uses_ids=False)
    assert len(sessions) == 2
    assert sessions.get(first.session_id) is first
    sessions.update(first, [Wanted(b"v", 0, 0, 1)], [])
    assert sessions.get(second.session_id) is None
    assert sessions.get(first.session_id) is first
    sessions.update(first, [], [(b"t", index) for index in range(6)])
    sessions.begin([Wanted(b"u", index, 0, 1) for index in range(9)], uses_ids=False)
    assert len(sessions) == 2
    sessions.end(first.session_id)
    sessions.begin([Wanted(b"w", 0, 0, 1)], uses_ids=False)
    assert len(sessions) == 2


ALICE, EVE = Subject("User:alice", host="10.0.0.1"), Subject("User:eve", host="10.0.0.2")


def test_who_has_most_sessions_makes_room() -> None:
    """One user could else end all sessions of others, again and again."""
    sessions = FetchSessions(Random(1), capacity=10)
    mine = [sessions.begin([Wanted(b"t", 0, 0, 1)], False, ALICE) for _ in range(4)]
    theirs = [sessions.begin([], False, EVE._replace(host=str(number))) for number in range(100)]
    assert len(sessions) == 10
    assert [sessions.get(each.session_id, ALICE) for each in mine] == mine
    assert [sessions.get(each.session_id, EVE) for each in theirs if not each.is_over] == theirs[-6:]
    more = [sessions.begin([], False, ALICE) for _ in range(4)]
    assert [each.is_over for each in (*mine, *more)] == [True] * 3 + [False] * 5, "half of the room is hers"
    assert sum(not each.is_over for each in theirs) == 5


def test_who_has_most_partitions_makes_room() -> None:
    sessions = FetchSessions(Random(1), max_partitions=100)
    mine = sessions.begin([Wanted(b"t", index, 0, 1) for index in range(40)], False, ALICE)
    theirs = [sessions.begin([Wanted(b"t", each, 0, 1) for each in range(30)], False, EVE) for _ in range(10)]
    assert not mine.is_over and [each.is_over for each in theirs] == [True] * 8 + [False] * 2
    sessions.update(mine, [Wanted(b"u", index, 0, 1) for index in range(30)], [])
    assert mine.is_over, "now that is most"
    assert sessions._partitions == 60 and sessions._partitions_of == {"User:eve": 60}
    for each in theirs:
        sessions.end(each.session_id, EVE)
    assert (len(sessions), sessions._partitions) == (0, 0) and not sessions._sessions_of and not sessions._partitions_of


def test_a_session_of_another_user_is_answered_as_one_that_is_not_there() -> None:
    async def body(door: Door) -> None:
        client = await two(door)
        opened = await client.fetch(wanted={"t": {0: 0}}, session=(0, 0))
        session = door.context.fetch_sessions._sessions[opened["session_id"]]
        session.owner = ALICE
        unknown = next(each for each in range(1, 3) if each != opened["session_id"])
        answers = {}
        for session_id in (opened["session_id"], unknown):
            answers[session_id] = [
                await client.fetch(wanted=wanted, session=(session_id, epoch))
                for epoch in (1, 2, 7, -1)
                for wanted in ({}, {"t": {0: 0}})
            ]
        assert answers[unknown] == answers[opened["session_id"]]
        assert {each["error_code"] for each in answers[unknown]} == {NOT_FOUND, 0}
        assert session.epoch == 1 and not session.is_over and len(door.context.fetch_sessions) == 1

    with_door(body)
