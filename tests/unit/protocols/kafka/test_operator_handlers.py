"""What operators ask of a cluster over the wire: moves, elections, brokers that go; and of a broker that has none."""

from typing import Any

import pytest
from tests.doors.kafka import Client, Door, with_door

from penstock.cluster.image import ControllerRecord
from penstock.engine.partition_state import NOBODY
from penstock.protocols.kafka.handlers import elect_leaders

from .operated_cluster import GONE, OperatedCluster, on

UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, TIMED_OUT, BAD_REPLICATION, BAD_ASSIGNMENT = 3, 5, 7, 38, 39
BAD_REQUEST, POLICY, NO_PREFERRED, NO_ELIGIBLE, NOT_NEEDED, NO_REASSIGNMENT, UNKNOWN_BROKER = (
    42,
    44,
    80,
    83,
    84,
    85,
    102,
)
PREFERRED, UNCLEAN = 0, 1
STORE_TIMEOUT_MS = 3000


async def move(
    client: Client, *moves: tuple[int, list[int] | None], version: int = 1, timeout_ms: int = 60_000, **fields: Any
) -> list[tuple[int, int, str | None]]:
    """What became of each, in the order of the answer: partition, error, message."""
    rows = [{"partition_index": index, "replicas": replicas} for index, replicas in moves]
    topics = [{"name": "t", "partitions": rows}]
    answer = await client.ask("alter_partition_reassignments", version, timeout=timeout_ms, topics=topics, **fields)
    assert (answer["error_code"], answer["error_message"]) == (0, None)
    if version >= 1:
        assert answer["allow_replication_factor_change"] == fields.get("allow_replication_factor_change", True)
    (found,) = answer["responses"]
    assert found["name"] == "t"
    return [(each["partition_index"], each["error_code"], each["error_message"]) for each in found["partitions"]]


async def moving(client: Client, *asked: tuple[str, list[int]]) -> dict[tuple[str, int], tuple[Any, Any, Any]]:
    topics = [{"name": name, "partition_indexes": indexes} for name, indexes in asked] if asked else None
    answer = await client.ask("list_partition_reassignments", 0, timeout=60_000, topics=topics)
    assert (answer["error_code"], answer["error_message"]) == (0, None)
    return {
        (topic["name"], each["partition_index"]): (
            tuple(each["replicas"]),
            tuple(each["adding_replicas"]),
            tuple(each["removing_replicas"]),
        )
        for topic in answer["topics"]
        for each in topic["partitions"]
    }


async def elect(
    client: Client, *partitions: int, kind: int = PREFERRED, version: int = 2, everywhere: bool = False
) -> tuple[int, dict[tuple[str, int], tuple[int, str | None]]]:
    wanted = None if everywhere else [{"topic": "t", "partitions": list(partitions)}]
    answer = await client.ask("elect_leaders", version, election_type=kind, topic_partitions=wanted, timeout=60_000)
    return answer.get("error_code", 0), {
        (topic["topic"], each["partition_id"]): (each["error_code"], each["error_message"])
        for topic in answer["replica_election_results"]
        for each in topic["partition_result"]
    }


async def unregister(client: Client, broker_id: int) -> tuple[int, str | None]:
    answer = await client.ask("unregister_broker", 0, broker_id=broker_id)
    return answer["error_code"], answer["error_message"]


# --- moving


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_moves_and_is_listed(version: int) -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2), on(2, 3), on(3, 1))
        assert await moving(client) == {}
        assert await move(client, (0, [3, 2]), (2, [1, 2, 3]), version=version) == [(0, 0, None), (2, 0, None)]
        assert cluster.state(0).target == (3, 2)
        both = {("t", 0): ((3, 2, 1), (3,), (1,)), ("t", 2): ((1, 2, 3), (2,), ())}
        assert await moving(client) == both
        assert await moving(client, ("t", [0, 1]), ("gone", [0])) == {("t", 0): both["t", 0]}

    with_door(body)


def test_a_move_is_taken_back() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2), on(2, 3))
        await move(client, (0, [3, 1]))
        (back, never) = await move(client, (0, None), (1, None))
        assert back == (0, 0, None)
        assert never[:2] == (1, NO_REASSIGNMENT) and "t-1 is not being moved" in str(never[2])
        assert cluster.state(0).target == (1, 2)
        assert await moving(client) == {("t", 0): ((1, 2, 3), (), (3,))}

    with_door(body)


def test_each_partition_is_told_what_is_wrong_with_its_move() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2), on(1, 2), on(1, 2), on(1, 2))
        told = await move(client, (0, [3, 2]), (1, [3, 3]), (2, [GONE, 1]), (3, []), (4, [1]), (4, [2]), (5, [1]))
        assert [code for _, code, _ in told] == [
            *(0, BAD_ASSIGNMENT, BAD_ASSIGNMENT, BAD_ASSIGNMENT),
            *(BAD_REQUEST, UNKNOWN_TOPIC),
        ]
        assert f"broker {GONE} is not there now" in str(told[2][2])
        assert list(await moving(client)) == [("t", 0)]

    with_door(body)


def test_the_number_of_replicas_stays_if_the_request_says_so() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2), on(1, 2))
        (told,) = await move(client, (0, [1, 2, 3]), allow_replication_factor_change=False)
        assert told[:2] == (0, BAD_REPLICATION) and "t-0 has 2 replicas and would have 3" in str(told[2])
        assert await move(client, (0, [1, 3]), allow_replication_factor_change=False) == [(0, 0, None)]
        # It has three replicas now, two of which it will have.
        assert await move(client, (0, [3, 2]), allow_replication_factor_change=False) == [(0, 0, None)]
        assert await move(client, (0, None), allow_replication_factor_change=False) == [(0, 0, None)]

    with_door(body)


def test_who_asked_is_told_when_the_store_does_not_answer_in_time() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2))
        cluster.lose_store()
        (told,) = await move(client, (0, [3, 2]), timeout_ms=STORE_TIMEOUT_MS // 3)
        assert told[:2] == (0, TIMED_OUT) and "not done within 1000 ms" in str(told[2])
        (told,) = await move(client, (0, [3, 2]), timeout_ms=STORE_TIMEOUT_MS * 10)
        assert told[:2] == (0, LEADER_NOT_AVAILABLE) and "did not answer" in str(told[2])

    with_door(body)


# --- electing


@pytest.mark.parametrize("version", range(elect_leaders.API.oldest, elect_leaders.API.newest + 1))
def test_preferred_replicas_lead_again(version: int) -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2, leader=2), on(1, 2), on(1, 2, leader=2, isr=[2]))
        code, told = await elect(client, 0, 1, 2, 9, 0, version=version)
        assert code == 0
        assert {place[1]: error for place, (error, _) in told.items()} == {
            0: 0,
            1: NOT_NEEDED,
            2: NO_PREFERRED,
            9: UNKNOWN_TOPIC,
        }
        assert told["t", 0] == (0, None)
        assert "broker 1 cannot lead t-2" in str(told["t", 2][1])
        assert (cluster.state(0).leader, cluster.state(0).leader_epoch) == (1, 5)

    with_door(body)


def test_of_all_partitions_only_those_are_told_of_that_need_an_election() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2, leader=2), on(1, 2), on(1, 2, leader=2, isr=[2]))
        code, told = await elect(client, everywhere=True)
        assert code == 0
        assert {place: error for place, (error, _) in told.items()} == {("t", 0): 0, ("t", 2): NO_PREFERRED}

    with_door(body)


def test_an_unclean_election_is_for_partitions_nobody_leads() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(
            on(GONE, 2, leader=NOBODY, isr=[GONE]), on(1, 2, leader=2), on(GONE, leader=NOBODY)
        )
        code, told = await elect(client, 0, 1, 2, kind=UNCLEAN)
        assert code == 0
        assert [error for error, _ in told.values()] == [0, NOT_NEEDED, NO_ELIGIBLE]
        state = cluster.state(0)
        assert (state.leader, state.isr, state.forced_epoch) == (2, (2,), state.leader_epoch)

    with_door(body)


def test_an_election_of_another_kind_is_refused() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2, leader=2))
        assert await elect(client, 0, kind=7) == (BAD_REQUEST, {})
        assert cluster.state(0).leader == 2

    with_door(body)


# --- forgetting


def test_only_a_broker_that_is_gone_and_holds_nothing_is_forgotten() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2))
        code, text = await unregister(client, 1)
        assert code == POLICY and "broker 1 holds 1 partitions (t-0)" in str(text)
        code, text = await unregister(client, 3)
        assert code == POLICY and "broker 3 is running; stop it first" in str(text)
        code, text = await unregister(client, 9)
        assert code == UNKNOWN_BROKER and "broker 9 is unknown" in str(text)
        assert await unregister(client, GONE) == (0, None)
        assert GONE not in cluster.image.members
        assert (await unregister(client, GONE))[0] == UNKNOWN_BROKER

    with_door(body)


def test_a_broker_that_has_been_away_for_long_is_still_told_of() -> None:
    """It can be forgotten only by who knows its id."""

    async def ask(client: Client, *, fenced: bool) -> tuple[int, dict[int, tuple[str, bool]]]:
        answer = await client.ask("describe_cluster", 2, endpoint_type=1, include_fenced_brokers=fenced)
        rows = {each["broker_id"]: (each["host"], each["is_fenced"]) for each in answer["brokers"]}
        return answer["controller_id"], rows

    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2))
        there = {each: (f"host{each}", False) for each in (1, 2, 3)}
        assert await ask(client, fenced=False) == (NOBODY, there), "nobody controls it yet"
        assert await ask(client, fenced=True) == (NOBODY, {**there, GONE: ("", True)})
        cluster.image.controller = ControllerRecord(3, 1)
        assert (await ask(client, fenced=False))[0] == 3

    with_door(body)


# --- a broker on its own


def test_a_broker_on_its_own_says_so() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        assert await moving(client) == {}
        (told,) = await move(client, (0, [1]))
        assert told[:2] == (0, BAD_REQUEST) and "runs alone" in str(told[2])
        code, elected = await elect(client, 0)
        assert (code, elected["t", 0][0]) == (0, BAD_REQUEST) and "runs alone" in str(elected["t", 0][1])
        assert await elect(client, everywhere=True) == (BAD_REQUEST, {})
        code, text = await unregister(client, 1)
        assert code == BAD_REQUEST and "runs alone" in str(text)

    with_door(body)
