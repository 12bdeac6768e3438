"""What is changed of users and rules at one broker is in force at the connections of another, and with the store away
the last of it stays and nothing is changed."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.doors.kafka import Door, batch_of, open_door
from tests.doors.logins import SHA_256, allow, guard_door, has_ended, log_in, somebody, stranger
from tests.unit.protocols.kafka.test_denied import CASES

from penstock.engine.access import Kind, Operation
from penstock.security.guard import Guard
from penstock.security.rules import Effect, Filter, Match
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import SimulatedEtcd
from penstock.testing.virtual_clock import run_virtual

T, FAILED = 29, 58
NOT_NOW = {5, 7, 8, 14, 15}
"""Codes that say to try again later."""
SOON_S = 1.0
Body = Callable[[SimulatedEtcd, tuple[Door, Guard], tuple[Door, Guard]], Awaitable[None]]


def run(body: Body) -> None:
    """With alice, who may write to topic t and change users and rules."""

    async def broker(etcd: SimulatedEtcd, name: str) -> tuple[Door, Guard]:
        door = await open_door()
        await door.topic()
        return door, await guard_door(door, store=etcd.client(name))

    async def main() -> None:
        etcd = SimulatedEtcd()
        here, there = await broker(etcd, "1"), await broker(etcd, "2")
        await here[1].users.create("alice", Secret(b"secret"))
        await here[1].rules.create(
            [
                allow("alice", Operation.WRITE, Kind.TOPIC, "t"),
                allow("alice", Operation.ALTER, Kind.CLUSTER, "kafka-cluster"),
            ]
        )
        await asyncio.sleep(SOON_S)
        await body(etcd, here, there)
        for _, guard in (here, there):
            await guard.stop()

    run_virtual(main, 1)


def test_a_rule_changed_here_is_in_force_there() -> None:
    async def body(etcd: SimulatedEtcd, here: tuple[Door, Guard], there: tuple[Door, Guard]) -> None:
        client = await somebody(there[0], "alice")
        assert (await client.produce(batch_of(b"x")))["error_code"] == 0
        denied = allow("alice", Operation.WRITE, Kind.TOPIC, "t", effect=Effect.DENY)
        await here[1].rules.create([denied])
        await asyncio.sleep(SOON_S)
        assert (await client.produce(batch_of(b"x")))["error_code"] == T
        await here[1].rules.delete([Filter(None, None, None, None, Match.ANY, None, Effect.DENY)])
        await asyncio.sleep(SOON_S)
        assert (await client.produce(batch_of(b"x")))["error_code"] == 0

    run(body)


def test_a_user_removed_here_is_sent_away_there() -> None:
    async def body(etcd: SimulatedEtcd, here: tuple[Door, Guard], there: tuple[Door, Guard]) -> None:
        await here[1].users.create("bob", Secret(b"secret"))
        await asyncio.sleep(SOON_S)
        for user, change in (
            ("alice", here[1].users.set_password("alice", Secret(b"other"))),
            ("bob", here[1].users.delete("bob")),
        ):
            client = await somebody(there[0], user)
            await change
            begun = there[0].clock.monotonic()
            assert await has_ended(client)
            assert there[0].clock.monotonic() - begun < SOON_S
            assert (await log_in(await stranger(there[0]), SHA_256, user))[-1]["error_code"] == FAILED

    run(body)


def test_with_the_store_away_the_last_rules_stay_and_changes_fail() -> None:
    async def body(etcd: SimulatedEtcd, here: tuple[Door, Guard], there: tuple[Door, Guard]) -> None:
        client = await somebody(there[0], "alice")
        etcd.down = True
        await asyncio.sleep(60)
        late = await somebody(there[0], "alice")
        for each in (client, late):
            assert (await each.produce(batch_of(b"x")))["error_code"] == 0
            assert T in {row["error_code"] for row in (await each.fetch())["responses"][0]["partitions"]}
        for api in ("create_acls", "alter_user_scram_credentials"):
            version, values, *_ = CASES[api][0]
            (row,) = (await client.ask(api, version, **values))["results"]
            assert row["error_code"] in NOT_NOW, (api, row)
            assert row["error_message"]
        etcd.down = False
        await asyncio.sleep(15)
        version, values, *_ = CASES["create_acls"][0]
        (row,) = (await client.ask("create_acls", version, **values))["results"]
        assert row["error_code"] == 0

    run(body)
