"""What a listener that asks who somebody is does with those who do not say, say it wrong, or are not welcome any more.

Nothing but the login is answered before it, in little memory and little time; who guesses learns nothing; and who has
lost a right, a password or itself gets no acknowledgement and no byte more.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import pytest
from tests.doors.kafka import Door, batch_of, fetch_values, make, with_door
from tests.doors.logins import (
    MECHANISMS,
    PLAIN,
    SHA_256,
    SHA_512,
    allow,
    guard_door,
    has_ended,
    hashing,
    log_in,
    somebody,
    stranger,
)
from tests.unit.protocols.kafka.group_client import join_fields
from tests.unit.protocols.kafka.test_denied import CASES, codes_in
from tests.unit.security.scram_client import ScramClient

from penstock.engine.access import Kind, Operation
from penstock.engine.publishing import ALL as ALL_IN_SYNC
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka_wire.guest import LARGEST_BEFORE_LOGIN, LOGIN_S
from penstock.security.guard import Guard
from penstock.security.modes import Mode
from penstock.security.rules import Filter, Match, Pattern
from penstock.security.scram import Mechanism
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import MemoryStore

FAILED, ILLEGAL_STATE, NOT_SPOKEN = 58, 34, 33
T, G, C, X = 29, 30, 31, 53
BEFORE_LOGIN = ("api_versions", "sasl_handshake", "sasl_authenticate")
ANY_RULE = Filter(None, None, None, None, Match.ANY, None, None)
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def run(body: Callable[[Door, Guard], Awaitable[None]], *, mode: Mode = Mode.CLOSED) -> None:
    """With a topic, and alice, who may do everything with it, with all groups and all transactions."""

    async def main(door: Door) -> None:
        await door.topic()
        guard = await guard_door(door, mode=mode)
        await guard.users.create("alice", Secret(b"secret"))
        await guard.rules.create(
            [allow("alice", Operation.ALL, kind, "*") for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID)]
        )
        try:
            await body(door, guard)
        finally:
            await guard.stop()

    with_door(main)


# --- before the login


@pytest.mark.parametrize("api", [each.name for each in APIS if each.name not in BEFORE_LOGIN])
def test_nothing_is_answered_before_the_login(api: str) -> None:
    version, values, *_ = CASES.get(api, [(0, {}, ())])[0]

    async def body(door: Door, guard: Guard) -> None:
        for choice in (None, SHA_256):
            client = await stranger(door)
            await client.ask("api_versions", 3, client_software_name="x", client_software_version="1")
            if choice is not None:
                await client.ask("sasl_handshake", 1, mechanism=choice)
            client.send(make(api, version, values))
            assert await has_ended(client)

    run(body)


def test_large_frames_close_before_the_login_and_pass_after_it() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        client.stream.send(struct.pack(">i", LARGEST_BEFORE_LOGIN + 1))
        assert await has_ended(client)
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=PLAIN)
        most = LARGEST_BEFORE_LOGIN - 100
        answer = await client.ask("sasl_authenticate", 2, auth_bytes=b"x" * most)
        assert answer["error_code"] == FAILED
        client = await somebody(door, "alice")
        assert (await client.produce(batch_of(b"x" * 2 * LARGEST_BEFORE_LOGIN)))["error_code"] == 0

    run(body)


def test_who_does_not_log_in_within_ten_seconds_is_parted_with() -> None:
    async def body(door: Door, guard: Guard) -> None:
        silent, chosen, dripping = [await stranger(door) for _ in range(3)]
        await chosen.ask("sasl_handshake", 1, mechanism=SHA_256)
        first = ScramClient(Mechanism.SHA_256, "alice", "secret").first()
        await chosen.ask("sasl_authenticate", 2, auth_bytes=first)
        here = await somebody(door, "alice")
        dripping.stream.send(struct.pack(">i", 1000))
        for _ in range(9):
            await asyncio.sleep(1)
            dripping.stream.send(b"\0")
            await chosen.ask("api_versions", 0)
        assert not silent.stream.over and not chosen.stream.over
        ends = asyncio.gather(*map(has_ended, (silent, chosen, dripping)))
        assert await asyncio.wait_for(ends, LOGIN_S - 9 + 0.5) == [True, True, True]
        await asyncio.sleep(LOGIN_S)
        assert (await here.produce(batch_of(b"x")))["error_code"] == 0

    run(body)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "scram-sha-256", "SCRAM-SHA-1", "ANONYMOUS", "x" * 1000])
def test_a_mechanism_that_is_not_spoken_ends_it(mechanism: str) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        answer = await client.ask("sasl_handshake", 1, mechanism=mechanism)
        assert (answer["error_code"], set(answer["mechanisms"])) == (NOT_SPOKEN, {*MECHANISMS})
        assert await has_ended(client)

    run(body)


def test_the_oldest_handshake_is_said_to_be_spoken_and_refused() -> None:
    """librdkafka knows by it that there is SASL, and then speaks the newer one."""

    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        spoken = await client.ask("api_versions", 3, client_software_name="x", client_software_version="1")
        (versions,) = [each for each in spoken["api_keys"] if each["api_key"] == 17]
        assert (versions["min_version"], versions["max_version"]) == (0, 1)
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}), version=0)
        assert await has_ended(client)

    run(body)


def test_steps_out_of_order_end_it() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret"))["error_code"] == FAILED
        assert await has_ended(client)

        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=SHA_256)
        assert (await client.ask("sasl_handshake", 1, mechanism=PLAIN))["error_code"] == ILLEGAL_STATE
        assert await has_ended(client)

        scram = ScramClient(Mechanism.SHA_256, "alice", "secret")
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=SHA_256)
        final = scram.final(b"r=fyko+d2lbbFgONRv9qkxdawLx,s=QSXCR+Q6sek8bf92,i=4096")
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=final))["error_code"] == FAILED
        assert await has_ended(client)

        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=SHA_256)
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=scram.first()))["error_code"] == 0
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=scram.first()))["error_code"] == FAILED
        assert await has_ended(client)

    run(body)


def test_steps_sent_before_their_time_let_nobody_in() -> None:
    """All at once: the answers come in order, and what was to follow the login is not even looked at."""

    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
        for said in (b"\0alice\0wrong", b"\0alice\0secret", b"\0alice\0secret"):
            client.send(make("sasl_authenticate", 2, {"auth_bytes": said}))
        assert (await client.receive("sasl_handshake", 1))[1]["error_code"] == 0
        codes = []
        while True:
            try:
                codes.append((await client.receive("sasl_authenticate", 2))[1]["error_code"])
            except (OSError, asyncio.IncompleteReadError):
                break
        assert set(codes) <= {FAILED}
        assert not guard._inside

        client = await stranger(door)
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
        client.send(make("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0secret"}))
        client.send(make("metadata", 9, {"topics": None}))
        with suppress(OSError):  # the end may overtake the answer
            assert (await client.receive("sasl_handshake", 1))[1]["error_code"] == 0
        assert await has_ended(client)

    run(body)


def test_a_second_message_while_the_first_is_looked_at_lets_nobody_in() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        client.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
        client.send(make("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0secret"}))
        client.send(make("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0secret"}))
        assert (await client.receive("sasl_handshake", 1))[1]["error_code"] == 0
        assert await has_ended(client)
        assert not guard._inside

    run(body)


def test_the_last_message_of_a_login_is_worth_nothing_a_second_time() -> None:
    async def body(door: Door, guard: Guard) -> None:
        scram = ScramClient(Mechanism.SHA_256, "alice", "secret")
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=SHA_256)
        told = (await client.ask("sasl_authenticate", 2, auth_bytes=scram.first()))["auth_bytes"]
        final = scram.final(told)
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=final))["error_code"] == 0
        other = await stranger(door)
        await other.ask("sasl_handshake", 1, mechanism=SHA_256)
        again = (await other.ask("sasl_authenticate", 2, auth_bytes=scram.first()))["auth_bytes"]
        assert again != told
        assert (await other.ask("sasl_authenticate", 2, auth_bytes=final))["error_code"] == FAILED
        assert await has_ended(other)

    run(body)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_is_in_cannot_log_in_again(mechanism: str) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await somebody(door, "alice", mechanism)
        for again in MECHANISMS:
            assert (await client.ask("sasl_handshake", 1, mechanism=again))["error_code"] == ILLEGAL_STATE
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=b"\0bob\0secret"))["error_code"] == ILLEGAL_STATE
        assert (await client.produce(batch_of(b"x")))["error_code"] == 0

    run(body)


# --- wrong proofs


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_and_an_unknown_user_look_alike(mechanism: str) -> None:
    async def body(door: Door, guard: Guard) -> None:
        await guard.users.create("alina", Secret(b"secret"))
        await guard.users.alter("alina", is_enabled=False)
        await guard.users.create("elise", None)
        told = []
        for user in ("alice", "nobod", "alina", "elise"):
            client = await stranger(door)
            begun = door.clock.monotonic()
            *before, last = await log_in(client, mechanism, user, "secret" if user == "alina" else "wrong")
            lasted = door.clock.monotonic() - begun
            assert 1 <= lasted < 1.1, "late, and no later for one than for another"
            said = [{**each, "auth_bytes": len(each.get("auth_bytes", b""))} for each in before]
            told.append((said, last))
            assert await has_ended(client)
        assert told[0][1]["error_code"] == FAILED
        assert all(each == told[0] for each in told[1:]), told

    run(body)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"\0alice\0secret", 0),
        (b"alice\0alice\0secret", 0),
        (b"bob\0alice\0secret", FAILED),
        (b"Broker:\0alice\0secret", FAILED),
        (b"*\0alice\0secret", FAILED),
        (b"\0alice\0secret\0", FAILED),
        (b"\0alice\0secret\0\0", FAILED),
        (b"\0\0", FAILED),
        (b"\0alice\0", FAILED),
        (b"alice\0secret", FAILED),
        (b"\0ALICE\0secret", FAILED),
        (b"\0alice \0secret", FAILED),
        (b"\0alice\0secret ", FAILED),
        (b"\0al\xffce\0secret", FAILED),
        (b"", FAILED),
    ],
)
def test_what_plain_may_say(said: bytes, code: int) -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await stranger(door)
        await client.ask("sasl_handshake", 1, mechanism=PLAIN)
        assert (await client.ask("sasl_authenticate", 2, auth_bytes=said))["error_code"] == code

    run(body)


def test_a_user_named_like_a_broker_is_none() -> None:
    async def body(door: Door, guard: Guard) -> None:
        door.context.cluster = True
        for name in ("Broker:", "Broker:1", "Role:admin", "User:alice"):
            await guard.users.create(name, Secret(b"secret"))
            client = await somebody(door, name)
            for api in ("write_txn_markers", "describe_acls", "produce", "fetch"):
                version, values, *_ = CASES[api][0]
                answer = await client.ask(api, version, **values)
                assert {T, C} & set(codes_in(answer)), (name, api, answer)
            version, values, *_ = CASES["add_partitions_to_txn"][1]
            assert C in codes_in(await client.ask("add_partitions_to_txn", version, **values))

    run(body)


def test_many_bad_logins_do_not_keep_others_waiting() -> None:
    async def body(door: Door, guard: Guard) -> None:
        attackers = [await stranger(door) for _ in range(200)]
        for number, each in enumerate(attackers):
            each.send(make("sasl_handshake", 1, {"mechanism": PLAIN}))
            each.send(make("sasl_authenticate", 2, {"auth_bytes": f"\0user{number}\0wrong".encode()}))
        await asyncio.sleep(0.01)
        begun = door.clock.monotonic()
        await somebody(door, "alice", SHA_512)
        assert door.clock.monotonic() - begun < 0.1
        await somebody(door, "alice", PLAIN)
        assert door.clock.monotonic() - begun < 0.5
        assert hashing(guard).most <= 4
        for each in attackers:
            assert (await each.receive("sasl_handshake", 1))[1]["error_code"] == 0
            assert (await each.receive("sasl_authenticate", 2))[1]["error_code"] == FAILED
            assert await has_ended(each)

    run(body)


def test_who_leaves_while_its_password_is_looked_at_is_not_kept() -> None:
    async def body(door: Door, guard: Guard) -> None:
        for hashed in (True, False, True):
            client = await stranger(door)
            await client.ask("sasl_handshake", 1, mechanism=PLAIN)
            client.send(make("sasl_authenticate", 2, {"auth_bytes": b"\0alice\0secret"}))
            if hashed:
                await hashing(guard).began.wait()
            client.stream.abort()
        await asyncio.sleep(1)
        assert not guard._inside

    run(body)


# --- what is taken away

Change = Callable[[Guard], Awaitable[object]]
GONE: dict[str, Change] = {
    "deleted": lambda guard: guard.users.delete("alice"),
    "disabled": lambda guard: guard.users.alter("alice", is_enabled=False),
    "another password": lambda guard: guard.users.set_password("alice", Secret(b"other")),
}


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_who_is_gone_gets_nothing_more(how: str, mechanism: str) -> None:
    async def body(door: Door, guard: Guard) -> None:
        first, parked, produces, adds = [await somebody(door, "alice", mechanism) for _ in range(4)]
        await first.produce(batch_of(b"a"))
        await first.ask("find_coordinator", 4, key_type=1, coordinator_keys=["x"])
        identity = await first.ask(
            "init_producer_id", 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create([allow("bob", Operation.ALL, Kind.TOPIC, "*")])
        bystander = await somebody(door, "bob", mechanism)
        end = door.engine.topics.partition("t", 0).high_watermark
        parking = asyncio.ensure_future(parked.fetch(wanted={"t": {0: end}}, max_wait=60_000))
        await asyncio.sleep(0.5)
        await GONE[how](guard)
        begun = door.clock.monotonic()
        for each in (first, produces, adds):
            assert await has_ended(each)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await parking
        assert door.clock.monotonic() - begun < 1
        assert (await bystander.produce(batch_of(b"x")))["error_code"] == 0
        assert not await has_transaction(door, identity["producer_id"])
        again = await stranger(door)
        assert (await log_in(again, mechanism, "alice"))[-1]["error_code"] == FAILED

    run(body)


async def has_transaction(door: Door, producer_id: int) -> bool:
    partition = door.engine.topics.partition("t", 0)
    return partition.stable_offset < partition.high_watermark


def test_who_is_gone_is_not_served_from_what_it_has_sent_before() -> None:
    """Neither is anything published that still waits to be read, nor does an answer go on to one who reads slowly."""

    async def body(door: Door, guard: Guard) -> None:
        loader = await somebody(door, "alice")
        await loader.produce(batch_of(b"s" * 500_000))
        slow = await somebody(door, "alice", window_bytes=1000)
        slow.send(make("fetch", 12, {**dict(CASES["fetch"][0].values)}))
        await asyncio.sleep(1)
        assert slow.stream.other.unsent > 100_000
        await guard.users.delete("alice")
        end = door.engine.topics.partition("t", 0).end_offset
        got = 0
        with suppress(OSError, asyncio.IncompleteReadError):
            while await slow.stream.receive_exactly(1000):
                got += 1000
        assert got < 10_000
        assert door.engine.topics.partition("t", 0).end_offset == end

    run(body)


def test_a_fetch_that_has_found_something_tells_nothing_of_it_once_it_may_not() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await somebody(door, "alice")
        await client.produce(batch_of(b"hidden"))
        parking = asyncio.ensure_future(client.fetch(max_wait=5_000, min_bytes=1 << 20))
        await asyncio.sleep(1)
        await guard.rules.delete([ANY_RULE])
        answer = await parking
        assert "hidden" not in repr(answer) and set(codes_in(answer)) == {0, T}

    run(body)


def test_a_fetch_that_waits_for_something_does_not_see_it_come() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await somebody(door, "alice")
        parking = asyncio.ensure_future(client.fetch(max_wait=5_000))
        await asyncio.sleep(1)
        await guard.rules.delete([ANY_RULE])
        publication = door.engine.publishing.begin(ALL_IN_SYNC, 1, lambda publication: None)
        publication.add(door.engine.topics.partition("t", 0), memoryview(bytearray(batch_of(b"hidden"))))
        publication.wait()
        answer = await parking
        assert "hidden" not in repr(answer) and set(codes_in(answer)) == {0, T}

    run(body)


def test_a_fetch_session_does_not_outlive_the_right() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await somebody(door, "alice")
        opened = await client.fetch(session=(0, 0))
        await client.produce(batch_of(b"hidden"))
        await guard.rules.delete([ANY_RULE])
        answer = await client.fetch(wanted={}, session=(opened["session_id"], 1))
        assert "hidden" not in repr(answer) and T in codes_in(answer)
        await guard.users.create("bob", Secret(b"secret"))
        other = await somebody(door, "bob")
        stolen = await other.fetch(wanted={}, session=(opened["session_id"], 2))
        assert stolen["error_code"] == 70, "a session is of who began it"

    run(body)


def test_a_member_that_waits_for_others_is_not_told_of_them_once_it_may_not() -> None:
    async def body(door: Door, guard: Guard) -> None:
        one, two = await somebody(door, "alice"), await somebody(door, "alice")
        await one.ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
        first = await one.ask("join_group", 3, **join_fields(session_timeout=30_000, rebalance_timeout=30_000))
        assert first["error_code"] == 0
        await one.ask("sync_group", 3, group_id="g", generation_id=first["generation_id"], member_id=first["member_id"])
        joining = asyncio.ensure_future(
            two.ask("join_group", 3, **join_fields(session_timeout=30_000, rebalance_timeout=5_000))
        )
        await asyncio.sleep(1)
        await guard.rules.delete([ANY_RULE])
        answer = await joining
        assert answer["error_code"] == G and not answer["members"]

    run(body)


def test_a_regular_expression_shows_nothing_that_is_hidden() -> None:
    async def body(door: Door, guard: Guard) -> None:
        hidden, shown = await door.topic("hidden"), await door.topic("shown")
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create(
            [allow("bob", READ, Kind.GROUP, "c"), allow("bob", DESCRIBE, Kind.TOPIC, "shown")],
        )
        bob = await somebody(door, "bob")
        await bob.ask("find_coordinator", 4, key_type=0, coordinator_keys=["c"])
        values = {"group_id": "c", "member_id": "m", "rebalance_timeout": 1000, "topic_partitions": ()}
        answer = await bob.ask(
            "consumer_group_heartbeat", 1, **values, member_epoch=0, subscribed_topic_regex="hidden|shown"
        )
        assert answer["error_code"] == 0
        told = [each["topic_id"] for each in answer["assignment"]["topic_partitions"]]
        assert told == [shown.topic_id] and str(hidden.topic_id) not in repr(answer)
        alice = await somebody(door, "alice")
        await alice.ask("find_coordinator", 4, key_type=0, coordinator_keys=["d"])
        answer = await alice.ask(
            "consumer_group_heartbeat",
            1,
            **{**values, "group_id": "d"},
            member_epoch=0,
            subscribed_topic_regex="hidden|shown",
        )
        told = [each["topic_id"] for each in answer["assignment"]["topic_partitions"]]
        assert {*told} == {hidden.topic_id, shown.topic_id}

    run(body)


def test_nobody_finds_hidden_topics_by_regular_expressions() -> None:
    """Neither what a member gets, nor what is told of its group, depends on whether there is such a topic."""

    async def body(door: Door, guard: Guard) -> None:
        await door.topic("hidden")
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create([allow("bob", READ, Kind.GROUP, "g", pattern=Pattern.PREFIXED)])
        bob, alice = await somebody(door, "bob"), await somebody(door, "alice")
        described, alices = [], {}
        for group, regex in (("g1", "hidden"), ("g2", "absent")):
            await bob.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
            joining = {"group_id": group, "member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": ()}
            told = await bob.ask(
                "consumer_group_heartbeat", 1, member_id="bob", subscribed_topic_regex=regex, **joining
            )
            assert (told["error_code"], told["assignment"]) == (0, {"topic_partitions": ()})
            answer = await bob.ask("consumer_group_describe", 1, group_ids=[group])
            described.append(repr(answer).replace(group, "").replace(regex, ""))
            alices[group] = await alice.ask(
                "consumer_group_heartbeat", 1, member_id="alice", subscribed_topic_regex="hidden", **joining
            )
        assert described[0] == described[1] and [*codes_in(answer)] == [0]
        assert len(alices["g1"]["assignment"]["topic_partitions"]) == 1, "who may see it gets it"
        answer = await bob.ask("consumer_group_describe", 1, group_ids=["g1"])
        assert [*codes_in(answer)] == [T] and "hidden" not in repr(answer)

    run(body)


BY_ID: dict[tuple[str, int], Callable[[UUID], dict]] = {
    ("produce", 13): lambda topic_id: {
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch_of(b"x")}]}],
    },
    ("fetch", 13): lambda topic_id: fetch_values({topic_id: {0: 0}}, min_bytes=0),
    ("metadata", 12): lambda topic_id: {"topics": [{"topic_id": topic_id, "name": None}]},
    ("delete_topics", 6): lambda topic_id: {"topics": [{"topic_id": topic_id, "name": None}], "timeout": 1000},
    ("offset_commit", 10): lambda topic_id: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"topic_id": topic_id, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    ("offset_fetch", 10): lambda topic_id: {
        "groups": [{"group_id": "g", "topics": [{"topic_id": topic_id, "partition_indexes": [0]}]}]
    },
}


@pytest.mark.parametrize(("api", "version"), BY_ID)
def test_who_names_a_topic_by_its_id_is_told_no_name(api: str, version: int) -> None:
    async def body(door: Door, guard: Guard) -> None:
        hidden = await door.topic("hidden")
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create([allow("bob", READ, Kind.GROUP, "g")])
        bob = await somebody(door, "bob")
        await bob.ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
        answer = await bob.ask(api, version, **BY_ID[api, version](hidden.topic_id))
        assert T in codes_in(answer) and "hidden" not in repr(answer)

    run(body)


def test_how_large_a_fetch_may_be_tells_nothing_of_hidden_topics() -> None:
    """Whoever sees more partitions may name more of them."""

    async def body(door: Door, guard: Guard) -> None:
        await door.topic("hidden", partitions=600)
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create([allow("bob", READ, Kind.TOPIC, "t")])
        named: dict[str | UUID, dict[int, int]] = {"t": dict.fromkeys(range(2500), 0)}
        alice, bob = await somebody(door, "alice"), await somebody(door, "bob")
        assert 0 in codes_in(await alice.fetch(wanted=named, max_wait=0))
        bob.send(make("fetch", 12, fetch_values(named, max_wait=0)))
        assert await has_ended(bob)
        await guard.rules.create([allow("bob", DESCRIBE, Kind.TOPIC, "hidden")])
        bob = await somebody(door, "bob")
        assert 0 in codes_in(await bob.fetch(wanted=named, max_wait=0))

    run(body)


def test_a_transaction_takes_and_ends_nothing_once_it_may_not() -> None:
    async def body(door: Door, guard: Guard) -> None:
        client = await somebody(door, "alice")
        await client.ask("find_coordinator", 4, key_type=1, coordinator_keys=["x"])
        identity = await client.ask(
            "init_producer_id", 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        producer = {key: identity[key] for key in ("producer_id", "producer_epoch")}
        added = await client.ask(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            **{f"v3_and_below_{key}": value for key, value in producer.items()},
        )
        assert set(codes_in(added)) == {0}

        async def write(transactional_id: str | None, sequence: int) -> int:
            batch = batch_of(b"x", transactional=True, base_sequence=sequence, **producer)
            values = {
                "transactional_id": transactional_id,
                "acks": -1,
                "timeout": 1000,
                "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
            }
            answer = await client.ask("produce", 9, **values)
            return int(answer["responses"][0]["partition_responses"][0]["error_code"])

        assert await write("x", 0) == 0
        assert await write(None, 1) == X, "nobody writes in a transaction without its id"
        await guard.rules.delete([Filter(None, None, None, Kind.TRANSACTIONAL_ID, Match.ANY, None, None)])
        end = door.engine.topics.partition("t", 0).end_offset
        assert await write("x", 1) == X
        assert await write(None, 1) == X
        answer = await client.ask("end_txn", 3, transactional_id="x", committed=True, **producer)
        assert answer["error_code"] == X
        assert door.engine.topics.partition("t", 0).end_offset == end

    run(body)


# --- beside it


def test_nobody_at_the_other_listener_may_do_anything_in_closed_mode() -> None:
    async def body(door: Door, guard: Guard) -> None:
        anonymous = await door.client()
        assert (await anonymous.produce(batch_of(b"x")))["error_code"] == T
        assert (await anonymous.ask("metadata", 9, topics=None))["topics"] == ()
        assert (await anonymous.ask("sasl_handshake", 1, mechanism=PLAIN))["error_code"] == ILLEGAL_STATE
        answer = await anonymous.ask("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
        assert answer["error_code"] == ILLEGAL_STATE
        assert (await anonymous.produce(batch_of(b"x")))["error_code"] == T
        await guard.rules.create([allow("ANONYMOUS", WRITE, Kind.TOPIC, "t")])
        assert (await anonymous.produce(batch_of(b"x")))["error_code"] == 0
        await guard.users.create("bob", Secret(b"secret"))
        bob = await somebody(door, "bob")
        assert (await bob.produce(batch_of(b"x")))["error_code"] == T, "what nobody may is not for everybody"

    run(body)


def test_watch_lets_pass_and_counts_what_would_be_refused() -> None:
    async def body(door: Door, guard: Guard) -> None:
        await guard.users.create("bob", Secret(b"secret"))
        bob, alice = await somebody(door, "bob"), await somebody(door, "alice")
        for client in (bob, alice):
            assert (await client.produce(batch_of(b"x")))["error_code"] == 0
        assert {(each.principal, each.operation) for each in guard.loader.refusals.listed} == {("User:bob", WRITE)}
        wrong = await log_in(await stranger(door), SHA_256, "bob", "wrong")
        assert wrong[-1]["error_code"] == FAILED, "who somebody is has to be proved all the same"
        await bob.ask(
            "metadata",
            9,
            topics=[{"name": "t"}],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        noted = {each.operation for each in guard.loader.refusals.listed}
        assert noted == {WRITE, DESCRIBE}, "to be told what one may do is no attempt to do it"

    run(body, mode=Mode.WATCH)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("api", ["create_acls", "delete_acls", "alter_user_scram_credentials"])
def test_nobody_makes_itself_an_administrator_whatever_the_mode(api: str, mode: Mode) -> None:
    version, values, *_ = CASES[api][0]

    async def body(door: Door, guard: Guard) -> None:
        def changed() -> int:
            return guard.loader.directory.revision  # type: ignore[union-attr]

        await guard.users.create("bob", Secret(b"secret"))
        await guard.users.create("chief", Secret(b"secret"), roles=["admin"])
        before = changed()
        for client in (await somebody(door, "bob"), await somebody(door, "alice"), await door.client()):
            answer = await client.ask(api, version, **values)
            assert {*codes_in(answer)} - {0} == {C}, answer
        assert changed() == before
        answer = await (await somebody(door, "chief")).ask(api, version, **values)
        assert {*codes_in(answer)} == {0}, answer
        assert changed() == before + 1

    run(body, mode=mode)


def test_users_and_rules_are_there_after_a_restart() -> None:
    store = MemoryStore()

    async def before(door: Door) -> None:
        guard = await guard_door(door, store=store)
        await guard.users.create("bob", Secret(b"secret"))
        await guard.rules.create([allow("bob", WRITE, Kind.TOPIC, "t")])
        await guard.stop()

    async def after(door: Door) -> None:
        await door.topic()
        guard = await guard_door(door, store=store)
        for mechanism in MECHANISMS:
            bob = await somebody(door, "bob", mechanism)
            assert (await bob.produce(batch_of(b"x")))["error_code"] == 0
            assert set(codes_in(await bob.fetch())) == {0, T}
        await guard.stop()

    with_door(before)
    with_door(after)
